"""What the machine gives this process: memory within its control groups, cores, what the cores can."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from textgen.launcher.gpu import Gpu, GpuMissing, find_gpu, torch_cuda

_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16"}
_KERNEL_FLAGS = {"avx2", "fma", "f16c"}  # of the least that the kernels of `csrc/cpu` are worth it on


@dataclass(frozen=True, slots=True)
class Hardware:
    """Bytes and counts. `memory_limit` names what bounds the memory, for people; `allowed`: the processors we may run
    on; `processors`: one of each core among them, those of a package together; `cores`: of how many we have the time;
    `kernels`: whether plans run here; `gpu`: for those who ask for it."""

    memory_available: int
    memory_limit: str
    allowed: tuple[int, ...]
    processors: tuple[int, ...]
    cores: int
    bfloat16: bool
    kernels: bool
    gpu: Gpu | None = None
    no_gpu: str = "nobody has looked for one"  # why there is none, and what to do


def inspect(root: Path = Path("/"), device: str = "cpu") -> Hardware:
    """Read /proc and /sys below `root`; with a device other than the processor, ask for a GPU too."""
    (available, limit), flags, processors = _memory(root), _cpu_flags(root), _processors(root)
    return Hardware(
        memory_available=available,
        memory_limit=limit,
        allowed=tuple(sorted(os.sched_getaffinity(0))),
        processors=processors,
        cores=_cores(root, len(processors)),
        bfloat16=bool(_BFLOAT16_FLAGS & flags),
        kernels=flags >= _KERNEL_FLAGS,
        **({} if device == "cpu" else _gpu()),
    )


def _gpu() -> dict[str, Any]:
    if torch_cuda() is None:
        return {"no_gpu": "the installed torch is built for processors; install a build for CUDA, or use --device cpu"}
    try:
        return {"gpu": find_gpu()}
    except GpuMissing as error:
        return {"no_gpu": str(error)}


def _memory(root: Path) -> tuple[int, str]:
    """The smallest room: of the machine, or of any control group we are in."""
    rooms = [(_machine_memory(root), "the machine")]
    for group, version in _groups(root, "memory"):
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, used = (_number(group / name) for name in names)
        if limit is not None and used is not None:
            rooms.append((max(limit - used + _reclaimable(group), 0), "the control group's limit"))
    return min(rooms)


def _machine_memory(root: Path) -> int:
    facts = dict(line.split(":", 1) for line in _read(root / "proc/meminfo").splitlines() if ":" in line)
    kib = facts.get("MemAvailable", facts.get("MemFree", "")).split()
    return int(kib[0]) * 1024 if kib else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _reclaimable(group: Path) -> int:
    """File cache that the kernel gives up first; a control group's use counts it."""
    facts = dict(line.split(" ", 1) for line in _read(group / "memory.stat").splitlines() if " " in line)
    return int(facts.get("total_inactive_file", facts.get("inactive_file", "0")))


def _processors(root: Path) -> tuple[int, ...]:
    """The first processor of each physical core in our affinity mask, by package and number.

    Two threads of one core share its arithmetic units: computing on both gains nothing and costs cache.
    """
    topology = root / "sys/devices/system/cpu"
    first: dict[str | int, tuple[int, int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        of = topology / f"cpu{cpu}/topology"
        package = _number(of / "physical_package_id") or 0
        first.setdefault(_read(of / "thread_siblings_list") or cpu, (package, cpu))
    return tuple(cpu for _, cpu in sorted(first.values()))


def _cores(root: Path, cores: int) -> int:
    """Of so many physical cores, those that the time quota of the control groups lets us use at once."""
    for group, version in _groups(root, "cpu"):
        if version == 2:
            quota, _, period = _read(group / "cpu.max").strip().partition(" ")
        else:
            quota, period = (_read(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(period):
            cores = min(cores, max(math.ceil(int(quota) / int(period)), 1))
    return cores


def _groups(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """Folders of our control groups, from our own up to the top, with the version of the hierarchy."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers == "":
            top, version = root / "sys/fs/cgroup", 2
        elif controller in controllers.split(","):
            top, version = root / "sys/fs/cgroup" / controller, 1
        else:
            continue
        own = top / path.lstrip("/")
        for group in (own, *own.parents):
            if group.is_dir():
                yield group, version
            if group == top:
                break


def _cpu_flags(root: Path) -> set[str]:
    for line in _read(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    """The file's text, or nothing: each of these files is missing on some machines."""
    try:
        return path.read_text()
    except OSError:
        return ""
