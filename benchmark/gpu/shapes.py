"""Models of well-known shapes with random weights, made on the GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from textgen.layers.weight import LoadContext, Part
from textgen.models.config import Config
from textgen.models.decoder import Decoder, load_decoder
from textgen.models.registry import describe
from textgen.ops import Ops
from textgen.parallel import Parallel

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "max_position_embeddings": 131072, "vocab_size": 128256,
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
}  # fmt: skip


class RandomWeights:
    """See `WeightSource`: small random numbers."""

    def read(self, part: Part, into: Tensor) -> None:
        into.normal_(std=0.02)

    def has(self, name: str) -> bool:
        return True

    def skip(self, part: Part) -> None:
        return None

    def read_bytes(self, name: str, shape: tuple[int, ...], index: int) -> Tensor:
        raise NotImplementedError("no shape here has weights stored as bytes")


def make_model(config: dict[str, Any], dtype: torch.dtype, there: torch.device, length: int, ops: Ops) -> Decoder:
    """A decoder of that configuration for sequences of up to `length` tokens."""
    described = describe(Config(config))
    context = LoadContext(RandomWeights(), dtype, there, Parallel())
    return load_decoder(described.spec, described.names, context, length, ops)


def read_bytes(config: dict[str, Any], size: int) -> int:
    """Bytes of the weights that each step reads: all but an embedding that is not the head too."""
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    width = hidden // config["num_attention_heads"]
    attention = hidden * width * 2 * (config["num_attention_heads"] + config["num_key_value_heads"])
    layer = attention + 3 * hidden * mlp + 2 * hidden
    return int(size * (config["num_hidden_layers"] * layer + config["vocab_size"] * hidden + hidden))


def kv_bytes(config: dict[str, Any], size: int) -> int:
    """Bytes of keys and values of one token."""
    width = config["hidden_size"] // config["num_attention_heads"]
    return int(2 * size * config["num_hidden_layers"] * config["num_key_value_heads"] * width)


def prompt_flops(config: dict[str, Any], tokens: int) -> float:
    """Multiplications and additions of a prompt's layers, attention included; of the head those of one token."""
    layers = (read_bytes(config, 1) - config["vocab_size"] * config["hidden_size"]) * 2.0 * tokens
    attention = 2.0 * config["num_hidden_layers"] * config["hidden_size"] * tokens * tokens  # half of it is hidden
    return float(layers + attention + 2.0 * config["vocab_size"] * config["hidden_size"])
