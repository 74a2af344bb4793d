"""Weights as the kernels read them: packed for the instruction set, in memory of the library's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from textgen.layers.weight import DenseWeight, Weight
from textgen.ops.cpu.library import Handle, Kernels, KernelsMissing
from textgen.ops.cpu.values import NotRecorded
from textgen.ops.pages import let_go
from textgen.quantization.blocks import BlockWeight
from textgen.quantization.cache import KeptWeight, MappedWeight
from textgen.quantization.formats import COMPACT_ISAS
from textgen.quantization.integers import Int4Weight, Int8Weight
from textgen.quantization.mxfp4 import Mxfp4Weight
from textgen.quantization.packed import Int4ZerosWeight
from textgen.quantization.stored import DeferredWeight, StoredWeight

FLOATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 5}
INT8, INT8_GROUPS, INT4_GROUPS, INT4_ZEROS = 2, 3, 4, 9
BF16, COMPACT = 1, 11
BLOCKS = {"Q8_0": INT8_GROUPS, "Q4_0": INT4_GROUPS, "Q4_K": 6, "Q5_K": 7, "Q6_K": 8, "MXFP4": 10}
PANEL = 16  # outputs that lie side by side
STRETCH = 512  # rows that one thread packs at a time: whole panels
Form: TypeAlias = tuple[int, int, int, int]
_PACKABLE = DenseWeight, StoredWeight, DeferredWeight, Int8Weight, Int4Weight, Int4ZerosWeight, BlockWeight, Mxfp4Weight


def check_packable(weight: Weight) -> None:
    """Raises `NotRecorded` for a format that the kernels do not multiply."""
    if isinstance(weight, MappedWeight):
        return
    weight = weight.weight if isinstance(weight, KeptWeight) else weight
    if isinstance(weight, DenseWeight) and weight.values.dtype not in FLOATS:
        raise NotRecorded(f"weights in {str(weight.values.dtype).removeprefix('torch.')}")
    if not isinstance(weight, _PACKABLE):
        raise NotRecorded(f"weights of the form {type(weight).__name__}")


def room(kernels: Kernels, weight: Weight) -> Handle:
    """Memory for the weight, not touched yet; of one that is packed already, that. Raises `KernelsMissing`."""
    if isinstance(weight, MappedWeight):
        try:
            packed, data = weight.cache.get(weight.key)
        except KeyError:
            raise KernelsMissing("the weights cache lacks a weight; delete its file to have it written anew") from None
        return kernels.mapped((packed.form, packed.outputs, packed.inputs, packed.group), data)
    return kernels.weight(*_form_in(kernels, weight))


def _form_in(kernels: Kernels, weight: Weight) -> Form:
    """As `form_of`, but bfloat16 is compact where that is faster, and no two stretches share a panel."""
    form, outputs, inputs, group = form_of(weight)
    weight = weight.weight if isinstance(weight, KeptWeight) else weight
    views = weight.views[:-1] if isinstance(weight, StoredWeight) else ()
    compact = form == BF16 and kernels.isa in COMPACT_ISAS and all(len(view) % PANEL == 0 for view in views)
    return COMPACT if compact else form, outputs, inputs, group


def form_of(weight: Weight) -> Form:
    """Format, outputs, inputs and group, as the kernels take them."""
    match weight:
        case DenseWeight(values=values):
            return FLOATS[values.dtype], *values.shape, 0
        case StoredWeight():
            return FLOATS[weight.dtype], weight.outputs, weight.inputs, 0
        case DeferredWeight():
            form, _, inputs, group = form_of(weight.format.of(weight.stored.views[0][:0]))
            return form, weight.outputs, inputs, group
        case Int8Weight(values=values):
            return INT8, *values.shape, 0
        case Int4Weight():
            return INT4_GROUPS, weight.outputs, weight.inputs, weight.group
        case Int4ZerosWeight():
            return INT4_ZEROS, weight.outputs, weight.inputs, weight.group
        case Mxfp4Weight():
            return BLOCKS["MXFP4"], weight.outputs, weight.inputs, 32
        case BlockWeight():
            form = BLOCKS[weight.kind]
            return form, weight.outputs, weight.inputs, 0 if weight.kind in ("Q4_K", "Q5_K", "Q6_K") else 32
        case KeptWeight():
            return form_of(weight.weight)
        case _:
            raise NotRecorded(f"weights of the form {type(weight).__name__}")


@dataclass(frozen=True, slots=True)
class _InKernels:
    """A weight's packed form in the library's memory."""

    kernels: Kernels
    handle: Handle
    form: Form

    def packed_form(self) -> Form:
        return self.form

    def packed_bytes(self) -> memoryview:
        address, size = self.kernels.memory(self.handle)
        return memoryview((ctypes.c_uint8 * size).from_address(address)).cast("B")


def pack(kernels: Kernels, workers: Executor, packed: Handle, weight: Weight) -> None:
    """Copy the weight into its room, stretch by stretch."""
    if isinstance(weight, MappedWeight):
        return
    if isinstance(weight, KeptWeight):
        form = _pack(kernels, workers, packed, weight.weight)
        weight.cache.add(weight.key, _InKernels(kernels, packed, form))
    else:
        _pack(kernels, workers, packed, weight)


def _pack(kernels: Kernels, workers: Executor, packed: Handle, weight: Weight) -> Form:
    """Returns the form that it then has."""
    form = _form_in(kernels, weight)
    if not _pack_all(kernels, workers, packed, weight):
        kernels.widen(packed)
        form = form_of(weight)
        _pack_all(kernels, workers, packed, weight)
    for view in weight.views if isinstance(weight, Mxfp4Weight) else ():
        let_go(view)
    return form


def _pack_all(kernels: Kernels, workers: Executor, packed: Handle, weight: Weight) -> bool:
    """Whether all of it fits."""
    stored = weight.stored if isinstance(weight, DeferredWeight) else weight  # the kernels make its integers
    stretches: list[Callable[[], bool]]
    if isinstance(stored, StoredWeight):
        stretches = [partial(_pack_view, kernels, packed, *each) for each in stored.stretches(STRETCH)]
    elif isinstance(weight, BlockWeight | Mxfp4Weight):
        stretches = [partial(_pack_blocks, kernels, packed, *each) for each in weight.stretches(STRETCH)]
    else:
        firsts = range(0, weight.outputs, STRETCH)
        stretches = [partial(_pack_rows, kernels, packed, weight, first) for first in firsts]
    return all(list(workers.map(lambda stretch: stretch(), stretches)))  # once none of them runs any more


def _pack_view(kernels: Kernels, packed: Handle, first: int, view: Tensor) -> bool:
    fits = kernels.pack(packed, first, view)
    let_go(view)
    return fits


def _pack_rows(kernels: Kernels, packed: Handle, weight: Weight, first: int) -> bool:
    rows = slice(first, first + STRETCH)
    return kernels.pack(packed, first, *_rows(weight, rows))


def _rows(weight: Weight, rows: slice) -> tuple[Tensor] | tuple[Tensor, Tensor]:
    """Numbers, or integers and what belongs to them."""
    match weight:
        case DenseWeight(values=values):
            return (values[rows],)
        case Int8Weight(values=values, scales=scales):
            return values[rows], scales[rows, None]
        case Int4Weight(scales=scales):
            return weight.unpacked(rows), scales[rows].float()
        case Int4ZerosWeight(scales=scales, zeros=zeros):
            return weight.values(rows), torch.cat((scales[rows].float(), zeros[rows].float()), dim=1)
        case _:
            raise NotRecorded(f"weights of the form {type(weight).__name__}")


def _pack_blocks(kernels: Kernels, packed: Handle, first: int, weight: BlockWeight) -> bool:
    parts = weight.integers() if weight.kind in ("Q8_0", "Q4_0", "MXFP4") else (weight.blocks,)
    fits = kernels.pack(packed, first, *parts)
    for view in weight.views if weight.mapped else ():
        let_go(view)
    return fits
