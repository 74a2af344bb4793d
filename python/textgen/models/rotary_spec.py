"""The rotary forms, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions divided by `factor` (position interpolation, arXiv 2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicScaling:
    """A larger theta for contexts longer than `original_max_positions` (NTK-aware interpolation)."""

    factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1: long wavelengths are divided by `factor`, short ones kept, those between blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): frequencies blended by how often they turn; `attention_factor` on cos and sin."""

    factor: float
    attention_factor: float
    beta_fast: float
    beta_slow: float
    original_max_positions: int
    truncate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRopeScaling:
    """LongRoPE (arXiv 2402.13753): a divisor per frequency, one set for short contexts and one for long ones."""

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    attention_factor: float
    original_max_positions: int


RotaryScaling: TypeAlias = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling | LongRopeScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class RotarySpec:
    """Rotary position embedding (arXiv 2104.09864) over the first `dim` numbers of each head.

    Checkpoints turn pairs of a number in the first half with one in the second, or, `interleaved`, of neighbours.
    """

    dim: int
    theta: float
    scaling: RotaryScaling | None = None
    interleaved: bool = False
