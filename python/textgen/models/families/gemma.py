"""Gemma 1, 2 and 3 (text)."""

from __future__ import annotations

import math
from dataclasses import replace

from textgen.models.config import Config
from textgen.models.families.common import (
    FULL,
    SLIDING,
    Described,
    activation,
    decoder,
    every,
    layer_kinds,
    sizes,
    windows,
)
from textgen.models.names import LayerNames, WeightNames
from textgen.models.rotary_config import rotary_by_kind, rotary_spec
from textgen.models.rotary_spec import RotarySpec
from textgen.models.spec import AttentionSpec, DecoderSpec, MlpSpec, NormSpec, QkNormSpec, Scalings

NAMES = WeightNames()
SANDWICH = WeightNames(layer=LayerNames(mlp_norm="pre_feedforward_layernorm"))


def gemma(config: Config) -> Described:
    """GemmaForCausalLM: norm weights are stored less one, embeddings are scaled by the root of their size."""
    name = "hidden_activation" if config.has("hidden_activation") else "hidden_act"
    config.ignore("hidden_act")
    size = sizes(config, head_dim=256, own_head_dim=True)
    return Described(_base(config, name, rotary_spec(config, size.head_dim), size.head_dim**-0.5), NAMES)


def gemma2(config: Config) -> Described:
    """Gemma2ForCausalLM: norms before and after, soft caps, a window on every other layer."""
    dim = config.integer("head_dim", 256)
    spec = _base(config, "hidden_activation", rotary_spec(config, dim), _scale(config))
    return Described(_capped(config, spec, pattern=2, softest=(50.0, 30.0)), SANDWICH)


def gemma3(config: Config) -> Described:
    """Gemma3ForCausalLM: queries and keys normed, five window layers to a full one, each kind with its rotary form."""
    theta, local = config.number("rope_theta", 1_000_000.0), config.number("rope_local_base_freq", 10_000.0)
    forms = rotary_by_kind(config, config.integer("head_dim", 256), theta, local)
    pattern = config.integer("sliding_window_pattern", config.integer("_sliding_window_pattern", 6))
    spec = _base(config, "hidden_activation", None, _scale(config))
    spec = _capped(config, spec, pattern, softest=(None, None))
    spec = replace(spec, attention=replace(spec.attention, qk_norm=QkNormSpec(norm=spec.norm)))
    kinds = [FULL if window is None else SLIDING for window in spec.windows]
    return Described(spec.varied(rotary=[forms[kind] for kind in kinds]), SANDWICH)


def _base(config: Config, act: str, rotary: RotarySpec | None, scale: float) -> DecoderSpec:
    size, bias = sizes(config, head_dim=256, own_head_dim=True), config.flag("attention_bias", False)
    return decoder(
        config,
        size,
        mlp=MlpSpec(
            intermediate_size=config.integer("intermediate_size"),
            activation=activation(config, act, "gelu_pytorch_tanh"),
        ),
        norm=NormSpec(eps=config.number("rms_norm_eps", 1e-6), offset=1.0),
        rotary=rotary,
        scale=scale,
        max_positions=config.integer("max_position_embeddings", 8192),
        tied=True,
        attention=AttentionSpec(qkv_bias=bias, output_bias=bias),
        scalings=Scalings(embedding=math.sqrt(size.hidden)),
    )


def _scale(config: Config) -> float:
    return float(config.number("query_pre_attn_scalar", 256) ** -0.5)


def _capped(config: Config, spec: DecoderSpec, pattern: int, softest: tuple[float | None, float | None]) -> DecoderSpec:
    """With soft caps, windows and norms on both sides. softest: the caps where the config is silent."""
    caps = [
        default if not config.has(name) and not config.is_null(name) else config.optional(name)
        for name, default in zip(("attn_logit_softcapping", "final_logit_softcapping"), softest, strict=True)
    ]
    config.ignore("hidden_act", "sliding_window_size")  # older names of values that are there under newer ones too
    kinds = layer_kinds(config, every(pattern, spec.num_layers))
    return replace(
        spec,
        placement="both",
        attention=replace(spec.attention, soft_cap=caps[0]),
        scalings=replace(spec.scalings, logits_soft_cap=caps[1]),
    ).varied(window=windows(kinds, config.integer("sliding_window", 4096)))
