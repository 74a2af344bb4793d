"""A row has the same bits whatever rows are beside it, and a token whatever tokens share its step."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from textgen.ops import AttentionForm, SegmentLayout, reference
from textgen.ops.cuda.attention import MAX_SPLITS, fixed_chunk
from textgen.ops.cuda.launches import DTYPES
from textgen.ops.cuda.ops import CudaOps

from .host_device import HostDevice
from .test_grouped import WITHIN

BLOCK, DIM, HEADS = 8, 32, (4, 2)
PART = 64


@pytest.fixture
def fixed(device: HostDevice) -> CudaOps:
    return CudaOps(device, PART)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("inputs", [10, 72, 400])
def test_products(rng: random.Random, device: HostDevice, fixed: CudaOps, dtype: torch.dtype, inputs: int) -> None:
    """Of rows of any size, of parts of wider rows, and of more dimensions."""
    rows, outputs = rng.choice([3, 70, 140]), rng.choice([1, 33, 100])
    wide = torch.randn(rows, inputs + 3).to(dtype)
    x, weight = wide[:, 1 : inputs + 1], (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)
    bias = rng.choice([None, torch.randn(outputs).to(dtype)])
    whole = fixed.linear(x, weight, bias)
    exact = reference.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(whole.double(), exact, rtol=WITHIN[dtype], atol=WITHIN[dtype])
    first = rng.randrange(rows)
    for some in (slice(first, first + 1), slice(first, first + 20), slice(0, first + 1)):
        assert torch.equal(fixed.linear(x[some].contiguous(), weight, bias), whole[some])
    assert torch.equal(fixed.linear(x[None], weight, bias), whole[None])
    assert set(device.launches) == {"grouped_linear"}


def test_other_operations_are_left_to_torch(device: HostDevice, ops: CudaOps) -> None:
    """Without a fixed order, which is slower."""
    x, weight = torch.randn(3, 8), torch.randn(4, 8)
    assert torch.equal(ops.linear(x, weight, None), reference.linear(x, weight, None))
    assert not device.launches


class Context:
    """A sequence whose keys and values are all cached."""

    def __init__(self, length: int, dtype: torch.dtype, first_block: int) -> None:
        self.length = length
        self.query = torch.randn(length, HEADS[0], DIM).to(dtype)
        self.blocks = np.arange(first_block, first_block + -(-length // BLOCK), dtype=np.int32)


def attended(
    ops: CudaOps, cache: tuple[Tensor, Tensor], window: int | None, parts: list[tuple[Context, int, int, bool]]
) -> list[Tensor]:
    """A step of such parts: a context, its tokens from one to before another, and whether the token was drawn."""
    lengths = np.array([to - begin for _, begin, to, _ in parts])
    tables = np.zeros((len(parts), max(len(context.blocks) for context, *_ in parts)), np.int32)
    for row, (context, *_) in zip(tables, parts, strict=True):
        row[: len(context.blocks)] = context.blocks
    starts, drawn = np.array([begin for _, begin, _, _ in parts]), np.array([drawn for *_, drawn in parts])
    layout = SegmentLayout(np.cumsum(lengths) - lengths, starts, lengths, tables, BLOCK, drawn)
    query = torch.cat([context.query[begin:to] for context, begin, to, _ in parts])
    new = query[:, : HEADS[1]]
    out = ops.attention(layout, window, cache[0])(query, new, new, *cache, AttentionForm(0.2))
    return list(out.split(lengths.tolist()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention(rng: random.Random, device: HostDevice, fixed: CudaOps, dtype: torch.dtype) -> None:
    """Prompts in any parts and single tokens, beside contexts of other lengths, on devices of any size."""
    lengths = [rng.choice([5, 40]), rng.randint(60, 130), rng.randint(130, 300)]
    contexts = [Context(length, dtype, 40 * index) for index, length in enumerate(lengths)]
    cache = tuple(torch.randn(120, BLOCK, HEADS[1], DIM).to(dtype) for _ in range(2))
    assert len(cache) == 2
    # The tiles of a chunk begin where the window of its first token does.
    window = rng.choice([None, 70]) if dtype == torch.float32 else None
    whole = [attended(fixed, cache, window, [(each, 0, each.length, False)])[0] for each in contexts]
    last = [attended(fixed, cache, window, [(each, each.length - 1, each.length, True)])[0] for each in contexts]
    for device.processors in (1, 200):
        parts = []
        for each in rng.sample(contexts, 3):
            begin = rng.randrange(each.length)
            parts += [(each, begin, rng.choice([begin + 1, rng.randint(begin + 1, each.length)]), False)]
        parts += [(each, each.length - 1, each.length, True) for each in rng.sample(contexts, 2)]
        rng.shuffle(parts)
        for (each, begin, to, drawn), got in zip(parts, attended(fixed, cache, window, parts), strict=True):
            index = contexts.index(each)
            assert torch.equal(got, last[index] if drawn else whole[index][begin:to]), (each.length, begin, to, drawn)


def test_parts_of_contexts_are_few() -> None:
    assert fixed_chunk(100) == fixed_chunk(16384) == 256
    for longest in (20_000, 131_072, 1_000_001):
        assert -(-longest // fixed_chunk(longest)) <= MAX_SPLITS
