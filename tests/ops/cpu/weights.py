"""Packed weights for tests, and what a product with them is, in plain torch."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from textgen.ops.cpu.library import DTYPES, BufferRecord, Handle, Kernels, KernelsMissing, Operation, PlanOptions, Step

from .guarded import guarded

LINEAR, ADD = 0, 1
F32, BF16, INT8, INT8_GROUPS, INT4_GROUPS = range(5)
LIBRARY = os.environ.get("TEXTGEN_CPU_LIBRARY")  # of `make -C csrc/cpu`; else the kernels in the extension module


def kernels_of(isa: str) -> Kernels | None:
    """Those of an instruction set; `None` where this machine lacks it."""
    try:
        return Kernels(isa, Path(LIBRARY) if LIBRARY else None)
    except KernelsMissing:
        return None


@dataclass(frozen=True)
class Matrix:
    """A weight as its owner has it."""

    form: int
    values: Tensor  # [outs, ins]
    scales: Tensor | None = None  # [outs, 1 or groups] float32
    group: int = 0

    def product(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x W^T in float64, as the format defines it, and the size of the terms that are summed."""
        if self.form == F32:
            x, values = x.double(), self.values.double()
        elif self.form == BF16:
            x, values = x.bfloat16().double(), self.values.bfloat16().double()
        else:
            assert self.scales is not None
            group = self.group or x.shape[1]
            parts = x.float().unflatten(1, (-1, group))
            top = parts.abs().amax(-1, keepdim=True)
            quantized = torch.where(
                top > 0, parts * torch.tensor(127.0).div(top), 0.0
            ).round()  # 127 / top is two roundings
            x = (quantized.double() * (top / 127).double()).flatten(1)
            scales = self.scales if self.group == 0 else self.scales.half()
            values = self.values.double() * scales.double().repeat_interleave(group, 1)
        return x @ values.T, x.abs() @ values.abs().T


def random_matrix(rng: random.Random, form: int, outs: int, ins: int, group: int = 0) -> Matrix:
    if form in (F32, BF16):
        return Matrix(form, torch.randn(outs, ins, dtype=[torch.float32, torch.bfloat16][form]))
    low, high = (-8, 8) if form == INT4_GROUPS else (-128, 128)
    values = torch.randint(low, high, (outs, ins), dtype=torch.int8)
    scales = torch.rand(outs, 1 if form == INT8 else ins // group) + 0.01
    return Matrix(form, values, scales, group)


def packed(kernels: Kernels, matrix: Matrix, rng: random.Random) -> Handle:
    """Packed in several calls, from memory that ends at the end of a page."""
    outs, ins = matrix.values.shape
    weight = kernels.weight(matrix.form, outs, ins, matrix.group)
    first = 0
    while first < outs:
        last = min(outs, first + rng.randint(1, outs))
        scales = None if matrix.scales is None else guarded(matrix.scales[first:last])
        kernels.pack(weight, first, guarded(matrix.values[first:last]), scales)
        first = last
    return weight


def run_linear(
    kernels: Kernels, pool: Handle, weight: Handle, x: Tensor, bias: Tensor | None, y: Tensor, add: bool
) -> None:
    """y = x W^T + bias, or y += that. x [rows, ins], y [rows, outs], bias [outs] float32."""
    buffers = (BufferRecord * 2)()
    for record, tensor in zip(buffers, (x, y), strict=True):
        width = tensor.shape[1]
        stride = max(tensor.stride(0), width)
        record.address, record.width, record.stride, record.dtype = (
            tensor.data_ptr(),
            width,
            stride,
            DTYPES[tensor.dtype],
        )
    op = Operation(LINEAR, ADD if add else 0)
    op.args[0], op.args[1] = weight.address, 0 if bias is None else bias.data_ptr()
    op.args[2], op.args[3] = 0, 1
    ops = (Operation * 1)(op)
    plan = kernels.plan(pool, PlanOptions(ops, buffers, None, 1, 2, 0, len(x), len(x), len(x), 1), weight, x, y)
    kernels.run(plan, Step(tokens=len(x)))
