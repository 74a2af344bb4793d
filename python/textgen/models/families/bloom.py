"""BLOOM and MPT: positions by ALiBi."""

from __future__ import annotations

import math

from textgen.models.config import Config
from textgen.models.errors import ModelError
from textgen.models.families.common import Described, alibi_slopes, decoder, sizes
from textgen.models.names import LayerNames, Layout, WeightNames
from textgen.models.spec import AttentionSpec, MlpSpec, NormSpec

BLOOM = WeightNames(
    prefix="transformer.",
    embedding="word_embeddings",
    embedding_norm="word_embeddings_layernorm",
    layers="h.{}.",
    final_norm="ln_f",
    layer=LayerNames(
        qkv="self_attention.query_key_value",
        output="self_attention.dense",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
        layout=Layout(qkv="grouped"),
    ),
)
MPT = WeightNames(
    prefix="transformer.",
    embedding="wte",
    layers="blocks.{}.",
    final_norm="norm_f",
    layer=LayerNames(
        attention_norm="norm_1",
        qkv="attn.Wqkv",
        output="attn.out_proj",
        mlp_norm="norm_2",
        up="ffn.up_proj",
        down="ffn.down_proj",
        layout=Layout(qkv="blocks"),
    ),
)
BLOOM_POSITIONS = 2048  # the length it was trained on; ALiBi itself has no end


def bloom(config: Config) -> Described:
    """BloomForCausalLM: a norm on the embedding, biases everywhere."""
    hidden = "hidden_size" if config.has("hidden_size") else "n_embed"
    layers = "n_layer" if config.has("n_layer") else "num_hidden_layers"
    heads = "n_head" if config.has("n_head") else "num_attention_heads"
    size = sizes(config, hidden, layers, heads, kv_heads=None)
    config.require("apply_residual_connection_post_layernorm", False)
    config.ignore(
        *("slow_but_exact", "pretraining_tp", "offset_alibi", "masked_softmax_fusion"),
        *("bias_dropout_fusion", "skip_bias_add", "skip_bias_add_qkv"),
    )
    spec = decoder(
        config,
        size,
        mlp=MlpSpec(intermediate_size=4 * size.hidden, activation="gelu_tanh", gated=False, bias=True),
        norm=NormSpec(eps=config.number("layer_norm_epsilon", 1e-5), kind="layer", bias=True),
        max_positions=config.integer("seq_length", BLOOM_POSITIONS),
        attention=AttentionSpec(qkv_bias=True, output_bias=True, slopes=alibi_slopes(size.heads)),
        embedding_norm=True,
        tied=True,
    )
    return Described(spec, BLOOM)


def mpt(config: Config) -> Described:
    """MptForCausalLM: no biases at all; clamped projections and another softmax scale where the config asks."""
    size = sizes(config, "d_model", "n_layers", "n_heads", kv_heads=None)
    attention = config.section("attn_config") or Config({}, f"{config.where}: attn_config")
    for part, name, expected in (
        (config, "no_bias", True), (config, "norm_type", "low_precision_layernorm"),
        (config, "embedding_fraction", 1.0), (attention, "attn_type", "multihead_attention"),
        (attention, "prefix_lm", False), (attention, "qk_ln", False),
        (attention, "attn_uses_sequence_id", False), (attention, "alibi_bias_max", 8),
    ):  # fmt: skip
        part.require(name, expected)
    if not attention.flag("alibi", True):
        raise ModelError(f"{attention.where}: 'alibi' is false; only MPT models with ALiBi are supported")
    attention.ignore("attn_impl")
    config.ignore("learned_pos_emb", "tokenizer_name", "verbose", "init_config")  # no table of positions beside ALiBi
    spec = decoder(
        config,
        size,
        mlp=MlpSpec(
            intermediate_size=config.integer("expansion_ratio", 4) * size.hidden, activation="gelu", gated=False
        ),
        norm=NormSpec(eps=config.number("layer_norm_epsilon", 1e-5), kind="layer"),
        scale=attention.optional("softmax_scale"),
        max_positions=config.integer("max_seq_len", 2048),
        attention=AttentionSpec(clip=attention.optional("clip_qkv"), slopes=_mpt_slopes(size.heads)),
        tied=True,
    )
    return Described(spec, MPT)


def _mpt_slopes(heads: int) -> tuple[float, ...]:
    """Of the next power of two of heads, every second first where there are too many."""
    power = 2 ** math.ceil(math.log2(heads))
    slopes = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    return tuple(slopes if power == heads else (slopes[1::2] + slopes[::2])[:heads])
