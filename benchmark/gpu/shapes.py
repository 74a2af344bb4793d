"""Well-known shapes, what they compute, and what of a model a step reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from textgen.layers.weight import Weight
from textgen.models.decoder import Decoder

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "max_position_embeddings": 131072, "vocab_size": 128256, "torch_dtype": "bfloat16",
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "llama-8b": _LLAMA | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "tie_word_embeddings": False,
    },
    "llama-1b": _LLAMA | {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "tie_word_embeddings": True,
    },
    "tiny": _LLAMA | {  # to rehearse with
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "tie_word_embeddings": True, "vocab_size": 2304, "max_position_embeddings": 4096,
    },
}  # fmt: skip
FORMS = ("bf16", "int8", "int4", "fp8")
FULL_SIZE = ("llama-8b", "llama-1b")


def layer_numbers(config: dict[str, Any]) -> int:
    """Of the matrices of all layers."""
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    width = hidden // config["num_attention_heads"]
    attention = hidden * width * 2 * (config["num_attention_heads"] + config["num_key_value_heads"])
    return int(config["num_hidden_layers"] * (attention + 3 * hidden * mlp))


def prompt_flops(config: dict[str, Any], tokens: int) -> float:
    """Multiplications and additions of a prompt's layers, attention included; of the head those of one token."""
    layers = layer_numbers(config) * 2.0 * tokens
    attention = 2.0 * config["num_hidden_layers"] * config["hidden_size"] * tokens * tokens  # half of it is hidden
    return float(layers + attention + 2.0 * config["vocab_size"] * config["hidden_size"])


def read_bytes(model: Decoder) -> int:
    """Bytes that a step reads of the weights as they are held: all but an embedding that is not the head too."""
    parts = (tuple(layer.block for layer in model.layers), model.norm, model.head)
    held = {tensor.data_ptr(): tensor.nbytes for tensor in _tensors(parts, set())}
    return sum(held.values())


def _tensors(part: object, seen: set[int]) -> Iterator[Tensor]:
    """Those that lie in a part of a model, however deep. Operations keep none of its own."""
    if isinstance(part, Tensor):
        yield part
        return
    if id(part) in seen:
        return
    seen.add(id(part))
    inner: list[object] = []
    if isinstance(part, (tuple, list)):
        inner = list(part)
    elif isinstance(part, dict):
        inner = list(part.values())
    elif dataclasses.is_dataclass(part):
        inner = [getattr(part, field.name) for field in dataclasses.fields(part)]
    elif isinstance(part, Weight):  # in a class of any kind
        slots = [name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ())]
        inner = [*getattr(part, "__dict__", {}).values(), *(getattr(part, name, None) for name in slots)]
    for each in inner:
        yield from _tensors(each, seen)
