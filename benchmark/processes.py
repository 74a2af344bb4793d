"""What the system says of processes that are measured."""

from __future__ import annotations

import os
from pathlib import Path


def family(process: int) -> list[int]:
    """A process and those that come from it, whichever of its threads started them; none where it has ended."""
    try:
        threads = list(Path(f"/proc/{process}/task").iterdir())
    except FileNotFoundError:
        return []
    return [process, *(each for thread in threads for child in _children(thread) for each in family(child))]


def _children(thread: Path) -> list[int]:
    try:
        return list(map(int, (thread / "children").read_text().split()))
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        return []


def busy(process: int) -> float:
    """Seconds of processor time that it and those that come from it have taken."""
    ticks = 0
    for each in family(process):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def peak(process: int) -> float:
    """MiB that it had in memory at most, mapped files included; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except FileNotFoundError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)
