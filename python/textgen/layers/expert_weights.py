"""The experts' matrices, however a checkpoint stores them, as two tensors.

An expert whose neurons do not fill rows of 16 bytes gets a few more that give nothing: grouped products ask for it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from textgen.layers.mxfp4 import read_mxfp4
from textgen.layers.weight import LoadContext, Part
from textgen.models.names import LayerNames
from textgen.models.spec import ExpertsSpec

ALIGNED = 8  # numbers of two bytes each


def load_expert_weights(
    context: LoadContext, hidden: int, experts: ExpertsSpec, names: LayerNames
) -> tuple[Tensor, Tensor]:
    """[experts, 2 * neurons, hidden], gates first, and [experts, hidden, neurons]: the rank's neurons of each."""
    mine = context.parallel.share(experts.intermediate_size, "neurons of an expert")
    neurons = mine.stop - mine.start
    padded = _padded(neurons)
    up = torch.zeros((experts.count, 2 * padded, hidden), dtype=context.dtype, device=context.device)
    down = torch.zeros((experts.count, hidden, padded), dtype=context.dtype, device=context.device)
    for expert in range(experts.count):
        into = (up[expert, :neurons], up[expert, padded : padded + neurons], down[expert, :, :neurons])
        _read_expert(context, expert, hidden, experts, names, mine, into)
    return up, down


def load_expert_biases(
    context: LoadContext, hidden: int, experts: ExpertsSpec, names: LayerNames
) -> tuple[Tensor | None, Tensor | None]:
    """[experts, 2 * neurons] and, on rank 0, [experts, hidden]. Checkpoints with neighbours or stacks may have them."""
    if not experts.bias:
        return None, None
    size, mine = experts.intermediate_size, context.parallel.share(experts.intermediate_size, "neurons of an expert")
    neurons = mine.stop - mine.start
    up = torch.zeros((experts.count, 2 * _padded(neurons)), dtype=context.dtype, device=context.device)
    gates, ups = up[:, :neurons], up[:, up.shape[1] // 2 :][:, :neurons]
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


def _read_expert(
    context: LoadContext,
    expert: int,
    hidden: int,
    experts: ExpertsSpec,
    names: LayerNames,
    mine: slice,
    into: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Gate, up and down of one expert, each into its place."""
    size, count = experts.intermediate_size, experts.count
    gate_up, down = names.expert_gate_up, names.expert_down
    if names.layout.experts == "neighbours" and context.source.has(f"{gate_up}_blocks"):
        both = read_mxfp4(context.source, gate_up, (count, 2 * size, hidden), expert)
        one = read_mxfp4(context.source, down, (count, hidden, size), expert)
        for target, values in zip(into, (both[::2][mine], both[1::2][mine], one[:, mine]), strict=True):
            target.copy_(values)
        return
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
    for part, target in zip((*gate_up_parts, down_part), into, strict=True):
        each = names.layout.experts == "each"
        context.source.read(part if each else replace(part, index=expert, stacked=count), target)


def _padded(neurons: int) -> int:
    return -(-neurons // ALIGNED) * ALIGNED
