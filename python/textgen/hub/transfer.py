"""One file from the hub into the cache: resumed where it stopped, whatever stopped it, and checked by its hash."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from textgen.hub.api import RemoteFile, read_range
from textgen.hub.connection import Hub
from textgen.hub.errors import HubError, Unreachable

PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0)  # seconds before each further try that brought nothing
SEGMENT = 16 * 2**30  # bytes asked for at once; content networks refuse answers of 50 GB
_READ = 2**20


@dataclass(frozen=True, slots=True)
class Source:
    """A commit of a repository, and what everybody who downloads from it shares."""

    hub: Hub
    repo: str
    commit: str
    stop: threading.Event
    advance: Callable[[int], None]  # told bytes as they come; negative when some were of no use
    pauses: tuple[float, ...] = PAUSES


def fetch(source: Source, file: RemoteFile, blob: Path) -> None:
    """Download `file` as `blob`, which appears whole or not at all. Bytes that came stay for another try.

    Raises `HubError` when the hub refuses, stays away, or sends something else twice.
    """
    path = blob.with_name(blob.name + ".incomplete")
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(2):
        with _Part(path, file) as part:
            source.advance(part.done)
            _fill(source, file, part)
            if part.right():
                path.replace(blob)
                return
            path.unlink()
            source.advance(-part.done)
    raise HubError(
        f"{source.repo}: {file.path} came damaged twice, its hash is not the one {source.hub.shown} promises; "
        "try again, and check proxies between here and there"
    )


def _fill(source: Source, file: RemoteFile, part: _Part) -> None:
    """Until the part is as long as the file."""
    failures = 0
    while part.done < file.size:
        before = part.done
        try:
            _read(source, file, part)
            trouble = Unreachable(f"{source.hub.shown} ends {file.path} of {source.repo} early; try again later")
        except Unreachable as error:
            trouble = error
        failures = 0 if part.done > before else failures + 1
        if failures > len(source.pauses):
            raise trouble
        if source.stop.wait(source.pauses[failures - 1] if failures else 0.0):
            raise _stopped(source)


def _read(source: Source, file: RemoteFile, part: _Part) -> None:
    """One request's worth."""
    last = min(file.size, part.done + SEGMENT) - 1
    with read_range(source.hub, source.repo, source.commit, file.path, part.done, last) as stream:
        if stream.start != part.done:
            source.advance(-part.done)
            part.restart()
        for chunk in stream.chunks:
            if source.stop.is_set():
                raise _stopped(source)
            fitting = chunk[: file.size - part.done]
            if not fitting:  # more than the file has: the hash will tell what to think of it
                return
            part.write(fitting)
            source.advance(len(fitting))


def _stopped(source: Source) -> HubError:
    return HubError(f"{source.repo}: the download was stopped; the same command goes on from where it was")


class _Part:
    """A file on its way. Nothing is buffered here, so what was written survives any end of the process."""

    def __init__(self, path: Path, file: RemoteFile) -> None:
        self._size, self._etag = file.size, file.etag
        path.touch()
        self._file = path.open("r+b", buffering=0)
        self.done = 0
        self._hash = _hash(self._size, self._etag)
        if path.stat().st_size > self._size:
            self._file.truncate()
        while chunk := self._file.read(_READ):
            self._hash.update(chunk)
            self.done += len(chunk)

    def restart(self) -> None:
        """Begin at the first byte again."""
        self.done = 0
        self._hash = _hash(self._size, self._etag)
        self._file.seek(0)
        self._file.truncate()

    def write(self, chunk: bytes) -> None:
        """Append. Raises `OSError`."""
        rest = memoryview(chunk)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._hash.update(chunk)
        self.done += len(chunk)

    def right(self) -> bool:
        """Whether this is the file, by its length and hash."""
        return self.done == self._size and self._hash.hexdigest() == self._etag

    def __enter__(self) -> _Part:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _hash(size: int, etag: str) -> hashlib._Hash:
    """sha256 for large files; the others are known by git's hash, which begins with a header."""
    if len(etag) == 64:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
