"""Sequences whose prompt is an encoder's: inputs, their blocks, and what does not fit together."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from textgen.shard.protocol import Done, Failed, Source
from textgen.shard.runner import Runner
from textgen.shard.settings import ShardSettings
from textgen.shard.start import build_runner
from textgen.shard.warmup import warm_up

from ..models.test_fallback_encoder import make
from .router import Segment, admit, shard_settings, step, tokens_of

INPUT, START = [5, 9, 33, 80, 7], 0
BEFORE = 8  # positions of the input's two blocks of 4
PADDED = [*INPUT, 0, 0, 0]


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("t5")
    return folder, make(folder, "T5", num_decoder_layers=2)  # Transformers generates with as many layers on both sides


@pytest.fixture
def runner(t5: tuple[Path, PreTrainedModel]) -> Iterator[Runner]:
    descriptor = os.memfd_create("textgen-test", os.MFD_ALLOW_SEALING)
    made = build_runner(ShardSettings(**shard_settings(t5[0])), descriptor)
    for layer in made.cache.layers:
        layer.keys.fill_(torch.nan)
        layer.values.fill_(torch.nan)
    yield made
    os.close(descriptor)


def seat(runner: Runner, slot: int, **changes: Any) -> None:
    assert runner.admit(admit(slot, 1, **{"source": Source(len(INPUT), BEFORE), **changes})) == []


def run(runner: Runner, number: int, *segments: Segment, **rest: Any) -> list[Done | Failed]:
    return list(runner.step(step(number, segments, **rest), time.monotonic_ns()).frames)


def greedy(reference: PreTrainedModel, count: int) -> list[int]:
    made: Any = reference
    given: dict[str, Any] = {"do_sample": False, "max_new_tokens": count, "min_new_tokens": count}
    return list(made.generate(torch.tensor([INPUT]), **given)[0, 1:].tolist())


def test_an_input_is_read_once_and_shared(runner: Runner, t5: tuple[Path, PreTrainedModel]) -> None:
    """One sequence reads it, another goes on from the same blocks; both generate what Transformers does."""
    expected = greedy(t5[1], 6)
    seat(runner, 0)
    (done,) = run(runner, 0, Segment(0, 0, [*PADDED, START], blocks=[3, 9, 4]))
    assert isinstance(done, Done), done
    ours = {0: [tokens_of(done)[0]], 1: []}
    seat(runner, 1, temperature=0.0)
    for number in range(1, 6):
        first = Segment(0, BEFORE + number, last=True, blocks=[6] if number == 4 else [])
        other = Segment(1, BEFORE, [START], blocks=[3, 9, 11])
        if number > 1:
            other = Segment(1, BEFORE + number - 1, last=True, blocks=[12] if number == 5 else [])
        (done,) = run(runner, number, first, other)
        assert isinstance(done, Done), done
        tokens = tokens_of(done)
        for slot, token in tokens.items():
            ours[slot].append(token)
    assert ours == {0: expected, 1: expected[:5]}
    assert runner.slots.blocks_in_use() == 6, "two of them in both tables"


def test_a_recomputed_output_runs_behind_its_input(runner: Runner, t5: tuple[Path, PreTrainedModel]) -> None:
    expected = greedy(t5[1], 6)
    seat(runner, 2)
    (done,) = run(runner, 0, Segment(2, 0, [*PADDED, START, *expected[:4]], blocks=[3, 9, 4, 5]))
    assert isinstance(done, Done) and tokens_of(done) == {2: expected[4]}


@pytest.mark.parametrize(
    "wrong",
    [
        Segment(1, 0, PADDED, blocks=[3, 9, 4]),  # nothing behind the input
        Segment(1, 4, [*PADDED[4:], START], blocks=[3, 9, 4]),  # a part of it
        Segment(1, BEFORE, [START], blocks=[3]),  # too few blocks
        Segment(1, 0, [*PADDED[:3], 90, *PADDED[4:], START], blocks=[3, 9, 4]),  # no token
        Segment(1, 0, [*PADDED, START], blocks=[3, 64, 4]),  # no block
        Segment(1, 0, [*PADDED[1:], START], last=True, blocks=[3, 9, 4]),
        Segment(1, 0, [*PADDED, 90], blocks=[3, 9, 4]),  # no token of the decoder's
    ],
)
def test_what_does_not_fit_fails_alone(runner: Runner, wrong: Segment, t5: tuple[Path, PreTrainedModel]) -> None:
    seat(runner, 0)
    seat(runner, 1)
    failed, done = run(runner, 0, Segment(0, 0, [*PADDED, START], blocks=[20, 21, 22]), wrong)
    assert isinstance(failed, Failed) and failed.kind == "protocol"
    assert np.frombuffer(failed.slots, "<u4").tolist() == [1]
    assert isinstance(done, Done) and list(tokens_of(done).values()) == greedy(t5[1], 1)
    again = run(runner, 1, Segment(1, 0, [*PADDED, START], blocks=[3, 9, 4]))
    assert [type(frame) for frame in again] == [Failed, Done], "it fails until it is admitted anew"
    seat(runner, 1)
    (done,) = run(runner, 2, Segment(1, 0, [*PADDED, START], blocks=[3, 9, 4]))
    assert isinstance(done, Done) and list(tokens_of(done).values()) == greedy(t5[1], 1)


@pytest.mark.parametrize("source", [None, Source(0, 0), Source(5, 12), Source(5, 4), Source(5, 7), Source(97, 100)])
def test_seats_without_a_proper_input(runner: Runner, source: Source | None) -> None:
    (failed,) = runner.admit(admit(0, 1, source=source))
    assert failed.kind == "protocol"


def test_warm_up_needs_no_more_than_there_is(runner: Runner) -> None:
    warm_up(runner)
    assert runner.slots.in_use() == 0
