"""Llama and the families that are Llama with a detail or two changed."""

from __future__ import annotations

from dataclasses import replace

from textgen.models.config import Config
from textgen.models.families.common import (
    FULL,
    SLIDING,
    Described,
    activation,
    decoder,
    layer_kinds,
    sizes,
    windows,
)
from textgen.models.names import WeightNames
from textgen.models.rotary_config import rotary_spec
from textgen.models.spec import AttentionSpec, DecoderSpec, MlpSpec, NormSpec, Scalings

NAMES = WeightNames()


def base(
    config: Config,
    *,
    theta: float = 10_000.0,
    tied: bool = False,
    head_dim: int | None = None,
    own: bool = True,
    rotary: bool = True,
    eps: float = 1e-6,
    act: str = "silu",
    gated: bool = True,
) -> DecoderSpec:
    """RMS norms, rotary positions, a gated MLP. Biases, where the config may switch them on, are the caller's.

    own: heads may have a size of their own. rotary: the form is the same on every layer, else it is the caller's.
    """
    size = sizes(config, head_dim=head_dim, own_head_dim=own)
    return decoder(
        config,
        size,
        mlp=MlpSpec(
            intermediate_size=config.integer("intermediate_size"),
            activation=activation(config, "hidden_act", act),
            gated=gated,
        ),
        norm=NormSpec(eps=config.number("rms_norm_eps", eps)),
        rotary=rotary_spec(config, size.head_dim, theta) if rotary else None,
        max_positions=config.integer("max_position_embeddings", 2048),
        tied=tied,
    )


def biased(config: Config, spec: DecoderSpec) -> DecoderSpec:
    """With the biases that the config switches on."""
    attention, mlp = config.flag("attention_bias", False), config.flag("mlp_bias", False)
    spec = replace(spec, attention=replace(spec.attention, qkv_bias=attention, output_bias=attention))
    return spec.varied(mlp=[replace(layer.mlp, bias=mlp) for layer in spec.layers])


def llama(config: Config) -> Described:
    """LlamaForCausalLM: RMS norms before attention and MLP, rotary positions, a gated MLP; biases where switched on."""
    return Described(biased(config, base(config)), NAMES)


def mistral(config: Config) -> Described:
    """MistralForCausalLM: a sliding window on every layer unless the config says null."""
    spec = base(config)
    window = None if config.is_null("sliding_window") else config.integer("sliding_window", 4096)
    return Described(spec.varied(window=[window] * spec.num_layers), NAMES)


def ministral(config: Config) -> Described:
    """MinistralForCausalLM: Mistral with windows on the layers that `layer_types` names."""
    spec = base(config)
    window = None if config.is_null("sliding_window") else config.integer("sliding_window", 4096)
    kinds = layer_kinds(config, [FULL if window is None else SLIDING] * spec.num_layers)
    return Described(spec.varied(window=windows(kinds, window)), NAMES)


def granite(config: Config) -> Described:
    """GraniteForCausalLM: Llama with constant factors on embedding, residual, attention and logits."""
    config.require("normalization_function", "rmsnorm")
    config.require("position_embedding_type", "rope")
    config.ignore("init_method")
    spec = biased(config, base(config, own=False))
    scalings = Scalings(
        embedding=config.number("embedding_multiplier", 1.0),
        residual=config.number("residual_multiplier", 1.0),
        logits=1.0 / config.number("logits_scaling", 1.0),
    )
    scale = config.number("attention_multiplier", 1.0)
    return Described(replace(spec, scalings=scalings).varied(attention_scale=[scale] * spec.num_layers), NAMES)


def smollm3(config: Config) -> Described:
    """SmolLM3ForCausalLM: every fourth layer has no rotation; windows on those, where they are switched on."""
    spec = biased(config, base(config, theta=2_000_000.0, tied=True, own=False))
    config.ignore("max_window_layers")  # layer_types says where windows are
    every = config.integer("no_rope_layer_interval", 4)
    turned = config.integers("no_rope_layers") or [(layer + 1) % every for layer in range(spec.num_layers)]
    window = config.integer("sliding_window") if config.has("sliding_window") else None
    if not config.flag("use_sliding_window", False):
        window = None
    kinds = layer_kinds(config, [FULL if turn or window is None else SLIDING for turn in turned])
    rotaries = [layer.rotary if turn else None for layer, turn in zip(spec.layers, turned, strict=True)]
    return Described(spec.varied(rotary=rotaries, window=windows(kinds, window)), NAMES)


def arcee(config: Config) -> Described:
    """ArceeForCausalLM: an MLP without a gate, its activation a squared ReLU."""
    return Described(biased(config, base(config, eps=1e-5, act="relu2", gated=False)), NAMES)


def seed_oss(config: Config) -> Described:
    """SeedOssForCausalLM: biases of query, key and value apart from the output's."""
    spec = base(config, head_dim=128)
    attention = AttentionSpec(
        qkv_bias=config.flag("attention_bias", True), output_bias=config.flag("attention_out_bias", False)
    )
    mlp = replace(spec.layers[0].mlp, bias=config.flag("mlp_bias", False))
    return Described(replace(spec, attention=attention).varied(mlp=[mlp] * spec.num_layers), NAMES)
