"""Checkpoints of GPTQ's, AWQ's and compressed-tensors' form: integers of 4 and 8 bits with a scale and a zero point for
each output and group of inputs, loaded and multiplied as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from textgen.layers.weight import (
    DenseWeight,
    ExpertMatrices,
    LoadContext,
    Part,
    SeparateMatrices,
    Tied,
    Weight,
    WeightFormat,
)
from textgen.models.packed_config import Packed
from textgen.quantization.blocks import KINDS, BlockWeight, StackedWeight
from textgen.quantization.integers import GROUPS, Int4Weight, Int8Weight, multiply_groups, nibbles
from textgen.quantization.ordered import OrderedWeight
from textgen.quantization.packed_files import Matrix, read_matrix

MIDDLE4, MIDDLE8 = 8, 128  # the zero points of symmetric weights
BLOCK = KINDS["Q8_0"]


@dataclass(frozen=True, slots=True)
class Int4ZerosWeight:
    """w = scale * (value - zero).

    pairs [out, in / 2] uint8, the first of two neighbours in the low half; scales float16 and zeros uint8, both
    [out, in / group].
    """

    pairs: Tensor
    scales: Tensor
    zeros: Tensor
    group: int

    @property
    def outputs(self) -> int:
        return self.pairs.shape[0]

    @property
    def inputs(self) -> int:
        return 2 * self.pairs.shape[1]

    @property
    def nbytes(self) -> int:
        return self.pairs.nbytes + self.scales.nbytes + self.zeros.nbytes

    def values(self, rows: slice) -> Tensor:
        """[rows, in] int8, from 0 to 15."""
        return nibbles(self.pairs[rows])

    def numbers(self) -> Tensor:
        """[out, in] float32."""
        apart = self.values(slice(None)).float().view(self.outputs, -1, self.group) - self.zeros.float()[..., None]
        return (apart * self.scales.float()[..., None]).flatten(1)

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x is quantized group by group of each row."""
        return multiply_groups(x, self.numbers(), self.group, bias)

    def reordered(self, order: Tensor) -> Int4ZerosWeight:
        pairs, scales, zeros = (part.index_select(0, order) for part in (self.pairs, self.scales, self.zeros))
        return Int4ZerosWeight(pairs, scales, zeros, self.group)


@dataclass(frozen=True, slots=True)
class PackedFormat(WeightFormat):
    """Matrices that the checkpoint has in integers stay so; the others are dense, and so is what no kernel multiplies:
    8 bits with zero points or in groups that 32 does not divide, and scales that float16 has not."""

    stored: Packed

    def load(self, context: LoadContext, parts: Sequence[Part]) -> Weight:
        alike: list[list[Matrix]] = []  # neighbours whose inputs are in one order
        made: list[Weight | list[Matrix]] = []
        for part in parts:
            matrix = read_matrix(self.stored, context, part)
            if matrix is None:
                made.append(DenseWeight(context.tensor(part)))
            elif made and made[-1] is (alike[-1] if alike else None) and _same(alike[-1][0].order, matrix.order):
                alike[-1].append(matrix)
            else:
                alike.append([matrix])
                made.append(alike[-1])
        if not alike:
            return DenseWeight(context.tensor(*parts))
        weights = [self._made(context, each) if isinstance(each, list) else each for each in made]
        return weights[0] if len(weights) == 1 else StackedWeight(tuple(weights))

    def _made(self, context: LoadContext, matrices: Sequence[Matrix]) -> Weight:
        """One of several with their inputs in one order, output after output."""
        whole = matrices[0].joined(matrices[1:])
        weight = _in_4_bits(whole) if self.stored.bits == 4 else _in_8_bits(whole)
        if weight is None:
            return DenseWeight(whole.numbers().to(context.device, context.dtype))
        return weight if whole.order is None else OrderedWeight(weight, whole.order)

    def load_experts(self, context: LoadContext, experts: Sequence[Sequence[Part]]) -> ExpertMatrices | None:
        """All with zero points where one has any but the middle; numbers where inputs are in orders of their own."""
        loaded = [self.load(context, parts) for parts in experts]
        kinds = {type(each) for each in loaded}
        if kinds == {Int4Weight, Int4ZerosWeight}:
            return SeparateMatrices([_with_zeros(each) if isinstance(each, Int4Weight) else each for each in loaded])
        if len(kinds) > 1 or kinds & {OrderedWeight, StackedWeight}:
            return SeparateMatrices([self._dense(context, parts) for parts in experts])
        return SeparateMatrices(loaded)

    def _dense(self, context: LoadContext, parts: Sequence[Part]) -> DenseWeight:
        size = sum(part.kept[0] for part in parts), parts[0].kept[1]
        whole = torch.empty(size, dtype=context.dtype, device=context.device)
        for part, target in zip(parts, whole.split([part.kept[0] for part in parts]), strict=True):
            self.read_numbers(context, part, target)
        return DenseWeight(whole)

    def read_numbers(self, context: LoadContext, part: Part, into: Tensor) -> None:
        matrix = read_matrix(self.stored, context, part)
        if matrix is None:
            context.source.read(part, into)
        else:
            into.copy_(matrix.numbers())

    def of(self, values: Tensor) -> Weight:
        return DenseWeight(values)

    def tied(self, context: LoadContext, part: Part) -> Tied:
        table = context.tensor(part)
        return Tied(table, self.of(table))


def _in_4_bits(matrix: Matrix) -> Weight | None:
    """In groups that kernels have; a larger one is several."""
    group = next((size for size in GROUPS if matrix.group % size == 0), None)
    if group is None:
        return None
    scales, zeros = _spread(matrix.scales.half(), matrix.group // group), _spread(matrix.zeros, matrix.group // group)
    if not bool(scales.isfinite().all()):
        return None
    pairs = matrix.values[:, ::2] | matrix.values[:, 1::2] << 4
    symmetric = bool((zeros == MIDDLE4).all())
    return Int4Weight(pairs, scales, group) if symmetric else Int4ZerosWeight(pairs, scales, zeros, group)


def _in_8_bits(matrix: Matrix) -> Weight | None:
    if not bool((matrix.zeros == MIDDLE8).all()):
        return None
    signed = (matrix.values ^ MIDDLE8).view(torch.int8)
    if matrix.scales.shape[1] == 1:
        return Int8Weight(signed, matrix.scales[:, 0].contiguous())
    scales = _spread(matrix.scales.half(), matrix.group // BLOCK)
    if matrix.group % BLOCK or not bool(scales.isfinite().all()):
        return None
    blocks = torch.cat(
        (scales.view(torch.uint8).unflatten(1, (-1, 2)), signed.view(torch.uint8).unflatten(1, (-1, BLOCK))), -1
    )
    return BlockWeight("Q8_0", (blocks.flatten(1),), signed.shape[1])


def _spread(of_groups: Tensor, parts: int) -> Tensor:
    """[out, groups * parts]."""
    return of_groups.repeat_interleave(parts, dim=1).contiguous()


def _with_zeros(weight: Int4Weight) -> Int4ZerosWeight:
    zeros = torch.full(weight.scales.shape, MIDDLE4, dtype=torch.uint8)
    return Int4ZerosWeight(weight.pairs, weight.scales, zeros, weight.group)


def _same(first: Tensor | None, second: Tensor | None) -> bool:
    return first is second if first is None or second is None else torch.equal(first, second)
