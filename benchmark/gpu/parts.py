"""The parts by name, and one of them run: ``python -m benchmark.gpu.parts TASK RESULT`` reads a task and writes what it
found, both JSON. Each runs in a process of its own, so that none leaves the next less memory.

Exit codes: 0 measured, or why it cannot be; 1 a mistake, and the last line of standard error says which.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch

from benchmark.gpu.ceilings import Ceilings, measure_ceilings
from benchmark.gpu.checkpoints import NoRoom
from benchmark.gpu.places import Place, find_place
from benchmark.gpu.tasks import Found, NotMeasured, Task
from benchmark.report import Row
from textgen.launcher.errors import LauncherError
from textgen.models.errors import ModelError
from textgen.shard.errors import ShardError

CEILINGS = "ceilings"
# What a device, a disk or an installation is too small for; all else is a mistake.
CANNOT = (NotMeasured, NoRoom, LauncherError, ModelError, ShardError, torch.OutOfMemoryError)


class Measure(Protocol):
    """A part: what it measures, beside the ceilings of the same process."""

    def __call__(self, task: Task, place: Place, ceilings: Ceilings) -> Found: ...


@dataclass(frozen=True)
class Part:
    """module: whose `measure` it is. per_form: whether it is measured for each form of the weights. mixtures: and for
    mixtures of experts."""

    module: str
    per_form: bool
    mixtures: bool = False

    def load(self) -> Measure:
        found: Measure = import_module(f"benchmark.gpu.{self.module}").measure
        return found


PARTS = {
    "decode": Part("decode", True, mixtures=True),
    "attention": Part("attention", False),
    "products": Part("products", False),
    "prompt": Part("prompt", True, mixtures=True),
    "trace": Part("trace", False),
    "peers": Part("peers", False),
    "saturation": Part("saturation", True),
}


@dataclass(frozen=True)
class Result:
    """What a process found, and where. missing: why nothing was found."""

    device: str
    versions: dict[str, str]
    rows: list[Row]
    notes: list[str]
    missing: str | None = None


Launch: TypeAlias = Callable[[Task], Result]


def run(task: Task, place: Place) -> Result:
    """In this process. What cannot be measured is told as `missing`; mistakes of ours are raised."""
    if task.part == CEILINGS:
        return Result(place.name, place.versions(), [], [measure_ceilings(place).told()])
    try:
        before = measure_ceilings(place)
        found = PARTS[task.part].load()(task, place, before)
    except CANNOT as error:
        return Result(place.name, place.versions(), [], [], str(error).strip().partition("\n")[0])
    # Bars are for GPUs.
    rows = [replace(row, bar=None) for row in found.rows] if place.rehearsal else list(found.rows)
    return Result(place.name, place.versions(), rows, list(found.notes))


def row_of(stored: dict[str, Any]) -> Row:
    """Of JSON; what follows from its numbers is worked out anew."""
    return Row(**{name: value for name, value in stored.items() if name not in ("ratio", "holds")})


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server is left behind
    task = Task(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    result = run(task, find_place(task.device))
    Path(sys.argv[2]).write_text(json.dumps(asdict(result)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
