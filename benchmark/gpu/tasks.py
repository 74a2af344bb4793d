"""One part of the benchmark on one model: what is asked of a process, and what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmark.gpu.checkpoints import folder_of
from benchmark.gpu.places import Kind
from benchmark.report import Report, Row


class NotMeasured(Exception):
    """A part cannot be measured here; the message says why, and what to change."""


@dataclass(frozen=True)
class Task:
    """part: by its name. shape, form: of the model. models: the folder of models. out: where pictures go. batches,
    prompts, clients: sizes that are measured. context: tokens before those that are decoded."""

    part: str
    shape: str
    form: str
    device: Kind
    models: str
    out: str
    batches: Sequence[int] = (1,)
    prompts: Sequence[int] = (8192,)
    clients: Sequence[int] = (1,)
    context: int = 1024
    rounds: int = 5
    kv_cache_dtype: str = "auto"

    @property
    def folder(self) -> Path:
        """The model's, written if it is not there. Raises `NoRoom`."""
        return folder_of(self.shape, self.form, Path(self.models))

    @property
    def model(self) -> str:
        """In words."""
        cache = "" if self.kv_cache_dtype == "auto" else f", cache {self.kv_cache_dtype}"
        return f"{self.shape} {self.form}{cache}"


@dataclass(frozen=True)
class Found:
    """Rows of the report, and sentences for its notes."""

    rows: Sequence[Row] = ()
    notes: Sequence[str] = ()


@dataclass
class Collected:
    """The same while it comes together."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def found(self) -> Found:
        return Found(self.rows, self.notes)


def report_name(rehearsal: bool) -> str:
    return "gpu-rehearsal" if rehearsal else "gpu"


def stem(name: str, device: str) -> str:
    """Of the report's files."""
    return Report(name, "", {}, [], device).stem
