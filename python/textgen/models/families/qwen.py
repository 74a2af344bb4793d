"""Qwen 2, 2.5 and 3."""

from __future__ import annotations

from dataclasses import replace

from textgen.models.config import Config
from textgen.models.families.common import FULL, SLIDING, Described, layer_kinds, windows
from textgen.models.families.llama import NAMES, base
from textgen.models.spec import AttentionSpec, DecoderSpec, NormSpec, QkNormSpec


def qwen2(config: Config) -> Described:
    """Qwen2ForCausalLM: biases on query, key and value; a sliding window on the upper layers when switched on."""
    spec = replace(base(config, own=False), attention=AttentionSpec(qkv_bias=True))
    return Described(_windowed(config, spec), NAMES)


def qwen3(config: Config) -> Described:
    """Qwen3ForCausalLM: queries and keys are normed head by head."""
    return Described(_windowed(config, normed(config, base(config, head_dim=128))), NAMES)


def normed(config: Config, spec: DecoderSpec) -> DecoderSpec:
    """With Qwen 3's norms on queries and keys."""
    bias = config.flag("attention_bias", False)
    norm = QkNormSpec(norm=NormSpec(eps=spec.norm.eps))
    return replace(spec, attention=AttentionSpec(qkv_bias=bias, output_bias=bias, qk_norm=norm))


def _windowed(config: Config, spec: DecoderSpec) -> DecoderSpec:
    first, span = config.at_least("max_window_layers", 0, 28), window(config)
    upper = [SLIDING if span and layer >= first else FULL for layer in range(spec.num_layers)]
    return spec.varied(window=windows(layer_kinds(config, upper), span))


def window(config: Config) -> int | None:
    """The sliding window, where it is switched on."""
    if not config.flag("use_sliding_window", False):
        config.ignore("sliding_window")
        return None
    return config.integer("sliding_window") if config.has("sliding_window") else None
