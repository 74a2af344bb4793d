"""For every family, tiny sizes and the switches of its config that a test draws from."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,  # logits far enough apart for greedy tokens to be well defined
}
NO_KV_HEADS = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
BARE = {name: value for name, value in NO_KV_HEADS.items() if name != "intermediate_size"}
GPT2_SIZES = {"vocab_size": 101, "n_positions": 256, "n_embd": 64, "n_layer": 3, "n_head": 4, "initializer_range": 0.2}
TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 500.0,
}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e4}
YARN_SCALED = {**YARN, "beta_fast": 8.0, "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 0.5}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
ROPES = [PLAIN, LINEAR, LLAMA3, YARN, YARN_SCALED]
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
}
BOTH = [False, True]
KV_HEADS = [1, 2, 4]


@dataclass(frozen=True)
class Tiny:
    """How to draw a tiny config: fixed sizes, and values to choose from for each switch."""

    config: str
    sizes: dict[str, Any] = field(default_factory=lambda: SIZES)
    switches: dict[str, list[Any]] = field(default_factory=dict)
    forms: tuple[dict[str, Any], ...] = ({},)  # switches that go together
    attention: str = "eager"  # the implementation of Transformers that knows soft caps and sinks

    def draw(self, rng: random.Random) -> dict[str, Any]:
        chosen = {name: rng.choice(values) for name, values in self.switches.items()}
        return {**self.sizes, **chosen, **rng.choice(self.forms)}


def longrope(dim: int) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.1 * i for i in range(dim // 2)],
        "long_factor": [1.5 + 0.7 * i for i in range(dim // 2)],
        "rope_theta": 1e4,
    }


TINY: dict[str, Tiny] = {
    "ArceeForCausalLM": Tiny("Arcee", switches={"mlp_bias": BOTH, "attention_bias": BOTH, "head_dim": [16, 24]}),
    "BloomForCausalLM": Tiny(
        "Bloom",
        {"vocab_size": 101, "hidden_size": 96, "n_layer": 3, "initializer_range": 0.2},
        {
            "n_head": [4, 6, 12],
        },
    ),
    "Cohere2ForCausalLM": Tiny("Cohere2", switches={"layer_types": [TYPES, None], "sliding_window": [5, 40]}),
    "CohereForCausalLM": Tiny(
        "Cohere", switches={"use_qk_norm": BOTH, "attention_bias": BOTH, "logit_scale": [0.0625, 0.5]}
    ),
    "DeepseekV2ForCausalLM": Tiny(
        "DeepseekV2",
        {**SIZES, **LATENT, "num_experts_per_tok": 2},
        {
            "q_lora_rank": [None, 20],
            "first_k_dense_replace": [0, 1],
            "n_shared_experts": [1, 2],
            "attention_bias": BOTH,
            "routed_scaling_factor": [1.0, 2.5],
            "rope_parameters": [PLAIN, YARN, YARN_SCALED],
        },
        ({"topk_method": "greedy"}, {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}),
    ),
    "DeepseekV3ForCausalLM": Tiny(
        "DeepseekV3",
        {**SIZES, **LATENT, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1},
        {
            "q_lora_rank": [None, 20],
            "first_k_dense_replace": [0, 1],
            "norm_topk_prob": BOTH,
            "rope_interleave": BOTH,
            "attention_bias": BOTH,
            "rope_parameters": [PLAIN, YARN, YARN_SCALED],
        },
        ({"n_group": 4, "topk_group": 2}, {"n_group": 1, "topk_group": 1}),
    ),
    "Exaone4ForCausalLM": Tiny(
        "Exaone4",
        {**SIZES, "num_hidden_layers": 4},
        {"head_dim": [16, 24]},
        (
            {"sliding_window": None, "layer_types": ["full_attention"] * 4},
            {"sliding_window": 9, "sliding_window_pattern": 2},
            {"sliding_window": 40, "layer_types": [*TYPES, "full_attention"]},
        ),
    ),
    "FalconForCausalLM": Tiny(
        "Falcon",
        {**BARE, "ffn_hidden_size": 96},
        {"bias": BOTH, "alibi": BOTH},
        tuple(
            {"new_decoder_architecture": True, "num_kv_heads": kv_heads, "num_ln_in_parallel_attn": norms}
            for kv_heads in KV_HEADS
            for norms in (None, 1, 2)
        )
        + tuple({"parallel_attn": parallel, "multi_query": one} for parallel in BOTH for one in BOTH),
        attention="sdpa",  # the eager one adds ALiBi twice
    ),
    "GPT2LMHeadModel": Tiny(
        "GPT2",
        GPT2_SIZES,
        {
            "n_inner": [None, 72],
            "activation_function": ["gelu_new", "relu"],
            "scale_attn_weights": BOTH,
            "scale_attn_by_inverse_layer_idx": BOTH,
        },
    ),
    "GPTBigCodeForCausalLM": Tiny("GPTBigCode", GPT2_SIZES, {"multi_query": BOTH, "n_inner": [None, 72]}),
    "GPTJForCausalLM": Tiny("GPTJ", {**GPT2_SIZES, "rotary_dim": 8}, {"rotary_dim": [4, 8, 16], "n_inner": [None, 72]}),
    "GPTNeoXForCausalLM": Tiny(
        "GPTNeoX",
        NO_KV_HEADS,
        {
            "use_parallel_residual": BOTH,
            "attention_bias": BOTH,
            "hidden_act": ["gelu", "gelu_fast"],
            "rope_parameters": [{**PLAIN, "partial_rotary_factor": part} for part in (0.25, 0.5, 1.0)],
        },
    ),
    "Gemma2ForCausalLM": Tiny(
        "Gemma2",
        switches={
            "head_dim": [16, 24],
            "sliding_window": [5, 40],
            "layer_types": [TYPES, None],
            "query_pre_attn_scalar": [16, 100],
            "attn_logit_softcapping": [50.0, 2.0, None],
            "final_logit_softcapping": [30.0, 3.0, None],
        },
    ),
    "Gemma3ForCausalLM": Tiny(
        "Gemma3Text",
        {**SIZES, "num_hidden_layers": 4},
        {
            "head_dim": [16, 24],
            "sliding_window": [5, 40],
            "layer_types": [[*TYPES, "full_attention"], None],
            "query_pre_attn_scalar": [16, 100],
            "rope_parameters": [None, {"full_attention": LINEAR, "sliding_attention": PLAIN}],
        },
    ),
    "GemmaForCausalLM": Tiny("Gemma", switches={"head_dim": [16, 24], "num_key_value_heads": KV_HEADS}),
    "Glm4ForCausalLM": Tiny("Glm4", {**SIZES, "pad_token_id": 0}, {"head_dim": [16, 24], "attention_bias": BOTH}),
    "Glm4MoeForCausalLM": Tiny(
        "Glm4Moe",
        {**SIZES, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16},
        {
            "first_k_dense_replace": [0, 1],
            "n_shared_experts": [1, 2],
            "use_qk_norm": BOTH,
            "attention_bias": BOTH,
            "norm_topk_prob": BOTH,
        },
        ({"n_group": 4, "topk_group": 2}, {"n_group": 1, "topk_group": 1}),
    ),
    "GlmForCausalLM": Tiny("Glm", {**SIZES, "pad_token_id": 0}, {"head_dim": [16, 24], "attention_bias": BOTH}),
    "GraniteForCausalLM": Tiny(
        "Granite",
        switches={
            "embedding_multiplier": [1.0, 3.0],
            "residual_multiplier": [1.0, 0.4],
            "attention_multiplier": [0.3, 0.1],
            "logits_scaling": [1.0, 2.0],
            "attention_bias": BOTH,
        },
    ),
    "GptOssForCausalLM": Tiny(
        "GptOss",
        {**SIZES, "head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 9},
        {
            "layer_types": [TYPES, None],
            "attention_bias": BOTH,
            "swiglu_limit": [7.0, 0.5],
            "rope_parameters": [{**YARN, "truncate": False}, PLAIN],
        },
    ),
    "GraniteMoeForCausalLM": Tiny(
        "GraniteMoe",
        switches={
            "num_local_experts": [4, 7],
            "num_experts_per_tok": [1, 2, 3],
            "attention_multiplier": [0.3, 0.1],
            "residual_multiplier": [1.0, 0.4],
            "attention_bias": BOTH,
        },
    ),
    "GraniteMoeSharedForCausalLM": Tiny(
        "GraniteMoeShared",
        switches={
            "num_local_experts": [4, 7],
            "num_experts_per_tok": [1, 3],
            "attention_multiplier": [0.3],
            "shared_intermediate_size": [0, 48],
        },
    ),
    "LlamaForCausalLM": Tiny(
        "Llama",
        switches={
            "num_key_value_heads": KV_HEADS,
            "head_dim": [16, 24],
            "tie_word_embeddings": BOTH,
            "attention_bias": BOTH,
            "mlp_bias": BOTH,
            "rope_parameters": ROPES,
            "vocab_size": [101, 77],
            "intermediate_size": [96, 61],
        },
    ),
    "MinistralForCausalLM": Tiny(
        "Ministral",
        {**SIZES, "head_dim": 16},
        {"sliding_window": [5, 40], "layer_types": [TYPES, None], "head_dim": [16, 24]},
    ),
    "MistralForCausalLM": Tiny("Mistral", switches={"sliding_window": [None, 7, 40], "head_dim": [16, 24]}),
    "MixtralForCausalLM": Tiny(
        "Mixtral",
        switches={
            "num_local_experts": [4, 7],
            "num_experts_per_tok": [1, 2, 3],
            "sliding_window": [None, 7],
            "intermediate_size": [96, 61],
        },
    ),
    "MptForCausalLM": Tiny(
        "Mpt",
        {"vocab_size": 101, "d_model": 96, "n_layers": 3, "max_seq_len": 256, "initializer_range": 0.2},
        {
            "n_heads": [4, 6, 12],
            "attn_config": [{}, {"clip_qkv": 1.5}, {"softmax_scale": 0.1}],
        },
    ),
    "NemotronForCausalLM": Tiny("Nemotron", switches={"attention_bias": BOTH, "mlp_bias": BOTH, "head_dim": [16, 24]}),
    "OPTForCausalLM": Tiny(
        "OPT",
        {**BARE, "ffn_dim": 96, "init_std": 0.2},
        {
            "do_layer_norm_before": BOTH,
            "word_embed_proj_dim": [64, 32],
            "enable_bias": BOTH,
            "layer_norm_elementwise_affine": BOTH,
        },
    ),
    "Olmo2ForCausalLM": Tiny("Olmo2", switches={"num_key_value_heads": KV_HEADS, "attention_bias": BOTH}),
    "Olmo3ForCausalLM": Tiny(
        "Olmo3",
        {**SIZES, "num_hidden_layers": 4},
        {
            "sliding_window": [5, 40],
            "layer_types": [[*TYPES, "full_attention"], None],
            "rope_parameters": [None, {"full_attention": YARN, "sliding_attention": PLAIN}],
        },
    ),
    "OlmoForCausalLM": Tiny("Olmo", switches={"clip_qkv": [None, 1.5], "attention_bias": BOTH}),
    "OlmoeForCausalLM": Tiny(
        "Olmoe",
        {**SIZES, "num_experts": 6, "num_experts_per_tok": 2},
        {"norm_topk_prob": BOTH, "clip_qkv": [None, 1.5], "attention_bias": BOTH},
    ),
    "Phi3ForCausalLM": Tiny(
        "Phi3",
        {**SIZES, "pad_token_id": 0},
        {
            "sliding_window": [None, 7, 40],
            "original_max_position_embeddings": [256],
            "rope_parameters": [PLAIN, {**PLAIN, "partial_rotary_factor": 0.75}, longrope(16)],
        },
    ),
    "PhiForCausalLM": Tiny("Phi", switches={"qk_layernorm": BOTH, "num_key_value_heads": KV_HEADS}),
    "Qwen2ForCausalLM": Tiny(
        "Qwen2", switches={"use_sliding_window": BOTH, "sliding_window": [9], "max_window_layers": [0, 1, 2]}
    ),
    "Qwen3ForCausalLM": Tiny(
        "Qwen3",
        switches={
            "use_sliding_window": BOTH,
            "sliding_window": [9],
            "max_window_layers": [1, 2],
            "attention_bias": BOTH,
            "head_dim": [16, 24],
        },
    ),
    "Qwen2MoeForCausalLM": Tiny(
        "Qwen2Moe",
        {
            **SIZES,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 48,
        },
        {
            "norm_topk_prob": BOTH,
            "decoder_sparse_step": [1, 2],
            "mlp_only_layers": [[], [0]],
            "qkv_bias": BOTH,
            "use_sliding_window": BOTH,
            "sliding_window": [9],
            "max_window_layers": [0, 2],
        },
    ),
    "Qwen3MoeForCausalLM": Tiny(
        "Qwen3Moe",
        {**SIZES, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
        {
            "norm_topk_prob": BOTH,
            "decoder_sparse_step": [1, 2],
            "mlp_only_layers": [[], [0]],
            "attention_bias": BOTH,
            "use_sliding_window": BOTH,
            "sliding_window": [9],
            "head_dim": [16, 24],
        },
    ),
    "SeedOssForCausalLM": Tiny(
        "SeedOss", switches={"attention_bias": BOTH, "attention_out_bias": BOTH, "mlp_bias": BOTH, "head_dim": [16, 24]}
    ),
    "SmolLM3ForCausalLM": Tiny(
        "SmolLM3",
        {**SIZES, "pad_token_id": 0},
        {
            "no_rope_layers": [[1, 0, 1], None],
            "no_rope_layer_interval": [2, 3],
            "use_sliding_window": BOTH,
            "sliding_window": [9],
            "attention_bias": BOTH,
        },
    ),
    "StableLmForCausalLM": Tiny(
        "StableLm", switches={"use_qkv_bias": BOTH, "qk_layernorm": BOTH, "use_parallel_residual": BOTH}
    ),
    "Starcoder2ForCausalLM": Tiny(
        "Starcoder2", switches={"use_bias": BOTH, "sliding_window": [None, 9], "tie_word_embeddings": BOTH}
    ),
}
