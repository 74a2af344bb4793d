"""Writes the Hugging Face model folder; every file appears whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tools.demo_model.network import Network, Shape
from tools.demo_model.tokenizer import MAX_LENGTH


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_LENGTH,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def save_configs(shape: Shape, folder: Path) -> None:
    """Write ``config.json`` and ``generation_config.json``."""
    _write_json(folder / "config.json", _config(shape))
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    _write_json(folder / "generation_config.json", {"_from_model_config": True, **ids})


def save_weights(network: Network, folder: Path) -> None:
    """Write ``model.safetensors`` in bfloat16. The tied output matrix is not stored twice."""
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in network.state_dict().items()}
    partial = folder / "model.safetensors.partial"
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.chmod(0o644)
    os.replace(partial, folder / "model.safetensors")
