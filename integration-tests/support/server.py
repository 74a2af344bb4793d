"""The launcher as a user starts it: a process of its own, its output in a file, its address, its shards."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import httpx

from support.metrics import Metrics
from support.processes import children, command_line, running
from support.waiting import until
from textgen.launcher.settings import FIELDS

START_SECONDS = 90.0  # importing torch on a machine that has other work too
STOP_SECONDS = 30.0
# A fault in the server, whoever wrote the line.
FAULTS = re.compile(
    r"Traceback|panicked|RUST_BACKTRACE|Segmentation fault|Exception in callback|was never (retrieved|awaited)"
)
# Steps of the reference path: a few milliseconds, so that a stream is still running when a test looks at it.
UNHURRIED: dict[str, object] = {"plan": "off"}
_LISTENING = re.compile(r"listening\W+address\W+([\d.]+:\d+)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_DEFAULTS = {"port": "0", "hostname": "127.0.0.1", "threads": "1"}


@dataclasses.dataclass
class Launcher:
    """A started launcher, ready or not."""

    process: subprocess.Popen[bytes]
    log_path: Path
    known_shards: set[int] = dataclasses.field(default_factory=set)
    known_address: str | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        """All that was written so far, without colours."""
        return _COLOUR.sub("", self.raw_log)

    @property
    def raw_log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    @property
    def address(self) -> str:
        """Host and port, as soon as the router listens."""

        def look() -> str | None:
            self.must_run()
            found = _LISTENING.search(self.log)
            return found[1] if found else None

        if self.known_address is None:
            self.known_address = until(look, "the router listens", START_SECONDS)
        return self.known_address

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def must_run(self) -> None:
        code = self.process.poll()
        assert code is None, f"the launcher ended with exit code {code}:\n{self.log}"

    def wait_ready(self) -> Launcher:
        """Until `/ready` says so."""

        def look() -> bool:
            self.must_run()
            return self.ready()

        until(look, "the server is ready", START_SECONDS)
        self.shards()
        return self

    def ready(self) -> bool:
        """What `/ready` says now."""
        return self.status("/ready") == 200

    def status(self, path: str) -> int | None:
        """The status of a GET; None when nobody answers."""
        try:
            return httpx.get(self.url + path, timeout=10.0, trust_env=False).status_code
        except httpx.TransportError:
            return None

    def metrics(self) -> Metrics:
        answer = httpx.get(self.url + "/metrics", timeout=30.0, trust_env=False)
        assert answer.status_code == 200, answer.text
        return Metrics.parse(answer.text)

    def shards(self) -> list[int]:
        """The shards that run now."""
        now = [pid for pid in children(self.pid) if "textgen.shard" in command_line(pid)]
        self.known_shards.update(now)
        return now

    def shard(self) -> int:
        """The one shard."""
        (pid,) = until(self.shards, "a shard runs")
        return pid

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """The exit code."""
        return self.process.wait(seconds)

    def faults(self) -> list[str]:
        """Lines of the log that only a fault in the server writes."""
        return [line for line in self.log.splitlines() if FAULTS.search(line)]

    def stop(self) -> None:
        """End it with everything it started. Harmless when it ended already."""
        with suppress(OSError):
            self.shards()
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
        for pid in [self.pid, *self.known_shards]:
            if running(pid) and (pid == self.pid or "textgen.shard" in command_line(pid)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()


Start: TypeAlias = Callable[..., Launcher]  # `launch` with a folder of its own, and an end to it


def launch(
    folder: Path, *, model: Path | str | None = None, environ: Mapping[str, str] | None = None,
    module: str = "textgen.launcher", arguments: Sequence[str] = (), **flags: object,
) -> Launcher:  # fmt: skip
    """Start `python -m textgen.launcher`; its log goes into `folder`. Flags by their field names; None: left out.

    module: another entrance. arguments: what comes before the flags.
    """
    given = _DEFAULTS | flags
    if model is not None:
        given["model_id"] = model
    words = [text for name, value in given.items() if value is not None for text in _words(name, value)]
    folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / f"launcher-{len(list(folder.iterdir()))}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments, *words],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment(environ),
            start_new_session=True,
        )  # fmt: skip
    return Launcher(process, log_path)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, without what would set the launcher up, and with one thread for every library."""
    settings = {field.name.upper() for field in FIELDS} | {"MAX_INPUT_LENGTH", "API_KEY"}
    ours = {name: value for name, value in os.environ.items() if name not in settings}
    return ours | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | dict(extra or {})


def _words(name: str, value: object) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if value is True:
        return [flag]
    return [flag, str(value)]
