"""What the system is told of pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from textgen.ops.pages import HUGE, LARGE, empty


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
