"""Well-known shapes, what they compute, and what of a model a step reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from benchmark.startup.model import shapes
from textgen.layers.experts import Experts
from textgen.layers.weight import Weight
from textgen.models.decoder import Decoder

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "max_position_embeddings": 131072, "vocab_size": 128256, "torch_dtype": "bfloat16",
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_MIXTURE: dict[str, Any] = _LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "max_position_embeddings": 40960, "tie_word_embeddings": False, "norm_topk_prob": True, "decoder_sparse_step": 1,
    "mlp_only_layers": [],
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
    "qwen-moe-8-layers": _MIXTURE | {  # of the 48 that Qwen3-30B-A3B has: 5.5 billion numbers
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 8, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768, "vocab_size": 151936,
    },
    "tiny": _LLAMA | {  # to rehearse with
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "tie_word_embeddings": True, "vocab_size": 2304, "max_position_embeddings": 4096,
    },
    "tiny-moe": _MIXTURE | {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "num_experts": 6, "num_experts_per_tok": 2,
        "moe_intermediate_size": 64, "vocab_size": 2304, "max_position_embeddings": 4096,
    },
}  # fmt: skip
FORMS = ("bf16", "int8", "int4", "fp8")
FULL_SIZE = ("llama-8b", "llama-1b", "qwen-moe-8-layers")


def is_mixture(config: Mapping[str, Any]) -> bool:
    return "num_experts" in config


def tensors_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what a checkpoint has."""
    if not is_mixture(config):
        return shapes(config)
    hidden, neurons, width = config["hidden_size"], config["moe_intermediate_size"], config["head_dim"]
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes(config).items():
        layer = name.partition(".self_attn.q_proj")[0]
        match name.rpartition("self_attn.")[2].removesuffix(".weight"):
            case "q_proj":
                found[name] = (config["num_attention_heads"] * width, hidden)
                found |= {f"{layer}.self_attn.{norm}.weight": (width,) for norm in ("q_norm", "k_norm")}
                found[f"{layer}.mlp.gate.weight"] = (config["num_experts"], hidden)
                for expert in range(config["num_experts"]):
                    of = f"{layer}.mlp.experts.{expert}"
                    found |= {f"{of}.{part}_proj.weight": (neurons, hidden) for part in ("gate", "up")}
                    found[f"{of}.down_proj.weight"] = (hidden, neurons)
            case "k_proj" | "v_proj":
                found[name] = (config["num_key_value_heads"] * width, hidden)
            case "o_proj":
                found[name] = (hidden, config["num_attention_heads"] * width)
            case other if ".mlp." not in other:
                found[name] = shape
    return found


def layer_numbers(config: dict[str, Any]) -> int:
    """Of the matrices of all layers, of experts those that a token is multiplied with."""
    hidden, mlp = config["hidden_size"], 3 * config["intermediate_size"]
    if is_mixture(config):
        mlp = 3 * config["moe_intermediate_size"] * config["num_experts_per_tok"] + config["num_experts"]
    attention = hidden * _head_dim(config) * 2 * (config["num_attention_heads"] + config["num_key_value_heads"])
    return int(config["num_hidden_layers"] * (attention + hidden * mlp))


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]))


def prompt_flops(config: dict[str, Any], tokens: int) -> float:
    """Multiplications and additions of a prompt's layers, attention included; of the head those of one token."""
    layers = layer_numbers(config) * 2.0 * tokens
    width = (
        config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]) * config["num_attention_heads"]
    )
    attention = 2.0 * config["num_hidden_layers"] * width * tokens * tokens  # half of it is hidden
    return float(layers + attention + 2.0 * config["vocab_size"] * config["hidden_size"])


def read_bytes(model: Decoder, tokens: int) -> int:
    """Bytes that a step of so many tokens reads of the weights as they are held: all but an embedding that is not the
    head too, and of experts as many as are chosen, if each token chooses its own at random."""
    held = _bytes((tuple(layer.block for layer in model.layers), model.norm, model.head))
    for layer in model.layers:
        mlp = getattr(layer.block, "mlp", None)
        if isinstance(mlp, Experts):
            chosen = 1 - (1 - mlp.spec.router.top_k / mlp.spec.count) ** tokens
            held -= int((1 - chosen) * _bytes((mlp.up, mlp.down)))
    return held


def _bytes(parts: object) -> int:
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in _tensors(parts, set())}.values())


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
