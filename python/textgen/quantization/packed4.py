"""Checkpoints of GPTQ's and AWQ's form: 4-bit weights with a scale and a zero point for each output and group of
inputs, loaded and multiplied as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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
from textgen.models.errors import ModelError
from textgen.models.packed4_config import Packed4
from textgen.quantization.blocks import StackedWeight
from textgen.quantization.integers import Int4Weight, multiply_groups, nibbles
from textgen.quantization.ordered import OrderedWeight

MIDDLE = 8  # the zero point of a symmetric weight
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight outputs lies in each four bits, lowest first


@runtime_checkable
class IntegerSource(Protocol):
    """Stored tensors of which some are 32-bit integers."""

    def read_integers(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A whole tensor. Raises `ModelError`."""
        ...


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
class _Matrix:
    """A stored matrix with its inputs in whole groups. order: where each input comes from, if from elsewhere."""

    pairs: Tensor
    scales: Tensor
    zeros: Tensor
    order: Tensor | None


@dataclass(frozen=True, slots=True)
class Packed4Format(WeightFormat):
    """Matrices that the checkpoint has in four bits stay so; the others are dense."""

    stored: Packed4

    def load(self, context: LoadContext, parts: Sequence[Part]) -> Weight:
        source, names = context.source, [part.name.removesuffix(".weight") for part in parts]
        packed = [source.has(f"{name}.qweight") for name in names]
        if not any(packed):
            return DenseWeight(context.tensor(*parts))
        if not all(packed) or not isinstance(source, IntegerSource):
            raise ModelError(f"only some of {', '.join(names)} are in four bits; use another checkpoint")
        each = [self._read(context, source, name, part) for name, part in zip(names, parts, strict=True)]
        alike: list[list[_Matrix]] = []  # neighbours whose inputs are in one order
        for matrix in each:
            if alike and _same(alike[-1][0].order, matrix.order):
                alike[-1].append(matrix)
            else:
                alike.append([matrix])
        made = [self._made(matrices) for matrices in alike]
        return made[0] if len(made) == 1 else StackedWeight(tuple(made))

    def _made(self, matrices: Sequence[_Matrix]) -> Weight:
        """One of several with their inputs in one order, output after output."""
        pairs, scales, zeros = (
            torch.cat([getattr(each, name) for each in matrices]) for name in ("pairs", "scales", "zeros")
        )
        group, order = self.stored.group, matrices[0].order
        symmetric = bool((zeros == MIDDLE).all())
        weight: Weight = Int4Weight(pairs, scales, group) if symmetric else Int4ZerosWeight(pairs, scales, zeros, group)
        return weight if order is None else OrderedWeight(weight, order)

    def load_experts(self, context: LoadContext, experts: Sequence[Sequence[Part]]) -> ExpertMatrices | None:
        """All with zero points where one has any but the middle; numbers where inputs are in orders of their own."""
        loaded = [self.load(context, parts) for parts in experts]
        if any(isinstance(each, OrderedWeight | StackedWeight) for each in loaded):
            return SeparateMatrices([self._dense(context, parts) for parts in experts])
        if not any(isinstance(each, Int4ZerosWeight) for each in loaded):
            return SeparateMatrices(loaded)
        return SeparateMatrices([_with_zeros(each) if isinstance(each, Int4Weight) else each for each in loaded])

    def _dense(self, context: LoadContext, parts: Sequence[Part]) -> DenseWeight:
        whole = torch.empty(sum(part.kept[0] for part in parts), parts[0].kept[1], dtype=context.dtype)
        for part, target in zip(parts, whole.split([part.kept[0] for part in parts]), strict=True):
            self.read_numbers(context, part, target)
        return DenseWeight(whole)

    def read_numbers(self, context: LoadContext, part: Part, into: Tensor) -> None:
        weight = self.load(context, [part])
        match weight:
            case Int4Weight() | Int4ZerosWeight():
                into.copy_(weight.numbers())
            case OrderedWeight(of=Int4Weight() | Int4ZerosWeight() as of, order=order):
                into.copy_(of.numbers()[:, order.argsort()])
            case DenseWeight(values=values):
                into.copy_(values)

    def of(self, values: Tensor) -> Weight:
        return DenseWeight(values)

    def tied(self, context: LoadContext, part: Part) -> Tied:
        table = context.tensor(part)
        return Tied(table, self.of(table))

    def _read(self, context: LoadContext, source: IntegerSource, name: str, part: Part) -> _Matrix:
        (outputs, inputs), group = part.shape, self.stored.group
        if inputs % group or outputs % 8 or part.stacked is not None:
            raise ModelError(f"tensor '{name}.qweight' of {outputs} x {inputs} is not in whole groups of {group}")
        gptq, groups = self.stored.method == "gptq", inputs // group
        stored = source.read_integers(f"{name}.qweight", (inputs // 8, outputs) if gptq else (inputs, outputs // 8))
        nibbles = None if gptq else AWQ_ORDER
        values = _nibbles(stored.t()).t() if gptq else _nibbles(stored, nibbles)  # [in, out]
        zeros = _nibbles(source.read_integers(f"{name}.qzeros", (groups, outputs // 8)), nibbles) + self.stored.more
        scales = torch.empty(groups, outputs, dtype=torch.float16)
        context.source.read(Part(f"{name}.scales", (groups, outputs)), scales)
        order = None
        if gptq and context.source.has(f"{name}.g_idx"):
            order = _order(name, source.read_integers(f"{name}.g_idx", (inputs,)), group)
        columns = range(inputs)[part.columns]
        apart = order is not None and len(columns) < inputs
        if apart or columns.step != 1 or columns.start % group or columns.stop % group:
            raise ModelError(f"tensor '{name}.qweight' cannot be shared by so many shards; use fewer")
        if order is not None:
            values = values.index_select(0, order)
        within = slice(columns.start // group, columns.stop // group)
        values = values.t()[part.rows, part.columns].contiguous()
        pairs = values[:, ::2] | values[:, 1::2] << 4
        cut = (within, part.rows)
        return _Matrix(pairs, scales[cut].t().contiguous(), zeros[cut].t().contiguous(), order)


def _with_zeros(weight: Int4Weight) -> Int4ZerosWeight:
    zeros = torch.full(weight.scales.shape, MIDDLE, dtype=torch.uint8)
    return Int4ZerosWeight(weight.pairs, weight.scales, zeros, weight.group)


def _order(name: str, index: Tensor, group: int) -> Tensor | None:
    """The inputs group by group, where a checkpoint made with desc_act has each input's group in `index`; None where
    they lie so already. Raises `ModelError`."""
    in_groups = torch.arange(len(index), dtype=index.dtype) // group
    if torch.equal(index, in_groups):
        return None
    order = index.argsort(stable=True)
    if not torch.equal(index[order], in_groups):
        raise ModelError(f"tensor '{name}.g_idx' does not put {group} inputs into each group; download the model again")
    return order


def _same(first: Tensor | None, second: Tensor | None) -> bool:
    return first is second if first is None or second is None else torch.equal(first, second)


def _nibbles(packed: Tensor, order: Sequence[int] | None = None) -> Tensor:
    """[rows, 8 * columns] uint8 from [rows, columns] int32. order: where each four bits belong."""
    bytes_ = packed.contiguous().view(torch.uint8).view(*packed.shape, 4)
    each = torch.stack((bytes_ & 15, bytes_ >> 4), dim=-1).flatten(-2)
    if order is not None:
        each = each[..., [order.index(place) for place in range(8)]]
    return each.flatten(1)
