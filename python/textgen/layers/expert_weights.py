"""The experts' matrices, however a checkpoint stores them: numbers of all in one tensor, or a weight for each.

In one tensor, an expert whose neurons do not fill rows of 16 bytes gets a few more that give nothing: grouped products
ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from textgen.layers.weight import DenseWeight, ExpertMatrices, LoadContext, Numbered, Part, Weight
from textgen.models.names import LayerNames
from textgen.models.spec import ExpertsSpec
from textgen.ops import Ops
from textgen.quantization.mxfp4 import read_mxfp4

ALIGNED = 8  # numbers of two bytes each


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


def load_expert_weights(
    context: LoadContext, hidden: int, experts: ExpertsSpec, names: LayerNames, ops: Ops
) -> tuple[ExpertMatrices, ExpertMatrices]:
    """Of [2 * neurons, hidden], gates first, and of [hidden, neurons]: the rank's neurons of each expert."""
    mine = context.parallel.share(experts.intermediate_size, "neurons of an expert")
    in_mxfp4 = names.layout.experts == "neighbours" and context.source.has(f"{names.expert_gate_up}_blocks")
    stored = (_Mxfp4 if in_mxfp4 else _Matrices)(context, hidden, experts, names, mine)
    up, down = stored.up(), stored.down()
    neurons = mine.stop - mine.start
    padded = -(-neurons // ALIGNED) * ALIGNED
    if up is None or (down is None and padded > neurons):  # neurons that give nothing are in both, or in none
        values = _zeros(context, experts.count, 2 * padded, hidden)
        for expert, matrix in enumerate(values):
            stored.read_up(expert, matrix[:neurons], matrix[padded : padded + neurons])
        up = GroupedMatrices(values, ops)
    if down is None:
        values = _zeros(context, experts.count, hidden, padded)
        for expert, matrix in enumerate(values):
            stored.read_down(expert, matrix[:, :neurons])
        down = GroupedMatrices(values, ops)
    return up, down


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


def _zeros(context: LoadContext, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=context.dtype, device=context.device)


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where a rank's neurons of all experts come from."""

    context: LoadContext
    hidden: int
    experts: ExpertsSpec
    names: LayerNames
    mine: slice


@dataclass(frozen=True, slots=True)
class _Matrices(_Stored):
    """Experts stored as matrices. None: the format wants the numbers of all in one tensor, which are read there."""

    def up(self) -> ExpertMatrices | None:
        parts = [self._parts(expert)[:2] for expert in range(self.experts.count)]
        return self.context.format.load_experts(self.context, parts)

    def down(self) -> ExpertMatrices | None:
        parts = [self._parts(expert)[2:] for expert in range(self.experts.count)]
        return self.context.format.load_experts(self.context, parts)

    def read_up(self, expert: int, gates: Tensor, ups: Tensor) -> None:
        for part, into in zip(self._parts(expert)[:2], (gates, ups), strict=True):
            self.context.format.read_numbers(self.context, part, into)

    def read_down(self, expert: int, into: Tensor) -> None:
        self.context.format.read_numbers(self.context, self._parts(expert)[2], into)

    def _parts(self, expert: int) -> Sequence[Part]:
        """Gate, up and down of one expert."""
        size, count, mine = self.experts.intermediate_size, self.experts.count, self.mine
        names, hidden = self.names, self.hidden
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
                every = [slice(2 * mine.start + place, 2 * mine.stop, 2) for place in (0, 1)]
                gate_up_parts = [Part(gate_up, (2 * size, hidden), rows=rows, transposed=True) for rows in every]
                down_part = Part(down, (hidden, size), columns=mine, transposed=True)
        parts = (*gate_up_parts, down_part)
        each = names.layout.experts == "each"
        return parts if each else [replace(part, index=expert, stacked=count) for part in parts]


@dataclass(frozen=True, slots=True)
class _Mxfp4(_Stored):
    """As `_Matrices`, of experts that are stored so, with gates beside what they gate."""

    def up(self) -> ExpertMatrices | None:
        return self._kept(self.names.expert_gate_up, self._up)

    def down(self) -> ExpertMatrices | None:
        return self._kept(self.names.expert_down, self._down)

    def read_up(self, expert: int, gates: Tensor, ups: Tensor) -> None:
        for values, into in zip(self._up(expert).numbers().chunk(2), (gates, ups), strict=True):
            into.copy_(values)

    def read_down(self, expert: int, into: Tensor) -> None:
        into.copy_(self._down(expert).numbers())

    def _kept(self, name: str, read: Callable[[int], Numbered]) -> ExpertMatrices | None:
        reads = {f"{name} {expert} {self.mine}": partial(read, expert) for expert in range(self.experts.count)}
        return self.context.format.keep_experts(self.context, reads)

    def _up(self, expert: int) -> Numbered:
        """Gates first."""
        count, size = self.experts.count, self.experts.intermediate_size
        shape = (count, 2 * size, self.hidden)
        both = read_mxfp4(self.context.source, self.names.expert_gate_up, shape, expert)
        mine = torch.arange(size)[self.mine]
        return both.reordered(torch.cat((2 * mine, 2 * mine + 1)))

    def _down(self, expert: int) -> Numbered:
        """Numbers where the rank's are not whole blocks."""
        count, size = self.experts.count, self.experts.intermediate_size
        whole = read_mxfp4(self.context.source, self.names.expert_down, (count, self.hidden, size), expert)
        return whole.columns(self.mine) or DenseWeight(whole.numbers()[:, self.mine])
