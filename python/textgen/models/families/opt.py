"""OPT."""

from __future__ import annotations

from textgen.models.config import Config
from textgen.models.families.common import Described, activation, decoder, sizes
from textgen.models.names import LayerNames, WeightNames
from textgen.models.spec import AttentionSpec, MlpSpec, NormSpec, PositionSpec

NAMES = WeightNames(
    prefix="model.decoder.",
    final_norm="final_layer_norm",
    layer=LayerNames(
        attention_norm="self_attn_layer_norm",
        output="self_attn.out_proj",
        mlp_norm="final_layer_norm",
        up="fc1",
        down="fc2",
    ),
)
POSITIONS_OFFSET = 2  # the table's first two rows belong to padding


def opt(config: Config) -> Described:
    """OPTForCausalLM: learned positions; in the 350M model norms of the sum and a narrower embedding."""
    size, bias = sizes(config, kv_heads=None), config.flag("enable_bias", True)
    before, affine = config.flag("do_layer_norm_before", True), config.flag("layer_norm_elementwise_affine", True)
    width = config.integer("word_embed_proj_dim", size.hidden)
    positions = config.integer("max_position_embeddings", 2048)
    spec = decoder(
        config,
        size,
        mlp=MlpSpec(
            intermediate_size=config.integer("ffn_dim"),
            activation=activation(config, "activation_function", "relu"),
            gated=False,
            bias=bias,
        ),
        norm=NormSpec(eps=1e-5, kind="layer", bias=affine, affine=affine),
        max_positions=positions,
        positions=PositionSpec(rows=positions + POSITIONS_OFFSET, offset=POSITIONS_OFFSET),
        attention=AttentionSpec(qkv_bias=bias, output_bias=bias),
        placement="before" if before else "sum",
        final_norm=before and not config.flag("_remove_final_layer_norm", False),
        embedding_size=None if width == size.hidden else width,
        tied=True,
    )
    return Described(spec, NAMES)
