"""Nemotron."""

from __future__ import annotations

from textgen.models.config import Config
from textgen.models.families.common import Described, activation, decoder, sizes
from textgen.models.families.llama import NAMES
from textgen.models.rotary_config import rotary_spec
from textgen.models.spec import AttentionSpec, MlpSpec, NormSpec


def nemotron(config: Config) -> Described:
    """NemotronForCausalLM: layer norms stored less one, a squared ReLU without a gate, half of each head rotated."""
    size, bias = sizes(config, own_head_dim=True), config.flag("attention_bias", False)
    spec = decoder(
        config,
        size,
        mlp=MlpSpec(
            intermediate_size=config.integer("intermediate_size"),
            activation=activation(config, "hidden_act", "relu2"),
            gated=False,
            bias=config.flag("mlp_bias", False),
        ),
        norm=NormSpec(eps=config.number("norm_eps", 1e-5), kind="layer", bias=True, offset=1.0),
        rotary=rotary_spec(config, size.head_dim, part=0.5),
        max_positions=config.integer("max_position_embeddings", 4096),
        attention=AttentionSpec(qkv_bias=bias, output_bias=bias),
    )
    return Described(spec, NAMES)
