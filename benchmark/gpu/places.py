"""Where it is measured: a GPU, or a processor on which the whole is rehearsed."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from benchmark.report import device as processor
from textgen import __version__

Kind: TypeAlias = Literal["cuda", "cpu"]

UNKNOWN_CACHE = 128 << 20  # bytes, where torch does not tell
# GB/s of memory by the makers' data sheets; the first name whose words are the device's.
DATA_SHEETS = {
    "GB200": 8000, "B200": 8000, "GH200 480GB": 4000, "GH200 144G": 4900, "H200": 4800, "H100 NVL": 3938,
    "H100 PCIe": 2039, "H100": 3352, "H800": 3352, "H20": 4000, "A100-SXM4-80GB": 2039, "A100-SXM-80GB": 2039,
    "A100 80GB PCIe": 1935, "A100-SXM4-40GB": 1555, "A100-PCIE-40GB": 1555, "A100": 1555, "A800": 2039, "A40": 696,
    "A30": 933, "A10G": 600, "A10": 600, "L40S": 864, "L40": 864, "L20": 864, "L4": 300, "RTX 6000 Ada": 960,
    "RTX PRO 6000": 1792, "RTX A6000": 768, "RTX 5090": 1792, "RTX 5080": 960, "RTX 4090": 1008, "RTX 4080 SUPER": 736,
    "RTX 4080": 717, "RTX 3090 Ti": 1008, "RTX 3090": 936,
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """kind: of the shard's `--device`. device: torch's. name: in words."""

    kind: Kind
    device: torch.device
    name: str

    @property
    def rehearsal(self) -> bool:
        """Whether its numbers say nothing of GPUs."""
        return self.device.type != "cuda"

    @property
    def sheet(self) -> float | None:
        """Bytes a second of its memory by the maker's data sheet, where it is known."""
        return data_sheet(self.name)

    @property
    def cache_bytes(self) -> int:
        """Of the largest cache before its memory."""
        if self.rehearsal:
            return 0
        return int(getattr(torch.cuda.get_device_properties(self.device), "L2_cache_size", UNKNOWN_CACHE))

    def synchronize(self) -> None:
        if not self.rehearsal:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object]) -> float:
        """What the work takes on the device, by its own clock."""
        if self.rehearsal:
            begun = time.perf_counter()
            work()
            return time.perf_counter() - begun
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def versions(self) -> dict[str, str]:
        """Of all that a number depends on."""
        told = {"textgen": __version__, "torch": torch.__version__, "Python": platform.python_version()}
        if not self.rehearsal:
            told |= {"CUDA": str(torch.version.cuda), "driver": _driver()}
        return told


def find_place(kind: Kind) -> Place:
    if kind == "cuda":
        return Place(kind, torch.device("cuda", 0), torch.cuda.get_device_name(0))
    return Place(kind, torch.device("cpu"), f"{processor()}, a rehearsal")


def data_sheet(name: str) -> float | None:
    """Bytes a second. Parts of a device and those of laptops have less than the name says."""
    if any(word in name for word in ("MIG", "Laptop", "Max-Q")):
        return None
    rates = (rate * 1e9 for known, rate in DATA_SHEETS.items() if re.search(rf"(?<!\w){known}(?!\w)", name))
    return next(rates, None)


def _driver() -> str:
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            return driver_of(file.readline())
    except OSError:
        return "unknown"


def driver_of(line: str) -> str:
    """The version in the first line of what the kernel module says of itself."""
    return next((word for word in line.split() if word[0].isdigit() and "." in word), "unknown")
