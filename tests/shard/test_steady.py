"""Steps that are as the one before give what they would give if each were worked out anew."""

from __future__ import annotations

import time
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.seeds import fresh_rng
from textgen.models.decoder import Begun, Repeats
from textgen.ops.cpu.model import Repeated
from textgen.shard.protocol import Done, Failed
from textgen.shard.runner import Runner
from textgen.shard.slots import Slots
from textgen.shard.steady import Steady

from .conftest import RunnerMaker
from .mask_writer import write_mask
from .router import Segment, admit, step

BLOCK, BLOCKS = 4, 24  # of a sequence
Frames = list[Done | Failed]


def answers(frames: Frames) -> list[object]:
    """What of frames does not depend on time."""
    return [
        (each.step, each.slots, each.counts, each.tokens, each.logprobs) if isinstance(each, Done) else each
        for each in frames
    ]


class Sequences:
    """Sequences that run side by side, each from its prompt to where it is freed."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.at, self.number = runner, dict[int, int](), 0

    def seat(self, slot: int, prompt: list[int], **changes: Any) -> Frames:
        assert self.runner.admit(admit(slot, len(prompt), **changes)) == []
        self.at[slot] = 0
        return self.step({slot: prompt})

    def step(self, prompts: dict[int, list[int]] | None = None, **rest: Any) -> Frames:
        """A token for each that has begun, and a prompt for each that has not."""
        prompts, segments = prompts or {}, []
        for slot, at in self.at.items():
            tokens = prompts.get(slot, [])
            count = len(tokens) or 1
            pages = range(-(-at // BLOCK), -(-(at + count) // BLOCK))
            blocks = [slot * BLOCKS + page for page in pages]
            segments.append(Segment(slot, at, tokens, last=not tokens, blocks=blocks))
            self.at[slot] += count
        self.number += 1
        return list(self.runner.step(step(self.number, segments, **rest), time.monotonic_ns()).frames)


def play(sequences: Sequences, script: list[tuple[str, int, list[int], float]]) -> list[object]:
    said: list[object] = []
    for what, slot, prompt, temperature in script:
        if what == "seat":
            said += answers(sequences.seat(slot, prompt, temperature=temperature, seed=slot))
        elif what == "free":
            sequences.at.pop(slot)
            said += answers(sequences.step(freed=[slot]))
        else:
            said += answers(sequences.step())
    return said


def tokens_of(runner: Runner, segment: Segment, number: int) -> list[object]:
    """What a step of one segment says but for its log-probability, which is another path's to some digits."""
    frames = runner.step(step(number, [segment]), time.monotonic_ns()).frames
    return [(frame.step, frame.tokens) if isinstance(frame, Done) else frame for frame in frames]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the steps that are run as the one before."""
    runs: list[int] = []
    run = Steady.run

    def watched(self: Steady, number: int, slots: Slots) -> Any:
        runs.append(len(self.slot))
        return run(self, number, slots)

    monkeypatch.setattr(Steady, "run", watched)
    return runs


def test_they_say_what_other_steps_say(make_runner: RunnerMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences come and go, some draw, and blocks are filled."""
    rng, seated = fresh_rng(), set[int]()
    script: list[tuple[str, int, list[int], float]] = []
    for _ in range(12):
        slot = rng.randrange(4)
        if slot in seated:
            seated.remove(slot)
            script.append(("free", slot, [], 0.0))
        else:
            seated.add(slot)
            prompt = [rng.randrange(100) for _ in range(rng.randint(1, 9))]
            script.append(("seat", slot, prompt, rng.choice((0.0, 0.0, 0.0, 1.0))))
        script += [("step", 0, [], 0.0)] * rng.randint(0, 6) if seated else []
    runs = counted(monkeypatch)
    ours = play(Sequences(make_runner(num_blocks=4 * BLOCKS)), script)
    quick, runs[:] = len(runs), []
    monkeypatch.setattr("textgen.shard.runner.steady", lambda *_: None)
    theirs = play(Sequences(make_runner(num_blocks=4 * BLOCKS)), script)
    assert ours == theirs
    assert not runs
    print(f"{quick} of {len(script)} steps were steady")


@pytest.fixture
def steady_one(make_runner: RunnerMaker, monkeypatch: pytest.MonkeyPatch) -> tuple[Sequences, list[int]]:
    """A sequence at the beginning of a block, and the steps that were as the one before."""
    runs = counted(monkeypatch)
    sequences = Sequences(make_runner(num_blocks=4 * BLOCKS))
    if not isinstance(sequences.runner.model, Repeats):
        pytest.skip("this machine has no kernels")
    sequences.seat(0, [5, 6, 7, 8])
    sequences.step()
    assert not runs
    return sequences, runs


def test_they_keep_to_masks(make_runner: RunnerMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences under grammars beside one that is under none; at the end one may draw nothing, and a mask is late."""
    rng = fresh_rng()
    masks: list[dict[int, list[int] | None]] = [
        {slot: rng.sample(range(100), rng.choice((1, 60, 99))) for slot in range(2)} for _ in range(14)
    ]
    masks += [{0: None, 1: [7]}, {0: [9], 1: None}, {1: []}, {0: [3]}]

    def said() -> list[object]:
        sequences = Sequences(make_runner(num_blocks=4 * BLOCKS, mask_timeout=0.001))
        for slot in range(3):
            assert sequences.runner.admit(admit(slot, 4)) == []
            sequences.at[slot] = 0
        found = answers(sequences.step(dict.fromkeys(range(3), [5, 6, 7, 8])))
        for allowed in masks:
            places = {slot: sequences.number % 4 * 8 + slot for slot in allowed}
            for slot, tokens in allowed.items():
                write_mask(sequences.runner, sequences.number + 1, places[slot], tokens)
            found += answers(sequences.step(masks=list(places.items())))
        return found + answers(sequences.step(masks=[(0, 0)]))

    runs = counted(monkeypatch)
    ours = said()
    quick, runs[:] = len(runs), []
    assert quick or not isinstance(make_runner().model, Repeats)
    monkeypatch.setattr("textgen.shard.runner.steady", lambda *_: None)
    assert ours == said()
    kinds = [frame.message for frame in ours if isinstance(frame, Failed)]
    assert "allows no token here" in kinds[0] and "did not come" in kinds[-1]
    assert not runs
    print(f"{quick} steps were steady")


def test_parts_of_masks_lead_to_what_whole_ones_do(make_runner: RunnerMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is asked for where the likeliest token is not in the part; a part whose rest does not come is late."""
    rng = fresh_rng()
    masks = [{slot: rng.sample(range(100), rng.choice((60, 90))) for slot in range(3)} for _ in range(20)]
    parts = [{slot: rng.sample(tokens, 50) for slot, tokens in step.items()} for step in masks]
    asked = list[tuple[int, list[int]]]()

    def said(in_part: bool) -> list[object]:
        sequences = Sequences(make_runner(num_blocks=4 * BLOCKS, mask_timeout=0.01))
        runner, whole = sequences.runner, dict[int, list[int]]()

        def ask(number: int, slots: Any) -> None:
            asked.append((number, slots.tolist()))
            for slot in slots.tolist():
                if slot in whole:
                    write_mask(runner, number, slot, whole[slot])

        runner.memory.masks.ask = ask
        for slot in range(3):
            assert runner.admit(admit(slot, 4)) == []
            sequences.at[slot] = 0
        found = answers(sequences.step(dict.fromkeys(range(3), [5, 6, 7, 8])))
        for allowed, part in zip(masks, parts, strict=True):
            places = {slot: sequences.number % 4 * 8 + slot for slot in allowed}
            whole = {places[slot]: tokens for slot, tokens in allowed.items()}
            for slot, tokens in (part if in_part else allowed).items():
                write_mask(runner, sequences.number + 1, places[slot], tokens, in_part)
            found += answers(sequences.step(masks=list(places.items())))
        if in_part:  # the rest of the last one does not come
            whole = {}
            write_mask(runner, sequences.number + 1, 0, [], in_part)
            assert any(isinstance(frame, Failed) for frame in sequences.step(masks=[(0, 0)]))
        return found

    runs = counted(monkeypatch)
    ours = said(in_part=True)
    assert asked
    if runs:
        assert any(len(slots) < 3 for _, slots in asked), "only who needs the rest asks for it"
    assert runs or not isinstance(make_runner().model, Repeats)
    assert ours == said(in_part=False)


def test_sequences_begin_blocks_on_the_way(steady_one: tuple[Sequences, list[int]]) -> None:
    sequences, runs = steady_one
    counts = []
    for _ in range(40):  # the table that the first of them packed grows more than once
        sequences.step()
        counts.append(len(runs))
    assert counts == list(range(1, 41))
    assert sequences.runner.slots.table_len[0] == -(-sequences.at[0] // BLOCK)
    # A step of another position is one that the checks of every step refuse.
    sequences.at[0] += 50
    (failed,) = sequences.step()[:1]
    assert isinstance(failed, Failed) and "behind the blocks" in failed.message
    assert len(runs) == 40


def test_blocks_that_come_early_wait_for_their_turn(make_runner: RunnerMaker) -> None:
    def answered(plan: str) -> list[object]:
        runner = make_runner(plan=plan)
        for stored in (stored for place in runner.cache.places for stored in place.stored):
            stored.fill_(float("nan"))  # what nobody has written is not to be read
        assert runner.admit(admit(0, 5)) == []
        said = tokens_of(runner, Segment(0, 0, [5, 6, 7, 8, 9], blocks=[0, 1, 2]), 1)
        early = {2 * BLOCK: [3], 2 * BLOCK + 2: [4]}  # as if it were the position's, and in the middle of a block
        for number, at in enumerate(range(5, 5 * BLOCK), start=2):
            said += tokens_of(runner, Segment(0, at, last=True, blocks=early.get(at, [])), number)
        return said

    assert answered("auto") == answered("off")


def test_a_page_that_is_none_is_refused(steady_one: tuple[Sequences, list[int]]) -> None:
    """At the beginning of a block."""
    sequences, runs = steady_one
    while sequences.at[0] % BLOCK:
        sequences.step()
    quick = len(runs)
    segment = Segment(0, sequences.at[0], last=True, blocks=[4 * BLOCKS])
    (failed, _) = sequences.runner.step(step(sequences.number + 1, [segment]), time.monotonic_ns()).frames
    assert isinstance(failed, Failed) and "a page is not below" in failed.message
    assert len(runs) == quick


def test_a_step_that_is_run_again_takes_its_block_once(
    steady_one: tuple[Sequences, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences, runs = steady_one
    while sequences.at[0] % BLOCK:
        sequences.step()
    run, quick = Repeated.run, len(runs)

    def broken(self: Repeated, begun: Begun | None, keep: bool) -> None:
        assert begun is not None and begun.sequences.tolist() == [0]
        run(self, begun, False)

    with monkeypatch.context() as patch:
        patch.setattr(Repeated, "run", broken)
        (done,) = sequences.step()
    assert isinstance(done, Done) and len(runs) == quick + 1
    assert sequences.runner.slots.table_len[0] == sequences.at[0] // BLOCK + 1
    assert all(isinstance(frame, Done) for _ in range(9) for frame in sequences.step())


def test_a_late_mask_is_waited_for_once(make_runner: RunnerMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is worked out after all, and its wait goes on from where it began."""
    runs, wait = counted(monkeypatch), 0.2
    sequences = Sequences(make_runner(num_blocks=4 * BLOCKS, mask_timeout=wait))
    if not isinstance(sequences.runner.model, Repeats):
        pytest.skip("this machine has no kernels")
    sequences.seat(0, [5, 6, 7, 8])
    sequences.step()
    naps: list[float] = []
    clock = count(0, wait / 4)
    paused = SimpleNamespace(sleep=naps.append, monotonic=lambda: next(clock))
    monkeypatch.setattr("textgen.shard.masks.time", paused)
    (failed, _) = sequences.step(masks=[(0, 0)])
    assert isinstance(failed, Failed) and "did not come" in failed.message
    assert runs and len(naps) < 5, "after as many the time is over"


def test_the_last_position_is_the_last(make_runner: RunnerMaker) -> None:
    """A context that ends within a block."""
    sequences = Sequences(make_runner(num_blocks=4 * BLOCKS, max_context=10))
    sequences.seat(0, [5, 6, 7, 8, 9, 1, 2, 3])
    assert all(isinstance(frame, Done) for _ in range(2) for frame in sequences.step())
    failed, _ = sequences.step()
    assert isinstance(failed, Failed) and "behind the last position of 10" in failed.message


def test_faults_are_those_of_other_steps(
    steady_one: tuple[Sequences, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences, runs = steady_one
    with monkeypatch.context() as patch:
        patch.setattr(Repeated, "run", lambda self, begun, keep: 1 / 0)
        (failed,) = sequences.step()
        assert isinstance(failed, Failed) and failed.kind == "internal"
    (failed, _) = sequences.step()
    assert isinstance(failed, Failed) and failed.kind == "internal", "the slot has failed"
    sequences.at.clear()
    sequences.seat(0, [5, 6, 7, 8])
    sequences.step()
    run, runs[:] = Repeated.run, []
    with monkeypatch.context() as patch:

        def broken(self: Repeated, begun: Begun | None, keep: bool) -> None:
            run(self, begun, False)

        patch.setattr(Repeated, "run", broken)
        (done,) = sequences.step()
    assert runs and isinstance(done, Done), "where something is not finite, the step is run as any other"
    (next_done,) = sequences.step()
    assert isinstance(next_done, Done)


def test_numbers_that_are_not_finite_are_no_tokens(steady_one: tuple[Sequences, list[int]]) -> None:
    """Within a block: nobody is told of the positions that are run here."""
    sequences, _ = steady_one
    sequences.step()
    runner = sequences.runner
    going_on, last = runner._steady, runner.slots.last_token.clone()
    assert isinstance(going_on, Steady)
    assert going_on.batch.run(None, False) is not None
    assert torch.equal(runner.slots.last_token, last), "what is found is not kept"
    for layer in runner.cache.layers:
        layer.keys.fill_(torch.nan)
    assert going_on.batch.run(None, True) is None
    assert torch.equal(runner.slots.last_token, last)
