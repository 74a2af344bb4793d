"""Numbers that become integers while they are packed: those that torch makes of them, byte for byte."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest
import torch
from torch import Tensor

from textgen.ops.cpu.library import Handle, Kernels, KernelsMissing
from textgen.quantization.integers import Int4Format, Int4Weight, Int8Format, Int8Weight

from ...seeds import fresh_seed
from .guarded import guarded
from .weights import INT4_GROUPS, INT4_ZEROS, INT8, INT8_GROUPS, kernels_of

NEAR = 1e-5  # of a group's squared errors: between scales that err so nearly alike, either is right


@pytest.fixture
def kernels() -> Kernels:
    found = kernels_of("portable")  # all sets share what packs
    assert found is not None
    return found


@pytest.fixture
def rng() -> random.Random:
    seed = fresh_seed()
    torch.manual_seed(seed)
    return random.Random(seed)


def drawn(rng: random.Random, dtype: torch.dtype, outputs: int, inputs: int) -> Tensor:
    """Rows of any size, some with the same magnitude twice, some zero."""
    values = torch.randn(outputs, inputs) * 10 ** torch.empty(outputs, 1).uniform_(-6, 4)
    for row in rng.sample(range(outputs), outputs // 4):
        values[row] = values[row].abs().amax() * torch.randint(-1, 2, (inputs,))
    values[rng.randrange(outputs)] = 0
    return guarded(values.to(dtype))


def pack_in_parts(kernels: Kernels, weight: Handle, values: Tensor, rng: random.Random) -> bytes:
    first = 0
    while first < len(values):
        last = min(len(values), first + rng.randint(1, len(values)))
        kernels.pack(weight, first, values[first:last])
        first = last
    return bytes_of(kernels, weight)


def bytes_of(kernels: Kernels, weight: Handle) -> bytes:
    address, size = kernels.memory(weight)
    return ctypes.string_at(address, size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_eight_bits_equal_those_of_torch(kernels: Kernels, rng: random.Random, dtype: torch.dtype) -> None:
    outputs, inputs = rng.randint(1, 90), rng.randint(1, 300)
    values = drawn(rng, dtype, outputs, inputs)
    theirs = Int8Format().of(values)
    assert isinstance(theirs, Int8Weight)
    expected = kernels.weight(INT8, outputs, inputs)
    kernels.pack(expected, 0, theirs.values, theirs.scales[:, None])
    ours = pack_in_parts(kernels, kernels.weight(INT8, outputs, inputs), values, rng)
    assert ours == bytes_of(kernels, expected)


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_four_bits_equal_those_of_torch(kernels: Kernels, rng: random.Random, dtype: torch.dtype, group: int) -> None:
    """But where two scales err alike, and the order of a sum decides."""
    outputs, inputs = rng.randint(1, 90), group * rng.randint(1, 5)
    values = drawn(rng, dtype, outputs, inputs)
    theirs = Int4Format(group).of(values)
    assert isinstance(theirs, Int4Weight)
    pad = -outputs % 16
    ours = pack_in_parts(kernels, kernels.weight(INT4_GROUPS, outputs, inputs, group), values, rng)
    panels = np.frombuffer(ours, np.uint8)[: (outputs + pad) // 16 * (inputs * 8 + inputs // group * 32)]
    panels = panels.reshape(-1, inputs * 8 + inputs // group * 32)
    units = panels[:, : inputs * 8].reshape(-1, inputs // 8, 16, 4)
    halves = np.stack((units & 15, units >> 4), axis=2)  # [panel, eight inputs, low or high, output, 4]
    integers = torch.from_numpy(halves.transpose(0, 3, 1, 2, 4).reshape(-1, inputs).astype(np.int8) - 8)[:outputs]
    scales = panels[:, inputs * 8 :].copy().view(np.float16).reshape(-1, inputs // group, 16)
    found = torch.from_numpy(scales.transpose(0, 2, 1).reshape(-1, inputs // group).copy())[:outputs]
    same = (integers == theirs.unpacked(slice(None))).view(outputs, -1, group).all(dim=-1) & (found == theirs.scales)

    def missed(values4: Tensor, scale: Tensor) -> Tensor:
        made = values4.view(outputs, -1, group).double() * scale.double()[..., None]
        return (made - values.view(outputs, -1, group).double()).square().sum(dim=-1)

    mine, other = missed(integers, found), missed(theirs.unpacked(slice(None)), theirs.scales)
    assert bool((same | ((mine - other).abs() <= NEAR * other)).all())
    assert same.double().mean() > 0.9


def test_other_integers_are_not_made_here(kernels: Kernels) -> None:
    for form in (INT8_GROUPS, INT4_ZEROS):
        with pytest.raises(KernelsMissing, match="from int8 values alone"):
            kernels.pack(kernels.weight(form, 16, 64, 32), 0, torch.zeros(16, 64))


def test_what_is_no_number_becomes_none(kernels: Kernels) -> None:
    """It is not hidden: the scale, and so every product with the row, is NaN."""
    values = torch.ones(16, 64)
    values[3, 5] = torch.nan
    weight = kernels.weight(INT8, 16, 64)
    kernels.pack(weight, 0, values)
    scales = np.frombuffer(bytes_of(kernels, weight), np.float32)[-16:]
    assert np.isnan(scales[3])
    assert np.isfinite(np.delete(scales, 3)).all()
