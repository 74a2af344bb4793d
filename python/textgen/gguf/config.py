"""The config.json that a GGUF file's model would have."""

from __future__ import annotations

import math
import re
from typing import Any

from textgen.gguf.architectures import ARCHITECTURES, Architecture
from textgen.gguf.errors import GgufError
from textgen.gguf.facts import THETA, Facts
from textgen.gguf.file import GgufModel
from textgen.gguf.index import StoredTensor

_BLOCK = re.compile(r"blk\.(\d+)\.")
OPTIONAL = {"num_key_value_heads"}  # in every architecture


def architecture_of(name: str, experts: bool) -> Architecture | None:
    """The row of the table."""
    found = ARCHITECTURES.get(name)
    return found.experts if found is not None and experts and found.experts is not None else found


def config_of(model: GgufModel) -> dict[str, Any]:
    """Its values. Raises `GgufError` with what cannot be served."""
    name = model.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise GgufError(f"{model.path}: GGUF architecture {name!r} is not supported; supported are {known}")
    facts = Facts(model, name)
    experts = bool(facts.get("expert_count"))
    facts.get("expert_used_count")
    row = architecture_of(name, experts)
    assert row is not None
    if "token_embd.weight" not in model.tensors:
        raise GgufError(f"{model.path} has no tensor 'token_embd.weight'; give the file of a language model")
    values = {
        "architectures": [row.family],
        "vocab_size": model.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": not facts.has("output.weight"),
    }
    for into, key in row.keys.items():
        value = facts.get(key) if into in OPTIONAL else facts.required(key)
        if value is not None:
            values[into] = value
    layers = next(into for into, key in row.keys.items() if key == "block_count")
    values[layers] = facts.layers
    values |= {into: value for into, key in row.optional.items() if (value := facts.get(key)) not in (None, 0)}
    values |= {into: facts.has(tensor) for into, tensor in row.tensors.items()}
    values |= {**row.fixed, **row.derive(facts)}
    if not row.latent:
        values["head_dim"] = facts.head_dim
    values |= _rotation(facts, row, facts.integer("rope.dimension_count") if row.latent else facts.head_dim)
    if not experts:
        for key in ("expert_count", "expert_used_count"):
            if facts.get(key):
                raise facts.refusal(key, "0")
    elif row.experts is None and "expert_count" not in row.keys.values():
        raise facts.refusal("expert_count", "0")
    for key in ("embedding_length", "block_count", "context_length", "feed_forward_length", "attention.head_count_kv"):
        facts.get(key)
    if facts.get("attention.causal") is False:
        raise facts.refusal("attention.causal", "true")
    facts.refuse_unknown()
    return values


def tensors_of(model: GgufModel) -> dict[str, StoredTensor]:
    """Its tensors, without those of blocks that draft tokens: nothing here drafts by them."""
    facts = Facts(model, model.metadata["general.architecture"])
    if not facts.get("nextn_predict_layers"):
        return dict(model.tensors)
    last = facts.layers
    blocks = {name: _BLOCK.match(name) for name in model.tensors}
    return {name: model.tensors[name] for name, block in blocks.items() if block is None or int(block[1]) < last}


def _rotation(facts: Facts, row: Architecture, head_dim: int) -> dict[str, Any]:
    """The rotary form."""
    dim = facts.get("rope.dimension_count") or head_dim
    if row.rotated == "none":
        facts.get("rope.freq_base")
        return {}
    theta = facts.optional_number("rope.freq_base") or THETA
    values: dict[str, Any] = {"rope_theta": float(theta)}
    if row.rotated == "part":
        share = dim / head_dim
        values["partial_rotary_factor"] = share if int(head_dim * share) == dim else math.nextafter(share, 2.0)
    elif dim != head_dim:
        raise facts.refusal("rope.dimension_count", f"{head_dim}, all of a head")
    scaling = _scaling(facts, row.latent)
    return values | ({} if scaling is None else {"rope_scaling": {**scaling, **row.rotary}})


def _scaling(facts: Facts, latent: bool) -> dict[str, Any] | None:
    kind, factor = facts.get("rope.scaling.type"), facts.optional_number("rope.scaling.factor")
    original = facts.get("rope.scaling.original_context_length") or facts.integer("context_length")
    attention = facts.optional_number("rope.scaling.attn_factor") or 1.0
    betas = {"beta_fast": "rope.scaling.yarn_beta_fast", "beta_slow": "rope.scaling.yarn_beta_slow"}
    turns = {name: value for name, key in betas.items() if (value := facts.optional_number(key))}
    if (old := facts.optional_number("rope.scale_linear")) and kind is None:
        kind, factor = "linear", old
    short, long = facts.floats("rope_factors_short.weight"), facts.floats("rope_factors_long.weight")
    whole = facts.floats("rope_freqs.weight")
    if whole is not None or (short is not None and long is not None):
        # A divisor for each frequency: llama 3's are worked out in the file, long rope's are the model's own.
        return {
            "rope_type": "longrope",
            "short_factor": short or whole,
            "long_factor": long or whole,
            "attention_factor": attention,
            "original_max_position_embeddings": original,
        }
    if kind in (None, "none") or (kind == "linear" and factor in (None, 1.0)):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn" and factor is not None:
        values = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, **turns}
        if latent and (weight := facts.optional_number("rope.scaling.yarn_log_multiplier")):
            if attention != 1.0:
                raise facts.refusal("rope.scaling.attn_factor", "1")
            # Scores are sharpened instead of what is rotated: by a tenth of this times the logarithm of the factor.
            return {**values, "mscale": 10 * weight, "mscale_all_dim": 10 * weight}
        stretch = 0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0
        return {**values, "attention_factor": attention * stretch}
    raise facts.refusal("rope.scaling.type", "none, linear, yarn with a factor, or longrope with its tensors")
