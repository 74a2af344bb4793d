"""What the system is told of pages."""

from __future__ import annotations

import gc
import mmap
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from textgen._router import Room, reserve_weights
from textgen.ops.pages import LARGE, empty

HUGE = 2 << 20
LETS_GO = """
from pathlib import Path

import torch

from textgen.ops.pages import let_go_of_libraries


def resident(kind):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind))


files, own = resident("RssFile"), resident("RssAnon")
let_go_of_libraries()
print(resident("RssFile") / files, resident("RssAnon") / own)

rows = torch.arange(12.0).reshape(3, 4)
assert torch.equal(rows @ rows.T, torch.tensor([[14.0, 38, 62], [38, 126, 214], [62, 214, 366]]))
assert torch.linalg.eigvalsh(torch.diag(rows[0])).tolist() == [0, 1, 2, 3]
"""


def flags(address: int) -> list[str]:
    """Of the mapping that has the address."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if area := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            found = int(area[1], 16) <= address < int(area[2], 16)
        elif found and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError("nothing is there")


def test_large_tensors_lie_in_huge_pages() -> None:
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not enabled.exists() or "[never]" in enabled.read_text():
        pytest.skip("this system has no huge pages to give")
    made = empty([3, LARGE // 4], torch.float32)
    assert made.shape == (3, LARGE // 4)
    assert made.dtype == torch.float32
    assert made.is_contiguous()
    assert made.data_ptr() % HUGE == 0
    assert "hg" in flags(made.data_ptr())
    made.fill_(1)
    assert made.sum() == 3 * LARGE / 4


@pytest.mark.parametrize("shape", [[], [0], [7, 3], [LARGE - 1]])
def test_small_ones_are_as_any(shape: list[int]) -> None:
    made = empty(shape, torch.uint8)
    assert list(made.shape) == shape


def test_they_take_what_was_reserved() -> None:
    reserve_weights(8 * HUGE)
    try:
        first, second = empty([2 * HUGE], torch.uint8), empty([HUGE], torch.bfloat16)
        assert second.data_ptr() - first.data_ptr() == first.nbytes
        assert not first.any()
        view = first[5:]
        del first
        gc.collect()
        view.fill_(7)  # it keeps the memory
        assert int(view.sum(dtype=torch.int64)) == 7 * (2 * HUGE - 5)
    finally:
        reserve_weights(0)


def test_memory_that_is_not_there_is_refused() -> None:
    for size in (0, 1 << 62):
        with pytest.raises(MemoryError, match=str(size)):
            Room(size)


def test_more_than_the_machine_has_is_refused_at_once() -> None:
    sizes = re.findall(r"^(?:MemTotal|SwapTotal): *(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    size = 2048 * sum(map(int, sizes))
    try:
        mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        with pytest.raises(MemoryError, match=str(size)):
            empty([size], torch.uint8)
    else:
        pytest.skip("this system promises any memory")


def test_what_was_only_read_of_libraries_is_let_go_and_torch_works_on() -> None:
    """In a process of its own: how much of a file is resident depends on all that ran before."""
    done = subprocess.run([sys.executable, "-c", LETS_GO], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    files, own = map(float, done.stdout.split())
    assert files < 0.5, "most pages of files went"
    assert own > 0.95, "pages of the process's own stayed"
