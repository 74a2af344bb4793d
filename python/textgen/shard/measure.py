"""How long steps take here: a few of each kind are run before anybody waits for one."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from textgen.shard.errors import ShardError
from textgen.shard.protocol import Admit, Done, Flag, MeasuredStep, Step, pack_u32
from textgen.shard.runner import Runner

log = logging.getLogger(__name__)

RUNS = 2  # of each kind; the fastest counts, since other work on the machine only adds to a step
CONTEXT = 512  # tokens before those of a step, where it has some


@dataclass(frozen=True, slots=True)
class Kind:
    """A step: so many sequences with a token each, and the tokens of a prompt, all behind so many tokens of context."""

    streams: int
    prompt: int
    context: int

    @property
    def lengths(self) -> list[int]:
        return [1] * self.streams + [self.prompt] * (self.prompt > 0)

    @property
    def tokens(self) -> int:
        return self.streams + self.prompt

    def measured(self, seconds: float) -> MeasuredStep:
        pairs = self.prompt * self.context + self.prompt * (self.prompt + 1) // 2
        read = sum(self.context + length for length in self.lengths)
        return MeasuredStep(self.tokens, pairs, read, len(self.lengths), self.streams, round(seconds * 1e6))

    def __str__(self) -> str:
        parts = [f"{self.streams} streams"] if self.streams else []
        parts += [f"{self.prompt} tokens of a prompt"] if self.prompt else []
        return " and ".join(parts) + (f" behind {self.context}" if self.context else "")


# Small ones first: what a machine has no time for is left out at the end.
KINDS = [
    Kind(1, 0, 0), Kind(0, 32, 0), Kind(8, 0, 0), Kind(8, 32, 0), Kind(8, 0, CONTEXT), Kind(32, 0, 0),
    Kind(0, 64, CONTEXT), Kind(0, 128, 0), Kind(32, 0, CONTEXT), Kind(8, 256, 0), Kind(0, 512, 0),
]  # fmt: skip


def measure_steps(runner: Runner, seconds: float) -> list[MeasuredStep]:
    """Run steps of each kind that fits, within about so many seconds. No sequence may be seated.

    Raises `ShardError` when a step fails.
    """
    until = time.perf_counter() + seconds
    found: dict[Kind, float] = {}
    for kind in KINDS:
        if not _fits(runner, kind):
            continue
        expected = min((took * max(1.0, kind.tokens / other.tokens) for other, took in found.items()), default=0.0)
        if time.perf_counter() + RUNS * expected > until:
            break
        found[kind] = _run(runner, kind)
        log.info("a step of %s: %.2f ms", kind, found[kind] * 1e3)
    return [kind.measured(took) for kind, took in found.items()]


def _fits(runner: Runner, kind: Kind) -> bool:
    bounds, longest = runner.bounds, kind.context + max(kind.lengths)
    return (
        not bounds.encoder
        and len(kind.lengths) <= bounds.max_slots
        and kind.tokens <= bounds.max_batch_tokens
        and longest <= bounds.max_context
        and sum(_pages(runner, kind)) <= bounds.num_pages
    )


def _pages(runner: Runner, kind: Kind) -> list[int]:
    """Of each sequence, in all groups of layers."""
    size, groups = runner.slots.block_size, runner.slots.groups
    return [-(-(kind.context + length) // size) * groups for length in kind.lengths]


def _run(runner: Runner, kind: Kind) -> float:
    """Seconds of the fastest."""
    pages, slots = _pages(runner, kind), np.arange(len(kind.lengths))
    for layer in runner.cache.places:
        for stored in layer.stored:
            stored[: sum(pages)] = 0  # what nobody has written is read as what it is: perhaps no number
    seconds = []
    for _ in range(RUNS):
        for slot in slots.tolist():
            greedy = Admit(slot, 0.0, 0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0, 0, kind.context, 0, 0, None, b"", None, None)
            runner.admit(greedy)
        columns = [
            slots,
            np.full_like(slots, kind.context),
            kind.lengths,
            0 * slots,
            0 * slots + int(Flag.SAMPLE),
            pages,
        ]
        begun = time.perf_counter()
        _step(runner, columns, kind.tokens, sum(pages))
        seconds.append(time.perf_counter() - begun)
        runner.slots.free(slots)
    return min(seconds)


def _step(runner: Runner, columns: Sequence[object], tokens: int, pages: int) -> None:
    step = Step(0, pack_u32(columns), pack_u32(np.zeros(tokens)), pack_u32(np.arange(pages)), b"", b"", b"")
    for frame in runner.step(step, time.monotonic_ns()).frames:
        if not isinstance(frame, Done):
            raise ShardError(f"a step that was to be measured failed: {frame.message}")
