"""StableLM."""

from __future__ import annotations

from dataclasses import replace

from textgen.models.config import Config
from textgen.models.families.common import Described, activation, decoder, sizes
from textgen.models.names import LayerNames, WeightNames
from textgen.models.rotary_config import rotary_spec
from textgen.models.spec import AttentionSpec, MlpSpec, NormSpec, QkNormSpec

NAMES = WeightNames(
    layer=LayerNames(query_norm="self_attn.q_layernorm.norms.{}", key_norm="self_attn.k_layernorm.norms.{}")
)


def stablelm(config: Config) -> Described:
    """StableLmForCausalLM: layer norms, a gated MLP, a quarter of each head rotated; a norm for each head."""
    size = sizes(config)
    norm = NormSpec(eps=config.number("layer_norm_eps", 1e-5), kind="layer", bias=True)
    qk_norm = None
    if config.flag("qk_layernorm", False):
        qk_norm = QkNormSpec(norm=replace(norm, bias=False), weights="tensors")
    spec = decoder(
        config,
        size,
        mlp=MlpSpec(
            intermediate_size=config.integer("intermediate_size"),
            activation=activation(config, "hidden_act", "silu"),
        ),
        norm=norm,
        rotary=rotary_spec(config, size.head_dim, part=0.25),
        max_positions=config.integer("max_position_embeddings", 4096),
        attention=AttentionSpec(qkv_bias=config.flag("use_qkv_bias", False), qk_norm=qk_norm),
        residual="parallel-one-norm" if config.flag("use_parallel_residual", False) else "sequential",
    )
    return Described(spec, NAMES)
