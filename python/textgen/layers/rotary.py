"""Rotary frequencies of each rotary form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from textgen.models.rotary_spec import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RotarySpec,
    YarnScaling,
)


@dataclass(frozen=True, slots=True)
class Frequencies:
    """[dim / 2] float32, the angle a pair of numbers turns by per position; `factor` stands before cos and sin."""

    inverse: Tensor
    factor: float = 1.0


def frequencies(spec: RotarySpec, context: int, device: torch.device) -> Frequencies:
    """The frequencies for sequences of up to `context` tokens.

    Forms that change with the length of a sequence take the length that is served: cached keys keep their rotation.
    """
    exponents = torch.arange(0, spec.dim, 2, dtype=torch.float32, device=device) / spec.dim
    plain = 1.0 / spec.theta**exponents
    match spec.scaling:
        case None:
            return Frequencies(plain)
        case LinearScaling(factor=factor):
            return Frequencies(plain / factor)
        case DynamicScaling() as scaling:
            return Frequencies(1.0 / _dynamic_theta(spec, scaling, context) ** exponents)
        case Llama3Scaling() as scaling:
            return Frequencies(_llama3(plain, scaling))
        case YarnScaling() as scaling:
            return Frequencies(_yarn(plain, spec, scaling), scaling.attention_factor)
        case LongRopeScaling() as scaling:
            divisors = scaling.long_factor if context > scaling.original_max_positions else scaling.short_factor
            return Frequencies(plain / torch.tensor(divisors, device=device), scaling.attention_factor)


def _dynamic_theta(spec: RotarySpec, scaling: DynamicScaling, context: int) -> float:
    longer = max(context / scaling.original_max_positions, 1.0)
    stretch = scaling.factor * longer - (scaling.factor - 1.0)
    return float(spec.theta * stretch ** (spec.dim / (spec.dim - 2)))


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Keep frequencies that turn often within the original context, divide those that do not, blend between."""
    turns = scaling.original_max_positions * plain / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return plain * (kept + (1.0 - kept) / scaling.factor)


def _yarn(plain: Tensor, spec: RotarySpec, scaling: YarnScaling) -> Tensor:
    """Keep the frequencies that turn `beta_fast` times within the original context, divide those below `beta_slow`."""

    def index(turns: float) -> float:
        """Of the frequency that turns so often, as a real number."""
        wavelength = scaling.original_max_positions / (turns * 2 * math.pi)
        return spec.dim * math.log(wavelength) / (2 * math.log(spec.theta))

    first, last = index(scaling.beta_fast), index(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, spec.dim - 1)
    ramp = (torch.arange(len(plain), device=plain.device) - first) / max(last - first, 0.001)
    divided = ramp.clamp(0.0, 1.0)
    return plain * (1.0 - divided) + plain / scaling.factor * divided
