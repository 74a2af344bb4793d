"""Norms, activations, rotations and copies by the kernels for GPUs equal the reference in float32, rounded.

Inputs end where memory ends (`guarded`), so that a read past them is the end of the test."""

from __future__ import annotations

import random
from typing import get_args

import pytest
import torch
from torch import Tensor

from textgen.models.spec import Activation, ClampedSilu, GatedActivation
from textgen.ops import KvScales, reference
from textgen.ops.cuda.launches import DTYPES, NARROW
from textgen.ops.cuda.ops import CudaOps
from textgen.quantization.rows import FP8, copyable, fp8_rows

from ..cpu.guarded import guarded
from .host_device import HostDevice

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
KINDS: list[GatedActivation] = [*get_args(Activation), ClampedSilu(alpha=1.702, limit=0.9)]


def random_like(dtype: torch.dtype, *shape: int) -> Tensor:
    return guarded(torch.randn(shape).to(dtype))


def assert_equal(got: Tensor, expected: Tensor, size: float = 1.0) -> None:
    """got equals expected [float32], rounded once or twice to its dtype; sums before have numbers up to `size`."""
    tolerance = 2 * TOLERANCE[got.dtype]
    torch.testing.assert_close(got.float(), expected, rtol=tolerance, atol=tolerance / 4 * size)


def only(device: HostDevice, *kernels: str) -> None:
    assert device.launches == list(kernels), "another path was taken"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [8, 130, 640, 1024, 2050, 4096])
def test_norms(rng: random.Random, device: HostDevice, ops: CudaOps, dtype: torch.dtype, size: int) -> None:
    rows = rng.randint(1, 7)
    x, residual, eps = random_like(dtype, rows, size), random_like(dtype, rows, size), rng.choice([1e-6, 1e-2])
    weight = rng.choice([None, random_like(dtype, size), random_like(torch.float32, size)])
    plain = ops.rms_norm(x, weight, eps)
    as_float = None if weight is None else weight.float()
    assert_equal(plain, reference.rms_norm(x.float(), as_float, eps))
    total = x + residual
    normed = ops.add_rms_norm(x, residual, weight, eps)
    assert torch.equal(residual, total)
    assert_equal(normed, reference.rms_norm(total.float(), as_float, eps))
    only(device, "rms_norm", "rms_norm")


def test_norms_of_heads_inside_a_wider_row(rng: random.Random, device: HostDevice, ops: CudaOps) -> None:
    tokens, heads, dim = rng.randint(1, 9), rng.randint(1, 5), 128
    qkv = random_like(torch.bfloat16, tokens, (heads + 2) * dim)
    q = qkv[:, dim : dim * (heads + 1)].view(tokens, heads, dim)
    weight = random_like(torch.bfloat16, dim)
    assert_equal(ops.rms_norm(q, weight, 1e-6), reference.rms_norm(q.float(), weight.float(), 1e-6))
    only(device, "rms_norm")


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_activations(rng: random.Random, device: HostDevice, ops: CudaOps, kind: GatedActivation) -> None:
    dtype = rng.choice(list(DTYPES))
    size = rng.choice([8, 96, 333])
    x = random_like(dtype, rng.randint(1, 6), 2 * size) * 3
    assert_equal(ops.activate_gated(x, kind), reference.activate_gated(x.float(), kind), size=4)
    only(device, "activate")
    if not isinstance(kind, ClampedSilu):
        assert_equal(ops.activate(x, kind), reference.activate(x.float(), kind), size=4)
        only(device, "activate", "activate")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("dim", "rotated"), [(128, 128), (64, 32), (80, 20), (96, 96), (256, 128)])
def test_rotates_and_writes(
    rng: random.Random, device: HostDevice, ops: CudaOps, dtype: torch.dtype, dim: int, rotated: int
) -> None:
    tokens, kv_heads, block, blocks = rng.randint(1, 9), rng.randint(1, 3), 4, 6
    heads = kv_heads * rng.randint(1, 4)
    row = random_like(dtype, tokens, (heads + 2 * kv_heads) * dim)
    query, key, value = (
        part.view(tokens, -1, dim) for part in row.split([heads * dim, kv_heads * dim, kv_heads * dim], dim=1)
    )
    positions = torch.randint(0, 5000, (tokens,))
    cos, sin = reference.rotary_table(positions, 10000.0 ** -(torch.arange(0, rotated, 2) / rotated), 1.1, row)
    slots = torch.randperm(blocks * block)[:tokens]
    caches = [random_like(dtype, blocks, block, kv_heads, dim) for _ in "kv"]
    expected = [cache.float() for cache in caches]
    turned = row.view(tokens, -1, dim)[:, : heads + kv_heads]
    out = ops.rotate_and_write(turned, value, (cos, sin), caches[0], caches[1], slots)
    q, k = out[:, :heads], out[:, heads:]
    want_q, want_k = (reference.rotate(x.float(), cos.float(), sin.float()) for x in (query, key))
    assert_equal(q, want_q)
    assert_equal(k, want_k)
    assert_equal(ops.rotate(query, cos, sin), want_q)
    reference.write_kv(expected[0], slots, want_k)
    reference.write_kv(expected[1], slots, value.float())
    assert_equal(caches[0], expected[0])
    assert torch.equal(caches[1], expected[1].to(dtype))
    ops.write_kv(caches[0], slots, value)
    reference.write_kv(expected[0], slots, value.float())
    rest = torch.ones(blocks * block, dtype=torch.bool).index_fill_(0, slots, False)
    flat, wanted = (cache.reshape(blocks * block, -1) for cache in (caches[0], expected[0]))
    assert torch.equal(flat[slots].float(), wanted[slots])
    assert torch.equal(flat[rest].float(), wanted[rest])
    only(device, "rotary", "rotary", "rotary")


@pytest.mark.parametrize("stored", NARROW, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("dim", "rotated"), [(128, 128), (80, 20), (96, 0), (576, 0)])
def test_writes_8_bits(
    rng: random.Random,
    device: HostDevice,
    ops: CudaOps,
    dtype: torch.dtype,
    stored: torch.dtype,
    dim: int,
    rotated: int,
) -> None:
    """What is cached are the very numbers that the reference makes of what is returned."""
    tokens, kv_heads, block, blocks = rng.randint(1, 9), rng.randint(1, 5), 4, 6
    heads = rng.randint(1, 7)
    row = random_like(dtype, tokens, heads + 2 * kv_heads, dim) * 3
    row[:, -1] = 0
    turned, value = row[:, : heads + kv_heads], row[:, heads + kv_heads :]
    positions, tables = torch.randint(0, 5000, (tokens,)), None
    if rotated:
        tables = reference.rotary_table(positions, 10000.0 ** -(torch.arange(0, rotated, 2) / rotated), 1.1, row)
    slots = torch.randperm(blocks * block)[:tokens]
    caches = [guarded(torch.zeros(blocks, block, kv_heads, dim, dtype=stored)) for _ in "kv"]
    scales = KvScales(*(guarded(torch.zeros(blocks, block, kv_heads)) for _ in "kv")) if stored == torch.int8 else None
    expected = [*(x.clone() for x in caches), *(x.clone() for x in scales or ())]
    out = ops.rotate_and_write(turned, value, tables, caches[0], caches[1], slots, scales)
    if tables is None:
        assert torch.equal(out, turned)
    else:
        assert_equal(out, reference.rotate(turned.float(), *(x.float() for x in tables)), size=3)
    wanted = KvScales(expected[2], expected[3]) if scales is not None else None
    reference.rotate_and_write(out, value, None, expected[0], expected[1], slots, wanted)
    for got, want in zip([*caches, *(scales or ())], expected, strict=True):
        assert torch.equal(copyable(got), copyable(want))
    ops.write_kv(caches[1], slots, out[:, heads:], None if scales is None else scales.values)
    assert torch.equal(copyable(caches[1]), copyable(caches[0]))
    only(device, "rotary", "rotary")


@pytest.mark.parametrize("columns", [64, 63], ids=["wide", "one by one"])
def test_floats_become_8_bits(device: HostDevice, ops: CudaOps, columns: int) -> None:
    """Ties, numbers below the normal ones, what is too large and what is none, as torch does."""
    grid = torch.arange(256, dtype=torch.uint8).view(FP8).float().nan_to_num()
    between = (grid.sort().values[1:] + grid.sort().values[:-1]) / 2
    special = torch.tensor(
        [torch.inf, -torch.inf, torch.nan, 448.0, 464.0, 480.0, 1e-9, -0.0, 2**-9, 2**-10, 3 * 2**-11]
    )
    near = torch.cat(
        (grid, between, between.nextafter(grid[1:]), special, torch.randn(1000) * 10.0 ** torch.randn(1000))
    )
    rows = torch.nn.functional.pad(near, (0, -len(near) % columns)).view(-1, 1, columns)
    cache = torch.zeros(len(rows), 1, 1, columns, dtype=FP8)
    ops.write_kv(cache, torch.arange(len(rows)), rows)
    assert torch.equal(cache.view(torch.uint8).flatten(), fp8_rows(rows).view(torch.uint8).flatten())
    only(device, "rotary")


def test_a_key_that_is_no_number_stays_none(ops: CudaOps) -> None:
    new = torch.randn(3, 1, 64)
    new[1, 0, 7] = torch.nan
    cache, scales = torch.zeros(3, 1, 1, 64, dtype=torch.int8), torch.zeros(3, 1, 1)
    ops.write_kv(cache, torch.arange(3), new, scales)
    assert scales.isnan().flatten().tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint8, FP8], ids=str)
def test_copies_of_blocks_read_before_they_write(
    rng: random.Random, device: HostDevice, ops: CudaOps, dtype: torch.dtype
) -> None:
    blocks = rng.randint(4, 9)
    cache = guarded(torch.randint(0, 100, (blocks, 4, rng.randint(1, 3), rng.choice([5, 64]))).to(dtype))
    expected = cache.clone()
    count = rng.randint(1, blocks)
    sources, targets = torch.randint(0, blocks, (count,)), torch.randperm(blocks)[:count]  # a target may be a source
    reference.copy_blocks(expected, sources, targets)
    ops.copy_blocks(cache, sources, targets)
    assert torch.equal(copyable(cache), copyable(expected))
    only(device, "copy_rows", "copy_rows")
