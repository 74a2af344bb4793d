"""GPT-2, GPT-BigCode, GPT-J and GPT-NeoX."""

from __future__ import annotations

from textgen.models.config import Config
from textgen.models.families.common import Described, Sizes, activation, decoder, sizes
from textgen.models.names import LayerNames, Layout, WeightNames
from textgen.models.rotary_config import rotary_spec
from textgen.models.rotary_spec import RotarySpec
from textgen.models.spec import AttentionSpec, DecoderSpec, MlpSpec, NormSpec, PositionSpec


def _gpt2_names(layout: Layout) -> WeightNames:
    return WeightNames(
        prefix="transformer.",
        embedding="wte",
        positions="wpe",
        layers="h.{}.",
        final_norm="ln_f",
        layer=LayerNames(
            attention_norm="ln_1",
            qkv="attn.c_attn",
            output="attn.c_proj",
            mlp_norm="ln_2",
            up="mlp.c_fc",
            down="mlp.c_proj",
            layout=layout,
        ),
    )


GPT2 = _gpt2_names(Layout(qkv="blocks", transposed=True))
GPTJ = WeightNames(
    prefix="transformer.",
    embedding="wte",
    layers="h.{}.",
    final_norm="ln_f",
    layer=LayerNames(
        attention_norm="ln_1",
        query="attn.q_proj",
        key="attn.k_proj",
        value="attn.v_proj",
        output="attn.out_proj",
        up="mlp.fc_in",
        down="mlp.fc_out",
    ),
)
NEOX = WeightNames(
    prefix="gpt_neox.",
    embedding="embed_in",
    final_norm="final_layer_norm",
    head="embed_out",
    layer=LayerNames(
        qkv="attention.query_key_value",
        output="attention.dense",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
        layout=Layout(qkv="grouped"),
    ),
)


def gpt2(config: Config) -> Described:
    """GPT2LMHeadModel: learned positions; matrices are stored the other way round."""
    spec = _learned(config, _sizes(config), "gelu_new")
    if config.flag("scale_attn_by_inverse_layer_idx", False):
        spec = spec.varied(attention_scale=[at.attention_scale / (i + 1) for i, at in enumerate(spec.layers)])
    return Described(spec, GPT2)


def gpt_bigcode(config: Config) -> Described:
    """GPTBigCodeForCausalLM: GPT-2 with one key-value head, or with each head's query, key and value together."""
    config.ignore("inference_runner", "pre_allocate_kv_cache", "max_batch_size", "validate_runner_input")
    config.ignore("num_key_value_heads")  # multi_query says it
    one = config.flag("multi_query", True)
    spec = _learned(config, _sizes(config, kv_heads=1 if one else None), "gelu_pytorch_tanh")
    return Described(spec, _gpt2_names(Layout(qkv="blocks" if one else "grouped")))


def gptj(config: Config) -> Described:
    """GPTJForCausalLM: attention and MLP side by side behind one norm, neighbours rotated, no biases in attention."""
    size = _sizes(config)
    spec = decoder(
        config,
        size,
        mlp=_mlp(config, size, "gelu_new"),
        norm=_norm(config),
        rotary=RotarySpec(dim=config.integer("rotary_dim", 64), theta=10_000.0, interleaved=True),
        max_positions=config.integer("n_positions", 2048),
        residual="parallel-one-norm",
        head_bias=True,
    )
    config.require("rotary", True)
    config.require("scale_attn_weights", True)
    return Described(spec, GPTJ)


def gpt_neox(config: Config) -> Described:
    """GPTNeoXForCausalLM: attention and MLP side by side, a norm each; a quarter of each head rotated."""
    size, bias = sizes(config, kv_heads=None), config.flag("attention_bias", True)
    theta, part = config.number("rotary_emb_base", 10_000.0), config.number("rotary_pct", 0.25)
    spec = decoder(
        config,
        size,
        mlp=MlpSpec(
            intermediate_size=config.integer("intermediate_size"),
            activation=activation(config, "hidden_act", "gelu"),
            gated=False,
            bias=True,
        ),
        norm=NormSpec(eps=config.number("layer_norm_eps", 1e-5), kind="layer", bias=True),
        rotary=rotary_spec(config, size.head_dim, theta, part),
        max_positions=config.integer("max_position_embeddings", 2048),
        attention=AttentionSpec(qkv_bias=bias, output_bias=bias),
        residual="parallel" if config.flag("use_parallel_residual", True) else "sequential",
    )
    return Described(spec, NEOX)


def _sizes(config: Config, kv_heads: int | None = None) -> Sizes:
    size = sizes(config, "n_embd", "n_layer", "n_head", kv_heads=None)
    return Sizes(size.hidden, size.layers, size.heads, kv_heads or size.heads, size.head_dim)


def _norm(config: Config) -> NormSpec:
    return NormSpec(eps=config.number("layer_norm_epsilon", 1e-5), kind="layer", bias=True)


def _mlp(config: Config, size: Sizes, act: str) -> MlpSpec:
    return MlpSpec(
        intermediate_size=config.integer("n_inner", 4 * size.hidden),
        activation=activation(config, "activation_function", act),
        gated=False,
        bias=True,
    )


def _learned(config: Config, size: Sizes, act: str) -> DecoderSpec:
    """GPT-2's shape: learned positions, biases everywhere, no gate."""
    config.ignore("n_ctx", "reorder_and_upcast_attn")  # the latter computes the same in another order
    positions = config.integer("n_positions", 1024)
    return decoder(
        config,
        size,
        mlp=_mlp(config, size, act),
        norm=_norm(config),
        scale=None if config.flag("scale_attn_weights", True) else 1.0,
        max_positions=positions,
        positions=PositionSpec(rows=positions),
        attention=AttentionSpec(qkv_bias=True, output_bias=True),
        tied=True,
    )
