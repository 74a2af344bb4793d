"""What the machine gives at the moment: reads of memory, and products of matrices in bfloat16 or float32, whichever is
the faster."""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("probe.c")
MEGABYTES, ROUNDS = 512, 3
SIDE = 1536  # of the matrices
SPIN = 0.1  # seconds, after which torch's threads no longer spin, beside whoever is measured next


@dataclass(frozen=True)
class Limits:
    """Reads in GB/s with one stream of them a thread and with eight; products in GFLOP/s."""

    one: float
    eight: float
    products: float

    def moved(self, other: Limits) -> float:
        """By which part the memory's speed differs."""
        return abs(self.eight - other.eight) / max(self.eight, other.eight)


class Probe:
    """Raises `RuntimeError` where there is no C compiler."""

    def __init__(self, folder: Path, threads: int) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise RuntimeError("the probe of memory needs a C compiler, cc; install one")
        self._program, self._threads = folder / "probe", threads
        flags = ["-O3", "-march=native", "-Wno-psabi", "-pthread", "-o", str(self._program), str(SOURCE)]
        subprocess.run([compiler, *flags], check=True)
        self._matrix = torch.randn(SIDE, SIDE, dtype=max((torch.bfloat16, torch.float32), key=_rate))

    def __call__(self) -> Limits:
        command = [str(self._program), str(MEGABYTES), str(self._threads), str(ROUNDS)]
        one, eight = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        torch.set_num_threads(self._threads)
        shortest = float("inf")
        for _ in range(ROUNDS + 1):
            begun = time.perf_counter()
            self._matrix @ self._matrix
            shortest = min(shortest, time.perf_counter() - begun)
        time.sleep(SPIN)
        return Limits(float(one), float(eight), 2 * SIDE**3 / shortest / 1e9)


def _rate(dtype: torch.dtype) -> float:
    """Products of smaller matrices in a second: where torch has nothing for a type, one of SIDE takes seconds."""
    matrix, shortest = torch.randn(SIDE // 3, SIDE // 3, dtype=dtype), float("inf")
    for _ in range(2 * ROUNDS):
        begun = time.perf_counter()
        matrix @ matrix
        shortest = min(shortest, time.perf_counter() - begun)
    return 1 / shortest
