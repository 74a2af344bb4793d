"""Programs that do the same work in turns: captured where that is possible, and compared before they are timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from benchmark.gpu.numbers import medians
from benchmark.gpu.places import Place
from benchmark.gpu.tasks import NotMeasured
from benchmark.report import Row
from textgen.ops import Ops, select_ops
from textgen.shard.accelerator import Accelerator, CaptureError
from textgen.shard.assembly import open_accelerator
from textgen.shard.settings import ShardSettings

TRUTH = "torch"  # the program that others are compared with
REPEATS = 10  # of each turn
WITHIN = 2**-5  # of what numbers of bfloat16 may be apart

Work: TypeAlias = Callable[[], object]
Programs: TypeAlias = dict[str, Callable[[], Tensor]]


class Turns:
    """Where programs run. missing: what could not be had, for the notes."""

    def __init__(self, place: Place, rounds: int, block: int = 16) -> None:
        self.place, self.missing = place, list[str]()
        self.accelerator, self.ops = _open(place, block)
        self._rounds = rounds

    def copies(self, read: int) -> int:
        """So many that of what has that many bytes nothing is in the device's own cache when it comes again."""
        return 1 + 4 * self.place.cache_bytes // read

    def seconds(self, what: str, over: Sequence[Programs]) -> dict[str, float]:
        """Medians of one call of each program, over so many numbers in turn. Raises `NotMeasured` where they do not say
        the same."""
        said = {name: call().float() for name, call in over[0].items()}  # also what must run once before it is captured
        for name, out in said.items():
            off = ((out - said[TRUTH]).abs() / (1 + said[TRUTH].abs())).nan_to_num(nan=float("inf")).max()
            if off > WITHIN:
                raise NotMeasured(f"{what} of {name} is {off:.1e} from torch's; run make gpu-check")
        repeats = 1 if self.place.rehearsal else REPEATS
        turns = {name: _repeated(self._captured(_all([each[name] for each in over])), repeats) for name in over[0]}
        found = medians(turns, self._rounds, self.place.seconds)
        return {name: seconds / repeats / len(over) for name, seconds in found.items()}

    def _captured(self, work: Work) -> Work:
        """As a graph where that is possible: what Python takes is no part of it."""
        if self.accelerator is None or self.accelerator.kernels is None:
            return work
        try:
            return self.accelerator.capture(lambda: _ignored(work()))
        except CaptureError as error:
            self.missing.append(f"Not captured, so that launches are measured with it: {error}.")
            return work


def beside(case: str, took: dict[str, float]) -> list[Row]:
    """Microseconds of ours and of each other program."""
    ours, versions = took["textgen"] * 1e6, {TRUTH: torch.__version__}
    peers = {name: seconds * 1e6 for name, seconds in took.items() if name != "textgen"}
    return [Row(case, "time", "us", ours, peer, versions.get(peer), theirs) for peer, theirs in peers.items()]


def _all(calls: Sequence[Work]) -> Work:
    for call in calls:
        call()

    def work() -> None:
        for call in calls:
            call()

    return work


def _repeated(work: Work, repeats: int) -> Work:
    def again() -> None:
        for _ in range(repeats):
            work()

    return again


def _ignored(_: object) -> None:
    return None


def _open(place: Place, block: int) -> tuple[Accelerator | None, Ops]:
    if place.kind == "cpu":
        return None, select_ops()
    settings = ShardSettings(
        model_dir="", dtype="bfloat16", device="cuda", num_blocks=1, block_size=block, max_slots=1, max_batch_tokens=1,
        max_context=block, attention="native",
    )  # fmt: skip
    return open_accelerator(settings, torch.bfloat16)
