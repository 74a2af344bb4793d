"""Weights in the blocks of GGUF files, kept and multiplied as the file has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

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
from textgen.quantization.integers import multiply_groups
from textgen.quantization.rows import E2M1

KINDS = {"Q4_0": 32, "Q8_0": 32, "Q4_K": 32, "Q5_K": 32, "Q6_K": 16, "MXFP4": 32}
"""Blocks that are multiplied as they are, and how many inputs share a scale of the activations."""
HALF = 2  # bytes of the float16 scale that blocks of 32 begin with
_MXFP4_VALUES = torch.tensor(E2M1)
_MXFP4_BIAS = 127  # of a scale's exponent


class StoredBlocks(NamedTuple):
    """Rows of a file: their kind, of `KINDS`, and bytes [rows, bytes of a row] uint8."""

    kind: str
    blocks: Tensor
    mapped: bool  # a view of the file, to be packed soon: it may change on the disk


@runtime_checkable
class BlockSource(Protocol):
    """Stored tensors of which some are blocks."""

    def read_blocks(self, part: Part) -> StoredBlocks | None:
        """None where the part is not whole rows of `KINDS`."""
        ...


@dataclass(frozen=True, slots=True)
class BlockWeight:
    """Blocks, each row the file's, output after output in several tensors. kind: of `KINDS`."""

    kind: str
    views: tuple[Tensor, ...]  # [some outputs, bytes of a row] uint8
    inputs: int
    mapped: bool = False  # views of a file

    @property
    def outputs(self) -> int:
        return sum(map(len, self.views))

    @property
    def nbytes(self) -> int:
        return sum(view.nbytes for view in self.views)

    @property
    def blocks(self) -> Tensor:
        return self.views[0] if len(self.views) == 1 else torch.cat(self.views)

    def stretches(self, rows: int) -> Iterator[tuple[int, BlockWeight]]:
        """Parts of at most so many rows that do not cross views, each with its first output."""
        first = 0
        for view in self.views:
            for part in view.split(rows):
                yield first, BlockWeight(self.kind, (part,), self.inputs, self.mapped)
                first += len(part)

    def numbers(self) -> Tensor:
        """[out, in] float32: what the blocks stand for."""
        if self.kind == "MXFP4":
            values, exponents = self.integers()
            each = _MXFP4_VALUES[values.int()].view(self.outputs, -1, KINDS[self.kind])
            return torch.ldexp(each, exponents[..., None] - _MXFP4_BIAS).flatten(1)
        from gguf import GGMLQuantizationType, dequantize  # here: other models have no use for it

        return torch.from_numpy(dequantize(self.blocks.numpy(), GGMLQuantizationType[self.kind]))

    def integers(self) -> tuple[Tensor, Tensor]:
        """Of blocks of 32 with one scale: [out, in] int8 and [out, in / 32] float32.

        Of MXFP4 the four bits of each number, and the bytes of the scales.
        """
        blocks = self.blocks.view(self.outputs, self.inputs // 32, -1)
        if self.kind == "MXFP4":
            values = torch.cat((blocks[..., 1:] & 15, blocks[..., 1:] >> 4), dim=-1).flatten(1)
            return values.view(torch.int8), blocks[..., 0].float()
        scales = blocks[..., :HALF].contiguous().view(torch.float16)[..., 0].float()
        stored = blocks[..., HALF:]
        if self.kind == "Q8_0":
            return stored.contiguous().view(torch.int8).flatten(1), scales
        values = torch.cat((stored & 15, stored >> 4), dim=-1).flatten(1)  # the second half lies in the high bits
        return values.view(torch.int8).sub_(8), scales

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x is quantized group by group of each row."""
        return multiply_groups(x, self.numbers(), KINDS[self.kind], bias)

    def reordered(self, order: Tensor) -> BlockWeight:
        return BlockWeight(self.kind, (self.blocks.index_select(0, order),), self.inputs)


@dataclass(frozen=True, slots=True)
class StackedWeight:
    """Weights of several forms as one, output after output: a file may keep values in more bits than queries."""

    parts: tuple[Weight, ...]

    @property
    def outputs(self) -> int:
        return sum(part.outputs for part in self.parts)

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        biases = self.split(bias)
        return torch.cat([part.multiply(x, each) for part, each in zip(self.parts, biases, strict=True)], dim=-1)

    def split(self, values: Tensor | None) -> Sequence[Tensor | None]:
        """What belongs to each part of something that has a number for each output."""
        if values is None:
            return [None] * len(self.parts)
        return torch.split(values, [part.outputs for part in self.parts])

    def reordered(self, order: Tensor) -> StackedWeight:
        """Raises `ValueError` where an output would leave its part."""
        made, first = [], 0
        for part in self.parts:
            own = order[first : first + part.outputs] - first
            if own.min() < 0 or own.max() >= part.outputs:
                raise ValueError("outputs of a stacked weight stay within their part")
            made.append(part.reordered(own))
            first += part.outputs
        return StackedWeight(tuple(made))


@dataclass(frozen=True, slots=True)
class BlockFormat(WeightFormat):
    """Blocks as they are stored where the source has them; what has none is dense."""

    def load(self, context: LoadContext, parts: Sequence[Part]) -> Weight:
        made: list[Weight] = []
        for part in parts:
            one = _stored(context, part) or DenseWeight(context.tensor(part))
            joined = _joined(made[-1], one) if made else None
            if joined is None:
                made.append(one)
            else:
                made[-1] = joined
        return made[0] if len(made) == 1 else StackedWeight(tuple(made))

    def load_experts(self, context: LoadContext, experts: Sequence[Sequence[Part]]) -> ExpertMatrices | None:
        """Numbers where a file has gates in other blocks than what they gate."""
        loaded = [self.load(context, parts) for parts in experts]
        if not any(isinstance(each, StackedWeight) for each in loaded):
            return SeparateMatrices(loaded)
        return SeparateMatrices([DenseWeight(context.tensor(*parts)) for parts in experts])

    def of(self, values: Tensor) -> Weight:
        return DenseWeight(values)

    def tied(self, context: LoadContext, part: Part) -> Tied:
        table = context.tensor(part)
        return Tied(table, _stored(context, part) or DenseWeight(table))


def _stored(context: LoadContext, part: Part) -> BlockWeight | None:
    found = context.source.read_blocks(part) if isinstance(context.source, BlockSource) else None
    if found is None:
        return None
    return BlockWeight(found.kind, (found.blocks,), part.kept[1], found.mapped)


def _joined(first: Weight, second: Weight) -> Weight | None:
    match first, second:
        case BlockWeight(), BlockWeight() if (first.kind, first.inputs) == (second.kind, second.inputs):
            return BlockWeight(first.kind, first.views + second.views, first.inputs, first.mapped and second.mapped)
        case DenseWeight(), DenseWeight():
            return DenseWeight(torch.cat((first.values, second.values)))
    return None
