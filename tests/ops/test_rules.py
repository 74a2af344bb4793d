"""Token rules against Transformers' logits processors on the same logits, and the distribution of draws under them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WatermarkLogitsProcessor,
)

from textgen.ops.rules import Ints, RuledRows, Thinking, TokenRules, Watermark
from textgen.ops.sampling import choose, sample, shape

from ..seeds import fresh_seed
from .test_sampling import make_rows, no_history

VOCAB = 40
NONE: dict[str, Any] = {
    "bias": {},
    "allowed": None,
    "banned": [],
    "min_tokens": 0,
    "endings": [],
    "watermark": None,
    "thinking": None,
}


def make_rules(**changes: Any) -> TokenRules:
    values = {**NONE, **changes}
    bits = None
    if values["allowed"] is not None:
        chosen = np.zeros(-(-VOCAB // 32) * 32, np.bool_)
        chosen[values["allowed"]] = True
        bits = torch.from_numpy(np.packbits(chosen, bitorder="little"))
    return TokenRules(
        bias_ids=np.array(list(values["bias"]), np.int64),
        biases=np.array(list(values["bias"].values()), np.float32),
        allowed=bits,
        banned=values["banned"],
        min_tokens=values["min_tokens"],
        endings=np.array(values["endings"], np.int64),
        watermark=values["watermark"],
        thinking=values["thinking"],
    )


def on_rows(history: Tensor, known: list[int], prompt_len: int, rules: dict[int, TokenRules]) -> RuledRows:
    """`rules` by row; `known`: how many tokens of each row's history are there."""
    rows = np.array(list(rules), np.int64)
    position = np.array(known, np.int64)[rows]

    def tokens(index: Any, at: Any) -> Tensor:
        return history[torch.from_numpy(rows[index]), torch.from_numpy(at)]

    return RuledRows(rows, list(rules.values()), position, np.full(len(rows), prompt_len, np.int64), tokens)


def processors(change: dict[str, Any], prompt_len: int) -> list[LogitsProcessor]:
    """The same rules as Transformers has them."""
    values = {**NONE, **change}
    made: list[LogitsProcessor] = []
    if values["bias"]:
        made.append(SequenceBiasLogitsProcessor([[[token], float(bias)] for token, bias in values["bias"].items()]))
    if values["banned"]:
        made.append(NoBadWordsLogitsProcessor([list(tokens) for tokens in values["banned"]]))
    if values["min_tokens"] and values["endings"]:
        made.append(MinNewTokensLengthLogitsProcessor(prompt_len, values["min_tokens"], list(values["endings"])))
    if values["allowed"] is not None:
        made.append(SuppressTokensLogitsProcessor(sorted(set(range(VOCAB)) - set(values["allowed"]))))
    if values["watermark"] is not None:
        mark = values["watermark"]
        made.append(WatermarkLogitsProcessor(VOCAB, "cpu", greenlist_ratio=mark.gamma, bias=mark.delta))
    return made


token = st.integers(0, VOCAB - 1)
few = st.integers(0, 5)  # histories are made of few tokens, so that banned sequences match
change = st.fixed_dictionaries(
    {
        "bias": st.dictionaries(token, st.floats(-100, 100, width=32), max_size=5),
        "allowed": st.none() | st.sets(token, min_size=1).map(sorted),
        "banned": st.lists(st.lists(few, min_size=1, max_size=4), max_size=6, unique_by=tuple),
        "min_tokens": st.integers(0, 6),
        "endings": st.lists(token, min_size=1, max_size=3, unique=True),
        "watermark": st.none() | st.builds(Watermark, st.sampled_from([0.25, 0.5]), st.sampled_from([2.0, -1.5])),
    }
)


@settings(deadline=None)
@given(
    changes=st.lists(st.none() | change, min_size=1, max_size=5),
    history=st.lists(few, min_size=8, max_size=8),
    prompt_len=st.integers(1, 4),
    data=st.data(),
)
def test_rules_are_those_of_transformers(
    changes: list[dict[str, Any] | None], history: list[int], prompt_len: int, data: st.DataObject
) -> None:
    """Rows with rules and without in one batch, each as Transformers computes it alone."""
    known = [data.draw(st.integers(prompt_len, 8)) for _ in changes]
    logits = torch.randn(len(changes), VOCAB, generator=torch.Generator().manual_seed(len(changes)))
    before = logits.clone()
    tokens = torch.tensor([history] * len(changes))
    rules = {row: make_rules(**given_) for row, given_ in enumerate(changes) if given_ is not None}
    if not rules:
        return
    mine = on_rows(tokens, known, prompt_len, rules).shape(logits)
    assert torch.equal(logits, before)
    for row, given_ in enumerate(changes):
        chain: Any = LogitsProcessorList(processors(given_ or {}, prompt_len))
        theirs = chain(tokens[row : row + 1, : known[row]], logits[row : row + 1].clone())
        torch.testing.assert_close(mine[row], theirs[0], msg=partial("row {}: {}: {}".format, row, changes[row]))


def test_a_banned_sequence_may_begin_in_the_prompt_and_not_before_it() -> None:
    history = torch.tensor([[7, 8, 9], [0, 0, 7]])
    rules = {0: make_rules(banned=[[7, 8, 9, 1], [9, 2], [5, 7, 8, 9, 3]]), 1: make_rules(banned=[[0, 7, 4]])}
    mine = on_rows(history, [3, 1], 3, rules).shape(torch.zeros(2, VOCAB))
    assert mine[0].isinf().nonzero().flatten().tolist() == [1, 2]
    assert not mine[1].isinf().any(), "what stands behind the position is no history"


def test_a_row_whose_rules_leave_nothing_is_told_apart() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1))
    rules = {
        0: make_rules(allowed=[3], banned=[[3]]),
        2: make_rules(allowed=[3, 4], min_tokens=1, endings=[3]),
    }
    for temperature in (0.0, 1.0):
        rows = make_rows(*({"temperature": temperature, "seed": 1, "position": 1} for _ in range(3)))
        ruled = on_rows(torch.zeros(3, 1, dtype=torch.long), [1, 1, 1], 1, rules)
        shaped = shape(logits, rows, no_history, rules=ruled)
        tokens = choose(shaped, rows)
        assert ruled.forbids(shaped, tokens).tolist() == [True, False]
        assert tokens[2] == 4
        assert 0 <= int(tokens[0]) < VOCAB


@pytest.mark.parametrize(
    ("output", "forced"),
    [
        ([1, 1], None),  # the budget is not spent
        ([1, 1, 1], 8),
        ([1, 1, 1, 8], 9),
        ([1, 1, 8, 8], 9),
        ([1, 1, 1, 8, 9], None),
        ([1, 8, 9, 1, 1], None),  # it has ended by itself
        ([1, 1, 1, 9], 8),
    ],
)
@pytest.mark.parametrize("opened", [False, True])
def test_thinking_ends_when_its_budget_is_spent(output: list[int], forced: int | None, opened: bool) -> None:
    """Reasoning that the prompt has opened, or that the first token opens; other rows are left alone."""
    prompt, openings = [8, 9], [np.array([5]), np.array([6])] if opened else []
    thinking = Thinking(3, openings, np.array([8, 9], np.int64))
    said = [*prompt, *([6] if opened else []), *output]
    rules = {1: make_rules(thinking=thinking, bias={3: 5.0})}
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(7))
    shaped = on_rows(torch.tensor([said, said]), [len(said)] * 2, 2, rules).shape(logits)
    assert torch.equal(shaped[0], logits[0])
    possible = shaped[1].isfinite().nonzero().flatten().tolist()
    assert possible == ([forced] if forced is not None else list(range(VOCAB)))


def test_who_does_not_begin_to_think_is_not_stopped() -> None:
    rules = {0: make_rules(thinking=Thinking(0, [np.array([5])], np.array([8])))}
    for said in ([1], [1, 4], [1, 4, 4]):
        shaped = on_rows(torch.tensor([said]), [len(said)], 1, rules).shape(torch.zeros(1, VOCAB))
        assert shaped.isfinite().all()
    assert on_rows(torch.tensor([[1, 5]]), [2], 1, rules).shape(torch.zeros(1, VOCAB))[0].argmax() == 8


START, CHANNEL, MESSAGE, STOP, ASSISTANT, ANALYSIS, FINAL, COMMENT, ARY, TO, TEXT = range(11)
MORE = [STOP, START, ASSISTANT, CHANNEL]


@pytest.mark.parametrize(
    ("output", "forced"),
    [
        ([TEXT, TEXT], None),  # the opening is not counted
        ([TEXT, TEXT, TEXT], STOP),
        ([TEXT, TEXT, TEXT, *MORE], FINAL),
        ([TEXT, TEXT, TEXT, *MORE, FINAL], MESSAGE),  # the channel's name alone is not the end of what is forced
        ([TEXT, TEXT, TEXT, *MORE, FINAL, MESSAGE], None),
        ([TEXT, TEXT, *MORE, FINAL, TO, MESSAGE, TEXT], None),  # the model's own header has something more in it
        ([TEXT, TEXT, *MORE, COMMENT], None),  # its name is the model's to write to the end
        ([TEXT, TEXT, *MORE, COMMENT, ARY, TEXT], None),
        ([TEXT, TEXT, *MORE, ANALYSIS], MESSAGE),  # another message of thoughts is begun whole before it is ended
        ([TEXT, TEXT, *MORE, ANALYSIS, MESSAGE], STOP),
        ([TEXT, TEXT, STOP, START, ASSISTANT, TO, TEXT, CHANNEL], None),  # a call
        ([TEXT, STOP, START, TEXT, CHANNEL], None),  # which channel is not known yet
    ],
)
def test_thinking_in_channels_ends_with_a_header(output: list[int], forced: int | None) -> None:
    def tokens(*ids: int) -> Ints:
        return np.array(ids, np.int64)

    opening, end = tokens(CHANNEL, ANALYSIS, MESSAGE), tokens(*MORE, FINAL, MESSAGE)
    closings = [tokens(CHANNEL, FINAL), tokens(CHANNEL, COMMENT, ARY), tokens(START, ASSISTANT, TO)]
    assert Thinking(3, [opening], end, closings).forced(tokens(*opening, *output)) == forced
    if output[-1] != ANALYSIS:  # without an opening nobody knows how such a header goes on
        assert Thinking(3, [], end, closings).forced(tokens(*output)) == forced
    assert Thinking(3, [opening], end, closings).forced(tokens(CHANNEL, FINAL, MESSAGE, *output)) is None


def test_penalties_see_the_biased_logits() -> None:
    """In Transformers' order: a bias comes before the repetition penalty."""
    rows = make_rows({"repetition": 2.0, "position": 1, "prompt_len": 1})
    history = torch.tensor([[3]])
    ruled = on_rows(history, [1], 1, {0: make_rules(bias={3: 6.0})})
    shaped = shape(torch.ones(1, VOCAB), rows, lambda mask: history, rules=ruled)
    assert shaped[0, 3] == 3.5


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_draws_under_rules_follow_the_probabilities(temperature: float) -> None:
    """Chi-squared over 20,000 draws of one seed; fails by chance once in 10 million runs."""
    seed = fresh_seed()
    draws = 20_000
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed))
    given_ = {"bias": {1: 1.5, 2: -1.0, 30: -100.0}, "allowed": list(range(0, 35)), "banned": [[5], [6, 7]]}
    history = torch.tensor([[6]])
    rows = make_rows(*({"temperature": temperature, "seed": seed, "position": i + 1} for i in range(draws)))
    one = on_rows(history, [1], 1, {0: make_rules(**given_)}).shape(logits)
    counts = torch.bincount(sample(one.expand(draws, -1), rows, no_history), minlength=VOCAB).numpy()
    chain: Any = LogitsProcessorList(processors(given_, 1))
    theirs = chain(history, logits.clone()) / temperature
    expected = theirs.softmax(-1)[0].double().numpy()
    assert (counts[expected == 0] == 0).all()
    assert expected[[5, 7, 36]].tolist() == [0, 0, 0]
    likely = expected * draws > 5
    assert likely.sum() > 20
    observed = np.append(counts[likely], counts[~likely].sum())
    awaited = np.append(expected[likely], expected[~likely].sum()) / expected.sum() * draws
    if awaited[-1] < 5:  # too rare to test
        awaited[-2:], observed[-2:] = [awaited[-2:].sum(), 0], [observed[-2:].sum(), 0]
        awaited, observed = awaited[:-1], observed[:-1]
    assert chisquare(observed, awaited).pvalue > 1e-7
