"""Cohere's Command models."""

from __future__ import annotations

from textgen.models.config import Config
from textgen.models.families.common import Described, activation, decoder, every, layer_kinds, sizes, windows
from textgen.models.families.llama import NAMES
from textgen.models.rotary_config import rotary_spec
from textgen.models.spec import AttentionSpec, DecoderSpec, MlpSpec, NormSpec, QkNormSpec, Scalings


def cohere(config: Config) -> Described:
    """CohereForCausalLM: attention and MLP side by side behind one norm without bias, neighbours rotated."""
    return Described(_base(config, theta=500_000.0, qk_norm=config.flag("use_qk_norm", False)), NAMES)


def cohere2(config: Config) -> Described:
    """Cohere2ForCausalLM: windows with rotation on three layers of four, neither on the fourth."""
    spec = _base(config, theta=10_000.0, qk_norm=False)
    kinds = layer_kinds(config, every(config.integer("sliding_window_pattern", 4), spec.num_layers))
    spans = windows(kinds, config.integer("sliding_window", 4096))
    rotaries = [layer.rotary if span else None for layer, span in zip(spec.layers, spans, strict=True)]
    return Described(spec.varied(window=spans, rotary=rotaries), NAMES)


def _base(config: Config, theta: float, qk_norm: bool) -> DecoderSpec:
    size, bias = sizes(config), config.flag("attention_bias", False)
    norm = NormSpec(eps=config.number("layer_norm_eps", 1e-5), kind="layer")
    return decoder(
        config,
        size,
        mlp=MlpSpec(
            intermediate_size=config.integer("intermediate_size"),
            activation=activation(config, "hidden_act", "silu"),
        ),
        norm=norm,
        rotary=rotary_spec(config, size.head_dim, theta, interleaved=True),
        max_positions=config.integer("max_position_embeddings", 8192),
        attention=AttentionSpec(
            qkv_bias=bias, output_bias=bias, qk_norm=QkNormSpec(norm=norm, weights="rows") if qk_norm else None
        ),
        residual="parallel-one-norm",
        scalings=Scalings(logits=config.number("logit_scale", 0.0625)),
        tied=True,
    )
