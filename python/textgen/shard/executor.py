"""The executor: one thread that reads frames in order, runs steps and answers."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterable

import torch

from textgen.shard.errors import ShardError
from textgen.shard.link import Broken, Link, Received, RouterGone
from textgen.shard.metrics import Metrics
from textgen.shard.protocol import Admit, Ask, Failed, Hello, Ints, Step, Stop, Times, pack_u32
from textgen.shard.runner import Outcome, Runner

PAUSE = 20e-6  # seconds between two looks at the device, while nothing comes from the router

log = logging.getLogger(__name__)


class Executor:
    """`run` is the thread's whole life; `check_integrity` may be asked from any other thread."""

    def __init__(self, runner: Runner, link: Link, metrics: Metrics, stuck_after: float) -> None:
        self._runner, self._link, self._metrics = runner, link, metrics
        self._stuck_after = stuck_after
        if runner.asks_for_masks:
            runner.memory.masks.ask = self._ask
        self._busy_since: float | None = None  # seconds, monotonic
        self._ended = False

    def run(self, hello: Hello) -> None:
        """Say hello, then answer frames until a Stop or until the router is gone. Raises `ShardError`."""
        try:
            self._link.send([hello])
            while self._answer(self._next()):
                if not self._runner.under_way():
                    self._busy_since = None
        except RouterGone as error:
            log.info("the router closed the connection: %s", error)
        finally:
            self._ended = True

    def check_integrity(self) -> str | None:
        """What is wrong, None when nothing is."""
        if self._ended:
            return "the executor has ended"
        since = self._busy_since or self._link.follower.busy_since
        if since is not None and time.monotonic() - since > self._stuck_after:
            return f"a step has been running for {time.monotonic() - since:.0f} seconds"
        return None

    def count_steps(self) -> None:
        """Have the metrics count what was answered without the interpreter; any thread may."""
        for sequences, *times in self._link.follower.take_times():
            self._metrics.observe_step(sequences, Times(*times))

    def _next(self) -> Received:
        """What comes next; meanwhile steps under way are answered as they end."""
        while self._runner.under_way():
            if (received := self._link.poll(PAUSE)) is not None:
                return received
            self._send(self._runner.ended())
            if not self._runner.under_way():
                self._busy_since = None
        self._run_on()
        return self._link.get()

    def _run_on(self) -> None:
        """Steps that are as the one before are answered behind the interpreter's back."""
        series = self._runner.run_on(self._link.follower, bytes(self._link.pending))
        self._link.put_back(series.rest)
        self.count_steps()

    def _ask(self, step: int, slots: Ints) -> None:
        self._link.send([Ask(step, pack_u32(slots))])

    def _send(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self._link.send(outcome.frames)
            self._metrics.observe(outcome)

    def _answer(self, received: Received) -> bool:
        """Answer one frame; False after the last."""
        self._busy_since = time.monotonic()
        match received.message:
            case Step() as step:
                self._send(self._runner.take(step, received.at_ns))
            case Admit() as admit:
                self._send(self._runner.drain())
                self._send_failures(self._runner.admit(admit))
            case Broken(message=message, fatal=fatal):
                self._send_failures([Failed(None, b"", "protocol", message)])
                if fatal:
                    raise ShardError(f"the router's stream cannot be read: {message}")
            case Stop():
                self._send(self._runner.drain())
                return False
        return True

    def _send_failures(self, failures: list[Failed]) -> None:
        for failure in failures:
            self._metrics.failure(failure.kind)
        self._link.send(failures)


def use_threads(count: int | None, cpus: Collection[int] = ()) -> None:
    """Hold torch to `count` threads, and this thread and those it starts to the processors, if there are any.

    Called in the thread that computes: the pool belongs to it. Raises `ShardError` when the system refuses.
    """
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            raise ShardError(f"threads cannot be bound to processors {sorted(cpus)}: {error.strerror}") from None
    if count is not None:
        torch.set_num_threads(count)
