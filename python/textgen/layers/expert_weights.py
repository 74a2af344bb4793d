"""The experts' matrices, however a checkpoint stores them: numbers of all in one tensor, or a weight for each.

In one tensor, an expert whose neurons do not fill rows of 16 bytes gets a few more that give nothing: grouped products
ask for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from textgen.layers.weight import DenseWeight, LoadContext, Numbered, Part, Weight, WeightSource
from textgen.models.names import LayerNames
from textgen.models.spec import ExpertsSpec
from textgen.ops import Ops
from textgen.quantization.mxfp4 import read_mxfp4

ALIGNED = 8  # numbers of two bytes each


@runtime_checkable
class ExpertMatrices(Protocol):
    """The same matrix of every expert."""

    @property
    def outputs(self) -> int: ...

    @property
    def each(self) -> Sequence[Weight]: ...

    def multiply(self, x: Tensor, ends: Tensor, bias: Tensor | None, sources: Tensor | None = None) -> Tensor:
        """Rows of each expert, which end before ends [experts], times its matrix; see `Ops.grouped_linear`."""
        ...


@dataclass(frozen=True, slots=True)
class GroupedMatrices:
    """Multiplied together. values [experts, out, in]."""

    values: Tensor
    ops: Ops

    @property
    def outputs(self) -> int:
        return self.values.shape[1]

    @property
    def each(self) -> Sequence[Weight]:
        return [DenseWeight(one) for one in self.values]

    def multiply(self, x: Tensor, ends: Tensor, bias: Tensor | None, sources: Tensor | None = None) -> Tensor:
        return self.ops.grouped_linear(x, self.values, ends, bias, sources)


@dataclass(frozen=True, slots=True)
class SeparateMatrices:
    """Multiplied one by one, in the format of linear layers. It asks the host how many rows each has."""

    each: Sequence[Weight]

    @property
    def outputs(self) -> int:
        return self.each[0].outputs

    def multiply(self, x: Tensor, ends: Tensor, bias: Tensor | None, sources: Tensor | None = None) -> Tensor:
        x = x if sources is None else x.index_select(0, sources)
        y, begin = x.new_empty(len(x), self.outputs), 0
        for expert, end in enumerate(ends.tolist()):
            if end > begin:
                own = None if bias is None else bias[expert]
                y[begin:end] = self.each[expert].multiply(x[begin:end], own)
            begin = end
        return y


def load_expert_weights(
    context: LoadContext, hidden: int, experts: ExpertsSpec, names: LayerNames, ops: Ops
) -> tuple[ExpertMatrices, ExpertMatrices]:
    """Of [2 * neurons, hidden], gates first, and of [hidden, neurons]: the rank's neurons of each expert."""
    mine = context.parallel.share(experts.intermediate_size, "neurons of an expert")
    if context.format.by_expert:
        return _load_separate(context, hidden, experts, names, mine)
    neurons = mine.stop - mine.start
    padded = _padded(neurons)
    up = torch.zeros((experts.count, 2 * padded, hidden), dtype=context.dtype, device=context.device)
    down = torch.zeros((experts.count, hidden, padded), dtype=context.dtype, device=context.device)
    for expert in range(experts.count):
        into = (up[expert, :neurons], up[expert, padded : padded + neurons], down[expert, :, :neurons])
        if _in_mxfp4(context, names):
            stored = _Mxfp4(context.source, expert, hidden, experts, names, mine)
            values = (*stored.up().numbers().chunk(2), stored.down().numbers())
            for target, each in zip(into, values, strict=True):
                target.copy_(each)
        else:
            for part, target in zip(_parts(expert, hidden, experts, names, mine), into, strict=True):
                context.format.read_numbers(context, part, target)
    return GroupedMatrices(up, ops), GroupedMatrices(down, ops)


def _load_separate(
    context: LoadContext, hidden: int, experts: ExpertsSpec, names: LayerNames, mine: slice
) -> tuple[ExpertMatrices, ExpertMatrices]:
    if not _in_mxfp4(context, names):
        parts = [_parts(expert, hidden, experts, names, mine) for expert in range(experts.count)]
        ups = context.format.load_experts(context, [each[:2] for each in parts])
        downs = context.format.load_experts(context, [each[2:] for each in parts])
        return SeparateMatrices(ups), SeparateMatrices(downs)
    stored = [_Mxfp4(context.source, expert, hidden, experts, names, mine) for expert in range(experts.count)]
    kept = [
        [context.format.keep(context, f"{name} {expert} {mine}", read) for expert, read in enumerate(reads)]
        for name, reads in (
            (names.expert_gate_up, [each.up for each in stored]),
            (names.expert_down, [each.down for each in stored]),
        )
    ]
    return SeparateMatrices(kept[0]), SeparateMatrices(kept[1])


def load_expert_biases(
    context: LoadContext, hidden: int, experts: ExpertsSpec, names: LayerNames, outputs: int
) -> tuple[Tensor | None, Tensor | None]:
    """[experts, outputs], as many as the first matrices have, and, on rank 0, [experts, hidden].

    Checkpoints with neighbours or stacks may have them.
    """
    if not experts.bias:
        return None, None
    size, mine = experts.intermediate_size, context.parallel.share(experts.intermediate_size, "neurons of an expert")
    neurons = mine.stop - mine.start
    up = torch.zeros((experts.count, outputs), dtype=context.dtype, device=context.device)
    gates, ups = up[:, :neurons], up[:, outputs // 2 :][:, :neurons]
    stacks = names.layout.experts == "stacks"
    if stacks:
        for target, name in ((gates, names.expert_gate), (ups, names.expert_up)):
            context.source.read(Part(f"{name}.bias", (experts.count, size), columns=mine), target)
    else:
        whole = context.tensor(Part(f"{names.expert_gate_up}_bias", (experts.count, 2 * size)))
        gates.copy_(whole[:, ::2][:, mine])
        ups.copy_(whole[:, 1::2][:, mine])
    if context.parallel.rank:
        return up, None
    down = f"{names.expert_down}.bias" if stacks else f"{names.expert_down}_bias"
    return up, context.tensor(Part(down, (experts.count, hidden)))


def _in_mxfp4(context: LoadContext, names: LayerNames) -> bool:
    return names.layout.experts == "neighbours" and context.source.has(f"{names.expert_gate_up}_blocks")


@dataclass(frozen=True, slots=True)
class _Mxfp4:
    """One expert that is stored so, with gates beside what they gate."""

    source: WeightSource
    expert: int
    hidden: int
    experts: ExpertsSpec
    names: LayerNames
    mine: slice

    def up(self) -> Numbered:
        """Gates first."""
        count, size = self.experts.count, self.experts.intermediate_size
        both = read_mxfp4(self.source, self.names.expert_gate_up, (count, 2 * size, self.hidden), self.expert)
        mine = torch.arange(size)[self.mine]
        return both.reordered(torch.cat((2 * mine, 2 * mine + 1)))

    def down(self) -> Numbered:
        """Numbers where the rank's are not whole blocks."""
        count, size = self.experts.count, self.experts.intermediate_size
        whole = read_mxfp4(self.source, self.names.expert_down, (count, self.hidden, size), self.expert)
        return whole.columns(self.mine) or DenseWeight(whole.numbers()[:, self.mine])


def _parts(expert: int, hidden: int, experts: ExpertsSpec, names: LayerNames, mine: slice) -> Sequence[Part]:
    """Gate, up and down of one expert."""
    size, count = experts.intermediate_size, experts.count
    gate_up, down = names.expert_gate_up, names.expert_down
    match names.layout.experts:
        case "each" | "stacks":  # names of stacks have no place for a number
            gate_up_parts = [
                Part(f"{name.format(expert)}.weight", (size, hidden), rows=mine)
                for name in (names.expert_gate, names.expert_up)
            ]
            down_part = Part(f"{down.format(expert)}.weight", (hidden, size), columns=mine)
        case "stacked":
            gate_up_parts = [
                Part(f"{gate_up}.weight", (2 * size, hidden), rows=slice(first + mine.start, first + mine.stop))
                for first in (0, size)
            ]
            down_part = Part(f"{down}.weight", (hidden, size), columns=mine)
        case "neighbours":
            gate_up_parts = [
                Part(gate_up, (2 * size, hidden), rows=slice(2 * mine.start + place, 2 * mine.stop, 2), transposed=True)
                for place in (0, 1)
            ]
            down_part = Part(down, (hidden, size), columns=mine, transposed=True)
    parts = (*gate_up_parts, down_part)
    return parts if names.layout.experts == "each" else [replace(part, index=expert, stacked=count) for part in parts]


def _padded(neurons: int) -> int:
    return -(-neurons // ALIGNED) * ALIGNED
