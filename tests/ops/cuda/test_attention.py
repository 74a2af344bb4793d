"""Paged attention by the kernels for GPUs equals the reference on random layouts, in a cache that is otherwise NaN."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from textgen.ops import AttentionForm, KvScales, SegmentLayout, reference
from textgen.ops.cuda.ops import CudaOps

from ..cpu.guarded import guarded
from ..cpu.test_attention import Case, forms
from .host_device import HostDevice

HALVES = (torch.bfloat16, torch.float16)
WITHIN = {torch.float32: 2e-5, torch.bfloat16: 2**-7, torch.float16: 2**-9}


def segments(rng: random.Random, count: int, longest: int) -> list[tuple[int, int]]:
    return [(rng.choice([0, 1, 31, 64, longest]), rng.choice([1, 1, 1, 2, 19])) for _ in range(count)]


def attended(ops: CudaOps, case: Case) -> Tensor:
    keys, values = guarded(case.keys), guarded(case.values)
    scales = None if case.scales is None else KvScales(guarded(case.scales.keys), guarded(case.scales.values))
    query = guarded(case.query).view(-1, case.heads, case.dim)
    attention = ops.attention(case.layout, case.window, keys)
    return attention(query, case.new_keys, case.new_values, keys, values, case.form, scales)


def check(ops: CudaOps, case: Case) -> None:
    """No farther from the exact result than its numbers are apart, or numbers that were rounded to the dtype: weights,
    and integers times their scale."""
    within = WITHIN[case.query.dtype] * (4 if case.scales is not None else 1)
    torch.testing.assert_close(attended(ops, case).float(), case.expected(torch.float32), rtol=within, atol=within)


def kernel_of(dtype: torch.dtype) -> str:
    return "attention_tiles" if dtype in HALVES else "attention_decode"


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("share", [1, 3, 8])
def test_single_tokens(rng: random.Random, device: HostDevice, ops: CudaOps, dim: int, share: int) -> None:
    dtype, kv_heads, block = rng.choice([torch.float32, *HALVES]), rng.randint(1, 2), rng.choice([1, 16, 60])
    tokens = [(start, 1) for start, _ in segments(rng, rng.randint(1, 4), 300)]
    window = rng.choice([None, None, 1, 70])
    check(ops, Case(rng, dtype, (kv_heads * share, kv_heads), (dim, dim), tokens, block, AttentionForm(0.2), window))
    assert device.launches in ([kernel_of(dtype)], [kernel_of(dtype), "attention_combine"])


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("kind", ["plain", "all"])
def test_prompt_chunks(rng: random.Random, device: HostDevice, ops: CudaOps, dim: int, kind: str) -> None:
    """Of one tile and of several, at the beginning and in the middle, beside tokens that are alone: in one launch, and
    one more where contexts of those are in parts."""
    dtype, kv_heads, block = rng.choice(HALVES), rng.randint(1, 2), rng.choice([1, 16, 60])
    heads = kv_heads * rng.choice([1, 4, 7, 20])
    chunks = [(0, rng.randint(8, 70)), (rng.choice([1, 30, 65, 200]), rng.randint(8, 40)), (90, 1), (0, 3)]
    rng.shuffle(chunks)
    window = rng.choice([None, None, 1, 9, 100])
    check(ops, Case(rng, dtype, (heads, kv_heads), (dim, dim), chunks, block, forms(heads)[kind], window))
    assert device.launches in (["attention_tiles"], ["attention_tiles", "attention_combine"])


def test_a_chunk_beside_a_context_in_parts(rng: random.Random, device: HostDevice, ops: CudaOps) -> None:
    """Parts are of the single token's context alone."""
    device.processors = 100
    form, window = forms(4)["sinks"], rng.choice([None, 400])
    check(ops, Case(rng, torch.bfloat16, (4, 1), (64, 64), [(40, 20), (700, 1), (5, 1)], 16, form, window))
    assert device.launches == ["attention_tiles", "attention_combine"]


@pytest.mark.parametrize("dims", [(64, 64), (96, 64)], ids=str)
def test_a_chunk_behind_a_long_context_is_cut_into_parts(
    rng: random.Random, device: HostDevice, ops: CudaOps, dims: tuple[int, int]
) -> None:
    """Beside one behind none, and single tokens; with latents too."""
    device.processors = 60
    segments = [(2100, rng.randint(8, 30)), (0, 9), (40, 1), (rng.choice([100, 1500]), 1)]
    rng.shuffle(segments)
    form, window = forms(4)[rng.choice(["plain", "sinks"])], rng.choice([None, 1900])
    case = Case(rng, torch.bfloat16, (4, 1), dims, segments, 16, form, window)
    if dims[0] != dims[1]:
        case, _, _ = latent(case)
    attention = ops.attention(case.layout, case.window, case.keys)
    query = case.query.view(-1, 4, dims[0])
    got = attention(query, case.new_keys, case.new_values, case.keys, case.values, case.form)
    torch.testing.assert_close(got.float(), case.expected(torch.float32), rtol=2**-7, atol=2**-7)
    assert device.launches == ["attention_tiles" if dims[0] == dims[1] else "attention_latent", "attention_combine"]


NARROW_CASES = [
    (torch.float32, 64),
    (torch.bfloat16, 80),
    (torch.bfloat16, 128),
    (torch.float16, 64),
    (torch.float16, 256),
]


@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize(("dtype", "dim"), NARROW_CASES, ids=str)
def test_caches_of_8_bits(
    rng: random.Random, device: HostDevice, ops: CudaOps, stored: torch.dtype, dtype: torch.dtype, dim: int
) -> None:
    """Chunks beside single tokens, some of whose contexts are in parts."""
    device.processors = rng.choice([1, 30])
    kv_heads, block = rng.randint(1, 2), rng.choice([1, 16, 60])
    heads, window = kv_heads * rng.choice([1, 4, 7]), rng.choice([None, None, 9, 100])
    chunks = [(0, rng.randint(8, 40)), (rng.choice([1, 65]), rng.randint(8, 20)), (330, 1), (0, 1), (70, 1)]
    form = forms(heads)[rng.choice(["plain", "all"])]
    check(ops, Case(rng, dtype, (heads, kv_heads), (dim, dim), chunks, block, form, window, stored))
    assert device.launches[0] == kernel_of(dtype)


@pytest.mark.parametrize("tokens", [1, 8])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_each_number_of_fp8_is_what_it_is(ops: CudaOps, dtype: torch.dtype, tokens: int) -> None:
    """A first position sees itself alone, so what comes out is its value."""
    codes = torch.arange(256, dtype=torch.uint8).masked_fill(torch.arange(256) % 128 == 127, 0).view(1, 4, 64)
    values = torch.zeros(1, 16, 4, 64, dtype=torch.uint8)
    values[0, 0] = codes
    values = values.view(torch.float8_e4m3fn)
    layout = SegmentLayout(np.array([0]), np.array([0]), np.array([tokens]), np.array([[0]], np.int32), 16)
    query, none = torch.zeros(tokens, 4, 64, dtype=dtype), torch.empty(0)
    got = ops.attention(layout, None, values)(query, none, none, torch.zeros_like(values), values, AttentionForm(1.0))
    assert torch.equal(got[0].view(1, 4, 64), codes.view(torch.float8_e4m3fn).to(dtype))


def test_a_layer_of_another_shape_and_a_second_layer_of_the_same(
    rng: random.Random, device: HostDevice, ops: CudaOps
) -> None:
    """What was worked out for one layer is right for the next."""
    case = Case(rng, torch.float16, (4, 2), (64, 64), [(20, 30), (40, 1)], 16, AttentionForm(0.1), None)
    attention = ops.attention(case.layout, None, case.keys)
    for share in (2, 1, 2):
        query, keys = case.query.view(-1, 4, 64)[:, : 2 * share], case.keys.float()
        got = attention(query, case.new_keys, case.new_values, case.keys, case.values, case.form)
        theirs = reference.attention(case.layout, None, keys)
        new = case.new_keys.float(), case.new_values.float()
        expected = theirs(query.float(), *new, keys, case.values.float(), case.form)
        torch.testing.assert_close(got.float(), expected, rtol=2**-9, atol=2**-9)
    assert device.launches == ["attention_tiles"] * 3


@pytest.mark.parametrize("kind", forms(1))
def test_forms(rng: random.Random, device: HostDevice, ops: CudaOps, kind: str) -> None:
    heads, window = rng.choice([(4, 4), (9, 3), (12, 1)]), rng.choice([None, 5, 70])
    dtype = rng.choice([torch.float32, *HALVES])
    check(ops, Case(rng, dtype, heads, (64, 64), segments(rng, 3, 150), 16, forms(heads[0])[kind], window))
    assert device.launches


@pytest.mark.parametrize("kind", ["plain", "sinks"])
def test_a_long_context_is_cut_into_parts(rng: random.Random, device: HostDevice, ops: CudaOps, kind: str) -> None:
    """Beside a short one, all parts of which but the first are empty."""
    case = Case(rng, torch.bfloat16, (4, 1), (64, 64), [(1100, 1), (3, 1)], 16, forms(4)[kind], rng.choice([None, 700]))
    check(ops, case)
    assert device.launches == ["attention_tiles", "attention_combine"]


def test_how_a_context_is_cut_changes_only_rounding(rng: random.Random, device: HostDevice, ops: CudaOps) -> None:
    case = Case(rng, torch.float32, (2, 2), (128, 128), [(900, 1)], 16, AttentionForm(0.1), None)
    results = []
    for device.processors in (1, 2, 100):
        results.append(attended(ops, case))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-5, atol=1e-6)


def latent(case: Case) -> tuple[Case, Tensor, KvScales | None]:
    """The same, whose values are the first numbers of the keys: an expected result too."""
    keys, width = case.keys, case.value_dim
    case.values, case.new_values = keys[..., :width], case.new_keys[..., :width]
    if case.scales is not None:
        case.scales = KvScales(case.scales.keys, case.scales.keys)
    stored = guarded(keys)
    return case, stored, None if case.scales is None else KvScales(*[guarded(case.scales.keys)] * 2)


LATENT = [(4, 96, 64), (16, 576, 512), (20, 192, 128), (40, 576, 512)]  # heads, numbers of keys and of values


@pytest.mark.parametrize("stored", [None, torch.int8, torch.float8_e4m3fn], ids=str)
def test_latent_heads(rng: random.Random, device: HostDevice, ops: CudaOps, stored: torch.dtype | None) -> None:
    """Chunks beside single tokens, some of whose contexts are in parts; with as much memory as different GPUs have."""
    heads, dim, value_dim = rng.choice(LATENT)
    device.processors, device.shared_bytes = rng.choice([1, 60]), rng.choice([99, 163, 227]) << 10
    dtype, block = rng.choice(HALVES), rng.choice([1, 16, 60])
    segments = [(0, 9), (rng.choice([25, 40]), 1), (300, 1), (rng.choice([3, 31]), 11)]
    rng.shuffle(segments)
    window, form = rng.choice([None, None, 50]), forms(heads)[rng.choice(["plain", "plain", "all"])]
    scaled = replace(form, scale=form.scale * 64 / dim)
    case = Case(rng, dtype, (heads, 1), (dim, value_dim), segments, block, scaled, window, stored)
    case, keys, scales = latent(case)
    attention = ops.attention(case.layout, case.window, keys)
    query = guarded(case.query).view(-1, heads, dim)
    got = attention(query, case.new_keys, case.new_values, keys, keys[..., :value_dim], case.form, scales)
    within = WITHIN[dtype] * (4 if scales is not None else 1)
    torch.testing.assert_close(got.float(), case.expected(torch.float32), rtol=within, atol=within)
    assert device.launches in (["attention_latent"], ["attention_latent", "attention_combine"])


@pytest.mark.parametrize("dims", [(72, 40), (576, 512)])
def test_latent_heads_that_no_kernel_takes_are_left_to_the_reference(
    rng: random.Random, device: HostDevice, ops: CudaOps, dims: tuple[int, int]
) -> None:
    case = Case(rng, torch.float32, (4, 1), dims, [(0, 9), (30, 1)], 16, AttentionForm(0.1), None)
    check(ops, case)
    assert not device.launches
