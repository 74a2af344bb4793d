"""Products of groups of rows by the kernel for GPUs equal those in float64; a row has the same bits in every tile."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from textgen.ops.cuda import grouped
from textgen.ops.cuda.launches import DTYPES
from textgen.ops.cuda.ops import CudaOps

from ..cpu.guarded import guarded
from .host_device import HostDevice

WITHIN = {torch.float32: 2e-5, torch.bfloat16: 2**-8, torch.float16: 2**-11}
SHAPES = {
    "narrow": grouped.NARROW,
    "flat": grouped.FLAT,
    "middle": grouped.MIDDLE,
    "large": grouped.largest(227 << 10),
    "large on an A100": grouped.largest(163 << 10),
    "large on a GeForce": grouped.largest(99 << 10),
}


def sizes_of(rng: random.Random, groups: int, rows: int) -> list[int]:
    """So many rows in groups of which some are empty."""
    cuts = sorted(rng.choice([0, rows, rng.randint(0, rows)]) for _ in range(groups - 1))
    return [end - begin for begin, end in zip([0, *cuts], [*cuts, rows], strict=True)]


def ends_of(sizes: list[int]) -> Tensor:
    return torch.tensor(sizes).cumsum(0).to(torch.int32)


def exact(x: Tensor, weights: Tensor, sizes: list[int], biases: Tensor | None) -> Tensor:
    """[rows, outputs] float64."""
    parts = []
    for group, rows in enumerate(x.double().split(sizes)):
        y = rows @ weights[group].double().t()
        parts.append(y if biases is None else y + biases[group].double())
    return torch.cat(parts)


def assert_near(got: Tensor, expected: Tensor) -> None:
    within = WITHIN[got.dtype]
    torch.testing.assert_close(got.double(), expected, rtol=within, atol=within)


def shapes_of(dtype: torch.dtype) -> list[str]:
    """float32 has no tensor cores, for which the largest are."""
    return [name for name in SHAPES if dtype != torch.float32 or "large" not in name]


@pytest.mark.parametrize(
    ("dtype", "shape"), [(dtype, shape) for dtype in DTYPES for shape in shapes_of(dtype)], ids=str
)
def test_groups(
    rng: random.Random, device: HostDevice, dtype: torch.dtype, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of random sizes; x in order, or gathered from another; with biases and without."""
    chosen = SHAPES[shape]
    monkeypatch.setattr(grouped, "choose_shape", lambda *_: chosen)
    inputs, outputs = 8 * rng.choice([1, 8, 16, 19, 50]), rng.choice([1, 7, 40, chosen.columns, chosen.columns + 24])
    groups, rows = rng.choice([1, 3, 32, 70]), rng.choice([1, 17, chosen.rows, chosen.rows + 21])
    sizes = sizes_of(rng, groups, rows)
    weights = guarded((torch.randn(groups, outputs, inputs) / inputs**0.5).to(dtype))
    biases = rng.choice([None, guarded(torch.randn(groups, outputs).to(dtype))])
    sources = rng.choice([None, torch.randint(0, 5, (rows,), dtype=torch.int32)])
    x = guarded(torch.randn(rows if sources is None else 5, inputs).to(dtype))
    assert grouped.takes(device, x, weights)
    got = grouped.multiply(device, x, weights, guarded(ends_of(sizes)), biases, sources)
    assert_near(got, exact(x if sources is None else x[sources], weights, sizes, biases))
    assert device.launches == ["grouped_linear"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_has_the_same_bits_in_every_tile(
    rng: random.Random, device: HostDevice, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, outputs, rows = 8 * rng.choice([9, 30]), rng.choice([33, 130]), 150
    x, weights = torch.randn(rows, inputs).to(dtype), torch.randn(1, outputs, inputs).to(dtype)
    results = []
    for shape in map(SHAPES.__getitem__, shapes_of(dtype)):
        monkeypatch.setattr(grouped, "choose_shape", lambda *_, shape=shape: shape)
        first = rng.randrange(rows)
        count = rng.randint(1, rows - first)
        got = grouped.multiply(device, x[first : first + count], weights[0], None, None, None)
        results.append((first, got))
        several = grouped.multiply(device, x, weights, torch.tensor([rows], dtype=torch.int32), None, None)
        assert torch.equal(several[first : first + count], got)
        results.append((0, several))
    whole = results[1][1]
    assert all(torch.equal(got, whole[first : first + len(got)]) for first, got in results)


def test_shapes_are_chosen_by_how_many_rows_a_group_has(device: HostDevice) -> None:
    def chosen(rows: int, groups: int, outputs: int, dtype: torch.dtype = torch.bfloat16) -> grouped.TileShape:
        return grouped.choose_shape(device, dtype, rows, groups, outputs)

    assert chosen(1, 1, 64) == grouped.NARROW
    assert chosen(16, 8, 4096) == grouped.FLAT
    assert chosen(300, 8, 4096) == grouped.MIDDLE
    assert chosen(4096, 8, 4096) == grouped.largest(device.shared_bytes)
    assert chosen(4096, 8, 4096, torch.float32) == grouped.MIDDLE
    assert chosen(4096, 1, 16) != grouped.MIDDLE


@pytest.mark.parametrize("size", [16, 64, 128])
def test_the_grid_has_room_for_every_division(rng: random.Random, size: int) -> None:
    for _ in range(200):
        rows, groups = rng.randint(1, 600), rng.randint(1, 80)
        tiles = sum(-(-count // size) for count in sizes_of(rng, groups, rows))
        assert tiles <= grouped.row_tiles(rows, groups, size)
    assert grouped.row_tiles(2 + 6 * 16, 8, 16) == 8 + 5, "no more than can be"


def test_what_the_kernel_does_not_take_is_the_references(device: HostDevice, ops: CudaOps) -> None:
    weights, ends = torch.randn(2, 8, 8), torch.tensor([1, 3], dtype=torch.int32)
    for x in (torch.randn(3, 16)[:, ::2], torch.randn(3, 10)[:, 1:9].clone()[:0]):
        assert not grouped.takes(device, x, weights)
    assert not grouped.takes(device, torch.randn(3, 8).half(), weights)
    biases, turned = torch.randn(2, 8), weights.transpose(1, 2)
    x = torch.randn(3, 8)
    assert_near(ops.grouped_linear(x, turned, ends, biases), exact(x, turned, [1, 2], biases))
    assert not device.launches
