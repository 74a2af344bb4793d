"""Tiny random Llama models as folders in Hugging Face format, with the built-in model's tokenizer and chat template."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

import textgen

BUILT_IN = Path(textgen.__file__).parent / "demo" / "model"
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
PAD, BOS, END = 0, 1, 2
MAX_POSITIONS = 2048

GATHERED = 2  # layers' worth of keys and values that the memory plan sets aside for attention
SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": MAX_POSITIONS, "pad_token_id": PAD, "bos_token_id": BOS,
    "eos_token_id": END, "tie_word_embeddings": False,
}  # fmt: skip

# Wavelengths on both sides of every border of the rule, at the lengths that the tests use.
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "rope_theta": 10_000.0,
}  # fmt: skip


@dataclass(frozen=True)
class Tiny:
    """A random model. `config` is what differs from a small Llama with grouped heads."""

    name: str
    seed: int
    config: dict[str, Any] = field(default_factory=dict)
    old_spelling: bool = False  # `rope_theta` and `rope_scaling` as files before Transformers 5 have them
    shard_size: str | None = None  # several safetensors files and an index

    def __str__(self) -> str:
        return self.name

    def pool_bytes(self, blocks: int, block_size: int) -> int:
        """`--kv-memory` for so many blocks: keys and values in float32, with what attention gathers beside them."""
        sizes = SIZES | self.config
        head_dim = sizes.get("head_dim", sizes["hidden_size"] // sizes["num_attention_heads"])
        row = 2 * sizes["num_key_value_heads"] * head_dim * 4
        return int(blocks * block_size * row * (sizes["num_hidden_layers"] + GATHERED))


GROUPED = Tiny("grouped-heads", 1)
_SHARP = ("q_proj.weight", "k_proj.weight", "o_proj.weight", "down_proj.weight")
VARIANTS = (
    Tiny("grouped-heads-sharded-files", 2, shard_size="150KB"),
    Tiny("one-kv-head-tied", 3, {"num_key_value_heads": 1, "tie_word_embeddings": True}, old_spelling=True),
    Tiny("one-kv-head-each-biases", 4, {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}),
    Tiny("rope-llama3", 5, {"rope_parameters": LLAMA3}),
    Tiny(
        "rope-llama3-old-spelling-tied-wide-heads", 6,
        {"rope_parameters": LLAMA3 | {"rope_theta": 500_000.0}, "tie_word_embeddings": True, "head_dim": 24},
        old_spelling=True,
    ),
)  # fmt: skip


def vocabulary_size() -> int:
    """Of the built-in tokenizer."""
    config = json.loads((BUILT_IN / "config.json").read_text())
    return int(config["vocab_size"])


def write_tiny(tiny: Tiny, folder: Path) -> Path:
    """Save the model in float32 below `folder`; the model's folder."""
    torch.manual_seed(tiny.seed)
    model = LlamaForCausalLM(LlamaConfig(**(SIZES | {"vocab_size": vocabulary_size()} | tiny.config)))
    _randomize(model)
    made = folder / tiny.name
    save(model, made, shard_size=tiny.shard_size)
    if tiny.old_spelling:
        _spell_as_before(made / "config.json")
    return made


def save(model: PreTrainedModel, folder: Path, shard_size: str | None = None) -> None:
    """Weights, configs and the built-in tokenizer and template."""
    assert model.generation_config is not None
    model.generation_config.eos_token_id, model.generation_config.bos_token_id = END, BOS
    model.save_pretrained(folder, max_shard_size=shard_size or "1GB")
    assert (folder / "model.safetensors.index.json").exists() == (shard_size is not None)
    copy_tokenizer(folder)


def copy_tokenizer(folder: Path) -> None:
    for name in TEXT_FILES:
        if (BUILT_IN / name).exists():
            shutil.copy(BUILT_IN / name, folder / name)


@torch.no_grad()
def _randomize(model: LlamaForCausalLM) -> None:
    """Weights of a size at which context decides: no token wins everywhere, and few logits are close to each other."""
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.uniform_(0.5, 1.5)
        elif name.endswith("bias"):
            weight.normal_(std=0.3)
        elif "embed_tokens" in name:
            weight.normal_(std=0.25 if model.config.tie_word_embeddings else 0.5)
        elif "lm_head" in name:
            weight.normal_(std=0.5)
        else:
            weight.normal_(std=(3.0 if name.endswith(_SHARP) else 1.0) / weight.shape[1] ** 0.5)
    model.tie_weights()


def _spell_as_before(path: Path) -> None:
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    path.write_text(json.dumps(config, indent=2))
