"""Products with weights of 4 and 8 bits by the kernels for GPUs are those with the numbers of `Plain`, rounded once.

Inputs end where memory ends (`guarded`), and shapes are odd."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from textgen.ops.cuda.bricks import FOUR_BITS, Bricks, Kind, Plain, pack
from textgen.ops.cuda.linear import Linears

from ..cpu.guarded import guarded
from .host_device import HostDevice

WITHIN = {torch.bfloat16: 2**-8, torch.float16: 2**-11}  # half a unit in the last place, relative

KINDS: list[Kind] = [
    Kind("INT4", 32, torch.float16, None),
    Kind("INT4", 64, torch.float16, torch.uint8),
    Kind("INT4", 128, torch.float16, None),
    Kind("INT4", 128, torch.float16, torch.uint8),
    Kind("INT4", 32, torch.float16, torch.uint8),
    Kind("INT4", 32, torch.float16, torch.float16),
    Kind("INT4", 128, torch.bfloat16, torch.bfloat16),
    Kind("E2M1", 32, torch.bfloat16, None),
    Kind("INT8", 0, torch.float32, None),
    Kind("INT8", 32, torch.float16, None),
    Kind("INT8", 32, torch.bfloat16, None),
    Kind("E4M3", 0, torch.float32, None),
    Kind("E4M3", 128, torch.float32, None),
    Kind("E5M2", 0, torch.float32, None),
]


def draw(kind: Kind, size: tuple[int, int]) -> Plain:
    """Every code that a form has, but for those that are no numbers."""
    (form, group, scale, zeros), (outputs, inputs) = kind, size
    codes = torch.randint(0, 16 if form in FOUR_BITS else 256, size, dtype=torch.uint8)
    if form == "E4M3":
        codes = torch.where((codes & 127) == 127, 0, codes)
    if form == "E5M2":
        codes = torch.where((codes & 124) == 124, 0, codes)
    groups = 1 if group == 0 else -(-inputs // group)
    scales = (torch.randn(outputs, groups) * 0.02).to(scale)
    if zeros is None:
        return Plain(form, codes, scales, None, group)
    below = torch.randint(0, 17, scales.shape) if zeros == torch.uint8 else torch.randn(scales.shape) * 0.2
    return Plain(form, codes, scales, below.to(zeros), group)


def there(bricks: Bricks) -> Bricks:
    zeros = None if bricks.zeros is None else guarded(bricks.zeros)
    return replace(bricks, packed=guarded(bricks.packed), scales=guarded(bricks.scales), zeros=zeros)


def assert_product(got: Tensor, x: Tensor, plain: Plain, bias: Tensor | None) -> None:
    """Against float64; a sum's own rounding is relative to its parts."""
    weights = plain.numbers().double()
    expected = x.double() @ weights.t() + (0 if bias is None else bias.double())
    parts = x.double().abs() @ weights.abs().t()
    allowed = WITHIN[got.dtype] * expected.abs() + 2**-21 * parts + 1e-6
    assert (got.double() - expected).abs().le(allowed).all()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_packing_can_be_undone(rng: random.Random, monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    monkeypatch.setattr("textgen.ops.cuda.bricks.STRETCH", rng.choice([1, 20000, 1 << 24]))
    size = rng.randint(1, 200), 32 * rng.randint(1, 9) if kind.group == 32 else 128 * rng.randint(1, 3)
    plain = draw(kind, size)
    back = pack(plain).plain()
    assert torch.equal(back.codes, plain.codes) and torch.equal(back.scales, plain.scales)
    assert back.zeros is None if plain.zeros is None else torch.equal(back.zeros, plain.zeros)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_few_rows(rng: random.Random, device: HostDevice, kind: Kind) -> None:
    check(rng, device, draw(kind, size_of(rng, kind.group)), rng.randint(1, 16), "linear_few")


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_many_rows(rng: random.Random, device: HostDevice, kind: Kind) -> None:
    rows = rng.choice([17, rng.randint(18, 64), rng.randint(65, 90)])
    check(rng, device, draw(kind, size_of(rng, kind.group)), rows, "linear_tiles")


@pytest.mark.parametrize(("kernel", "rows", "bricks"), [("linear_few", 3, 70), ("linear_tiles", 20, 33)])
@pytest.mark.parametrize("kind", [KINDS[3], KINDS[5], KINDS[8]], ids=str)
def test_blocks_share_out_long_rows(
    rng: random.Random, device: HostDevice, kind: Kind, kernel: str, rows: int, bricks: int
) -> None:
    """The stand-in has three multiprocessors: two blocks and more for a few outputs."""
    size = rng.randint(1, 130), 128 * bricks // 2 + (8 if kind.group == 0 else 0)
    check(rng, device, draw(kind, size), rows, kernel, shared=True)


def size_of(rng: random.Random, group: int) -> tuple[int, int]:
    inputs = group * rng.randint(1, 5) if group else 8 * rng.randint(1, 50)
    return rng.choice([3, 64, 130, 1 + rng.randint(0, 300)]), inputs


def check(rng: random.Random, device: HostDevice, plain: Plain, rows: int, kernel: str, shared: bool = False) -> None:
    dtype, (outputs, inputs) = rng.choice(list(WITHIN)), plain.codes.shape
    wide = guarded(torch.randn(rows, inputs + 8).to(dtype))
    x = wide[:, 8:] if rng.random() < 0.5 else guarded(wide[:, 8:].contiguous())
    bias = rng.choice([None, guarded(torch.randn(outputs).to(dtype))])
    print(f"{plain.form}, groups of {plain.group}, {dtype}, {rows} x {inputs} x {outputs}")
    linears, bricks = Linears.on(device, torch.device("cpu")), there(pack(plain))
    assert linears.takes(x, bricks)
    got = linears.multiply(x, bricks, bias)
    assert got.shape == (rows, outputs)
    assert_product(got, x, plain, bias)
    assert torch.equal(got, linears.multiply(x, bricks, bias)), "another order of summation"
    assert device.launches == [kernel, kernel] and not linears.counters.any()
    assert not shared or max(grid[-1] if kernel == "linear_tiles" else grid[1] for grid in device.grids) > 1
