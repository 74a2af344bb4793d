"""Packed weights for tests, and what a product with them is, in plain torch."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from torch import Tensor

from textgen.ops.cpu.library import DTYPES, BufferRecord, Handle, Kernels, KernelsMissing, Operation, PlanOptions, Step

from .guarded import guarded

LINEAR, ADD = 0, 1
F32, BF16, INT8, INT8_GROUPS, INT4_GROUPS, F16, Q4_K, Q5_K, Q6_K, INT4_ZEROS, MXFP4, COMPACT = range(12)
FLOATS = {F32: torch.float32, BF16: torch.bfloat16, F16: torch.float16, COMPACT: torch.bfloat16}
BLOCKS = {  # the file's name, inputs to a group, where the scales in float16 lie, and where the values end and begin
    Q4_K: (GGMLQuantizationType.Q4_K, 32, (0, 2), slice(16, None)),
    Q5_K: (GGMLQuantizationType.Q5_K, 32, (0, 2), slice(16, None)),
    Q6_K: (GGMLQuantizationType.Q6_K, 16, (208,), slice(0, 0)),
}
_POSITIVE = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
E2M1 = torch.cat((_POSITIVE, -_POSITIVE))  # the numbers of MXFP4
UNPACK_ROWS = 24  # kUnpackRows of csrc/cpu/src/kernels/linear.h
LIBRARY = os.environ.get("TEXTGEN_CPU_LIBRARY")  # of `make -C csrc/cpu`; else the kernels in the extension module


def kernels_of(isa: str) -> Kernels | None:
    """Those of an instruction set; `None` where this machine lacks it."""
    try:
        return Kernels(isa, Path(LIBRARY) if LIBRARY else None)
    except KernelsMissing:
        return None


def unpacks(isa: str, rows: int) -> bool:
    """Whether weights in groups are multiplied as tiles of bfloat16."""
    return isa == "amx" and rows >= UNPACK_ROWS


@dataclass(frozen=True)
class Matrix:
    """A weight as its owner has it."""

    form: int
    values: Tensor  # [outs, ins]; of blocks their bytes
    scales: Tensor | None = None  # [outs, 1 or groups] float32
    group: int = 0

    @property
    def ins(self) -> int:
        width: int = self.values.shape[1]
        return width // GGML_QUANT_SIZES[BLOCKS[self.form][0]][1] * 256 if self.form in BLOCKS else width

    def product(self, x: Tensor, unpacked: bool = False) -> tuple[Tensor, Tensor]:
        """x W^T in float64, as the format defines it, and the size of the terms that are summed. unpacked: numbers in
        groups and x are rounded to bfloat16, as tiles have them; else x has eight bits."""
        if self.form in (F32, F16):
            x, values = x.double(), self.values.to(FLOATS[self.form]).double()
            return x @ values.T, x.abs() @ values.abs().T
        if self.form in (BF16, COMPACT):
            x, values = x.bfloat16().double(), self.values.bfloat16().double()
            return x @ values.T, x.abs() @ values.abs().T
        values, size, group = self._numbers()
        if unpacked and self.form != INT8:
            x, values = x.bfloat16().double(), _rounded(values)
            return x @ values.T, x.abs() @ values.abs().T
        x = _quantized(x, group or x.shape[1])
        return x @ values.T, x.abs() @ size.T

    def _numbers(self) -> tuple[Tensor, Tensor, int]:
        """The numbers that integers stand for, and the size of what each is made of; how many inputs a group has."""
        if self.form in BLOCKS:
            kind, group, _, parts = BLOCKS[self.form]
            values = torch.from_numpy(dequantize(self.values.numpy(), kind)).double()
            bare = self.values.numpy().reshape(len(values), -1, GGML_QUANT_SIZES[kind][1]).copy()
            bare[..., parts] = 0  # what is left are the minima
            least = torch.from_numpy(dequantize(bare.reshape(len(values), -1), kind)).double() * (self.form != Q6_K)
            return values, (values - least).abs() + least.abs(), group
        assert self.scales is not None
        group = self.group
        if self.form == MXFP4:
            values = E2M1[self.values.int()] * (self.scales.double() - 127).exp2().repeat_interleave(group, 1)
            return values, values.abs(), group
        if self.form == INT8:
            values = self.values.double() * self.scales.double()
            return values, values.abs(), 0
        scales = self.scales[:, : self.ins // group].half().double().repeat_interleave(group, 1)
        values, zeros = self.values.double(), torch.zeros(())
        if self.form == INT4_ZEROS:
            zeros = self.scales[:, self.ins // group :].double().repeat_interleave(group, 1)
        return (values - zeros) * scales, (values.abs() + zeros) * scales, group


def _quantized(x: Tensor, group: int) -> Tensor:
    """Eight bits for each row and group, in float64 again."""
    parts = x.float().unflatten(1, (-1, group))
    top = parts.abs().amax(-1, keepdim=True)
    whole = torch.where(top > 0, parts * torch.tensor(127.0).div(top), 0.0).round()  # 127 / top is two roundings
    rounded: torch.Tensor = whole.double() * (top / 127).double()
    return rounded.flatten(1)


def _rounded(values: Tensor) -> Tensor:
    """To bfloat16, halves upwards, in float64 again."""
    bits = values.float().view(torch.int32) + 0x8000
    return bits.bitwise_and(-0x10000).view(torch.float32).double()


def random_matrix(rng: random.Random, form: int, outs: int, ins: int, group: int = 0) -> Matrix:
    if form == COMPACT:
        return Matrix(form, _far_apart(rng, outs, ins))
    if form in FLOATS:
        return Matrix(form, torch.randn(outs, ins).to(FLOATS[form]))
    if form in BLOCKS:
        kind, _, scales, _ = BLOCKS[form]
        size = GGML_QUANT_SIZES[kind][1]
        blocks = torch.randint(0, 256, (outs, ins // 256, size), dtype=torch.uint8)
        for at in scales:
            factors = torch.rand(outs, ins // 256, 1).mul(0.05).half().numpy().view(np.uint8)
            blocks[..., at : at + 2] = torch.from_numpy(factors)
        return Matrix(form, blocks.flatten(1))
    if form == INT4_ZEROS:
        steps, zeros = torch.rand(outs, ins // group) + 0.01, torch.randint(0, 17, (outs, ins // group))
        values = torch.randint(0, 16, (outs, ins), dtype=torch.int8)
        return Matrix(form, values, torch.cat((steps, zeros.float()), dim=1), group)
    if form == MXFP4:
        values = torch.randint(0, 16, (outs, ins), dtype=torch.int8)
        return Matrix(form, values, torch.randint(110, 130, (outs, ins // group)).float(), group)
    low, high = (-8, 8) if form == INT4_GROUPS else (-128, 128)
    values = torch.randint(low, high, (outs, ins), dtype=torch.int8)
    return Matrix(form, values, torch.rand(outs, 1 if form == INT8 else ins // group) + 0.01, group)


def _far_apart(rng: random.Random, outs: int, ins: int) -> Tensor:
    """Numbers of which some are zero, and in each panel two are farther from the others than codes go."""
    values = torch.randn(outs, ins)
    values = values.sign() * values.abs().clamp_min(2**-6) * (torch.rand(outs, ins) > 0.1)
    for first in range(0, outs, 16):
        for factor in (1e-9, 1e6):
            row = rng.randrange(first, min(first + 16, outs))
            values[row, rng.randrange(ins)] = factor * rng.choice((-1, 1))
    return values.bfloat16()


def packed(kernels: Kernels, matrix: Matrix, rng: random.Random) -> Handle:
    """Packed in several calls, from memory that ends at the end of a page."""
    outs = len(matrix.values)
    weight = kernels.weight(matrix.form, outs, matrix.ins, matrix.group)
    first = 0
    while first < outs:
        last = min(outs, first + rng.randint(1, outs))
        scales = None if matrix.scales is None else guarded(matrix.scales[first:last])
        assert kernels.pack(weight, first, guarded(matrix.values[first:last]), scales)
        first = last
    return weight


def run_linear(
    kernels: Kernels, pool: Handle, weight: Handle, x: Tensor, bias: Tensor | None, y: Tensor, add: bool
) -> None:
    linear(kernels, pool, weight, x, bias, y, add)()


def linear(
    kernels: Kernels, pool: Handle, weight: Handle, x: Tensor, bias: Tensor | None, y: Tensor, add: bool
) -> Callable[[], None]:
    """What makes y = x W^T + bias, or y += that. x [rows, ins], y [rows, outs], bias [outs] float32."""
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
    return partial(kernels.run, plan, Step(tokens=len(x)))
