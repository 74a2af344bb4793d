"""Keeps one server alive: router in this process, shard beside it; restarts, signals and the way out."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from textgen.launcher.errors import ExitCode, LauncherError, MemoryPlanError, ModelError, ShardDied
from textgen.launcher.log import Log
from textgen.launcher.process import ShardExited, ShardProcess
from textgen.launcher.router import Router
from textgen.launcher.signals import forwarded

WINDOW = 600.0  # seconds over which restarts are counted
LONGEST_PAUSE = 30.0
POLL = 0.5
WATCH = 60.0


@dataclass(frozen=True, slots=True)
class Signalled:
    number: int


@dataclass(frozen=True, slots=True)
class Ready:
    shard: ShardProcess
    hello: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The router cannot work with a shard like ours; not even another one."""

    reason: str


@dataclass(frozen=True, slots=True)
class Exited:
    shard: ShardProcess
    code: int


@dataclass(frozen=True, slots=True)
class Drained:
    complete: bool


@dataclass(frozen=True, slots=True)
class Closed:
    pass


Event: TypeAlias = Signalled | Ready | Refused | Exited | Drained | Closed
Spawn: TypeAlias = Callable[[ShardExited], ShardProcess]


class Supervisor:
    """Events come from threads into one queue; one loop decides.

    spawn: starts a shard, told what to call when it ends.
    start_router: runs while the first shard imports its libraries.
    ready: called at the first Hello, with its JSON.
    """

    def __init__(
        self, spawn: Spawn, start_router: Callable[[], Router], ready: Callable[[Router, str], None], log: Log, *,
        restarts: int, drain_seconds: float, shard_seconds: float, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._spawn, self._start_router, self._ready = spawn, start_router, ready
        self._log, self._clock = log, clock
        self._restarts, self._drain_seconds, self._shard_seconds = restarts, drain_seconds, shard_seconds
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._deaths: deque[float] = deque()
        self._restart_at: float | None = None
        self._died_at = 0.0
        self._served = False
        self._asked: int | None = None  # the signal that asked for the end
        self._at_once = False
        self._router: Router | None = None
        self._shard: ShardProcess | None = None
        self._waiter: threading.Thread | None = None
        self.failure: LauncherError | None = None  # why serving ended

    def run(self) -> int:
        """Serve until told to stop; the exit code. Raises `LauncherError` when serving cannot begin or go on."""
        with forwarded((signal.SIGTERM, signal.SIGINT), lambda number: self._events.put(Signalled(number))):
            return self.supervise()

    def supervise(self) -> int:
        """The same on any thread, which leaves signals to others: until `close`."""
        try:
            self._shard = self._spawn(self._on_exit)
            self._router = self._start_router()
            self._attach(self._router, self._shard)
            return self._loop(self._router)
        except LauncherError as error:
            self.failure = error  # known before any request is told that the router has ended
            raise
        finally:
            self._close()

    def close(self) -> None:
        """Have it end at once; from any thread. What runs is cut off."""
        self._events.put(Closed())

    def _loop(self, router: Router) -> int:
        while True:
            event = self._next()
            match event:
                case None:
                    self._restart(router)
                case Signalled(number):
                    if self._asked is not None:
                        self._log.warn("stopping at once", in_flight=router.in_flight())
                        self._at_once = True
                        return 128 + number
                    self._drain(router, number)
                case Closed():
                    return ExitCode.STOPPED
                case Drained(complete):
                    if not complete:
                        self._log.warn(f"{router.in_flight()} requests were cut off: they needed longer than allowed")
                    self._log.info("stopped")
                    return ExitCode.STOPPED
                case Ready(shard, hello) if shard is self._shard:
                    self._on_ready(router, hello)
                case Refused(reason):
                    raise LauncherError(reason)
                case Exited(shard, code) if shard is self._shard:
                    self._shard_died(shard, code)

    def _next(self) -> Event | None:
        """The next event; None when a restart is due first."""
        if self._restart_at is None:
            return self._events.get()
        try:
            return self._events.get(timeout=max(self._restart_at - self._clock(), 0))
        except queue.Empty:
            return None

    def _on_exit(self, shard: ShardProcess, code: int) -> None:
        self._events.put(Exited(shard, code))

    def _attach(self, router: Router, shard: ShardProcess) -> None:
        if self._waiter is not None:
            self._waiter.join()  # it waits for the shard before, which is dead: it must not take this one's Hello
        try:
            router.attach_shard(shard.link.fileno(), shard.memory_fd, shard.ops_socket)
        except RuntimeError as error:
            raise LauncherError(f"the router cannot take a shard: {error}") from None
        shard.handed_over()
        self._waiter = threading.Thread(target=self._await_hello, args=(router, shard), name="shard-ready", daemon=True)
        self._waiter.start()

    def _await_hello(self, router: Router, shard: ShardProcess) -> None:
        while shard.alive():
            try:
                hello = router.wait_ready(POLL)
            except ValueError as error:
                self._events.put(Refused(str(error)))
                return
            except RuntimeError as error:
                if shard.alive():
                    self._log.debug(f"shard {shard.pid}: {error}")
                    shard.finish(self._shard_seconds)
                return
            if hello is not None:
                self._events.put(Ready(shard, hello))
                self._await_loss(router, shard)
                return

    def _await_loss(self, router: Router, shard: ShardProcess) -> None:
        """A shard that the router has given up may not know it: one that hangs does not hear the end of its link."""
        while shard.alive():
            if router.wait_lost(WATCH):
                shard.finish(self._shard_seconds)
                return

    def _on_ready(self, router: Router, hello: str) -> None:
        if self._served:
            seconds = self._clock() - self._died_at
            self._log.info(f"shard is back after {seconds:.1f} s", in_flight=router.in_flight())
            return
        self._served = True
        self._ready(router, hello)

    def _shard_died(self, shard: ShardProcess, code: int) -> None:
        """Plan a restart. Raises when there is no use in one, or there were too many."""
        self._shard = None
        self._died_at = self._clock()
        how = f"killed by {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        if not self._served and code > 0:
            plain = f"the shard ended before it was ready ({how}); its log lines say why"
            raise _cannot_start(code, shard.error or plain)
        while self._deaths and self._died_at - self._deaths[0] > WINDOW:
            self._deaths.popleft()
        if len(self._deaths) >= self._restarts:
            raise ShardDied(
                f"the shard died ({how}) and was restarted {self._restarts} times within {WINDOW / 60:.0f} minutes; "
                "see its log lines, or allow more with --shard-restarts"
            )
        pause = min(2.0 ** (len(self._deaths) - 1), LONGEST_PAUSE) if self._deaths else 0.0
        self._deaths.append(self._died_at)
        self._restart_at = self._died_at + pause
        reason = f": {shard.error}" if shard.error else ""
        self._log.error(f"shard {shard.pid} died ({how}){reason}; starting another in {pause:.0f} s")

    def _restart(self, router: Router) -> None:
        self._restart_at = None
        self._shard = self._spawn(self._on_exit)
        self._attach(router, self._shard)

    def _drain(self, router: Router, number: int) -> None:
        self._asked = number
        self._log.info(
            f"{_signal_name(number)}: no new requests; running ones get {self._drain_seconds:g} s to finish, "
            "a second signal stops at once",
            in_flight=router.in_flight(),
        )

        def drain() -> None:
            self._events.put(Drained(router.drain(self._drain_seconds)))

        threading.Thread(target=drain, name="drain", daemon=True).start()

    def _close(self) -> None:
        """Leave nothing behind: the router's stop closes the link, by which the shard ends."""
        shard, self._shard = self._shard, None
        if self._router is not None:
            self._router.stop()
        if shard is None:
            return
        if self._at_once or not self._served:
            shard.kill()
        else:
            shard.finish(self._shard_seconds)
        shard.handed_over()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _cannot_start(code: int, sentence: str) -> LauncherError:
    if code == ExitCode.MODEL:
        return ModelError(sentence)
    if code == ExitCode.MEMORY:
        return MemoryPlanError(sentence)
    return LauncherError(sentence)
