"""The random models that CPUs are measured with, in every form that a program reads."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import load_file, save_file

from benchmark.startup.model import write, write_gguf

SHAPES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "S": {  # as SmolLM2-135M
            "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
            "intermediate_size": 1536, "vocab_size": 49_152,
        },
        "M": {  # as Llama-3.2-1B
            "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
            "intermediate_size": 8192, "vocab_size": 128_256,
        },
    }
)  # fmt: skip
POSITIONS = 8192
W8A8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {
                "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True,
            },
        }
    },
}  # fmt: skip


def folder_of(shape: str, folder: Path) -> Path:
    """The model in bfloat16 as Hugging Face has it, written unless it is there."""
    made = folder / shape
    if not (made / "config.json").exists():
        part = folder / f"{shape}.part"
        shutil.rmtree(part, ignore_errors=True)
        write(part, **SHAPES[shape], tie_word_embeddings=True, max_position_embeddings=POSITIONS)
        part.rename(made)
    return made


def gguf_of(shape: str, folder: Path) -> Path:
    """The same as a GGUF file in bfloat16."""
    made = folder / f"{shape}-bf16.gguf"
    if not made.exists():
        write_gguf(folder_of(shape, folder), made.with_suffix(".part")).rename(made)
    return made


def q8_of(shape: str, folder: Path) -> Path:
    """The same as a GGUF file of 8 bits, by llama.cpp's own program; missing where that was not built."""
    source, tool = gguf_of(shape, folder), folder / "llama.cpp" / "llama.cpp" / "bin" / "llama-quantize"
    made = folder / f"{shape}-Q8_0.gguf"
    if not made.exists() and tool.exists():
        part = made.with_suffix(".part")
        subprocess.run([tool, source, part, "Q8_0"], check=True, capture_output=True)
        part.rename(made)
    return made


def w8a8_of(shape: str, folder: Path) -> Path:
    """The same with 8-bit weights, a scale for each output, for activations of 8 bits (compressed-tensors)."""
    made, source = folder / f"{shape}-w8a8", folder_of(shape, folder)
    if made.exists():
        return made
    part = folder / f"{shape}-w8a8.part"
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(source, part, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors = {}
    for name, values in load_file(source / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = values
            continue
        scale = values.float().abs().amax(1, keepdim=True) / 127
        tensors[name] = (values / scale).round().to(torch.int8)
        tensors[f"{name}_scale"] = scale.bfloat16()
    save_file(tensors, part / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((part / "config.json").read_text())
    (part / "config.json").write_text(json.dumps(config | {"quantization_config": W8A8}))
    part.rename(made)
    return made
