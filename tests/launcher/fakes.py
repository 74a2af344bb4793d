"""A shard that is a few lines of script, and a router that is a few methods: enough to drive the supervisor."""

from __future__ import annotations

import io
import itertools
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from textgen.launcher.log import Log
from textgen.launcher.process import ShardExited, ShardProcess
from textgen.launcher.supervisor import Supervisor

PATIENCE = 60.0  # seconds before a test gives up on an event; never waited for when all is well
HELLO = '{"phases": [["import", 0.5], ["load", 0.25]]}'

# Says hello when it likes to, then ends at the end of the link, or with the code that the link tells it.
PRELUDE = """
import os, signal, socket, sys
values = dict(zip(sys.argv[1::2], sys.argv[2::2]))
link = socket.socket(fileno=int(values["--socket-fd"]))
def serve():
    link.sendall(b"R")
    code = link.recv(1)
    os._exit(code[0] if code else 0)
"""
READY = PRELUDE + "serve()"
FOREIGN = PRELUDE + 'link.sendall(b"V")\nlink.recv(1)'


def fails(code: int, line: str = "") -> str:
    """A shard that ends before its hello."""
    return PRELUDE + f"print({line!r}, file=sys.stderr, flush=True)\nos._exit({code})"


DIES = PRELUDE + "os.kill(os.getpid(), signal.SIGKILL)"
STUBBORN = PRELUDE + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nlink.shutdown(socket.SHUT_RDWR)\nsignal.pause()"


class FakeRouter:
    """Stands for `textgen._router.Router`: reads the hello, keeps the link, drains when told."""

    address = "127.0.0.1:3000"

    def __init__(self) -> None:
        self.attached = threading.Semaphore(0)  # one more for each shard
        self.stopped = False
        self.requests = 0
        self.idle = threading.Event()
        self.draining = threading.Event()
        self.memory_sizes: list[int] = []
        self.given_up = threading.Event()
        self.took: tuple[float, dict[str, float]] | None = None
        self._link: socket.socket | None = None

    def attach_shard(self, socket_fd: int, memory_fd: int, ops_socket: str) -> None:
        self.memory_sizes.append(os.fstat(memory_fd).st_size)
        if self._link is not None:
            self._link.close()
        self._link = socket.socket(fileno=os.dup(socket_fd))
        self.given_up.clear()
        self.attached.release()

    def wait_ready(self, timeout: float) -> str | None:
        assert self._link is not None
        try:
            self._link.settimeout(timeout)
            said = self._link.recv(1)
        except TimeoutError:
            return None
        except OSError:
            said = b""
        if not said:
            raise RuntimeError("the link closed")
        if said == b"V":
            raise ValueError("the shard speaks version 9")
        return HELLO

    def wait_lost(self, timeout: float) -> bool:
        """The link itself is not watched: a shard that ends is seen to."""
        return self.given_up.wait(min(timeout, 0.05))

    def tell(self, code: int) -> None:
        """Make the shard end with this code."""
        assert self._link is not None
        self._link.send(bytes([code]))

    def in_flight(self) -> int:
        return self.requests

    def ready(self, total: float, parts: list[tuple[str, float]]) -> None:
        self.took = total, dict(parts)

    def drain(self, timeout: float) -> bool:
        self.draining.set()
        return self.idle.wait(timeout)

    def stop(self) -> None:
        self.stopped = True
        self.given_up.set()
        if self._link is not None:
            self._link.close()


class Server:
    """A supervisor over fakes. `scripts` are the shards in order; the last one repeats."""

    def __init__(
        self, folder: Path, *scripts: str, restarts: int = 5, drain_seconds: float = 60, second: float = 0.01,
        shard_seconds: float = 10, start_router: Callable[[], FakeRouter] | None = None,
    ) -> None:  # fmt: skip
        self.router = FakeRouter()
        self.output = io.StringIO()
        self.log = Log(self.output, level="debug")
        self.shards: list[ShardProcess] = []
        self.hellos: list[str] = []
        self.ready = threading.Semaphore(0)
        self._ticks = itertools.count(step=second)
        self._scripts, self._folder = scripts, folder
        self.supervisor = Supervisor(
            self._spawn, start_router or (lambda: self.router), self._on_ready, self.log,
            restarts=restarts, drain_seconds=drain_seconds, shard_seconds=shard_seconds,
            clock=lambda: float(next(self._ticks)),
        )  # fmt: skip

    def _spawn(self, exited: ShardExited) -> ShardProcess:
        script = self._scripts[min(len(self.shards), len(self._scripts) - 1)]
        shard = ShardProcess("{}", self._folder / "ops", self.log, exited, (sys.executable, "-ISc", script))
        self.shards.append(shard)
        if len(self.shards) == 1:
            self._act.start()
        return shard

    def _on_ready(self, router: object, hello: str) -> None:
        self.hellos.append(hello)
        self.ready.release()

    def run(self, act: Callable[[], None] = lambda: None, *, signals: bool = True) -> int:
        """The exit code; `act` runs beside it, from the first spawn on. When it fails, the server is stopped. signals:
        whether they are the supervisor's.
        """
        failures: list[BaseException] = []

        def guarded() -> None:
            try:
                act()
            except BaseException as error:
                failures.append(error)
                self.supervisor.close()

        self._act = threading.Thread(target=guarded)
        try:
            code = self.supervisor.run() if signals else self.supervisor.supervise()
        finally:
            self._act.join(PATIENCE)
            self.log.close()
        if failures:
            raise failures[0]
        return code

    def stop_when_ready(self) -> None:
        """What to do beside `run` when nothing else matters."""
        await_one(self.ready)
        self.router.idle.set()
        os.kill(os.getpid(), signal.SIGTERM)

    @property
    def lines(self) -> str:
        return self.output.getvalue()


def await_one(semaphore: threading.Semaphore, times: int = 1) -> None:
    for _ in range(times):
        assert semaphore.acquire(timeout=PATIENCE), "nothing happened"


def end_of(pid: int) -> int:
    """A descriptor that becomes readable when the process ends."""
    return os.pidfd_open(pid)
