"""Sampling under grammar masks: what they allow; masks that are late, empty, free or wrong; others notice nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from textgen.ops.sampling import Allowed, sample
from textgen.shard.masks import MaskSize
from textgen.shard.memory import SharedMemory, WideSize
from textgen.shard.metrics import Metrics
from textgen.shard.protocol import Done, Failed, unpack_f32
from textgen.shard.runner import Outcome, Runner

from ..models.tiny import reference_logits
from ..ops.test_sampling import make_rows, no_history
from .conftest import RunnerMaker
from .mask_writer import mask_slot, write_mask
from .router import Segment, admit, step, tokens_of

PROMPT = [5, 6, 7, 8, 9]
VOCAB = 101


def prompt(slot: int) -> Segment:
    return Segment(slot, 0, PROMPT, blocks=[2 * slot, 2 * slot + 1])


def seat(runner: Runner, *slots: int, **changes: Any) -> None:
    for slot in slots:
        assert runner.admit(admit(slot, len(PROMPT), **changes)) == []


def run(runner: Runner, number: int, *segments: Segment, masks: list[tuple[int, int]]) -> Outcome:
    return runner.step(step(number, segments, masks=masks), time.monotonic_ns())


def only_done(outcome: Outcome) -> Done:
    (done,) = outcome.frames
    assert isinstance(done, Done), done
    return done


def next_logits(reference: PreTrainedModel) -> torch.Tensor:
    return reference_logits(reference, PROMPT)[-1]


def best_of(logits: torch.Tensor, allowed: list[int]) -> int:
    return max(allowed, key=lambda token: float(logits[token]))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), vocab=st.integers(2, 300), count=st.integers(1, 6), seed=st.integers(0, 2**32 - 1))
def test_a_masked_draw_is_a_draw_without_the_others(data: st.DataObject, vocab: int, count: int, seed: int) -> None:
    logits = 4 * torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed))
    masked = data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=count))
    sets = [data.draw(st.sets(st.integers(0, vocab - 1), min_size=1)) for _ in masked]
    size = MaskSize(1, vocab)
    bits = [np.frombuffer(mask_slot(size, 0, allowed), np.uint8)[64 : 64 + size.row] for allowed in sets]
    allowed = Allowed(np.array(masked, np.int64), np.array(bits, np.uint8).reshape(-1, size.row))
    plain = logits.clone()
    for row, those in zip(masked, sets, strict=True):
        for token in set(range(vocab)) - those:
            plain[row, token] = -torch.inf
    params = st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.0, 0.3, 1.0, 3.0]),
            "top_k": st.integers(0, 20),
            "top_p": st.sampled_from([0.2, 0.9, 1.0]),
            "min_p": st.sampled_from([0.0, 0.1]),
            "typical_p": st.sampled_from([0.5, 1.0]),
            "seed": st.integers(0, 2**64 - 1),
        }
    )
    rows = make_rows(*(data.draw(params) for _ in range(count)))
    before = logits.clone()
    tokens = sample(logits, rows, no_history, allowed)
    assert torch.equal(logits, before)
    assert tokens.tolist() == sample(plain, rows, no_history).tolist()
    assert allowed.permits(tokens.numpy()).all()
    assert all(int(tokens[row]) in those for row, those in zip(masked, sets, strict=True))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), vocab=st.integers(2, 300), count=st.integers(1, 6), seed=st.integers(0, 2**32 - 1))
def test_the_likeliest_of_a_mask_is_found_from_the_likeliest_of_all(
    data: st.DataObject, vocab: int, count: int, seed: int
) -> None:
    logits = 4 * torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed))
    masked = data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=count))
    size = MaskSize(1, vocab)
    sets = [data.draw(st.sets(st.integers(0, vocab - 1), min_size=1)) | {0} for _ in masked]
    bits = [np.frombuffer(mask_slot(size, 0, allowed), np.uint8)[64 : 64 + size.row] for allowed in sets]
    allowed = Allowed(np.array(masked, np.int64), np.array(bits, np.uint8).reshape(-1, size.row))
    greedy = make_rows(*[{"temperature": 0.0}] * count)
    assert greedy.plain
    known = logits.argmax(dim=-1)
    assert allowed.likeliest(logits, known).tolist() == sample(logits, greedy, no_history, allowed).tolist()
    assert torch.equal(known, logits.argmax(dim=-1))
    assert not make_rows({"temperature": 1.0}).plain
    assert not make_rows({"temperature": 0.0, "frequency": 0.5}).plain


def test_a_row_that_may_draw_nothing_is_told() -> None:
    allowed = Allowed(np.array([1]), np.zeros((1, 4), np.uint8))
    for temperature in (0.0, 1.0):
        tokens = sample(torch.randn(2, 30), make_rows(*[{"temperature": temperature}] * 2), no_history, allowed)
        assert allowed.permits(tokens.numpy()).tolist() == [False]


def test_only_masked_slots_are_bound(make_runner: RunnerMaker, reference: PreTrainedModel) -> None:
    runner, allowed = make_runner(), [3, 17, 64, 100]
    seat(runner, 0, 1, 2)
    write_mask(runner, 1, 7, allowed)
    write_mask(runner, 1, 5, [50])
    done = only_done(run(runner, 1, prompt(0), prompt(1), prompt(2), masks=[(2, 5), (0, 7)]))
    logits = next_logits(reference)
    expected = {0: best_of(logits, allowed), 1: int(logits.argmax()), 2: 50}
    assert tokens_of(done) == expected
    raw = logits.log_softmax(-1)
    wanted = [float(raw[token]) for token in expected.values()]
    np.testing.assert_allclose(unpack_f32(done.logprobs, "logprobs"), wanted, atol=1e-3)


def test_a_mask_follows_the_token_sampled_last(make_runner: RunnerMaker) -> None:
    runner = make_runner()
    seat(runner, 0)
    for number, token in enumerate([41, 42, 43, 44, 45, 46], start=1):
        segment = prompt(0) if number == 1 else Segment(0, len(PROMPT) + number - 2, last=True, blocks=[20 + number])
        place = number % 4 * 8  # another part each step, and the first part again
        write_mask(runner, number, place, [token])
        assert tokens_of(only_done(run(runner, number, segment, masks=[(0, place)]))) == {0: token}


def test_a_mask_may_come_while_the_shard_waits(make_runner: RunnerMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_runner()
    seat(runner, 0)
    write_mask(runner, 0, 3, [9])  # of an earlier step: not taken
    looks = iter([lambda: None, lambda: write_mask(runner, 4, 3, [77])])

    def sleep(_: float) -> None:
        action: Callable[[], None] = next(looks)
        action()

    monkeypatch.setattr(time, "sleep", sleep)
    outcome = run(runner, 4, prompt(0), masks=[(0, 3)])
    assert tokens_of(only_done(outcome)) == {0: 77}
    assert next(looks, None) is None, "it waited for the mask"
    metrics = Metrics(runner.slots, 64)
    metrics.observe(outcome)
    assert b"textgen_shard_mask_wait_seconds_count 1.0" in metrics.text()


def test_a_mask_that_never_comes_fails_its_slot_alone(make_runner: RunnerMaker, reference: PreTrainedModel) -> None:
    runner = make_runner(mask_timeout=0.001)
    seat(runner, 0, 1, 2)
    write_mask(runner, 1, 1, [33])
    failed, done = run(runner, 1, prompt(0), prompt(1), prompt(2), masks=[(0, 0), (1, 1)]).frames
    assert isinstance(failed, Failed) and isinstance(done, Done)
    assert (failed.kind, failed.slots) == ("internal", b"\0\0\0\0")
    assert "0.001 seconds" in failed.message
    assert tokens_of(done) == {1: 33, 2: int(next_logits(reference).argmax())}
    # The slot stays failed, and nobody waits for its masks any more.
    again = run(runner, 2, Segment(0, 5, last=True), masks=[(0, 0)])
    assert [type(frame) for frame in again.frames] == [Failed, Done]
    assert not again.mask_wait
    seat(runner, 0)
    write_mask(runner, 3, 0, [8])
    assert tokens_of(only_done(run(runner, 3, prompt(0), masks=[(0, 0)]))) == {0: 8}


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_mask_that_allows_nothing_fails_its_slot_alone(temperature: float, make_runner: RunnerMaker) -> None:
    runner = make_runner()
    seat(runner, 0, 1, temperature=temperature)
    write_mask(runner, 1, 0, [])
    write_mask(runner, 1, 1, [33])
    failed, done = run(runner, 1, prompt(0), prompt(1), masks=[(0, 0), (1, 1)]).frames
    assert isinstance(failed, Failed) and isinstance(done, Done)
    assert (failed.kind, failed.slots) == ("limit", b"\0\0\0\0")
    assert tokens_of(done) == {1: 33}


def test_a_mask_without_bits_binds_nothing(make_runner: RunnerMaker, reference: PreTrainedModel) -> None:
    runner = make_runner()
    seat(runner, 0)
    write_mask(runner, 1, 0, None)
    assert tokens_of(only_done(run(runner, 1, prompt(0), masks=[(0, 0)]))) == {0: int(next_logits(reference).argmax())}


def test_penalties_come_before_the_mask(make_runner: RunnerMaker, reference: PreTrainedModel) -> None:
    runner, logits = make_runner(), next_logits(reference)
    positive = [token for token in PROMPT if float(logits[token]) > 0] or PROMPT
    assert runner.admit(admit(0, len(PROMPT), repetition_penalty=1.5, history=np.array(PROMPT, "<u4").tobytes())) == []
    write_mask(runner, 1, 0, PROMPT)
    (token,) = tokens_of(only_done(run(runner, 1, prompt(0), masks=[(0, 0)]))).values()
    scaled = {t: float(logits[t] / 1.5 if logits[t] > 0 else logits[t] * 1.5) for t in PROMPT}
    assert token == max(scaled, key=scaled.__getitem__)
    assert positive


@pytest.mark.parametrize(
    ("masks", "sentence"),
    [
        ([(1, 0)], "segment 1 of 1"),
        ([(0, 32)], "mask slot 32 is not below 32"),
        ([(0, 2**32 - 1)], "not below 32"),
        ([(0, 0), (0, 1)], "named twice"),
    ],
)
def test_masks_that_name_nothing_fail_the_step(
    masks: list[tuple[int, int]], sentence: str, make_runner: RunnerMaker
) -> None:
    runner = make_runner()
    seat(runner, 0)
    (failed,) = run(runner, 1, prompt(0), masks=masks).frames
    assert isinstance(failed, Failed)
    assert failed.kind == "protocol"
    assert sentence in failed.message


def test_a_segment_that_samples_nothing_takes_no_mask(make_runner: RunnerMaker) -> None:
    runner = make_runner()
    seat(runner, 0)
    (failed,) = run(runner, 1, Segment(0, 0, PROMPT, sample=False, blocks=[0, 1]), masks=[(0, 0)]).frames
    assert isinstance(failed, Failed)
    assert "samples nothing" in failed.message


def test_a_memory_used_before_holds_no_masks() -> None:
    descriptor = os.memfd_create("textgen-test", os.MFD_ALLOW_SEALING)
    try:
        sizes = WideSize(10, 2, 1), MaskSize(2, VOCAB)
        first = SharedMemory(descriptor, *sizes, mask_timeout=0.001)
        region = first.regions[1]
        assert (region.name, region.length) == ("masks", sizes[1].region)
        os.pwrite(descriptor, mask_slot(sizes[1], 5, [1]), region.offset)
        assert first.masks.read(5, np.array([0])).late.tolist() == [False]
        second = SharedMemory(descriptor, *sizes, mask_timeout=0.001)
        assert second.masks.read(5, np.array([0])).late.tolist() == [True]
    finally:
        os.close(descriptor)
