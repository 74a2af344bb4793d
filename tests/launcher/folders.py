"""Model folders made by hand: a config, a tokenizer file and safetensors headers, without any library."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": 100,
}
SIZES = {"F32": 4, "BF16": 2, "F16": 2}
TENSORS = {"model.embed_tokens.weight": [100, 64], "model.norm.weight": [64]}


def safetensors(tensors: Mapping[str, list[int]], dtype: str = "F32") -> bytes:
    """A file of zeros in safetensors format."""
    header, offset = {}, 0
    for name, shape in tensors.items():
        length = math.prod(shape) * SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + length]}
        offset += length
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(offset)


def make_folder(folder: Path, *, dtype: str = "F32", **changes: Any) -> Path:
    """A folder that the launcher takes; `changes` are merged into its config, None removes a key."""
    folder.mkdir(exist_ok=True)
    config = {key: value for key, value in (CONFIG | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(safetensors(TENSORS, dtype))
    return folder
