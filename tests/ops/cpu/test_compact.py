"""bfloat16 in 12 bits: every number comes out as it went in, or the weight says that it does not fit."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest
import torch
from torch import Tensor

from textgen.ops.cpu.library import Handle, Kernels, KernelsMissing

from . import weights
from .guarded import guarded
from .native import EMBED, PACKED, Native, Step
from .weights import BF16, COMPACT, Matrix, kernels_of, packed, random_matrix


def own(native: Native) -> Kernels:
    kernels = kernels_of(native.isa)
    assert kernels is not None
    return kernels


def memory(kernels: Kernels, weight: Handle) -> bytes:
    return ctypes.string_at(*kernels.memory(weight))


def numbers(native: Native, weight: Handle, outs: int, ins: int) -> Tensor:
    """All of a weight's, looked up one row after the other."""
    y = torch.empty(outs, ins, dtype=torch.bfloat16)
    args = {0: weight.address, 2: outs, 3: 0}
    native.run((EMBED, args, {0: 1.0}, PACKED), [y], Step(outs, ids=torch.arange(outs)))
    return y


def bits(rng: random.Random, outs: int, ins: int, strange: float) -> Tensor:
    """Normal numbers, and a share of any 16 bits but those of numbers that are none: zeros, infinities, subnormals."""
    values = (torch.randn(outs, ins) * 2.0 ** rng.randint(-40, 40)).bfloat16()
    any_bits = torch.randint(-(2**15), 2**15, (outs, ins), dtype=torch.int16).view(torch.bfloat16)
    values = torch.where((torch.rand(outs, ins) < strange) & ~any_bits.isnan(), any_bits, values)
    return torch.where(
        torch.rand(outs, ins) < rng.choice((0.0, 0.3)), rng.choice((0.0, -0.0)), values.float()
    ).bfloat16()


@pytest.mark.parametrize("strange", [0.0, 1e-3, 0.05])
def test_numbers_come_out_as_they_went_in(native: Native, rng: random.Random, strange: float) -> None:
    kernels, outs, ins = own(native), rng.randint(1, 100), rng.randint(1, 300)
    values = bits(rng, outs, ins, strange)
    weight = kernels.weight(COMPACT, outs, ins)
    if not kernels.pack(weight, 0, guarded(values)):
        assert strange > 0 or ins < 40, "normal numbers fit"
        kernels.widen(weight)
        assert kernels.pack(weight, 0, guarded(values))
    assert torch.equal(numbers(native, weight, outs, ins).view(torch.int16), values.view(torch.int16))


def test_a_quarter_less_memory_whatever_way_it_is_packed(native: Native, rng: random.Random) -> None:
    """Rows may come in any pieces, and in any dtype."""
    kernels, outs, ins = own(native), rng.randint(200, 300), 32 * rng.randint(10, 20)
    matrix = random_matrix(rng, COMPACT, outs, ins)
    whole, plain = kernels.weight(COMPACT, outs, ins), kernels.weight(BF16, outs, ins)
    assert kernels.pack(whole, 0, matrix.values)
    assert kernels.memory(whole)[1] < 0.79 * kernels.memory(plain)[1]
    made = memory(kernels, whole)
    assert memory(kernels, packed(kernels, matrix, rng)) == made
    wide = kernels.weight(COMPACT, outs, ins)
    assert kernels.pack(wide, 0, matrix.values.float())
    assert memory(kernels, wide) == made


def test_what_does_not_fit_is_said_and_kept_as_it_is(native: Native, rng: random.Random) -> None:
    """Also in a plan that was made before, as a server's is."""
    kernels, outs, ins, rows = own(native), 40, 128, rng.choice((1, 5, 40))
    far = (torch.randn(outs, ins) * torch.exp2(torch.randint(-60, 60, (outs, ins)).float())).bfloat16()
    weight = kernels.weight(COMPACT, outs, ins)
    address = weight.address
    x, y = guarded(torch.randn(rows, ins)), guarded(torch.zeros(rows, outs))
    run = weights.linear(kernels, kernels.pool(2, 100), weight, x, None, y, False)
    assert not kernels.pack(weight, 0, far)
    kernels.widen(weight)
    assert kernels.pack(weight, 0, far)
    assert weight.address == address
    assert torch.equal(numbers(native, weight, outs, ins), far)
    run()
    product, size = Matrix(BF16, far).product(x)
    assert ((y.double() - product).abs() <= size * ins * 2**-24 + 1e-6).all()
    with pytest.raises(KernelsMissing, match="only compact weights"):
        kernels.widen(weight)


def test_a_damaged_form_is_not_mapped(native: Native, rng: random.Random) -> None:
    kernels, outs, ins = own(native), 64, 256
    weight = packed(kernels, random_matrix(rng, COMPACT, outs, ins), rng)
    made = np.frombuffer(memory(kernels, weight), np.uint8)
    room = np.zeros(len(made) + 64, np.uint8)
    data = room[-room.ctypes.data % 64 :][: len(made)]
    data[:] = made
    mapped = kernels.mapped((COMPACT, outs, ins, 0), data)
    assert torch.equal(numbers(native, mapped, outs, ins), numbers(native, weight, outs, ins))
    panel = len(made) // (outs // 16)
    damaged = data[panel * rng.randrange(outs // 16) :]
    if rng.random() < 0.5:
        damaged[16:20] = 255  # more spills than there is room for
    else:
        damaged[16:20] = (1, 0, 0, 0)
        damaged[64:68] = (0, 0x10, 0, 0)  # one behind the last input
    with pytest.raises(KernelsMissing, match="is damaged"):
        kernels.mapped((COMPACT, outs, ins, 0), data)
