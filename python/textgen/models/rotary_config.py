"""Reading the rotary form from a config, old and new spellings alike."""

from __future__ import annotations

import math

from textgen.models.config import Config
from textgen.models.errors import ModelError
from textgen.models.rotary_spec import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RotaryScaling,
    RotarySpec,
    YarnScaling,
)


def rotary_spec(
    config: Config, head_dim: int, theta: float = 10_000.0, part: float | None = None, interleaved: bool = False
) -> RotarySpec:
    """From `rope_parameters` (newer files) or `rope_theta` with `rope_scaling` (older ones).

    theta, part: the family's base and rotated share of each head where the file names none; without `part`, heads are
    always rotated whole.
    """
    parameters = config.section("rope_parameters") or config.section("rope_scaling")
    theta = config.number("rope_theta", theta)
    if part is not None:
        part = config.number("partial_rotary_factor", part)
    return _spec(config, parameters, head_dim, theta, part, interleaved)


def rotary_by_kind(config: Config, head_dim: int, full: float, sliding: float) -> dict[str, RotarySpec]:
    """The forms of full and of sliding layers, by the names that `layer_types` gives them.

    Newer files have a section for each in `rope_parameters`; in older ones `rope_scaling` is of the full layers alone.
    full, sliding: theta where the file names none.
    """
    sections = config.section("rope_parameters")
    if sections is None:
        scaling = config.section("rope_scaling")
        return {
            "full_attention": _spec(config, scaling, head_dim, full, None, interleaved=False),
            "sliding_attention": RotarySpec(dim=head_dim, theta=sliding),
        }
    return {
        kind: _spec(config, sections.section(kind), head_dim, theta, None, interleaved=False)
        for kind, theta in (("full_attention", full), ("sliding_attention", sliding))
    }


def _spec(
    config: Config, parameters: Config | None, head_dim: int, theta: float, part: float | None, interleaved: bool
) -> RotarySpec:
    scaling: RotaryScaling | None = None
    if parameters is not None:
        theta = parameters.number("rope_theta", theta)
        if part is not None:
            part = parameters.number("partial_rotary_factor", part)
        parameters.require("partial_rotary_factor", 1.0 if part is None else part)
    dim = head_dim if part is None else int(head_dim * part)
    if parameters is not None:
        scaling = rotary_scaling(config, parameters, dim)
    return RotarySpec(dim=dim, theta=theta, scaling=scaling, interleaved=interleaved)


def rotary_scaling(config: Config, parameters: Config, dim: int) -> RotaryScaling | None:
    """How the frequencies are changed for contexts longer than the first training's."""
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    positions = config.integer("max_position_embeddings", 2048)
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(factor=parameters.number("factor"))
        case "dynamic":
            return DynamicScaling(factor=parameters.number("factor"), original_max_positions=positions)
        case "llama3":
            return Llama3Scaling(
                factor=parameters.number("factor"),
                low_freq_factor=parameters.number("low_freq_factor"),
                high_freq_factor=parameters.number("high_freq_factor"),
                original_max_positions=_original(config, parameters),
            )
        case "yarn":
            return _yarn(parameters, positions, _original(config, parameters))
        case "longrope" | "su":
            return _longrope(parameters, positions, _original(config, parameters), dim)
    raise ModelError(
        f"{parameters.where}: rope type {kind!r} is not supported; "
        "use default, linear, dynamic, llama3, yarn or longrope"
    )


def _original(config: Config, parameters: Config) -> int:
    """The context of the first training."""
    inner = (
        parameters.integer("original_max_position_embeddings")
        if parameters.has("original_max_position_embeddings")
        else config.integer("max_position_embeddings", 2048)
    )
    return config.integer("original_max_position_embeddings", inner)


def _yarn(parameters: Config, positions: int, original: int) -> YarnScaling:
    factor = parameters.number("factor", max(positions / original, 1.0))
    scales = [parameters.optional(name) for name in ("mscale", "mscale_all_dim")]
    if None in scales:
        stretch = yarn_stretch(factor)
    else:
        stretch = yarn_stretch(factor, scales[0] or 1.0) / yarn_stretch(factor, scales[1] or 1.0)
    parameters.require("max_position_embeddings", positions)
    return YarnScaling(
        factor=factor,
        attention_factor=parameters.number("attention_factor", stretch),
        beta_fast=parameters.number("beta_fast", 32.0),
        beta_slow=parameters.number("beta_slow", 1.0),
        original_max_positions=original,
        truncate=parameters.flag("truncate", True),
    )


def yarn_stretch(factor: float, weight: float = 1.0) -> float:
    """How much attention is sharpened for a context stretched so far (arXiv 2309.00071, equation 22)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _longrope(parameters: Config, positions: int, original: int, dim: int) -> LongRopeScaling:
    factor = parameters.number("factor", positions / original)
    sharpened = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1.0 else 1.0
    return LongRopeScaling(
        short_factor=parameters.numbers("short_factor", dim // 2),
        long_factor=parameters.numbers("long_factor", dim // 2),
        attention_factor=parameters.number("attention_factor", sharpened),
        original_max_positions=original,
    )
