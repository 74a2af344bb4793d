"""StarCoder 2."""

from __future__ import annotations

from textgen.models.config import Config
from textgen.models.families.common import Described, activation, decoder, sizes
from textgen.models.names import LayerNames, WeightNames
from textgen.models.rotary_config import rotary_spec
from textgen.models.spec import AttentionSpec, MlpSpec, NormSpec

NAMES = WeightNames(layer=LayerNames(up="mlp.c_fc", down="mlp.c_proj"))


def starcoder2(config: Config) -> Described:
    """Starcoder2ForCausalLM: layer norms, an MLP without a gate, biases, a window where the config has one."""
    size, bias = sizes(config), config.flag("use_bias", True)
    for name, expected in (("norm_type", "layer_norm"), ("mlp_type", "default"), ("scale_attn_weights", True)):
        config.require(name, expected)
    config.ignore("activation_function")  # of an older form; hidden_act is what counts
    spec = decoder(
        config,
        size,
        mlp=MlpSpec(
            intermediate_size=config.integer("intermediate_size"),
            activation=activation(config, "hidden_act", "gelu_pytorch_tanh"),
            gated=False,
            bias=bias,
        ),
        norm=NormSpec(eps=config.number("norm_epsilon", 1e-5), kind="layer", bias=True),
        rotary=rotary_spec(config, size.head_dim),
        max_positions=config.integer("max_position_embeddings", 4096),
        attention=AttentionSpec(qkv_bias=bias, output_bias=bias),
        tied=True,
    )
    window = config.integer("sliding_window") if config.has("sliding_window") else None
    return Described(spec.varied(window=[window] * size.layers), NAMES)
