"""The sampler against Transformers' processors and warpers on the same logits, and the distribution of its draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from textgen.ops import sampling
from textgen.ops.sampling import Mask, SamplingRows, sample, score, uniform

from ..seeds import fresh_seed

OFF: dict[str, Any] = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition": 1.0,
    "frequency": 0.0,
    "presence": 0.0,
    "window": 0,
    "seed": 0,
    "position": 0,
    "prompt_len": 0,
}
DTYPES = {"window": np.int64, "top_k": np.int64, "seed": np.uint64, "position": np.int64, "prompt_len": np.int64}


def make_rows(*changes: dict[str, Any]) -> SamplingRows:
    rows = [{**OFF, **change} for change in changes]
    columns: dict[str, Any] = {n: np.array([row[n] for row in rows], DTYPES.get(n, np.float32)) for n in OFF}
    return SamplingRows(**columns)


def no_history(mask: Mask) -> Tensor:
    raise AssertionError("nobody asked for a penalty")


def kept(logits: Tensor, rows: SamplingRows) -> Tensor:
    """Which tokens can still be drawn after the filters, without their scaling."""
    drawn = rows.temperature > 0
    scaled = logits / torch.from_numpy(rows.temperature)[:, None]
    return sampling._filter(scaled, rows, drawn).isfinite()


WARPERS: list[tuple[dict[str, Any], list[Any]]] = [
    ({}, []),
    ({"top_k": 1}, [TopKLogitsWarper(1)]),
    ({"top_k": 17}, [TopKLogitsWarper(17)]),
    ({"top_k": 10_000}, [TopKLogitsWarper(10_000)]),
    ({"top_p": 0.0}, [TopPLogitsWarper(0.0)]),
    ({"top_p": 0.3}, [TopPLogitsWarper(0.3)]),
    ({"top_p": 0.95}, [TopPLogitsWarper(0.95)]),
    ({"min_p": 0.05}, [MinPLogitsWarper(0.05)]),
    ({"min_p": 1.0}, [MinPLogitsWarper(1.0)]),
    ({"typical_p": 0.4}, [TypicalLogitsWarper(0.4)]),
    ({"typical_p": 0.95}, [TypicalLogitsWarper(0.95)]),
    ({"top_k": 40, "top_p": 0.8}, [TopKLogitsWarper(40), TopPLogitsWarper(0.8)]),
    (
        {"top_k": 60, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.8},
        [TopKLogitsWarper(60), TopPLogitsWarper(0.9), MinPLogitsWarper(0.02), TypicalLogitsWarper(0.8)],
    ),
]


@pytest.mark.parametrize("vocab", [50, 3000])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_filters_keep_what_transformers_keeps(vocab: int, temperature: float) -> None:
    """All warpers in one batch, row by row equal to Transformers, but for tokens at the very edge of a sum."""
    torch.manual_seed(fresh_seed())
    logits = torch.randn(len(WARPERS), vocab) * 3
    mine = kept(logits, make_rows(*({**change, "temperature": temperature} for change, _ in WARPERS)))
    for row, (change, warpers) in enumerate(WARPERS):
        chain: Any = LogitsProcessorList([TemperatureLogitsWarper(temperature), *warpers])
        theirs = chain(torch.empty(1, 0, dtype=torch.long), logits[row : row + 1])[0].isfinite()
        differing = (mine[row] != theirs).nonzero().flatten()
        share = (logits[row] / temperature).softmax(-1)[differing]
        assert len(differing) <= 1, (change, len(differing))
        assert (share < 0.5).all(), (change, share)  # never the one token that matters


def test_filters_equal_transformers_exactly_on_clear_logits() -> None:
    """Probabilities 1/2, 1/4, … leave no doubt where a sum ends."""
    logits = -torch.arange(12.0).mul(np.log(2)).repeat(len(WARPERS), 1)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(fresh_seed()))
    logits = logits[:, order]
    mine = kept(logits, make_rows(*({**change, "temperature": 1.0} for change, _ in WARPERS)))
    for row, (change, warpers) in enumerate(WARPERS):
        chain: Any = LogitsProcessorList(warpers)
        theirs = chain(torch.empty(1, 0, dtype=torch.long), logits[row : row + 1])[0]
        assert torch.equal(mine[row], theirs.isfinite()), change


def test_a_nucleus_wider_than_the_first_look() -> None:
    flat = torch.zeros(1, 5000).add_(torch.arange(5000) * 1e-4)
    mask = kept(flat, make_rows({"temperature": 1.0, "top_p": 0.9}))
    theirs = TopPLogitsWarper(0.9)(torch.empty(1, 0, dtype=torch.long), flat)[0].isfinite()
    assert sampling.NUCLEUS < int(mask.sum()) < 5000
    assert abs(int(mask.sum()) - int(theirs.sum())) <= 2


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_repetition_penalty_is_transformers(penalty: float) -> None:
    torch.manual_seed(fresh_seed())
    logits = torch.randn(3, 40) * 2
    history = torch.randint(0, 40, (3, 9))
    known = [9, 4, 0]
    rows = make_rows(*({"repetition": penalty, "position": n, "prompt_len": 2} for n in known))
    mine = sampling._penalise(logits, history, rows, rows.penalised)
    for row, length in enumerate(known):
        theirs = RepetitionPenaltyLogitsProcessor(penalty)(history[row : row + 1, :length], logits[row : row + 1])
        torch.testing.assert_close(mine[row], theirs[0])


def test_frequency_and_presence_penalties_count_output_only() -> None:
    logits = torch.zeros(1, 6)
    history = torch.tensor([[1, 1, 2, 3, 3, 3, 4]])
    rows = make_rows({"frequency": 0.5, "presence": 0.25, "position": 6, "prompt_len": 2})
    mine = sampling._penalise(logits, history, rows, rows.penalised)[0].tolist()
    # 1 stands in the prompt only, 2 once and 3 three times in the output, 4 behind what is known
    assert mine == [0.0, 0.0, -0.75, -1.75, 0.0, 0.0]


def test_penalties_look_at_the_last_tokens_where_they_are_told_to() -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    logits = torch.randn(4, 12) * 2
    history = torch.randint(0, 12, (4, 9))
    windows = [0, 3, 9, 2**31]
    common = {"repetition": 1.3, "frequency": 0.5, "presence": 0.25, "position": 8, "prompt_len": 4}
    rows = make_rows(*(common | {"window": window} for window in windows))
    mine = sampling._penalise(logits, history, rows, rows.penalised)
    for row, window in enumerate(windows):
        first = max(0, 8 - window) if window else 0
        seen = history[row : row + 1, first:8]
        theirs = RepetitionPenaltyLogitsProcessor(1.3)(seen, logits[row : row + 1])[0]
        counts = torch.bincount(history[row, max(first, 4) : 8], minlength=12)
        theirs = theirs - counts * 0.5 - (counts > 0) * 0.25
        torch.testing.assert_close(mine[row], theirs, msg=f"window {window}, seed {seed}")


def test_penalties_come_before_the_choice_and_leave_the_logits_alone() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    before = logits.clone()
    rows = make_rows({"presence": 1.5, "position": 1}, {})
    tokens = sample(logits, rows, lambda mask: torch.tensor([[0]]))
    assert tokens.tolist() == [1, 0]
    assert torch.equal(logits, before)
    torch.testing.assert_close(score(logits, tokens).chosen, before.log_softmax(-1)[[0, 1], [1, 0]])


def test_uniform_is_splitmix64() -> None:
    """Against the published algorithm in plain integers."""

    def plain(seed: int, position: int) -> float:
        mask = 2**64 - 1
        z = (seed + (position + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return ((z ^ (z >> 31)) >> 11) * 2.0**-53

    cases = [(0, 0), (1, 0), (0, 1), (2**64 - 1, 2**31), (1234567, 89)]
    seeds, positions = np.array([s for s, _ in cases], np.uint64), np.array([p for _, p in cases])
    assert uniform(seeds, positions).tolist() == [plain(*case) for case in cases]
    assert plain(0, 0) == (0xE220A8397B1DCDAF >> 11) * 2.0**-53  # SplitMix64's first output for seed 0


@given(data=st.data())
def test_the_draw_is_the_first_token_past_u(data: st.DataObject) -> None:
    vocab = data.draw(st.integers(1, 700))
    weights = data.draw(st.lists(st.sampled_from([0.0, 0.0, 1.0, 2.0, 5.0]), min_size=vocab, max_size=vocab))
    if not any(weights):
        weights[data.draw(st.integers(0, vocab - 1))] = 1.0
    u = data.draw(st.floats(0, 1, exclude_max=True))
    token = int(sampling.draw(torch.tensor([weights]), torch.tensor([u], dtype=torch.float64))[0])
    sums = np.cumsum(np.array(weights))
    assert weights[token] > 0
    assert token == min(int(np.searchsorted(sums, u * sums[-1], side="right")), int(np.flatnonzero(weights)[-1]))


@pytest.mark.parametrize("u", [0.0, 1 - 2.0**-53])
def test_the_ends_of_the_interval_draw_possible_tokens(u: float) -> None:
    probabilities = torch.zeros(1, 600)
    probabilities[0, [3, 299, 580]] = torch.tensor([0.2, 0.3, 0.5])
    expected = 3 if u == 0 else 580
    assert sampling.draw(probabilities, torch.tensor([u], dtype=torch.float64)).item() == expected


def test_a_draw_on_the_edge_of_a_span_takes_the_next_token() -> None:
    """The cumulative sum must exceed u, not reach it."""
    probabilities = torch.zeros(1, 2 * sampling.SPAN)
    probabilities[0, [0, sampling.SPAN - 1, sampling.SPAN, -1]] = torch.tensor([0.25, 0.25, 0.25, 0.25])
    tokens = [sampling.draw(probabilities, torch.tensor([u], dtype=torch.float64)).item() for u in (0.25, 0.5, 0.75)]
    assert tokens == [sampling.SPAN - 1, sampling.SPAN, 2 * sampling.SPAN - 1]


def test_draws_follow_the_probabilities() -> None:
    """Chi-squared over 20,000 draws at consecutive positions of one seed; fails by chance once in 10 million runs."""
    seed = fresh_seed()
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(seed)) * 1.5
    draws = 20_000
    rows = make_rows(*({"temperature": 0.8, "top_k": 20, "seed": seed, "position": i} for i in range(draws)))
    counts = torch.bincount(sample(logits.expand(draws, -1), rows, no_history), minlength=30).numpy()
    scaled = TopKLogitsWarper(20)(torch.empty(1, 0, dtype=torch.long), logits / 0.8)
    expected = scaled.softmax(-1)[0].double().numpy()
    assert (counts[expected == 0] == 0).all()
    possible = expected > 0
    assert chisquare(counts[possible], expected[possible] / expected.sum() * draws).pvalue > 1e-7


def test_a_row_draws_alone_what_it_draws_in_a_batch() -> None:
    torch.manual_seed(fresh_seed())
    changes = [
        {"temperature": 0.9, "seed": 5, "position": 3},
        {},
        {"temperature": 1.2, "top_k": 5, "seed": 5, "position": 4},
        {"temperature": 0.7, "top_p": 0.8, "seed": 9, "position": 3, "repetition": 1.4},
        {"temperature": 1.0, "min_p": 0.1, "typical_p": 0.7, "seed": 2**64 - 1, "position": 3},
        {"frequency": 1.0, "presence": -0.5, "position": 3},
    ] * 3
    logits, history = torch.randn(len(changes), 500), torch.randint(0, 500, (len(changes), 4))
    together = sample(logits, make_rows(*changes), lambda mask: history[torch.from_numpy(mask)])
    for row, change in enumerate(changes):
        own = history[row : row + 1]
        alone = sample(logits[row : row + 1], make_rows(change), lambda mask, own=own: own)  # type: ignore[misc]
        assert alone.item() == together[row].item(), change


@pytest.mark.parametrize("temperature", [1e-30, 1e-6])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = torch.randn(1, 200, generator=torch.Generator().manual_seed(0)) * 50
    row = make_rows({"temperature": temperature, "seed": 1, "top_p": 0.9, "typical_p": 0.9})
    assert sample(logits, row, no_history).item() == logits.argmax().item()


@pytest.mark.parametrize("change", [change for change, _ in WARPERS])
def test_broken_logits_give_some_token_and_a_broken_score(change: dict[str, Any]) -> None:
    """A row of NaN must not raise: the rest of the batch goes on."""
    logits = torch.randn(4, 300)
    logits[1] = torch.nan
    logits[2, 7] = torch.inf
    logits[3] = -torch.inf
    rows = make_rows(*({**change, "temperature": 1.0, "seed": row} for row in range(4)))
    tokens = sample(logits, rows, no_history)
    assert ((tokens >= 0) & (tokens < 300)).all()
    assert score(logits, tokens).normaliser.isfinite().tolist() == [True, False, False, False]
