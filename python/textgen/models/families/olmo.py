"""OLMo 1, 2 and 3."""

from __future__ import annotations

from dataclasses import replace

from textgen.models.config import Config
from textgen.models.families.common import Described, every, layer_kinds, windows
from textgen.models.families.llama import NAMES, base
from textgen.models.rotary_config import rotary_by_kind
from textgen.models.spec import AttentionSpec, DecoderSpec, NormSpec, QkNormSpec


def olmo(config: Config) -> Described:
    """OlmoForCausalLM: layer norms without weights; queries, keys and values may be clamped."""
    bias = config.flag("attention_bias", False)
    attention = AttentionSpec(qkv_bias=bias, output_bias=bias, clip=config.optional("clip_qkv"))
    norm = NormSpec(eps=1e-5, kind="layer", affine=False)
    return Described(replace(base(config, own=False), norm=norm, attention=attention), NAMES)


def olmo2(config: Config) -> Described:
    """Olmo2ForCausalLM: norms on what attention and MLP give, and on all queries and all keys together."""
    return Described(_normed(config, base(config, own=False, eps=1e-5)), NAMES)


def olmo3(config: Config) -> Described:
    """Olmo3ForCausalLM: OLMo 2 with windows on three layers of four; a longer rotary form on the others only."""
    spec = _normed(config, base(config, own=False, rotary=False, eps=1e-5))
    theta = config.number("rope_theta", 500_000.0)
    kinds = layer_kinds(config, every(4, spec.num_layers))
    forms = rotary_by_kind(config, spec.head_dim, theta, theta)
    return Described(
        spec.varied(
            window=windows(kinds, config.integer("sliding_window", 4096)), rotary=[forms[kind] for kind in kinds]
        ),
        NAMES,
    )


def _normed(config: Config, spec: DecoderSpec) -> DecoderSpec:
    bias = config.flag("attention_bias", False)
    attention = AttentionSpec(qkv_bias=bias, output_bias=bias, qk_norm=QkNormSpec(norm=spec.norm, over="all"))
    return replace(spec, attention=attention, placement="after")
