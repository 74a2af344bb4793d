"""Steps that are answered without the interpreter give what they would give if each went through it."""

from __future__ import annotations

import random
import socket
import threading
from types import SimpleNamespace
from typing import cast

import pytest

from tests.seeds import fresh_rng
from textgen.models.decoder import Repeats
from textgen.shard.executor import Executor
from textgen.shard.link import Link
from textgen.shard.metrics import Metrics
from textgen.shard.protocol import Done, Failed, Frame, FrameReader, Hello, Step, Stop, decode, encode
from textgen.shard.runner import Runner
from textgen.shard.slots import Slots
from textgen.shard.steady import Series, Steady

from .conftest import RunnerMaker
from .router import Segment, admit, step
from .test_steady import BLOCK, BLOCKS, answers

HELLO = cast(Hello, Failed(None, b"", "internal", "stands for a Hello"))


class Script:
    """What a router sends: sequences come, go on together, and go."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self._at, self._number = dict[int, int](), 0

    def seat(self, slot: int, prompt: list[int], temperature: float = 0.0) -> None:
        self.frames.append(admit(slot, len(prompt), temperature=temperature, seed=slot))
        self._at[slot] = 0
        self.step({slot: prompt})

    def free(self, slot: int) -> None:
        del self._at[slot]
        self.step(freed=[slot])

    def step(self, prompts: dict[int, list[int]] | None = None, freed: list[int] | None = None) -> None:
        segments = []
        for slot, at in self._at.items():
            tokens = (prompts or {}).get(slot, [])
            count = len(tokens) or 1
            pages = range(-(-at // BLOCK), -(-(at + count) // BLOCK))
            segments.append(Segment(slot, at, tokens, last=not tokens, blocks=[slot * BLOCKS + page for page in pages]))
            self._at[slot] += count
        self._number += 1
        self.frames.append(step(self._number, segments, freed=freed or []))


def said(runner: Runner, frames: list[Frame], rng: random.Random, in_flight: int = 2) -> tuple[list[object], Metrics]:
    """What an executor answers to frames that come in pieces, so many steps at most unanswered, and what it
    has counted."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    ours.settimeout(60)
    metrics = Metrics(runner.slots, runner.bounds.num_pages)
    with ours, theirs:
        executor = Executor(runner, Link(theirs), metrics, 60.0)
        thread = threading.Thread(target=executor.run, args=(HELLO,))
        thread.start()
        reader, found, steps = FrameReader(), list[Done | Failed](), 0
        for frame in [*frames, Stop()]:
            steps += isinstance(frame, Step)
            data = encode(frame)
            while data:
                size = rng.choice((7, 100, len(data)))
                ours.sendall(data[:size])
                data = data[size:]
            open_steps = 0 if isinstance(frame, Stop) else in_flight - 1
            while sum(isinstance(each, Done) for each in found) < steps - open_steps:
                read = [decode(kind, payload) for kind, payload in reader.feed(ours.recv(1 << 16))]
                found += cast("list[Done | Failed]", read)
        thread.join()
        assert executor.check_integrity() == "the executor has ended"
    return answers(found), metrics


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps were answered so each time."""
    counts: list[int] = []
    run_on = Steady.run_on

    def watched(self: Steady, follower: object, pending: bytes, slots: Slots) -> Series:
        series = run_on(self, follower, pending, slots)  # type: ignore[arg-type]
        counts.append(series.steps)
        return series

    monkeypatch.setattr(Steady, "run_on", watched)
    return counts


def through_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Steady, "run_on", lambda self, follower, pending, slots: Series(pending))


def value(metrics: Metrics, name: str) -> float:
    (line,) = [line for line in metrics.text().decode().splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


def test_they_say_and_count_what_other_steps_do(make_runner: RunnerMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences come and go, some draw, and blocks are filled."""
    rng, seated, script = fresh_rng(), set[int](), Script()
    for _ in range(12):
        slot = rng.randrange(4)
        if slot in seated:
            seated.remove(slot)
            script.free(slot)
        else:
            seated.add(slot)
            prompt = [rng.randrange(100) for _ in range(rng.randint(1, 9))]
            script.seat(slot, prompt, rng.choice((0.0, 0.0, 0.0, 1.0)))
        for _ in range(rng.randint(0, 6) if seated else 0):
            script.step()
    counts = counted(monkeypatch)
    ours, of_ours = said(make_runner(num_blocks=4 * BLOCKS), script.frames, rng)
    through_the_interpreter(monkeypatch)
    theirs, of_theirs = said(make_runner(num_blocks=4 * BLOCKS), script.frames, rng)
    assert ours == theirs
    for metrics in (of_ours, of_theirs):
        assert value(metrics, 'textgen_shard_step_seconds_sum{phase="queue"}') < 60, "since it was read"
    for name in ("steps_total", "tokens_total", "sampled_tokens_total", "segments_total", "step_tokens_sum"):
        assert value(of_ours, f"textgen_shard_{name}") == value(of_theirs, f"textgen_shard_{name}")
    print(f"{sum(counts)} of {len(script.frames)} frames were answered so")


@pytest.fixture
def alone(make_runner: RunnerMaker) -> tuple[Runner, Script]:
    """A sequence, and 3 blocks of steps."""
    runner, script = make_runner(num_blocks=4 * BLOCKS), Script()
    if not isinstance(runner.model, Repeats):
        pytest.skip("this machine has no kernels")
    script.seat(0, [5, 6, 7])
    for _ in range(3 * BLOCK):
        script.step()
    return runner, script


def test_all_are_but_the_first(alone: tuple[Runner, Script], monkeypatch: pytest.MonkeyPatch) -> None:
    runner, script = alone
    counts = counted(monkeypatch)
    said(runner, script.frames, fresh_rng(), in_flight=1)
    assert sum(counts) == max(counts) == 3 * BLOCK - 1
    assert runner.slots.table_len[0] == -(-(3 + 3 * BLOCK) // BLOCK)


def test_a_step_that_is_unsound_is_worked_out(alone: tuple[Runner, Script], monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes another way, where it finds the tokens that it should, and those behind it go on."""
    runner, script = alone
    run_on, faults = Steady.run_on, 0

    def unsound(self: Steady, follower: object, pending: bytes, slots: Slots) -> Series:
        nonlocal faults
        if faults:
            return run_on(self, follower, pending, slots)  # type: ignore[arg-type]
        faults += 1
        return Series(pending, unsound=True)

    expected, _ = said(runner, script.frames, fresh_rng())
    monkeypatch.setattr(Steady, "run_on", unsound)
    assert said(runner, script.frames, fresh_rng())[0] == expected
    assert faults


def test_numbers_that_are_not_finite_are_told_as_ever(
    alone: tuple[Runner, Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the cache has becomes NaN before a step that the follower runs."""
    runner, script = alone
    run_on, given_back = Steady.run_on, list[bool]()

    def poisoned(self: Steady, follower: object, pending: bytes, slots: Slots) -> Series:
        for stored in (stored for place in runner.cache.places for stored in place.stored if not given_back):
            stored.fill_(float("nan"))
        series = run_on(self, follower, pending, slots)  # type: ignore[arg-type]
        given_back.append(series.unsound)
        return series

    monkeypatch.setattr(Steady, "run_on", poisoned)
    ours, _ = said(runner, script.frames, fresh_rng())
    assert given_back[-1] and sum(given_back) == 1
    faults = [frame for frame in ours[1:] if isinstance(frame, Failed)]
    assert faults[0].kind == "numerics"


def test_they_are_counted_while_the_next_one_is_waited_for(alone: tuple[Runner, Script]) -> None:
    runner, script = alone
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    ours.settimeout(60)
    metrics = Metrics(runner.slots, 1)
    with ours, theirs:
        executor = Executor(runner, Link(theirs), metrics, 60.0)
        thread = threading.Thread(target=executor.run, args=(HELLO,))
        thread.start()
        reader, answered = FrameReader(), 0
        # The last of them is answered by the follower, which waits for another.
        for frame in script.frames[: 2 + BLOCK]:
            ours.sendall(encode(frame))
            while isinstance(frame, Step) and answered <= frame.step:  # the Hello is an answer too
                answered += len(list(reader.feed(ours.recv(1 << 16))))
        executor.count_steps()
        assert value(metrics, "textgen_shard_steps_total") == 1 + BLOCK
        ours.sendall(encode(Stop()))
        thread.join()


def test_a_step_of_theirs_that_hangs_is_told(alone: tuple[Runner, Script]) -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with ours, theirs:
        link = Link(theirs)
        executor = Executor(alone[0], link, Metrics(alone[0].slots, 1), 60.0)
        assert executor.check_integrity() is None
        link.follower = SimpleNamespace(busy_since=1.0)  # type: ignore[assignment]
        wrong = executor.check_integrity()
        assert wrong is not None and "a step has been running for" in wrong
