"""Steps that are run at the start to see how long they take."""

from __future__ import annotations

import pytest

from textgen.shard.measure import KINDS, measure_steps
from textgen.shard.slots import State

from .conftest import RunnerMaker


def test_every_kind_that_fits_is_measured(make_runner: RunnerMaker, caplog: pytest.LogCaptureFixture) -> None:
    runner = make_runner(max_slots=9)
    fitting = [kind for kind in KINDS if kind.tokens <= 64 and kind.streams <= 8 and kind.context == 0]
    assert len(fitting) == 4
    with caplog.at_level("INFO"):
        measured = measure_steps(runner, 3600.0)
    assert [step.tokens for step in measured] == [kind.tokens for kind in fitting]
    assert [step.sequences - step.streams for step in measured] == [int(kind.prompt > 0) for kind in fitting]
    both = measured[-1]
    assert (both.pairs, both.context, both.streams) == (32 * 33 // 2, 8 + 32, 8)
    assert all(step.micros > 0 for step in measured)
    assert "a step of 8 streams and 32 tokens of a prompt: " in caplog.text
    assert (runner.slots.state == State.EMPTY).all()


def test_what_there_is_no_time_for_is_left_out(make_runner: RunnerMaker) -> None:
    assert measure_steps(make_runner(), 0.0) == []
