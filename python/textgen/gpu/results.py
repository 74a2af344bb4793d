"""What was held against what, told line by line as it comes, in a table at the end, and as JSON."""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Line:
    """One check. said: what was found. seconds: that it took."""

    part: str
    name: str
    good: bool
    said: str
    seconds: float


class Results:
    """The checks so far."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._last = time.monotonic()

    @property
    def good(self) -> bool:
        return all(line.good for line in self.lines)

    def add(self, part: str, name: str, good: bool, said: str, *details: str) -> None:
        """A check that has taken the time since the one before. details: for people, below it."""
        now = time.monotonic()
        line = Line(part, name, good, said, round(now - self._last, 3))
        self._last = now
        self.lines.append(line)
        print(f"{'ok   ' if good else 'WRONG'} {part} {name}: {said}", flush=True)
        for detail in details:
            print(f"      {detail}", flush=True)

    @contextmanager
    def guarded(self, part: str, name: str) -> Iterator[None]:
        """What is raised within is a check that went wrong; those after it may be fine."""
        try:
            yield
        except Exception as error:
            self.add(part, name, False, f"{type(error).__name__}: {first_line(error)}")

    def table(self) -> str:
        """A line for each part."""
        lines = [f"{'part':10} {'checks':>7} {'wrong':>6} {'seconds':>8}"]
        for part in dict.fromkeys(line.part for line in self.lines):
            of_part = [line for line in self.lines if line.part == part]
            wrong = sum(not line.good for line in of_part)
            lines.append(f"{part:10} {len(of_part):7} {wrong:6} {sum(line.seconds for line in of_part):8.1f}")
        return "\n".join(lines)

    def save(self, path: Path, seed: int, where: dict[str, str]) -> None:
        """As JSON. where: device and versions. Raises `OSError`."""
        told = {
            "good": self.good, "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
            "command": f"python -m textgen.gpu {' '.join(sys.argv[1:])}", "seed": seed, **where,
            "checks": [asdict(line) for line in self.lines],
        }  # fmt: skip
        path.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
