"""Falcon, in its older and its newer form."""

from __future__ import annotations

from dataclasses import replace

from textgen.models.config import Config
from textgen.models.families.common import Described, Sizes, activation, alibi_slopes, decoder, sizes
from textgen.models.names import LayerNames, Layout, WeightNames
from textgen.models.rotary_config import rotary_spec
from textgen.models.spec import AttentionSpec, MlpSpec, NormSpec, Residual

LAYER = LayerNames(
    qkv="self_attention.query_key_value",
    output="self_attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    layout=Layout(qkv="grouped"),
)
NAMES = WeightNames(prefix="transformer.", embedding="word_embeddings", layers="h.{}.", final_norm="ln_f", layer=LAYER)
TWO_NORMS = replace(NAMES, layer=replace(LAYER, attention_norm="ln_attn", mlp_norm="ln_mlp"))


def falcon(config: Config) -> Described:
    """FalconForCausalLM: attention and MLP side by side or in turn, one key-value head or more, rotary or ALiBi."""
    newer, size = config.flag("new_decoder_architecture", False), _sizes(config)
    parallel, bias, alibi = (
        config.flag(name, default) for name, default in (("parallel_attn", True), ("bias", False), ("alibi", False))
    )
    config.require("apply_residual_connection_post_layernorm", False)
    norms = config.integer("num_ln_in_parallel_attn", 2 if newer else 1)
    if newer:
        config.require("parallel_attn", True)
    two_norms = newer and norms == 2
    residual: Residual = "sequential"
    if newer or parallel:
        residual = "parallel" if two_norms else "parallel-one-norm"
    # The bias is added before the scores are scaled, so the scale is on the slopes too.
    slopes = tuple(slope * size.head_dim**-0.5 for slope in alibi_slopes(size.heads)) if alibi else None
    spec = decoder(
        config,
        size,
        mlp=MlpSpec(
            intermediate_size=config.integer("ffn_hidden_size", 4 * size.hidden),
            activation=activation(config, "activation", "gelu"),
            gated=False,
            bias=bias,
        ),
        norm=NormSpec(eps=config.number("layer_norm_epsilon", 1e-5), kind="layer", bias=True),
        rotary=None if alibi else rotary_spec(config, size.head_dim),
        max_positions=config.integer("max_position_embeddings", 2048),
        attention=AttentionSpec(qkv_bias=bias, output_bias=bias, slopes=slopes),
        residual=residual,
        tied=True,
    )
    config.ignore("ff_factor")  # ffn_hidden_size says the same
    config.ignore("rope_theta", "rope_scaling", "rope_parameters")  # with ALiBi, nothing reads them
    return Described(spec, TWO_NORMS if two_norms else NAMES)


def _sizes(config: Config) -> Sizes:
    size = sizes(config, kv_heads=None)
    if config.flag("new_decoder_architecture", False):
        kv_heads = config.integer("num_kv_heads", size.heads)
    else:
        config.ignore("num_kv_heads")
        kv_heads = 1 if config.flag("multi_query", True) else size.heads
    config.ignore("multi_query")
    return replace(size, kv_heads=kv_heads)
