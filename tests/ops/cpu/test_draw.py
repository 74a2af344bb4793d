"""Tokens that the kernels draw are the reference's, but for those that fall where two tokens meet."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from textgen.ops import sampling
from textgen.ops.cpu.draw import DRAW, draws, fill
from textgen.ops.sampling import Allowed, Histories, SamplingRows

from ..drawing import CHOICES, check_draws, rows_of
from .guarded import guarded
from .native import DRAW_TOKENS, Native, Step


def drawn(
    native: Native,
    logits: Tensor,
    rows: SamplingRows,
    source: Histories | Tensor | None = None,
    allowed: Allowed | None = None,
) -> Tensor:
    """[rows] tokens; their log-probabilities are looked at here."""
    tokens, normaliser = logits.argmax(dim=-1), logits.logsumexp(dim=-1)
    logprobs = logits.amax(dim=-1) - normaliser
    records = np.zeros(len(logits), DRAW)
    fill(records, rows, source, allowed)
    addresses = (records.ctypes.data, *(each.data_ptr() for each in (tokens, normaliser, logprobs)))
    op: tuple[int, dict[int, int], dict[int, float], int] = (DRAW_TOKENS, dict(enumerate(addresses, start=1)), {}, 0)
    native.run(op, [logits], Step(len(logits), outputs=len(logits)), outputs=[0])
    assert ((tokens >= 0) & (tokens < logits.shape[1])).all()
    expected = logits.gather(-1, tokens[:, None]).squeeze(-1) - normaliser
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=0, equal_nan=True)
    return tokens


@pytest.mark.parametrize("filters", [(), ("top_k",), ("top_p",), ("min_p",), ("top_k", "top_p", "min_p")], ids=str)
def test_draws(native: Native, rng: random.Random, filters: tuple[str, ...]) -> None:
    vocab = rng.choice([1, 40, 256, 513, 3000, 12001, 49152])
    given = {name: CHOICES[name] for name in ("temperature", *filters)}
    logits = guarded(torch.randn(24, vocab) * rng.choice([0.5, 3, 10]))
    rows = rows_of(rng, 24, **given)
    check_draws(logits, rows, drawn(native, logits, rows))


def test_all_tokens_are_drawn_as_often_as_they_should_be(native: Native, rng: random.Random) -> None:
    """By the seed and the position alone: many of these."""
    shares = torch.tensor([0.5, 0.3, 0.15, 0.05])
    rows = rows_of(rng, 4000, top_p=[0.94])  # which the last one is not part of
    counts = drawn(native, shares.log().expand(4000, 4).contiguous(), rows).bincount(minlength=4)
    assert (counts / 4000).tolist() == pytest.approx([0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0], abs=0.04)


def test_the_likeliest_stays(native: Native, rng: random.Random) -> None:
    """Of logits that others stand for, it is looked for."""
    logits, shaped = torch.randint(0, 4, (2, 6, 2000)).float()
    rows = rows_of(rng, 6, temperature=[0.0])
    for given in (None, shaped):
        tokens = drawn(native, logits, rows, given)
        assert tokens.tolist() == [int((row == row.max()).nonzero()[0]) for row in (logits if given is None else given)]


def test_rows_are_drawn_from_what_stands_for_them(native: Native, rng: random.Random) -> None:
    logits, shaped = torch.randn(2, 24, 3000) * 3
    rows = rows_of(rng, 24, temperature=[0.0, 0.7], top_p=[1.0, 0.9], top_k=[0, 30])
    check_draws(shaped, rows, drawn(native, logits, rows, guarded(shaped)))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_what_was_said_is_penalised(native: Native, rng: random.Random, temperature: float) -> None:
    """As torch does it, to the last bit: the likeliest token is the same."""
    count, vocab, longest = 24, 300, 90
    tokens = torch.randint(0, vocab, (count + 3, longest), dtype=torch.int32)
    slots = np.array(rng.sample(range(count + 3), count))
    rows = replace(
        rows_of(rng, count, temperature=[temperature], top_p=[1.0, 0.9]),
        repetition=np.array([rng.choice((1.0, 1.3, 0.7)) for _ in range(count)], np.float32),
        frequency=np.array([rng.choice((0.0, 0.4)) for _ in range(count)], np.float32),
        presence=np.array([rng.choice((0.0, -0.5)) for _ in range(count)], np.float32),
        window=np.array([rng.choice((0, 1, 30, 200)) for _ in range(count)]),
        position=np.array([rng.randint(0, longest) for _ in range(count)]),
        prompt_len=np.array([rng.randint(0, longest) for _ in range(count)]),
    )
    logits = guarded(torch.randn(count, vocab))
    shaped = sampling.shape(logits, rows, lambda mask: tokens[slots[mask]].long())
    assert not torch.equal(shaped, logits)
    check_draws(shaped, rows, drawn(native, logits, rows, Histories(tokens, slots)))


def test_ties_at_the_edge_of_a_filter_are_all_kept(native: Native, rng: random.Random) -> None:
    logits = torch.randint(0, 30, (24, 700)).float() / 4
    rows = rows_of(rng, 24, top_k=[3, 50], top_p=[0.5, 1.0])
    check_draws(logits, rows, drawn(native, logits, rows))


def test_what_a_grammar_forbids_is_never_drawn(native: Native, rng: random.Random) -> None:
    allowed = torch.rand(24, 1500) < 0.01
    allowed[:, rng.randrange(1500)] = True
    logits = torch.randn(24, 1500).masked_fill(~allowed, -torch.inf)
    rows = rows_of(rng, 24, temperature=[0.0, 1.0], top_p=[0.9, 1.0], top_k=[0, 1, 400, 2000], min_p=[0.0, 1e-3])
    tokens = drawn(native, logits, rows)
    assert allowed[torch.arange(24), tokens].all()
    check_draws(logits, rows, tokens)


@pytest.mark.parametrize("penalised", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_masks_of_some_rows(native: Native, rng: random.Random, temperature: float, penalised: bool) -> None:
    """The bits end where memory ends, and are not beside each other."""
    count, vocab = 24, rng.choice([31, 300, 1500])
    width = 4 * -(-vocab // 32)
    rows = rows_of(rng, count, temperature=[temperature], top_p=[1.0, 0.9], top_k=[0, 4])
    tokens = torch.randint(0, vocab, (count, 50), dtype=torch.int32)
    if penalised:
        repetition = np.full(count, 1.3, np.float32)
        rows = replace(rows, repetition=repetition, position=np.full(count, 50), prompt_len=np.full(count, 9))
    which = np.array(sorted(rng.sample(range(count), rng.randint(1, count))))
    bits = guarded(torch.randint(0, 256, (len(which), width + 8), dtype=torch.uint8))[:, 8:].numpy()
    bits[:, rng.randrange(vocab) // 8] = 255
    allowed, logits = Allowed(which, bits), guarded(torch.randn(count, vocab))
    assert draws(rows, allowed) and not draws(rows, Allowed(which, bits[:, 1:]))
    shaped = sampling.shape(logits, rows, lambda mask: tokens[np.flatnonzero(mask)].long(), allowed)
    got = drawn(native, logits, rows, Histories(tokens, np.arange(count)), allowed)
    check_draws(shaped, rows, got)
    assert allowed.permits(got.numpy()).all()


def test_rows_without_any_token_and_with_a_broken_one_end(native: Native, rng: random.Random) -> None:
    logits = torch.randn(3, 600)
    logits[0] = -torch.inf
    logits[1, 5] = torch.nan
    rows = rows_of(rng, 3, top_p=[0.9], top_k=[0, 9])
    for shaped in (None, logits):
        assert drawn(native, logits, rows, shaped)[1] == 5


def test_typical_rows_are_left_to_the_reference(rng: random.Random) -> None:
    assert not draws(rows_of(rng, 3, typical_p=[0.5]))
    assert draws(rows_of(rng, 3, typical_p=[0.5], temperature=[0.0]))


def test_a_row_is_drawn_alike_in_any_batch(native: Native, rng: random.Random) -> None:
    logits = torch.randn(9, 5000)
    rows = rows_of(rng, 9, top_p=[1.0, 0.8], top_k=[0, 100])
    expected = drawn(native, logits, rows)
    order = np.array(rng.sample(range(9), 9))
    mixed = SamplingRows(*(getattr(rows, name)[order] for name in SamplingRows.__dataclass_fields__))
    assert drawn(native, logits[order].contiguous(), mixed).tolist() == expected[order].tolist()


def test_it_says_what_it_cannot_do(native: Native) -> None:
    with pytest.raises(ValueError, match="float32"):
        native.plan((DRAW_TOKENS, {}, {}, 0), [torch.zeros(1, 5, dtype=torch.bfloat16)])
    with pytest.raises(ValueError, match="how to draw"):
        native.plan((DRAW_TOKENS, {}, {}, 0), [torch.zeros(1, 5)])


def test_the_same_number_is_drawn_with(rng: random.Random, native: Native) -> None:
    """Of two tokens the first where it is below their shares' border, at each position."""
    rows = rows_of(rng, 500)
    tokens = drawn(native, torch.zeros(500, 2), rows)
    assert tokens.tolist() == (sampling.uniform(rows.seed, rows.position) >= 0.5).astype(int).tolist()
