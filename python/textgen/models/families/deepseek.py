"""DeepSeek V2 and V3."""

from __future__ import annotations

from dataclasses import replace

from textgen.models.config import Config
from textgen.models.errors import ModelError
from textgen.models.families.common import Described, Sizes, activation, decoder
from textgen.models.names import LayerNames, WeightNames
from textgen.models.rotary_config import rotary_spec, yarn_stretch
from textgen.models.spec import (
    AttentionSpec,
    DecoderSpec,
    ExpertsSpec,
    LatentSpec,
    MlpSpec,
    NormSpec,
    RouterSpec,
)

NAMES = WeightNames(
    layer=LayerNames(
        shared_gate="mlp.shared_experts.gate_proj",
        shared_up="mlp.shared_experts.up_proj",
        shared_down="mlp.shared_experts.down_proj",
    )
)


def deepseek_v2(config: Config) -> Described:
    """DeepseekV2ForCausalLM: latent attention; experts chosen from the best groups, and shared ones."""
    method = config.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise ModelError(f"{config.where}: 'topk_method' is {method!r}; only greedy and group_limited_greedy are known")
    config.require("scoring_func", "softmax")
    config.require("norm_topk_prob", False)
    router = RouterSpec(
        top_k=config.integer("num_experts_per_tok"),
        scale=config.number("routed_scaling_factor", 1.0),
        float32=True,
    )
    groups, chosen = config.at_least("n_group", 0, 1), config.at_least("topk_group", 0, 1)
    if method == "group_limited_greedy":
        router = replace(router, groups=groups, top_groups=chosen)
    spec = _base(config, interleaved=True, mlp_bias=config.flag("mlp_bias", False))
    return Described(sparse(config, spec, router, shared=2, first=0), NAMES)


def deepseek_v3(config: Config) -> Described:
    """DeepseekV3ForCausalLM: V2 with experts scored one by one, and a correction of the scores for the choice."""
    router = corrected_router(config, groups=8, top_groups=4, scale=2.5)
    spec = _base(config, interleaved=config.flag("rope_interleave", True), mlp_bias=False)
    return Described(sparse(config, spec, router, shared=1, first=3), NAMES)


def corrected_router(config: Config, groups: int, top_groups: int, scale: float) -> RouterSpec:
    """V3's: sigmoid scores, corrected for the choice; the best groups are those of the best pairs."""
    config.require("topk_method", "noaux_tc")
    config.require("scoring_func", "sigmoid")
    return RouterSpec(
        top_k=config.integer("num_experts_per_tok", 8),
        score="sigmoid",
        normalize=config.flag("norm_topk_prob", True),
        correction=True,
        groups=config.integer("n_group", groups),
        top_groups=config.integer("topk_group", top_groups),
        group_score="best two",
        scale=config.number("routed_scaling_factor", scale),
        float32=True,
    )


def _base(config: Config, interleaved: bool, mlp_bias: bool) -> DecoderSpec:
    """The dense form: latent attention and a gated MLP."""
    config.require("moe_layer_freq", 1)
    config.ignore(
        "ep_size", "num_key_value_heads", "head_dim", "qk_head_dim", "num_nextn_predict_layers", "num_mtp_layers"
    )
    bias = config.flag("attention_bias", False)
    latent = LatentSpec(
        query_rank=None if config.is_null("q_lora_rank") else config.integer("q_lora_rank", 1536),
        kv_rank=config.integer("kv_lora_rank", 512),
        plain_dim=config.integer("qk_nope_head_dim", 128),
        rotated_dim=config.integer("qk_rope_head_dim", 64),
        value_dim=config.integer("v_head_dim", 128),
        bias=bias,
    )
    size = Sizes(
        hidden=config.integer("hidden_size"),
        layers=config.integer("num_hidden_layers"),
        heads=config.integer("num_attention_heads"),
        kv_heads=1,
        head_dim=latent.kv_rank + latent.rotated_dim,
    )
    return decoder(
        config,
        size,
        mlp=MlpSpec(
            intermediate_size=config.integer("intermediate_size"),
            activation=activation(config, "hidden_act", "silu"),
            bias=mlp_bias,
        ),
        norm=NormSpec(eps=config.number("rms_norm_eps", 1e-6)),
        rotary=rotary_spec(config, latent.rotated_dim, interleaved=interleaved),
        scale=(latent.plain_dim + latent.rotated_dim) ** -0.5 * _stretch(config) ** 2,
        max_positions=config.integer("max_position_embeddings", 2048),
        attention=AttentionSpec(output_bias=bias, latent=latent),
    )


def _stretch(config: Config) -> float:
    """How much the scores are sharpened for a context longer than the first training's."""
    parameters = config.section("rope_parameters") or config.section("rope_scaling")
    if parameters is None or parameters.text("rope_type", parameters.text("type", "default")) == "default":
        return 1.0
    weight = parameters.optional("mscale_all_dim")
    return 1.0 if weight is None else yarn_stretch(parameters.number("factor"), weight)


def sparse(config: Config, spec: DecoderSpec, router: RouterSpec, shared: int, first: int) -> DecoderSpec:
    """With experts on all but the first layers. shared, first: of each how many, where the config is silent."""
    first = config.at_least("first_k_dense_replace", 0, first)
    dense = spec.layers[0].mlp
    assert isinstance(dense, MlpSpec)
    size = config.integer("moe_intermediate_size")
    together = replace(dense, intermediate_size=size * config.integer("n_shared_experts", shared))
    experts = ExpertsSpec(
        count=config.integer("n_routed_experts"),
        intermediate_size=size,
        router=router,
        activation=dense.activation,
        shared=together,
    )
    return spec.varied(mlp=[dense if index < first else experts for index in range(spec.num_layers)])
