"""Phi 1, 1.5 and 2; Phi 3 and 4."""

from __future__ import annotations

from textgen.models.config import Config
from textgen.models.families.common import Described, activation, decoder, sizes
from textgen.models.names import LayerNames, Layout, WeightNames
from textgen.models.rotary_config import rotary_spec
from textgen.models.spec import AttentionSpec, MlpSpec, NormSpec, QkNormSpec

PHI = WeightNames(
    final_norm="final_layernorm",
    layer=LayerNames(
        output="self_attn.dense",
        query_norm="self_attn.q_layernorm",
        key_norm="self_attn.k_layernorm",
        up="mlp.fc1",
        down="mlp.fc2",
    ),
)
PHI3 = WeightNames(layer=LayerNames(layout=Layout(qkv="blocks", gate_up="fused")))


def phi(config: Config) -> Described:
    """PhiForCausalLM: attention and MLP side by side behind one norm, biases everywhere, half of each head rotated."""
    size = sizes(config)
    norm = NormSpec(eps=config.number("layer_norm_eps", 1e-5), kind="layer", bias=True)
    qk_norm = QkNormSpec(norm=norm) if config.flag("qk_layernorm", False) else None
    spec = decoder(
        config,
        size,
        mlp=MlpSpec(
            intermediate_size=config.integer("intermediate_size", 4 * size.hidden),
            activation=activation(config, "hidden_act", "gelu_new"),
            gated=False,
            bias=True,
        ),
        norm=norm,
        rotary=rotary_spec(config, size.head_dim, part=0.5),
        max_positions=config.integer("max_position_embeddings", 2048),
        attention=AttentionSpec(qkv_bias=True, output_bias=True, qk_norm=qk_norm),
        residual="parallel-one-norm",
        head_bias=True,
    )
    return Described(spec, PHI)


def phi3(config: Config) -> Described:
    """Phi3ForCausalLM (Phi 4 too): Llama with fused matrices, a window where the config has one, and long rope."""
    size, layers = sizes(config), config.integer("num_hidden_layers")
    spec = decoder(
        config,
        size,
        mlp=MlpSpec(
            intermediate_size=config.integer("intermediate_size"),
            activation=activation(config, "hidden_act", "silu"),
        ),
        norm=NormSpec(eps=config.number("rms_norm_eps", 1e-5)),
        rotary=rotary_spec(config, size.head_dim, part=1.0),
        max_positions=config.integer("max_position_embeddings", 4096),
    )
    config.ignore("original_max_position_embeddings")  # without a rope type that reads it
    for name, expected in (("attention_bias", False), ("interpolate_factor", 1), ("full_attn_mod", 1)):
        config.require(name, expected)
    window = config.integer("sliding_window") if config.has("sliding_window") else None
    return Described(spec.varied(window=[window] * layers), PHI3)
