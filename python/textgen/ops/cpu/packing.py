"""Weights as the kernels read them: packed for the instruction set, in memory of the library's."""

from __future__ import annotations

import torch

from textgen.layers.weight import DenseWeight, Weight
from textgen.ops.cpu.library import BF16, F32, Handle, Kernels
from textgen.ops.cpu.values import NotRecorded
from textgen.quantization.integers import Int4Weight, Int8Weight

INT8, INT4_GROUPS = 2, 4
STRETCH = 4096  # rows unpacked at a time


def check_packable(weight: Weight) -> None:
    """Raises `NotRecorded` for a format that the kernels do not multiply."""
    if isinstance(weight, DenseWeight) and weight.values.dtype not in (torch.float32, torch.bfloat16):
        raise NotRecorded(f"weights in {str(weight.values.dtype).removeprefix('torch.')}")
    if not isinstance(weight, DenseWeight | Int8Weight | Int4Weight):
        raise NotRecorded(f"weights of the form {type(weight).__name__}")


def room(kernels: Kernels, weight: Weight) -> Handle:
    """Memory for the weight, not touched yet. Raises `KernelsMissing`."""
    match weight:
        case DenseWeight(values=values):
            form = {torch.float32: F32, torch.bfloat16: BF16}[values.dtype]
            return kernels.weight(form, *values.shape)
        case Int8Weight(values=values):
            return kernels.weight(INT8, *values.shape)
        case Int4Weight():
            return kernels.weight(INT4_GROUPS, weight.outputs, weight.inputs, weight.group)
        case _:
            raise NotRecorded(f"weights of the form {type(weight).__name__}")


def pack(kernels: Kernels, packed: Handle, weight: Weight) -> None:
    """Copy the weight into its room."""
    match weight:
        case DenseWeight(values=values):
            kernels.pack(packed, 0, values)
        case Int8Weight(values=values, scales=scales):
            kernels.pack(packed, 0, values, scales[:, None])
        case Int4Weight(scales=scales):
            for first in range(0, weight.outputs, STRETCH):
                part = slice(first, first + STRETCH)
                kernels.pack(packed, first, weight.unpacked(part), scales[part].float())
