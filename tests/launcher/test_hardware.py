"""Reading the machine: the smallest of machine and control groups counts, whichever version they have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from textgen.launcher.hardware import inspect

GIB = 2**30


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    write(tmp_path, "proc/meminfo", f"MemTotal: {32 * GIB // 1024} kB\nMemAvailable: {16 * GIB // 1024} kB\n")
    write(tmp_path, "proc/cpuinfo", "processor : 0\nflags : fpu sse avx2\n")
    return tmp_path


def write(root: Path, path: str, text: str | int) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(f"{text}\n")


def test_a_plain_machine(root: Path) -> None:
    found = inspect(root)
    assert (found.memory_available, found.memory_limit) == (16 * GIB, "the machine")
    assert (found.cores, found.bfloat16, found.kernels, found.gpu) == (8, False, False, None)


def test_version_2_takes_the_tightest_group_and_counts_file_cache_as_free(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/slice/app")
    write(root, "sys/fs/cgroup/slice/memory.max", 6 * GIB)
    write(root, "sys/fs/cgroup/slice/memory.current", 2 * GIB)
    write(root, "sys/fs/cgroup/slice/memory.stat", f"anon 1\ninactive_file {GIB}")
    write(root, "sys/fs/cgroup/slice/app/memory.max", "max")
    write(root, "sys/fs/cgroup/slice/app/memory.current", 2 * GIB)
    write(root, "sys/fs/cgroup/slice/app/cpu.max", "150000 100000")
    write(root, "sys/fs/cgroup/slice/cpu.max", "max 100000")
    found = inspect(root)
    assert (found.memory_available, found.cores) == (5 * GIB, 2)
    assert "control group" in found.memory_limit


def test_version_1(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/box/1\n3:cpu,cpuacct:/box/1\n0::/")
    write(root, "sys/fs/cgroup/memory/box/1/memory.limit_in_bytes", 3 * GIB)
    write(root, "sys/fs/cgroup/memory/box/1/memory.usage_in_bytes", GIB)
    write(root, "sys/fs/cgroup/memory/box/1/memory.stat", f"inactive_file 5\ntotal_inactive_file {GIB // 2}")
    write(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", -1)
    write(root, "sys/fs/cgroup/cpu/box/1/cpu.cfs_quota_us", 50_000)
    write(root, "sys/fs/cgroup/cpu/box/1/cpu.cfs_period_us", 100_000)
    found = inspect(root)
    assert (found.memory_available, found.cores) == (2 * GIB + GIB // 2, 1)


def test_two_threads_of_one_core_count_once(root: Path) -> None:
    for cpu in range(8):
        write(root, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{cpu % 4},{cpu % 4 + 4}")
    found = inspect(root)
    assert (found.cores, found.processors, found.allowed) == (4, (0, 1, 2, 3), tuple(range(8)))


def test_processors_of_a_package_come_together(root: Path) -> None:
    """As some machines of two packages count: in turns, and second threads after all first ones."""
    for cpu in range(8):
        write(root, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{cpu % 4},{cpu % 4 + 4}")
        write(root, f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", cpu % 2)
    assert inspect(root).processors == (0, 2, 1, 3)


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16"])
def test_bfloat16_units(flag: str, root: Path) -> None:
    write(root, "proc/cpuinfo", f"processor : 0\nflags : fpu {flag} sse")
    assert inspect(root).bfloat16


def test_what_kernels_need(root: Path) -> None:
    write(root, "proc/cpuinfo", "processor : 0\nflags : fpu fma avx2 f16c")
    assert inspect(root).kernels


def test_this_machine() -> None:
    found = inspect()
    assert found.memory_available > 0
    assert 1 <= found.cores <= len(os.sched_getaffinity(0))
