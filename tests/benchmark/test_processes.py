"""What the system says of processes: none is left out, whoever started it."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from benchmark.processes import busy, family, peak

LARGE = 64 << 20
PROGRAM = f"import sys; held = b'x' * {LARGE}; print(len(held), flush=True); sys.stdin.read()"


def _start() -> subprocess.Popen[str]:
    line = [sys.executable, "-c", PROGRAM]
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_what_another_thread_has_started_counts() -> None:
    with ThreadPoolExecutor(1) as threads:  # it goes on while its child is counted
        child = threads.submit(_start).result()
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == f"{LARGE}\n"
            assert child.pid in family(os.getpid())
            assert peak(child.pid) > LARGE / 2**20
        finally:
            child.communicate()
    assert child.pid not in family(os.getpid())
    assert family(child.pid) == []
    assert peak(child.pid) == 0


def test_what_children_take_of_a_processor_counts() -> None:
    """One that has computed has taken time, its parent with it; one that has ended is not told of."""
    line = [sys.executable, "-c", "for _ in range(10**7): pass\nprint(flush=True); input()"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        taken = busy(child.pid)
        assert busy(os.getpid()) >= taken > 0
        child.communicate("\n")
    assert busy(child.pid) == 0
