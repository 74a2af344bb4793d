"""Each architecture that GGUF files may have, with the switches that such a file can say."""

from __future__ import annotations

from typing import Any

from ..models.families import LINEAR, PLAIN, TYPES, YARN
from .writer import Case

BOTH = ({"attention_bias": False}, {"attention_bias": True})


def _part(share: float) -> dict[str, Any]:
    return {"rope_parameters": {**PLAIN, "partial_rotary_factor": share}}


def _yarn(config: Any) -> dict[str, Any]:
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    if rope.get("rope_type") == "linear":
        return {"rope.scaling.type": "linear", "rope.scaling.factor": rope["factor"]}
    if rope.get("rope_type") != "yarn":
        return {}
    sharpened = {"rope.scaling.yarn_log_multiplier": 0.1 * rope["mscale_all_dim"]} if "mscale_all_dim" in rope else {}
    return {
        **sharpened,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
    }


def _experts(config: Any) -> dict[str, Any]:
    count = getattr(config, "num_experts", None) or config.num_local_experts
    values = {"expert_count": count, "expert_used_count": config.num_experts_per_tok}
    if hasattr(config, "moe_intermediate_size"):
        values["expert_feed_forward_length"] = config.moe_intermediate_size
    if hasattr(config, "shared_expert_intermediate_size"):
        values["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    return values


def _dense_first(config: Any) -> dict[str, Any]:
    """What DeepSeek's mixtures and those after them state."""
    values = {
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "leading_dense_block_count": config.first_k_dense_replace,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_weights_norm": bool(config.norm_topk_prob),
    }
    groups = {"expert_group_count": config.n_group, "expert_group_used_count": config.topk_group}
    return {**values, **(groups if config.n_group else {})}


def _latent(config: Any, older: bool = False) -> dict[str, Any]:
    whole, rank = config.qk_nope_head_dim + config.qk_rope_head_dim, config.kv_lora_rank
    sizes = {"attention.key_length": whole, "attention.value_length": config.v_head_dim}
    if not older:
        sizes = {
            "attention.key_length": rank + config.qk_rope_head_dim, "attention.key_length_mla": whole,
            "attention.value_length": rank, "attention.value_length_mla": config.v_head_dim,
            "attention.head_count_kv": 1,
        }  # fmt: skip
    queries = {"attention.q_lora_rank": config.q_lora_rank} if config.q_lora_rank else {}
    return {**_dense_first(config), **_yarn(config), **sizes, **queries, "attention.kv_lora_rank": rank,
            "rope.dimension_count": config.qk_rope_head_dim}  # fmt: skip


def _windows(config: Any) -> dict[str, Any]:
    if not config.sliding_window:
        return {}
    local = [kind == "sliding_attention" for kind in config.layer_types]
    return {"attention.sliding_window": config.sliding_window, "attention.sliding_window_pattern": local}


def _granite(config: Any) -> dict[str, Any]:
    return {
        "embedding_scale": config.embedding_multiplier, "residual_scale": config.residual_multiplier,
        "attention.scale": config.attention_multiplier, "logit_scale": config.logits_scaling,
    }  # fmt: skip


SHARP = {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}

CASES = {
    "arcee": Case("arcee", "ArceeForCausalLM", ({"head_dim": 24}, {"attention_bias": True, "mlp_bias": True}),
                  permuted=True),
    "gpt-oss": Case(
        "gpt-oss",
        "GptOssForCausalLM",
        ({"head_dim": 24, "rope_parameters": {**YARN, "truncate": False}},),
        extra=lambda c: {**_yarn(c), **_experts(c), "expert_feed_forward_length": c.intermediate_size,
                         "attention.sliding_window": c.sliding_window},
    ),
    "seed_oss": Case("seed_oss", "SeedOssForCausalLM", ({"head_dim": 24, "attention_bias": True},
                                                        {"attention_out_bias": True, "attention_bias": True})),
    "bloom": Case("bloom", "BloomForCausalLM", ({"n_head": 4}, {"n_head": 6}), grouped="query_key_value"),
    "chatglm": Case("chatglm", "GlmForCausalLM", ({"head_dim": 16, "attention_bias": True}, {"head_dim": 24})),
    "cohere2": Case(
        "cohere2",
        "Cohere2ForCausalLM",
        ({"sliding_window": 5}, {"sliding_window": 40}),
        extra=lambda c: {"logit_scale": c.logit_scale, "attention.sliding_window": c.sliding_window},
    ),
    "command-r": Case(
        "command-r",
        "CohereForCausalLM",
        ({"use_qk_norm": True}, {"use_qk_norm": False, "logit_scale": 0.5}),
        extra=lambda c: {"logit_scale": c.logit_scale},
    ),
    "deepseek2": Case(
        "deepseek2",
        "DeepseekV2ForCausalLM",
        ({"topk_method": "greedy", "q_lora_rank": None, "rope_parameters": SHARP},
         {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "q_lora_rank": 20,
          "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "rope_parameters": YARN}),
        apart=True,
        extra=_latent,
    ),
    "deepseek2 as it was": Case(
        "deepseek2", "DeepseekV2ForCausalLM",
        ({"topk_method": "greedy", "q_lora_rank": 20, "first_k_dense_replace": 1},),
        extra=lambda c: _latent(c, older=True),
    ),
    "deepseek2 of V3": Case(
        "deepseek2",
        "DeepseekV3ForCausalLM",
        ({"q_lora_rank": 20, "rope_parameters": SHARP}, {"first_k_dense_replace": 0, "norm_topk_prob": False}),
        apart=True,
        extra=lambda c: {**_latent(c), "expert_gating_func": 2},
    ),
    "exaone4": Case(
        "exaone4",
        "Exaone4ForCausalLM",
        ({"sliding_window": None, "layer_types": ["full_attention"] * 4, "head_dim": 24},
         {"sliding_window": 9, "layer_types": [*TYPES, "full_attention"]}),
        extra=_windows,
    ),
    "falcon": Case(
        "falcon",
        "FalconForCausalLM",
        (
            {"new_decoder_architecture": True, "num_kv_heads": 2},
            {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
            {"multi_query": True},
        ),
        grouped="query_key_value",
        extra=lambda c: {
            "attention.head_count_kv": c.num_kv_heads if c.new_decoder_architecture else 1,
            "feed_forward_length": c.ffn_hidden_size,
        },
    ),
    "gemma": Case("gemma", "GemmaForCausalLM", ({"head_dim": 16}, {"head_dim": 24}), one_more=True),
    "gemma2": Case(
        "gemma2",
        "Gemma2ForCausalLM",
        ({"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 5},
         {"head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 40, "attn_logit_softcapping": 2.0}),
        one_more=True,
        extra=lambda c: {
            "attention.sliding_window": c.sliding_window,
            "attn_logit_softcapping": c.attn_logit_softcapping,
            "final_logit_softcapping": c.final_logit_softcapping,
        },
    ),
    "gemma3": Case(
        "gemma3",
        "Gemma3ForCausalLM",
        ({"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 5, "num_hidden_layers": 7},
         {"head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 40, "num_hidden_layers": 7,
          "rope_parameters": {"full_attention": LINEAR, "sliding_attention": PLAIN}}),
        one_more=True,
        extra=lambda c: {
            "attention.sliding_window": c.sliding_window,
            **({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
               if c.rope_parameters["full_attention"]["rope_type"] == "linear" else {}),
        },
    ),
    "glm4": Case("glm4", "Glm4ForCausalLM", ({"head_dim": 16, "attention_bias": True}, {"head_dim": 24})),
    "glm4moe": Case(
        "glm4moe",
        "Glm4MoeForCausalLM",
        ({"use_qk_norm": True, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2},
         {"attention_bias": True, "first_k_dense_replace": 0, "n_shared_experts": 2, "norm_topk_prob": False}),
        extra=lambda c: {**_dense_first(c), "expert_gating_func": 2, "block_count": c.num_hidden_layers + 1,
                         "nextn_predict_layers": 1},
    ),
    "gpt2": Case("gpt2", "GPT2LMHeadModel", ({"n_inner": 72}, {}), transposed=r"(c_attn|c_proj|c_fc)\.weight",
                 extra=lambda c: {"feed_forward_length": c.n_inner or 4 * c.n_embd}),
    "gptneox": Case(
        "gptneox",
        "GPTNeoXForCausalLM",
        ({"use_parallel_residual": True, **_part(0.25)}, {"use_parallel_residual": False, **_part(0.5)}),
        grouped="query_key_value",
        extra=lambda c: {"use_parallel_residual": c.use_parallel_residual},
    ),
    "granite": Case(
        "granite",
        "GraniteForCausalLM",
        ({"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.3, "logits_scaling": 2.0},
         {"attention_bias": True, "mlp_bias": True}),
        permuted=True,
        extra=_granite,
    ),
    "granitemoe": Case(
        "granitemoe",
        "GraniteMoeForCausalLM",
        ({"num_local_experts": 4, "embedding_multiplier": 3.0, "attention_multiplier": 0.3},),
        permuted=True,
        extra=lambda c: {**_granite(c), **_experts(c)},
    ),
    "granitemoe with a shared expert": Case(
        "granitemoe",
        "GraniteMoeSharedForCausalLM",
        ({"num_local_experts": 4, "shared_intermediate_size": 48, "attention_multiplier": 0.3},),
        permuted=True,
        extra=lambda c: {**_granite(c), **_experts(c),
                         "expert_shared_feed_forward_length": c.shared_intermediate_size},
    ),
    "llama": Case(
        "llama",
        "LlamaForCausalLM",
        ({"head_dim": 24}, {"tie_word_embeddings": True, "num_key_value_heads": 4},
         {"attention_bias": True, "mlp_bias": True, "rope_parameters": LINEAR}, {"rope_parameters": YARN}),
        permuted=True,
        extra=_yarn,
    ),
    "llama with experts": Case(
        "llama", "MixtralForCausalLM", ({"num_local_experts": 4}, {"num_local_experts": 7, "num_experts_per_tok": 3}),
        permuted=True, extra=_experts,
    ),
    "mpt": Case(
        "mpt",
        "MptForCausalLM",
        ({"n_heads": 4}, {"n_heads": 6, "attn_config": {"clip_qkv": 1.5}}),
        extra=lambda c: {
            "attention.max_alibi_bias": 8.0, "feed_forward_length": c.expansion_ratio * c.d_model,
            "context_length": c.max_seq_len,
            **({"attention.clamp_kqv": c.attn_config.clip_qkv} if c.attn_config.clip_qkv else {}),
        },
    ),
    "nemotron": Case("nemotron", "NemotronForCausalLM", ({"head_dim": 16}, {"attention_bias": True, "mlp_bias": True}),
                     one_more=True),
    "olmo": Case("olmo", "OlmoForCausalLM", ({"clip_qkv": 1.5}, {}), permuted=True,
                 extra=lambda c: {"attention.clamp_kqv": c.clip_qkv} if c.clip_qkv else {}),
    "olmo2": Case("olmo2", "Olmo2ForCausalLM", BOTH),
    "olmo2 with windows": Case(
        "olmo2",
        "Olmo3ForCausalLM",
        ({"sliding_window": 9, "rope_parameters": {"full_attention": YARN, "sliding_attention": PLAIN}},
         {"sliding_window": 40, "layer_types": [*TYPES, "full_attention"]}),
        extra=lambda c: {**_windows(c), **_yarn(c)},
    ),
    "olmoe": Case(
        "olmoe", "OlmoeForCausalLM", ({"norm_topk_prob": False}, {"norm_topk_prob": False, "clip_qkv": 1.5}),
        extra=lambda c: {**_experts(c), **({"attention.clamp_kqv": c.clip_qkv} if c.clip_qkv else {})},
    ),
    "phi2": Case("phi2", "PhiForCausalLM", (_part(0.5), {**_part(0.25), "num_key_value_heads": 4})),
    "phi3": Case(
        "phi3",
        "Phi3ForCausalLM",
        ({"sliding_window": 7}, {"sliding_window": None, **_part(0.75)}),
        extra=lambda c: {"attention.sliding_window": c.sliding_window or 0},
    ),
    "qwen2": Case("qwen2", "Qwen2ForCausalLM", ({}, {"tie_word_embeddings": True, "rope_parameters": YARN}),
                  extra=_yarn),
    "qwen2moe": Case("qwen2moe", "Qwen2MoeForCausalLM", ({"norm_topk_prob": False},), extra=_experts),
    "qwen3": Case("qwen3", "Qwen3ForCausalLM", ({"head_dim": 24}, {"tie_word_embeddings": True})),
    "qwen3moe": Case("qwen3moe", "Qwen3MoeForCausalLM", ({"norm_topk_prob": True, "head_dim": 24},), extra=_experts),
    "smollm3": Case("smollm3", "SmolLM3ForCausalLM", ({"num_hidden_layers": 4}, {"tie_word_embeddings": False}),
                    permuted=True),
    "stablelm": Case(
        "stablelm",
        "StableLmForCausalLM",
        ({"use_qkv_bias": True}, {"qk_layernorm": True, "use_parallel_residual": True}),
        extra=lambda c: {"use_parallel_residual": c.use_parallel_residual},
    ),
    "starcoder": Case("starcoder", "GPTBigCodeForCausalLM", ({"multi_query": True}, {"multi_query": False}),
                      grouped="c_attn",
                      extra=lambda c: {"attention.head_count_kv": 1 if c.multi_query else c.n_head}),
    "starcoder2": Case("starcoder2", "Starcoder2ForCausalLM", ({}, {"use_bias": False, "tie_word_embeddings": False})),
}  # fmt: skip
