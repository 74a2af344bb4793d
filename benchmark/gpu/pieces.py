"""What several calls have measured of a device, in one file: a call adds to what others left, and goes on where they
stopped."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmark.gpu.parts import PARTS, Result, row_of
from benchmark.gpu.shapes import FORMS, SHAPES
from benchmark.gpu.tasks import Task, report_name
from benchmark.report import Report, Row

# What a number depends on beyond the sources: with others nothing is mixed.
BINDING = ("textgen", "torch", "CUDA", "driver")


class Unreadable(Exception):
    """The file of pieces is none; the message says what to do."""


@dataclass(frozen=True)
class Key:
    """A part on one model."""

    device: str
    part: str
    shape: str
    form: str

    @staticmethod
    def of(task: Task, device: str) -> Key:
        return Key(device, task.part, task.shape, task.model.removeprefix(f"{task.shape} "))


@dataclass(frozen=True)
class Piece:
    """What was found of it. commit: of the sources, where they are known. missing: why nothing was."""

    key: Key
    versions: dict[str, str]
    command: str
    date: str
    commit: str | None
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    missing: str | None = None

    def binds(self, versions: dict[str, str]) -> bool:
        return all(self.versions.get(name) == versions.get(name) for name in BINDING)


@dataclass(frozen=True)
class Call:
    """Of the benchmark. folder: of the sources."""

    command: str
    commit: str | None
    rehearsal: bool = False
    date: str = field(default_factory=lambda: datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"))


class Pieces:
    """The file and what is in it."""

    def __init__(self, path: Path) -> None:
        """Raises `Unreadable`."""
        self._path, self._pieces = path, dict[Key, Piece]()
        if not path.exists():
            return
        try:
            for stored in json.loads(path.read_text(encoding="utf-8")):
                key = Key(**stored.pop("key"))
                rows = [row_of(row) for row in stored.pop("rows")]
                self._pieces[key] = Piece(key=key, rows=rows, **stored)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Unreadable(f"{path} cannot be read ({error}); move it away, or name another with --pieces") from None

    def drop_others(self, device: str, versions: dict[str, str]) -> int:
        """Forget what other versions measured on the device; how many pieces that were."""
        others = [key for key, piece in self._pieces.items() if key.device == device and not piece.binds(versions)]
        for key in others:
            del self._pieces[key]
        return len(others)

    def done(self, task: Task, device: str) -> bool:
        """Whether it was measured already."""
        piece = self._pieces.get(Key.of(task, device))
        return piece is not None and piece.missing is None

    def add(self, task: Task, result: Result, call: Call) -> None:
        """Rows take the place of those of the same case, metric and peer; what could not be measured takes nobody's."""
        key = Key.of(task, result.device)
        before = self._pieces.get(key)
        piece = Piece(
            key, result.versions, call.command, call.date, call.commit, result.rows, result.notes, result.missing
        )
        if before is not None and before.missing is None:
            if result.missing is not None:
                return
            piece = replace(piece, rows=_merged(before.rows, result.rows))
        self._pieces[key] = piece

    def save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
        part.write_text(json.dumps([asdict(piece) for piece in self._pieces.values()], indent=1), encoding="utf-8")
        part.replace(self._path)

    def report(self, device: str, versions: dict[str, str], call: Call, notes: Iterable[str] = ()) -> Report:
        """Of all that is there of the device."""
        pieces = sorted((piece for key, piece in self._pieces.items() if key.device == device), key=_order)
        told, others = [*notes], dict[str, list[str]]()
        for piece in pieces:
            name = f"{piece.key.part} of {piece.key.shape} {piece.key.form}"
            if piece.missing is not None:
                told.append(f"Not measured: {name}: {piece.missing}")
                continue
            told += [note for note in piece.notes if note not in told]
            if (piece.command, piece.date, piece.commit) != (call.command, call.date, call.commit):
                of = "" if piece.commit is None else f", commit {piece.commit}"
                others.setdefault(f"`{piece.command}`, {piece.date}{of}", []).append(name)
        told += [f"By another call, {which}: {', '.join(names)}." for which, names in others.items()]
        rows = [row for piece in pieces for row in piece.rows]
        if call.commit is not None:
            versions = versions | {"commit": call.commit}
        return Report(report_name(call.rehearsal), call.command, versions, rows, device, call.date, told)


def _merged(before: list[Row], after: list[Row]) -> list[Row]:
    """In the order of before, and what is new behind."""
    fresh = {_name(row): row for row in after}
    kept = [fresh.pop(_name(row), row) for row in before]
    return kept + list(fresh.values())


def _name(row: Row) -> tuple[str, str, str | None]:
    return row.case, row.metric, row.peer


def _order(piece: Piece) -> tuple[int, int, int]:
    key = piece.key
    places = (list(SHAPES), list(FORMS), list(PARTS))
    names = (key.shape, key.form, key.part)
    at = [known.index(name) if name in known else len(known) for known, name in zip(places, names, strict=True)]
    return at[0], at[2], at[1]
