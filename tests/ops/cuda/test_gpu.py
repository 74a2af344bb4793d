"""The same kernels on a GPU, where there is one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from textgen.models.spec import ClampedSilu
from textgen.ops import AttentionForm, KvScales, reference
from textgen.ops.cuda.bricks import Kind, pack
from textgen.ops.cuda.device import CudaDevice
from textgen.ops.cuda.linear import Linears
from textgen.ops.cuda.ops import CudaOps

from ..cpu.test_attention import Case, forms
from .test_attention import HALVES, WITHIN, segments
from .test_linear import KINDS, assert_product, draw, size_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.fixture(scope="module")
def gpu() -> CudaOps:
    return CudaOps(CudaDevice(0))


@pytest.mark.parametrize("dtype", WITHIN, ids=str)
def test_rows(rng: random.Random, gpu: CudaOps, dtype: torch.dtype) -> None:
    size = rng.choice([64, 130, 4096])
    x, weight = torch.randn(rng.randint(1, 50), 2 * size).to(dtype), torch.randn(2 * size).to(dtype)
    kind = ClampedSilu(alpha=1.702, limit=7.0)
    pairs = [
        (gpu.rms_norm(x.cuda(), weight.cuda(), 1e-6), reference.rms_norm(x.float(), weight.float(), 1e-6)),
        (gpu.activate_gated(x.cuda(), "silu"), reference.activate_gated(x.float(), "silu")),
        (gpu.activate_gated(x.cuda(), kind), reference.activate_gated(x.float(), kind)),
    ]
    for got, expected in pairs:
        torch.testing.assert_close(got.float().cpu(), expected, rtol=WITHIN[dtype], atol=WITHIN[dtype])


def test_copies(gpu: CudaOps) -> None:
    cache = torch.randn(9, 16, 2, 64)
    sources, targets = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 5])
    copied = cache.cuda()
    gpu.copy_blocks(copied, sources.cuda(), targets.cuda())
    reference.copy_blocks(cache, sources, targets)
    assert torch.equal(copied.cpu(), cache)


@pytest.mark.parametrize("stored", [None, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("kind", forms(1))
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
def test_attention(rng: random.Random, gpu: CudaOps, dim: int, kind: str, stored: torch.dtype | None) -> None:
    dtype, kv_heads, share = rng.choice([torch.float32, *HALVES]), rng.randint(1, 4), rng.choice([1, 4, 8, 20])
    parts = [*segments(rng, 8, 3000), (rng.randint(0, 500), rng.randint(8, 700))]
    form, window = forms(kv_heads * share)[kind], rng.choice([None, None, 70, 1000])
    case = Case(rng, dtype, (kv_heads * share, kv_heads), (dim, dim), parts, 16, form, window, stored)
    moved = [x.cuda() for x in (case.query.view(-1, kv_heads * share, dim), case.new_keys, case.new_values)]
    keys, values = case.keys.cuda(), case.values.cuda()
    tensors = (None if x is None else x.cuda() for x in (form.slopes, form.sinks, form.biases))
    there = AttentionForm(form.scale, form.soft_cap, *tensors)
    scales = None if case.scales is None else KvScales(*(x.cuda() for x in case.scales))
    got = gpu.attention(case.layout, window, keys)(moved[0], moved[1], moved[2], keys, values, there, scales)
    within = WITHIN[dtype] * (4 if scales is not None else 1)
    torch.testing.assert_close(got.float().cpu(), case.expected(torch.float32), rtol=within, atol=within)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("rows", [1, 8, 16, 30, 64, 300])
def test_quantized_products(rng: random.Random, gpu: CudaOps, rows: int, kind: Kind) -> None:
    outputs, inputs = size_of(rng, kind.group)
    drawn = draw(kind, (outputs, inputs))
    zeros = None if drawn.zeros is None else drawn.zeros.cuda()
    plain = replace(drawn, codes=drawn.codes.cuda(), scales=drawn.scales.cuda(), zeros=zeros)
    x = torch.randn(rows, inputs, device="cuda").to(rng.choice(HALVES))
    linears, bias = Linears.on(gpu.device, x.device), torch.randn(outputs, device="cuda").to(x.dtype)
    assert_product(linears.multiply(x, pack(plain), bias), x, plain, bias)
