"""Weights in 8-bit floating point as a checkpoint has them, with a scale for each output and all or some inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from textgen.layers.weight import DenseFormat, ExpertMatrices, LoadContext, Numbered, Part, SeparateMatrices, Weight


class Scaled(NamedTuple):
    """values [rows, columns] in one of torch's 8-bit floating point types; scales [rows, groups] float32.

    group: inputs that share a scale, the last ones perhaps fewer; 0: all.
    """

    values: Tensor
    scales: Tensor
    group: int


@runtime_checkable
class ScaledSource(Protocol):
    """Stored tensors of which some are 8-bit numbers with scales."""

    def scaled(self, part: Part) -> Scaled | None:
        """None where the part is stored in another form, or does not begin and end where scales do. Raises
        `ModelError`."""
        ...


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """w = scale * value. See `Scaled`."""

    values: Tensor
    scales: Tensor
    group: int

    @property
    def outputs(self) -> int:
        return self.values.shape[0]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scales.nbytes

    def numbers(self) -> Tensor:
        """[out, in] float32."""
        inputs = self.values.shape[1]
        scales = self.scales if self.group == 0 else self.scales.repeat_interleave(self.group, dim=1)[:, :inputs]
        return self.values.float().mul_(scales)

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """With weights rounded to x's dtype."""
        return F.linear(x, self.numbers().to(x.dtype), bias)

    def reordered(self, order: Tensor) -> Fp8Weight:
        values = self.values.view(torch.uint8).index_select(0, order).view(self.values.dtype)
        return Fp8Weight(values, self.scales.index_select(0, order), self.group)


@dataclass(frozen=True, slots=True)
class Fp8Format(DenseFormat):
    """Matrices that the source has in 8 bits, all parts in one form, stay so; the others are dense.

    So do experts in fewer bits.
    """

    def load(self, context: LoadContext, parts: Sequence[Part]) -> Weight:
        return self._stored(context, parts) or DenseFormat.load(self, context, parts)

    def load_experts(self, context: LoadContext, experts: Sequence[Sequence[Part]]) -> ExpertMatrices | None:
        weights = list[Weight]()
        for parts in experts:
            if (stored := self._stored(context, parts)) is None:
                return None
            weights.append(stored)
        return SeparateMatrices(weights)

    def keep_experts(
        self, context: LoadContext, experts: Mapping[str, Callable[[], Numbered]]
    ) -> ExpertMatrices | None:
        return SeparateMatrices([read() for read in experts.values()])

    def _stored(self, context: LoadContext, parts: Sequence[Part]) -> Weight | None:
        if not isinstance(context.source, ScaledSource):
            return None
        found: list[Scaled] = []
        for part in parts:
            one = context.source.scaled(part)
            if one is None or (found and (one.group, one.values.dtype) != (found[0].group, found[0].values.dtype)):
                return None
            found.append(one)
        values = torch.cat([one.values.view(torch.uint8) for one in found]).view(found[0].values.dtype)
        return Fp8Weight(values, torch.cat([one.scales for one in found]), found[0].group)
