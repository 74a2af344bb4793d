"""llama.cpp's architectures, in the words of Hugging Face: which family, and what its config.json would say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

from textgen.gguf import derived
from textgen.gguf.facts import Facts

Keys: TypeAlias = Mapping[str, str]  # a value of the config, and the key of the file that has it
Derive: TypeAlias = Callable[[Facts], dict[str, Any]]

SIZES = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
}
RMS = {"rms_norm_eps": "attention.layer_norm_rms_epsilon"}
EPSILON = "attention.layer_norm_epsilon"
LLAMA = {**SIZES, **RMS}
DENSE_FIRST = {
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
}
EXPERTS = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}
GRANITE = {
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logits_scaling": "logit_scale",
}
GPT2 = {
    "n_embd": "embedding_length",
    "n_layer": "block_count",
    "n_head": "attention.head_count",
    "n_inner": "feed_forward_length",
    "n_positions": "context_length",
    "layer_norm_epsilon": EPSILON,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One of llama.cpp's architectures.

    keys: what must be there. optional: what may be. tensors: switches that a tensor's presence turns on. fixed: what
    the format takes for granted. rotated: whether heads are rotated, whole or in part. rotary: what a scaled rotary
    form is besides. neighbours: queries and keys are stored so that neighbours turn together, other than in the
    family's own checkpoints. whole_norms: norms are stored with the one that the family's checkpoints leave out.
    experts: how it is where there are experts. latent: keys and values come out of one small vector, whose sizes stand
    where those of a head do elsewhere.
    """

    family: str
    keys: Keys = field(default_factory=lambda: LLAMA)
    optional: Keys = field(default_factory=dict)
    tensors: Keys = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    derive: Derive = lambda _: {}
    rotated: str = "all"  # or "part" or "none"
    latent: bool = False
    neighbours: bool = False
    whole_norms: bool = False
    rotary: Mapping[str, Any] = field(default_factory=dict)
    experts: Architecture | None = None


_BIASES = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
_ATTENTION_BIAS = {"attention_bias": "blk.0.attn_q.bias"}

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "arcee": Architecture(family="ArceeForCausalLM", tensors=_BIASES, neighbours=True),
        "bloom": Architecture(
            family="BloomForCausalLM",
            keys={
                "hidden_size": "embedding_length",
                "n_layer": "block_count",
                "n_head": "attention.head_count",
                "seq_length": "context_length",
                "layer_norm_epsilon": EPSILON,
            },
            rotated="none",
            derive=derived.bloom,
        ),
        "chatglm": Architecture(family="GlmForCausalLM", rotated="part", derive=derived.query_bias),
        "cohere2": Architecture(
            family="Cohere2ForCausalLM",
            keys={**SIZES, "layer_norm_eps": EPSILON, "logit_scale": "logit_scale",
                  "sliding_window": "attention.sliding_window"},
            tensors=_ATTENTION_BIAS,
        ),
        "command-r": Architecture(
            family="CohereForCausalLM",
            keys={**SIZES, "layer_norm_eps": EPSILON, "logit_scale": "logit_scale"},
            tensors={**_ATTENTION_BIAS, "use_qk_norm": "blk.0.attn_q_norm.weight"},
        ),
        "deepseek2": Architecture(
            family="DeepseekV2ForCausalLM",
            keys={
                **{name: key for name, key in LLAMA.items() if name != "num_key_value_heads"},
                **DENSE_FIRST,
                "kv_lora_rank": "attention.kv_lora_rank",
                "qk_rope_head_dim": "rope.dimension_count",
            },
            optional={"routed_scaling_factor": "expert_weights_scale"},
            derive=derived.deepseek,
            latent=True,
        ),
        "exaone4": Architecture(family="Exaone4ForCausalLM", derive=derived.exaone4),
        "falcon": Architecture(
            family="FalconForCausalLM",
            keys={
                "hidden_size": "embedding_length",
                "num_hidden_layers": "block_count",
                "num_attention_heads": "attention.head_count",
                "ffn_hidden_size": "feed_forward_length",
                "max_position_embeddings": "context_length",
                "layer_norm_epsilon": EPSILON,
            },
            derive=derived.falcon,
        ),
        "gemma": Architecture(family="GemmaForCausalLM", whole_norms=True),
        "gemma2": Architecture(
            family="Gemma2ForCausalLM",
            keys={**LLAMA, "sliding_window": "attention.sliding_window"},
            optional={
                "attn_logit_softcapping": "attn_logit_softcapping",
                "final_logit_softcapping": "final_logit_softcapping",
            },
            derive=derived.gemma_scale(layers=46),
            whole_norms=True,
        ),
        "gemma3": Architecture(
            family="Gemma3ForCausalLM",
            keys={**LLAMA, "sliding_window": "attention.sliding_window"},
            optional={
                "rope_local_base_freq": "rope.freq_base_swa",
                "sliding_window_pattern": "attention.sliding_window_pattern",
                "final_logit_softcapping": "final_logit_softcapping",
            },
            derive=derived.gemma_scale(layers=62),
            whole_norms=True,
        ),
        "glm4": Architecture(family="Glm4ForCausalLM", rotated="part", derive=derived.query_bias),
        "glm4moe": Architecture(
            family="Glm4MoeForCausalLM",
            keys={**LLAMA, **DENSE_FIRST},
            optional={"routed_scaling_factor": "expert_weights_scale"},
            tensors={**_ATTENTION_BIAS, "use_qk_norm": "blk.0.attn_q_norm.weight"},
            rotated="part",
            derive=derived.glm4_moe,
        ),
        "gpt2": Architecture(family="GPT2LMHeadModel", keys=GPT2, rotated="none"),
        "gpt-oss": Architecture(
            family="GptOssForCausalLM",
            keys={
                **{name: key for name, key in LLAMA.items() if name != "intermediate_size"},
                "intermediate_size": "expert_feed_forward_length",
                "num_local_experts": "expert_count",
                "num_experts_per_tok": "expert_used_count",
                "sliding_window": "attention.sliding_window",
            },
            tensors=_ATTENTION_BIAS,
            rotary={"truncate": False},
        ),
        "gptneox": Architecture(
            family="GPTNeoXForCausalLM",
            keys={
                "hidden_size": "embedding_length",
                "num_hidden_layers": "block_count",
                "num_attention_heads": "attention.head_count",
                "intermediate_size": "feed_forward_length",
                "max_position_embeddings": "context_length",
                "layer_norm_eps": EPSILON,
                "use_parallel_residual": "use_parallel_residual",
            },
            tensors={"attention_bias": "blk.0.attn_qkv.bias"},
            rotated="part",
        ),
        "granite": Architecture(
            family="GraniteForCausalLM",
            optional=GRANITE,
            tensors=_BIASES,
            neighbours=True,
        ),
        "granitemoe": Architecture(
            family="GraniteMoeSharedForCausalLM",
            keys={**LLAMA, "num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"},
            optional={
                **GRANITE,
                "intermediate_size": "expert_feed_forward_length",
                "shared_intermediate_size": "expert_shared_feed_forward_length",
            },
            tensors=_ATTENTION_BIAS,
            neighbours=True,
        ),
        "llama": Architecture(
            family="LlamaForCausalLM",
            tensors=_BIASES,
            neighbours=True,
            experts=Architecture(
                family="MixtralForCausalLM",
                keys={**LLAMA, "num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"},
                neighbours=True,
            ),
        ),
        "mpt": Architecture(
            family="MptForCausalLM",
            keys={
                "d_model": "embedding_length",
                "n_layers": "block_count",
                "n_heads": "attention.head_count",
                "max_seq_len": "context_length",
                "layer_norm_epsilon": EPSILON,
            },
            rotated="none",
            derive=derived.mpt,
        ),
        "nemotron": Architecture(
            family="NemotronForCausalLM",
            keys={**SIZES, "norm_eps": EPSILON},
            tensors=_BIASES,
            rotated="part",
            whole_norms=True,
        ),
        "olmo": Architecture(
            family="OlmoForCausalLM",
            keys=SIZES,
            optional={"clip_qkv": "attention.clamp_kqv"},
            tensors=_ATTENTION_BIAS,
            neighbours=True,
        ),
        "olmo2": Architecture(family="Olmo2ForCausalLM", tensors=_ATTENTION_BIAS, derive=derived.olmo3),
        "olmoe": Architecture(
            family="OlmoeForCausalLM",
            keys={**LLAMA, "num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"},
            optional={"clip_qkv": "attention.clamp_kqv", "intermediate_size": "expert_feed_forward_length"},
            tensors=_ATTENTION_BIAS,
            fixed={"norm_topk_prob": False},
        ),
        "phi2": Architecture(family="PhiForCausalLM", keys={**SIZES, "layer_norm_eps": EPSILON}, rotated="part"),
        "phi3": Architecture(
            family="Phi3ForCausalLM", optional={"sliding_window": "attention.sliding_window"}, rotated="part"
        ),
        "qwen2": Architecture(family="Qwen2ForCausalLM"),
        "qwen2moe": Architecture(
            family="Qwen2MoeForCausalLM",
            keys={**LLAMA, **EXPERTS, "shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
            tensors={"qkv_bias": "blk.0.attn_q.bias"},
            fixed={"norm_topk_prob": False},
        ),
        "qwen3": Architecture(family="Qwen3ForCausalLM", tensors=_ATTENTION_BIAS),
        "qwen3moe": Architecture(
            family="Qwen3MoeForCausalLM",
            keys={**LLAMA, **EXPERTS},
            tensors=_ATTENTION_BIAS,
            fixed={"norm_topk_prob": True},
        ),
        "seed_oss": Architecture(
            family="SeedOssForCausalLM",
            tensors={**_BIASES, "attention_out_bias": "blk.0.attn_output.bias"},
        ),
        "smollm3": Architecture(family="SmolLM3ForCausalLM", tensors=_ATTENTION_BIAS, neighbours=True),
        "stablelm": Architecture(
            family="StableLmForCausalLM",
            keys={**SIZES, "layer_norm_eps": EPSILON},
            optional={"use_parallel_residual": "use_parallel_residual"},
            tensors={"use_qkv_bias": "blk.0.attn_q.bias", "qk_layernorm": "blk.0.attn_q_norm.weight"},
            rotated="part",
        ),
        "starcoder": Architecture(
            family="GPTBigCodeForCausalLM",
            keys=GPT2,
            derive=lambda facts: {"multi_query": facts.kv_heads == 1},
            rotated="none",
        ),
        "starcoder2": Architecture(
            family="Starcoder2ForCausalLM",
            keys={**SIZES, "norm_epsilon": EPSILON},
            optional={"sliding_window": "attention.sliding_window"},
            tensors={"use_bias": "blk.0.attn_q.bias"},
        ),
    }
)  # fmt: skip
