"""Processes as /proc shows them: who is whose child, who is still there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def children(pid: int) -> list[int]:
    """Process ids of the direct children, oldest first."""
    found = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit() and _parent(folder) == pid]
    return sorted(found)


def command_line(pid: int) -> list[str]:
    """The arguments a process was started with; empty when it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
    return []


def running(pid: int) -> bool:
    """Whether the process exists and is more than an entry that nobody has waited for."""
    state = _status(Path(f"/proc/{pid}"))
    return bool(state) and state[0] not in "ZX"


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stops a process for a while, so that a test can act between two of its steps."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def nudge(pid: int, seconds: float = 0.0005) -> None:
    """Lets a frozen process go on for a moment."""
    os.kill(pid, signal.SIGCONT)
    time.sleep(seconds)
    os.kill(pid, signal.SIGSTOP)


def _parent(folder: Path) -> int | None:
    state = _status(folder)
    return int(state[1]) if state else None


def _status(folder: Path) -> list[str]:
    """The fields after the command's name: state, parent, and so on; empty when the process is gone."""
    with suppress(OSError):
        return (folder / "stat").read_text().rpartition(")")[2].split()
    return []
