"""Mixtures of experts: Mixtral, Qwen 2 and 3, OLMoE, Granite, gpt-oss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from textgen.models.config import Config
from textgen.models.errors import ModelError
from textgen.models.families.common import FULL, SLIDING, Described, activation, layer_kinds, windows
from textgen.models.families.llama import NAMES, base, granite
from textgen.models.families.qwen import normed, window
from textgen.models.names import LayerNames, Layout, WeightNames
from textgen.models.spec import (
    AttentionSpec,
    ClampedSilu,
    DecoderSpec,
    ExpertsSpec,
    MlpSpec,
    NormSpec,
    QkNormSpec,
    RouterSpec,
)

MIXTRAL = WeightNames(
    layer=LayerNames(
        router="block_sparse_moe.gate",
        expert_gate="block_sparse_moe.experts.{}.w1",
        expert_up="block_sparse_moe.experts.{}.w3",
        expert_down="block_sparse_moe.experts.{}.w2",
    )
)
GRANITE = WeightNames(
    layer=LayerNames(
        router="block_sparse_moe.router.layer",
        expert_gate_up="block_sparse_moe.input_linear",
        expert_down="block_sparse_moe.output_linear",
        shared_gate_up="shared_mlp.input_linear",
        shared_down="shared_mlp.output_linear",
        layout=Layout(experts="stacked", gate_up="fused"),
    )
)
GPT_OSS = WeightNames(
    layer=LayerNames(router="mlp.router", expert_down="mlp.experts.down_proj", layout=Layout(experts="neighbours"))
)


def mixtral(config: Config) -> Described:
    """MixtralForCausalLM: Mistral with experts, two to a token."""
    spec = base(config, theta=1_000_000.0, eps=1e-5)
    router = RouterSpec(top_k=config.integer("num_experts_per_tok", 2), normalize=True)
    span = config.integer("sliding_window") if config.has("sliding_window") else None
    experts = _experts(spec, config.integer("num_local_experts", 8), config.integer("intermediate_size"), router)
    return Described(spec.varied(window=[span] * spec.num_layers, mlp=[experts] * spec.num_layers), MIXTRAL)


def qwen2_moe(config: Config) -> Described:
    """Qwen2MoeForCausalLM: small experts, and a shared one that each token takes as much of as it asks for."""
    spec = replace(base(config, own=False), attention=AttentionSpec(qkv_bias=config.flag("qkv_bias", True)))
    router = RouterSpec(top_k=config.integer("num_experts_per_tok", 4), normalize=config.flag("norm_topk_prob", False))
    experts = _experts(spec, config.integer("num_experts", 60), config.integer("moe_intermediate_size", 1408), router)
    shared = MlpSpec(intermediate_size=config.integer("shared_expert_intermediate_size", 5632))
    experts = replace(experts, shared=shared, shared_switch=True)
    first, span = config.at_least("max_window_layers", 0, 28), window(config)
    odd = [SLIDING if span and not layer % 2 and layer < first else FULL for layer in range(spec.num_layers)]
    spec = spec.varied(window=windows(layer_kinds(config, odd), span))
    return Described(_sparse(config, spec, experts), NAMES)


def qwen3_moe(config: Config) -> Described:
    """Qwen3MoeForCausalLM: Qwen 3 with small experts."""
    spec = normed(config, base(config))
    router = RouterSpec(top_k=config.integer("num_experts_per_tok", 8), normalize=config.flag("norm_topk_prob", False))
    count = config.integer("num_experts", config.integer("num_local_experts", 128))
    experts = _experts(spec, count, config.integer("moe_intermediate_size", 768), router)
    spec = spec.varied(window=[window(config)] * spec.num_layers)
    config.ignore("max_window_layers")
    return Described(_sparse(config, spec, experts), NAMES)


def olmoe(config: Config) -> Described:
    """OlmoeForCausalLM: experts, norms on all queries and on all keys, clamped projections where asked."""
    spec, bias = base(config, own=False, eps=1e-5), config.flag("attention_bias", False)
    attention = AttentionSpec(
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QkNormSpec(norm=NormSpec(eps=spec.norm.eps), over="all"),
        clip=config.optional("clip_qkv"),
    )
    router = RouterSpec(top_k=config.integer("num_experts_per_tok", 8), normalize=config.flag("norm_topk_prob", False))
    experts = _experts(spec, config.integer("num_experts", 64), config.integer("intermediate_size"), router)
    return Described(replace(spec, attention=attention).varied(mlp=[experts] * spec.num_layers), NAMES)


def granite_moe(config: Config) -> Described:
    """GraniteMoeForCausalLM: Granite with experts."""
    return _granite(config, shared=None)


def granite_moe_shared(config: Config) -> Described:
    """GraniteMoeSharedForCausalLM: Granite with experts and one that sees every token."""
    size = config.at_least("shared_intermediate_size", 0, 0)
    act = activation(config, "hidden_act", "silu")
    return _granite(config, shared=MlpSpec(intermediate_size=size, activation=act) if size else None)


def _granite(config: Config, shared: MlpSpec | None) -> Described:
    spec = granite(config).spec
    router = RouterSpec(top_k=config.integer("num_experts_per_tok", 2), score="chosen")
    experts = _experts(spec, config.integer("num_local_experts", 8), config.integer("intermediate_size"), router)
    return Described(spec.varied(mlp=[replace(experts, shared=shared)] * spec.num_layers), GRANITE)


def gpt_oss(config: Config) -> Described:
    """GptOssForCausalLM: attention sinks, windows on every other layer, experts with biases, in MXFP4 or plain."""
    if not config.has("rope_parameters") and not config.has("rope_scaling"):
        raise ModelError(f"{config.where} has no 'rope_parameters'; every model of this family has its own")
    spec, bias = base(config, theta=150_000.0, head_dim=64, eps=1e-5), config.flag("attention_bias", True)
    kinds = layer_kinds(config, [SLIDING if not layer % 2 else FULL for layer in range(spec.num_layers)])
    clamped = ClampedSilu(alpha=config.number("swiglu_alpha", 1.702), limit=config.number("swiglu_limit", 7.0))
    top_k = config.integer("num_experts_per_tok", config.integer("experts_per_token", 4))
    router = RouterSpec(top_k=top_k, score="chosen", bias=True)
    experts = ExpertsSpec(
        count=config.integer("num_local_experts", 128),
        intermediate_size=config.integer("intermediate_size"),
        router=router,
        activation=clamped,
        bias=True,
    )
    spec = replace(spec, attention=AttentionSpec(qkv_bias=bias, output_bias=bias, sinks=True))
    config.ignore("initial_context_length")  # the same as the rotary form's original positions
    spans = windows(kinds, config.integer("sliding_window", 128))
    return Described(spec.varied(window=spans, mlp=[experts] * spec.num_layers), GPT_OSS)


def _experts(spec: DecoderSpec, count: int, size: int, router: RouterSpec) -> ExpertsSpec:
    """Experts with the activation of the family's dense MLPs."""
    dense = spec.layers[0].mlp
    assert isinstance(dense, MlpSpec)
    return ExpertsSpec(count=count, intermediate_size=size, router=router, activation=dense.activation)


def _sparse(config: Config, spec: DecoderSpec, experts: ExpertsSpec) -> DecoderSpec:
    """With experts on the layers that Qwen's switches name."""
    step, dense = config.integer("decoder_sparse_step", 1), config.integers("mlp_only_layers")
    chosen: Sequence[MlpSpec | ExpertsSpec] = [
        layer.mlp if index in dense or (index + 1) % step else experts for index, layer in enumerate(spec.layers)
    ]
    return spec.varied(mlp=chosen)
