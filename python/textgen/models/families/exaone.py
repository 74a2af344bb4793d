"""EXAONE 4."""

from __future__ import annotations

from dataclasses import replace

from textgen.models.config import Config
from textgen.models.families.common import FULL, Described, every, layer_kinds, windows
from textgen.models.families.llama import NAMES, base
from textgen.models.spec import AttentionSpec, QkNormSpec


def exaone4(config: Config) -> Described:
    """Exaone4ForCausalLM: norms on what attention and MLP give; where there are windows, full layers do not rotate."""
    spec = base(config, eps=1e-5)
    attention = AttentionSpec(qk_norm=QkNormSpec(norm=spec.norm))
    spec = replace(spec, attention=attention, placement="after")
    span = None if config.is_null("sliding_window") else config.integer("sliding_window", 4096)
    kinds = [FULL] * spec.num_layers
    if span is not None and not config.has("layer_types"):
        kinds = every(config.integer("sliding_window_pattern", 4), spec.num_layers)
    config.ignore("sliding_window_pattern")  # layer_types says it layer by layer
    kinds = layer_kinds(config, kinds)
    rotaries = [None if span and kind == FULL else layer.rotary for kind, layer in zip(kinds, spec.layers, strict=True)]
    return Described(spec.varied(window=windows(kinds, span), rotary=rotaries), NAMES)
