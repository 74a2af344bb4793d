"""Rows that are sorted by expert, each times its expert's weight of few bits, by the kernels for GPUs."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from textgen.ops.cuda.bricks import Kind, Plain, pack, stack
from textgen.ops.cuda.linear import Linears

from ..cpu.guarded import guarded
from .host_device import HostDevice
from .test_grouped import ends_of, sizes_of
from .test_linear import KINDS, WITHIN, assert_product, draw, size_of, there


@pytest.mark.parametrize("kernel", ["linear_few", "linear_tiles"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_experts(rng: random.Random, device: HostDevice, kind: Kind, kernel: str) -> None:
    """Experts of random sizes, some empty and some with several tiles; x in order, or gathered from another."""
    few, experts = kernel == "linear_few", rng.choice([1, 3, 40])
    size = size_of(rng, kind.group)
    plains = [draw(kind, size) for _ in range(experts)]
    rows = rng.randint(1, 16 * experts) if few else rng.randint(16 * experts + 1, 16 * experts + 90)
    sizes = sizes_of(rng, experts, max(rows, 2))
    check(rng, device, plains, sizes, kernel)


@pytest.mark.parametrize(("kernel", "rows", "bricks"), [("linear_few", 3, 70), ("linear_tiles", 34, 33)])
@pytest.mark.parametrize("kind", [KINDS[3], KINDS[5], KINDS[7], KINDS[8]], ids=str)
def test_blocks_share_out_long_rows(
    rng: random.Random, device: HostDevice, kind: Kind, kernel: str, rows: int, bricks: int
) -> None:
    """Few tiles for three multiprocessors; the blocks of tiles that are not there end without a trace."""
    size = rng.randint(1, 64), 64 * bricks + (8 if kind.group == 0 else 0)
    plains = [draw(kind, size) for _ in range(2)]
    device.processors = 12
    check(rng, device, plains, [0, rows], kernel, shared=True)


def test_only_matrices_of_one_size_and_form_are_stacked(rng: random.Random) -> None:
    one = pack(draw(KINDS[0], (64, 128)))
    for other in (pack(draw(KINDS[0], (65, 128))), pack(draw(KINDS[1], (64, 128))), None):
        assert stack([one, other], 2) is None
    assert stack([one, one], 2) is not None


def check(
    rng: random.Random, device: HostDevice, plains: list[Plain], sizes: list[int], kernel: str, shared: bool = False
) -> None:
    dtype, (outputs, inputs) = rng.choice(list(WITHIN)), plains[0].codes.shape
    rows, experts = sum(sizes), len(plains)
    sources = rng.choice([None, torch.randint(0, 5, (rows,), dtype=torch.int32)])
    x = guarded(torch.randn(rows if sources is None else 5, inputs).to(dtype))
    biases = rng.choice([None, guarded(torch.randn(experts, outputs).to(dtype))])
    stacked = stack(map(pack, plains), experts)
    assert stacked is not None
    linears, weights = Linears.on(device, x.device), there(stacked)
    ends = guarded(ends_of(sizes))
    assert linears.takes_experts(x, weights, ends)
    assert all(torch.equal(one.plain().codes, plain.codes) for one, plain in zip(weights.split(), plains, strict=True))
    for _ in range(2):  # and counters are as they were
        got = linears.multiply_experts(x, weights, ends, biases, None if sources is None else guarded(sources))
        gathered = x if sources is None else x[sources]
        for expert, (part, given) in enumerate(zip(got.split(sizes), gathered.split(sizes), strict=True)):
            if len(part):
                assert_product(part, given, plains[expert], bias_of(biases, expert))
        assert not linears.counters.any()
        assert device.grids[-1][1 if kernel == "linear_few" else 2] > 1 or not shared
    assert device.launches == [kernel] * 2


def bias_of(biases: Tensor | None, expert: int) -> Tensor | None:
    return None if biases is None else biases[expert]
