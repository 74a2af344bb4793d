"""What a config says and a GGUF file has in another form: values that no single key of the file holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textgen.gguf.facts import Facts

SOFTMAX, SIGMOID = 1, 2  # how routers score, in llama.cpp's numbers


def gemma_scale(layers: int) -> Callable[[Facts], dict[str, Any]]:
    """The largest model of a family scales scores by the size its heads would have if they had none of their own."""

    def derive(facts: Facts) -> dict[str, Any]:
        if facts.integer("block_count") == layers:
            return {"query_pre_attn_scalar": facts.integer("embedding_length") // facts.heads}
        return {"query_pre_attn_scalar": facts.head_dim}

    return derive


def falcon(facts: Facts) -> dict[str, Any]:
    """Which of the two forms it is."""
    one = facts.kv_heads == 1
    return {
        "new_decoder_architecture": not one,
        "multi_query": one,
        "num_kv_heads": facts.kv_heads,
        "num_ln_in_parallel_attn": 2 if facts.has("blk.0.attn_norm_2.weight") else 1,
        "bias": facts.has("blk.0.attn_qkv.bias"),
    }


def mpt(facts: Facts) -> dict[str, Any]:
    """The section of its attention."""
    if facts.optional_number("attention.max_alibi_bias") != 8.0:
        raise facts.refusal("attention.max_alibi_bias", "8")
    clip = facts.optional_number("attention.clamp_kqv")
    return {"attn_config": {"clip_qkv": clip}, "expansion_ratio": _ratio(facts)}


def bloom(facts: Facts) -> dict[str, Any]:
    """Nothing: its MLP has one width."""
    if _ratio(facts) != 4:
        raise facts.refusal("feed_forward_length", f"{4 * facts.integer('embedding_length')}")
    return {}


def query_bias(facts: Facts) -> dict[str, Any]:
    """Queries are stored apart or with keys and values."""
    return {"attention_bias": facts.has("blk.0.attn_q.bias") or facts.has("blk.0.attn_qkv.bias")}


def deepseek(facts: Facts) -> dict[str, Any]:
    """V2 or V3, by how its router scores; and the sizes of heads, which older files state in another place."""
    rotated = facts.integer("rope.dimension_count")
    key, value = (facts.get(f"attention.{name}_length_mla") or facts.integer(f"attention.{name}_length")
                  for name in ("key", "value"))  # fmt: skip
    for name in ("key", "value"):
        facts.get(f"attention.{name}_length")
    if not isinstance(key, int) or key <= rotated:
        raise facts.refusal("attention.key_length_mla", f"more than the {rotated} numbers that are rotated")
    values = {
        "q_lora_rank": facts.get("attention.q_lora_rank"),
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": value,
    }
    if _score(facts, SOFTMAX) == SOFTMAX:
        normed = {"norm_topk_prob": True} if facts.get("expert_weights_norm") else {}
        groups = _groups(facts)
        method = "group_limited_greedy" if groups["n_group"] > 1 else "greedy"
        return {**values, **normed, **groups, "topk_method": method}
    return {**values, "architectures": ["DeepseekV3ForCausalLM"], "rope_interleave": True, **_corrected(facts)}


def glm4_moe(facts: Facts) -> dict[str, Any]:
    """Its router, which is DeepSeek V3's."""
    if _score(facts, SIGMOID) != SIGMOID:
        raise facts.refusal("expert_gating_func", f"{SIGMOID}, a sigmoid")
    return _corrected(facts)


def exaone4(facts: Facts) -> dict[str, Any]:
    """Its windows, where it has some."""
    window = facts.get("attention.sliding_window") or None
    return {"sliding_window": window, **(_kinds(facts) if window else {})}


def olmo3(facts: Facts) -> dict[str, Any]:
    """OLMo 2 with windows is OLMo 3."""
    window = facts.get("attention.sliding_window")
    if not window:
        return {}
    return {"architectures": ["Olmo3ForCausalLM"], "sliding_window": window, **_kinds(facts)}


def _kinds(facts: Facts) -> dict[str, Any]:
    """Which layers have windows, where the file says so."""
    local = facts.by_layer("attention.sliding_window_pattern")
    if local is None:
        return {}
    return {"layer_types": ["sliding_attention" if each else "full_attention" for each in local]}


def _score(facts: Facts, default: int) -> int:
    score = facts.get("expert_gating_func") or default
    if score not in (SOFTMAX, SIGMOID):
        raise facts.refusal("expert_gating_func", f"{SOFTMAX}, a softmax, or {SIGMOID}, a sigmoid")
    return int(score)


def _corrected(facts: Facts) -> dict[str, Any]:
    return {"norm_topk_prob": bool(facts.get("expert_weights_norm")), **_groups(facts)}


def _groups(facts: Facts) -> dict[str, Any]:
    """One of all experts where the file names none: files were written so before there was a key for them."""
    return {"n_group": facts.get("expert_group_count") or 1, "topk_group": facts.get("expert_group_used_count") or 1}


def _ratio(facts: Facts) -> int:
    """How many times as wide as the rest the MLP is."""
    inner, hidden = facts.integer("feed_forward_length"), facts.integer("embedding_length")
    if inner % hidden:
        raise facts.refusal("feed_forward_length", f"a multiple of {hidden}")
    return inner // hidden
