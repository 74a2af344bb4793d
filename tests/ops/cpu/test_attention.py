"""Paged attention equals the reference on random layouts: single tokens of very different contexts beside chunks."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from textgen.ops import AttentionForm, KvScales, SegmentLayout, reference
from textgen.ops.interface import Ints

from .native import ATTENTION, DTYPES, Native, Step
from .test_rows import KINDS, wider


def forms(heads: int) -> dict[str, AttentionForm]:
    return {
        "plain": AttentionForm(0.3),
        "soft cap": AttentionForm(0.3, soft_cap=1.5),
        "slopes": AttentionForm(0.3, slopes=torch.rand(heads)),
        "sinks": AttentionForm(0.3, sinks=torch.randn(heads)),
        "biases": AttentionForm(1.0, biases=torch.randn(heads, 9)),
        "all": AttentionForm(0.7, 2.0, torch.rand(heads), torch.randn(heads), torch.randn(heads, 6)),
    }


class Case:
    """Segments over shuffled blocks in a cache that is otherwise NaN. stored: its dtype, where that is another."""

    def __init__(
        self,
        rng: random.Random,
        dtype: torch.dtype,
        heads: tuple[int, int],
        dims: tuple[int, int],
        segments: list[tuple[int, int]],
        block: int,
        form: AttentionForm,
        window: int | None,
        stored: torch.dtype | None = None,
    ) -> None:
        (self.heads, self.kv_heads), (self.dim, self.value_dim) = heads, dims
        self.form, self.window, self.block = form, window, block
        starts, lengths = (np.array(column, np.int64) for column in zip(*segments, strict=True))
        ends = starts + lengths
        blocks = -(-ends // block)
        free = rng.sample(range(int(blocks.sum()) + 5), int(blocks.sum()) + 5)
        self.tables = np.full((len(starts), int(blocks.max())), free.pop(), np.int32)
        for row, count in enumerate(blocks):
            self.tables[row, :count] = [free.pop() for _ in range(count)]
        shape = (int(blocks.sum()) + 5, block, self.kv_heads)
        self.scales: KvScales | None = None
        self.keys, self.values = (torch.zeros((*shape, size), dtype=stored or dtype) for size in dims)
        if stored == torch.int8:
            self.scales = KvScales(torch.full(shape, torch.nan), torch.full(shape, torch.nan))
        else:
            self.keys.fill_(torch.nan)
            self.values.fill_(torch.nan)
        new: list[tuple[Tensor, Tensor]] = []
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            k, v = (torch.randn(end, self.kv_heads, size).to(dtype) for size in dims)
            at = np.arange(end)
            rows = torch.from_numpy(self.tables[row, at // block].astype(np.int64) * block + at % block)
            reference.write_kv(self.keys, rows, k, self.scales and self.scales.keys)
            reference.write_kv(self.values, rows, v, self.scales and self.scales.values)
            new.append((k[start:], v[start:]))
        self.new_keys, self.new_values = (torch.cat(parts) for parts in zip(*new, strict=True))
        self.query = wider(torch.randn(int(lengths.sum()), self.heads * self.dim).to(dtype))
        self.layout = SegmentLayout(np.cumsum(lengths) - lengths, starts, lengths, self.tables, block)

    def expected(self, dtype: torch.dtype) -> Tensor:
        """The reference's, in that dtype."""
        attention = reference.attention(self.layout, self.window, self.keys)
        query = self.query.reshape(-1, self.heads, self.dim)
        new_keys, new_values = self.new_keys.to(dtype), self.new_values.to(dtype)
        narrow = self.keys.dtype.itemsize == 1  # what is cached is not what was brought
        keys, values = (self.keys, self.values) if narrow else (self.keys.to(dtype), self.values.to(dtype))
        return attention(query.to(dtype), new_keys, new_values, keys, values, self.form, self.scales)

    @property
    def op(self) -> tuple[int, dict[int, int], dict[int, float], int]:
        form = self.form
        args = {0: 0, 1: 1, 2: self.heads, 3: self.kv_heads, 4: self.dim, 5: self.value_dim, 7: self.keys.data_ptr()}
        args |= {8: self.values.data_ptr(), 9: DTYPES[self.keys.dtype], 10: self.keys.stride(1)}
        args |= {11: self.values.stride(1), 12: self.window or 0}
        for at, values in ((13, form.slopes), (14, form.sinks), (15, form.biases)):
            args[at] = 0 if values is None else values.data_ptr()
        args[16] = 0 if form.biases is None else form.biases.shape[1]
        if self.scales is not None:
            args |= {17: self.scales.keys.data_ptr(), 18: self.scales.values.data_ptr()}
        return ATTENTION, args, {0: form.scale, 1: form.soft_cap or 0.0}, 0

    @property
    def step(self) -> Step:
        layout = self.layout
        return Step(
            len(self.query),
            offsets=layout.offsets,
            starts=layout.starts,
            lengths=layout.lengths,
            tables=layout.tables,
            block_size=layout.block_size,
        )

    def check(self, native: Native, tails: Ints | None = None) -> None:
        """float32 within 1e-4; bfloat16 within what weights and result lose when they are rounded (2^-8 each of values
        of about 1; keys that were integers are rounded too, and scores of about 8 with them), and no farther from the
        exact result than twice what the reference is. tails: of each segment these last tokens alone, one behind the
        other."""
        step, kept = self.step, torch.arange(len(self.query))
        if tails is not None:
            first = self.layout.offsets + self.layout.lengths - tails
            kept = torch.from_numpy(np.concatenate([np.arange(a, a + n) for a, n in zip(first, tails, strict=True)]))
            step.outputs, step.tails = len(kept), tails
        y = wider(torch.empty(max(len(kept), 1), self.heads * self.value_dim, dtype=self.query.dtype))
        native.run(self.op, [self.query, y], step, outputs=() if tails is None else [1])
        if not len(kept):
            return
        exact = self.expected(torch.float32)[kept]
        if y.dtype == torch.float32:
            torch.testing.assert_close(y, exact, rtol=1e-4, atol=2e-5)
            return
        bound = 2**-7 if self.scales is None else 2**-5
        torch.testing.assert_close(y.float(), exact, rtol=bound, atol=bound)
        theirs = (self.expected(torch.bfloat16)[kept].float() - exact).abs()
        assert (y.float() - exact).abs().mean() <= 2 * theirs.mean() + 1e-6


def segments(rng: random.Random, count: int) -> list[tuple[int, int]]:
    return [(rng.choice([0, 0, 3, 17, 63, 64, 150, 300]), rng.choice([1, 1, 1, 2, 5, 13, 40])) for _ in range(count)]


@KINDS
@pytest.mark.parametrize("kind", forms(1))
def test_random_layouts(native: Native, rng: random.Random, dtype: torch.dtype, kind: str) -> None:
    heads, window = rng.choice([(4, 4), (9, 3), (8, 1)]), rng.choice([None, None, 1, 5, 70])
    dims = rng.choice([(64, 64), (64, 64), (32, 32), (8, 5), (40, 72), (80, 80), (128, 128)])
    block = rng.choice([1, 4, 16, 16, 60])
    Case(rng, dtype, heads, dims, segments(rng, rng.randint(1, 7)), block, forms(heads[0])[kind], window).check(native)


@KINDS
@pytest.mark.parametrize("stored", [None, torch.int8])
def test_last_tokens_of_segments_alone(
    native: Native, rng: random.Random, dtype: torch.dtype, stored: torch.dtype | None
) -> None:
    heads, window = rng.choice([(4, 4), (9, 3), (8, 1)]), rng.choice([None, None, 5, 70])
    found = [*segments(rng, rng.randint(1, 7)), (rng.choice([0, 60, 500]), rng.choice([30, 90]))]
    rng.shuffle(found)
    case = Case(rng, dtype, heads, (64, 64), found, rng.choice([4, 16]), forms(heads[0])["plain"], window, stored)
    tails = np.array([rng.choice([0, 1, 1, 2, length]) for _, length in found]).clip(max=case.layout.lengths)
    tails[rng.randrange(len(tails))] = 1
    case.check(native, tails)
    case.check(native, np.zeros_like(tails))


@KINDS
@pytest.mark.parametrize("shape", [(0, 200), (500, 90), (1500, 1), (1023, 2)], ids=str)
def test_one_long_sequence_is_shared_by_all_workers(
    native: Native, rng: random.Random, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    window = rng.choice([None, None, 200])
    Case(rng, dtype, (9, 3), (64, 64), [shape], 16, AttentionForm(0.125), window).check(native)


@pytest.mark.parametrize("stored", [None, torch.int8])
@pytest.mark.parametrize("heads", [(9, 3), (16, 16), (8, 1), (6, 2)], ids=str)
def test_many_sequences_with_a_token_or_two(
    native: Native, rng: random.Random, heads: tuple[int, int], stored: torch.dtype | None
) -> None:
    """Enough for all workers, so that heads of the cache are worked on together; beside them a prompt."""
    some = [(rng.randint(100, 400), rng.choice([1, 1, 2])) for _ in range(24)] + [(5, 40)]
    rng.shuffle(some)
    window, block = rng.choice([None, None, 90]), rng.choice([5, 16, 16])
    dims = rng.choice([(64, 64), (32, 96), (40, 40)])
    Case(rng, torch.bfloat16, heads, dims, some, block, AttentionForm(0.125), window, stored).check(native)


def test_a_cache_of_float16(native: Native, rng: random.Random) -> None:
    """Numbers of the cache are what they are; all the rest is float32."""
    dims = rng.choice([(64, 64), (40, 72)])
    case = Case(rng, torch.float16, (8, 2), dims, segments(rng, 4), 16, AttentionForm(0.3), None)
    case.query = wider(case.query.float())
    case.check(native)


@KINDS
@pytest.mark.parametrize("kind", ["plain", "all"])
def test_a_cache_of_integers(native: Native, rng: random.Random, dtype: torch.dtype, kind: str) -> None:
    """Scales where nobody has written are NaN."""
    heads, dims = rng.choice([(9, 3), (8, 1)]), rng.choice([(64, 64), (64, 64), (40, 72), (8, 5), (128, 128)])
    window, form = rng.choice([None, None, 70]), forms(heads[0])[kind]
    found = segments(rng, rng.randint(1, 6))
    Case(rng, dtype, heads, dims, found, rng.choice([1, 16, 60]), form, window, torch.int8).check(native)


@KINDS
def test_one_long_sequence_in_integers(native: Native, rng: random.Random, dtype: torch.dtype) -> None:
    shape = rng.choice([(0, 200), (500, 90), (1500, 1)])
    Case(rng, dtype, (9, 3), (64, 64), [shape], 16, AttentionForm(0.125), None, torch.int8).check(native)


@KINDS
def test_latent_heads_in_integers(native: Native, rng: random.Random, dtype: torch.dtype) -> None:
    case = Case(rng, dtype, (20, 1), (72, 72), [(0, 9), (130, 1)], 16, AttentionForm(0.1), None, torch.int8)
    assert case.scales is not None
    case.value_dim, case.values, case.new_values = 40, case.keys[..., :40], case.new_keys[..., :40]
    case.scales = KvScales(case.scales.keys, case.scales.keys)
    case.check(native)


@KINDS
def test_latent_heads(native: Native, rng: random.Random, dtype: torch.dtype) -> None:
    """One wide head of the cache whose values are the first numbers of its keys."""
    case = Case(rng, dtype, (20, 1), (72, 40), [(0, 9), (130, 1)], 16, AttentionForm(0.1), None)
    case.values = case.keys[..., :40]
    case.new_values = case.new_keys[..., :40]
    case.check(native)


def test_scores_that_are_not_numbers_stay_with_their_sequence(native: Native, rng: random.Random) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        case = Case(rng, dtype, (4, 2), (64, 64), [(20, 1), (0, 20), (100, 1)], 16, AttentionForm(0.3), None)
        case.query[1:21] = torch.nan
        y = torch.zeros(22, 4 * 64, dtype=dtype)
        native.run(case.op, [case.query, y], case.step)
        assert y[1:21].isnan().all()
        assert y[[0, 21]].isfinite().all()


def test_what_does_not_fit_is_refused(native: Native, rng: random.Random) -> None:
    case = Case(rng, torch.float32, (4, 2), (64, 64), [(0, 3)], 16, AttentionForm(0.3), None)
    kind, args, numbers, flags = case.op
    y = torch.zeros(3, 256)
    with pytest.raises(ValueError, match="no multiple"):
        native.plan((kind, args | {3: 3}, numbers, flags), [case.query, y])
    with pytest.raises(ValueError, match="narrower"):
        native.plan((kind, args | {4: 65}, numbers, flags), [case.query, y])
    with pytest.raises(ValueError, match="no cache"):
        native.plan((kind, args | {7: 0}, numbers, flags), [case.query, y])
    with pytest.raises(ValueError, match="no scales"):
        native.plan((kind, args | {9: DTYPES[torch.int8]}, numbers, flags), [case.query, y])
