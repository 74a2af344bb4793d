"""Weights of 8 and 4 bits made while loading, and their products in torch: the numbers the kernels must equal.

Both multiply integers: activations become 8-bit as they come, with a scale for each row (and group of inputs). On a GPU
they do not, and the numbers are others: see `kernels.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from textgen.layers.weight import HeadTable, LoadContext, Part, Tied, Weight, WeightFormat
from textgen.quantization.rows import quantize_rows

LEAST4, MOST4 = -8, 7
STRETCH = 2**22  # numbers quantized at a time: what is between stays small beside the weights
GROUPS = (128, 64, 32)
CLIPS = (1.0, 0.9, 0.8)  # parts of a group's range that a 4-bit scale is tried with


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """w = scale * value with one scale for each output. values [out, in] int8, scales [out] float32."""

    values: Tensor
    scales: Tensor

    @property
    def outputs(self) -> int:
        return self.values.shape[0]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scales.nbytes

    def numbers(self) -> Tensor:
        """[out, in] float32."""
        return self.values.float() * self.scales[:, None]

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x is quantized row by row; the products of integers are exact."""
        flat = x.reshape(-1, x.shape[-1])
        integers, scales = quantize_rows(flat.float())
        sums: Tensor = torch._int_mm(integers, self.values.t())
        y = sums.float() * (scales * self.scales)
        return _finished(y, x, bias)

    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        return (self.values[index].float() * self.scales[index][..., None]).to(dtype)

    def reordered(self, order: Tensor) -> Int8Weight:
        return Int8Weight(self.values.index_select(0, order), self.scales.index_select(0, order))


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """w = scale * value with one scale for each output and `group` inputs.

    pairs [out, in / 2] uint8, 8 added to each and the first of two neighbours in the low half;
    scales [out, in / group] float16.
    """

    pairs: Tensor
    scales: Tensor
    group: int

    @property
    def outputs(self) -> int:
        return self.pairs.shape[0]

    @property
    def inputs(self) -> int:
        return 2 * self.pairs.shape[1]

    @property
    def nbytes(self) -> int:
        return self.pairs.nbytes + self.scales.nbytes

    def unpacked(self, rows: slice) -> Tensor:
        """[rows, in] int8, from -8 to 7."""
        return nibbles(self.pairs[rows]).sub_(8)

    def numbers(self) -> Tensor:
        """[out, in] float32."""
        values = self.unpacked(slice(None)).view(self.outputs, -1, self.group)
        return (values.float() * self.scales.float()[..., None]).flatten(1)

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x is quantized group by group of each row."""
        return multiply_groups(x, self.numbers(), self.group, bias)

    def reordered(self, order: Tensor) -> Int4Weight:
        return Int4Weight(self.pairs.index_select(0, order), self.scales.index_select(0, order), self.group)


@dataclass(frozen=True, slots=True)
class Int8Format(WeightFormat):
    """Every matrix of a linear layer, and of an expert, as `Int8Weight`."""

    def load(self, context: LoadContext, parts: Sequence[Part]) -> Weight:
        return self.of(context.tensor(*parts))

    def of(self, values: Tensor) -> Weight:
        integers = torch.empty(values.shape, dtype=torch.int8, device=values.device)
        scales = torch.empty(len(values), dtype=torch.float32, device=values.device)
        for rows in _stretches(values):
            quantized, scale = quantize_rows(values[rows].float())
            integers[rows], scales[rows] = quantized, scale[:, 0]
        return Int8Weight(integers, scales)

    def tied(self, context: LoadContext, part: Part) -> Tied:
        """A processor looks the table up in the head."""
        table = context.tensor(part)
        head = self.of(table)
        return Tied(HeadTable(head, part.shape, table.dtype) if table.device.type == "cpu" else table, head)


@dataclass(frozen=True, slots=True)
class Int4Format(WeightFormat):
    """Every matrix of a linear layer, and of an expert, as `Int4Weight`; those whose inputs no group divides as
    `Int8Weight`."""

    group: int = 32

    def load(self, context: LoadContext, parts: Sequence[Part]) -> Weight:
        return self.of(context.tensor(*parts))

    def of(self, values: Tensor) -> Weight:
        outputs, inputs = values.shape
        group = next((size for size in GROUPS if size <= self.group and inputs % size == 0), None)
        if group is None:
            return Int8Format().of(values)
        pairs = torch.empty((outputs, inputs // 2), dtype=torch.uint8, device=values.device)
        scales = torch.empty((outputs, inputs // group), dtype=torch.float16, device=values.device)
        for rows in _stretches(values):
            integers, scales[rows] = _quantize4(values[rows].float().view(-1, inputs // group, group))
            both = integers.view(-1, inputs // 2, 2)
            pairs[rows] = both[..., 0] | both[..., 1] << 4
        return Int4Weight(pairs, scales, group)

    def tied(self, context: LoadContext, part: Part) -> Tied:
        table = context.tensor(part)
        return Tied(table, self.of(table))


def multiply_groups(x: Tensor, numbers: Tensor, group: int, bias: Tensor | None) -> Tensor:
    """x [..., in], quantized in groups of each row, times numbers [out, in] float32."""
    integers, scales = quantize_rows(x.reshape(-1, numbers.shape[1] // group, group).float())
    return _finished((integers.float() * scales).flatten(1) @ numbers.t(), x, bias)


def nibbles(pairs: Tensor) -> Tensor:
    """[rows, 2 * columns] int8 from 0 to 15 of [rows, columns] uint8, low halves first."""
    return torch.stack((pairs & 0xF, pairs >> 4), dim=-1).flatten(1).view(torch.int8)


def _quantize4(x: Tensor) -> tuple[Tensor, Tensor]:
    """uint8 from 0 to 15 and float16 scales of groups x [rows, groups, size]: of a few scales the one that errs least.

    The number with the largest magnitude becomes -8, on the side that has one step more.
    """
    extreme = x.gather(-1, x.abs().argmax(dim=-1, keepdim=True))
    best = error = integers = None
    for clip in CLIPS:
        scale = (extreme * (clip / LEAST4)).half().float()
        rounded = (x * torch.where(scale != 0, 1 / scale, 0.0)).round_().clamp_(LEAST4, MOST4)
        missed = (rounded * scale - x).square_().sum(dim=-1, keepdim=True)
        if best is None or error is None or integers is None:
            best, error, integers = scale, missed, rounded
            continue
        better = missed < error
        best, error = torch.where(better, scale, best), torch.where(better, missed, error)
        integers = torch.where(better, rounded, integers)
    assert best is not None and integers is not None
    return (integers - LEAST4).to(torch.uint8), best[..., 0].half()


def _finished(y: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    y = y if bias is None else y + bias.float()
    return y.to(x.dtype).view(*x.shape[:-1], -1)


def _stretches(values: Tensor) -> list[slice]:
    step = max(STRETCH // values.shape[1], 1)
    return [slice(first, first + step) for first in range(0, len(values), step)]
