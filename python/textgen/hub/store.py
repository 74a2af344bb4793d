"""The cache on disk, in the layout of `huggingface_hub`, so that models are kept once for all tools.

models--ORG--NAME/blobs/ETAG             contents, each named by its hash
models--ORG--NAME/snapshots/COMMIT/PATH  links to them
models--ORG--NAME/refs/BRANCH            the commit a branch or tag was last seen at
.locks/models--ORG--NAME/ETAG.lock       held while a blob is written
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from uuid import uuid4

from textgen.hub.errors import HubError

_LOCK_POLL = 0.1  # seconds
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class Store:
    """One repository's part of the cache."""

    cache: Path
    repo: str

    @property
    def name(self) -> str:
        return "models--" + self.repo.replace("/", "--")

    @property
    def folder(self) -> Path:
        return self.cache / self.name

    def blob(self, etag: str) -> Path:
        return self.folder / "blobs" / etag

    def snapshot(self, commit: str) -> Path:
        return self.folder / "snapshots" / commit

    def commit_of(self, revision: str) -> str | None:
        """The commit that a branch or tag was last seen at, or the revision itself when it is a cached commit."""
        if self.snapshot(revision).is_dir():
            return revision
        with suppress(OSError, UnicodeDecodeError):
            return self._ref(revision).read_text().strip()
        return None

    def remember(self, revision: str, commit: str) -> None:
        """Write down what a branch or tag names now."""
        if revision == commit:
            return
        path = self._ref(revision)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{uuid4().hex}")
        draft.write_text(commit)
        draft.replace(path)

    def link(self, commit: str, name: str, etag: str) -> None:
        """Show a blob under its name in a snapshot; a copy where the file system has no links."""
        path, blob = self.snapshot(commit) / name, self.blob(etag)
        with suppress(OSError):
            if path.samefile(blob) or (not path.is_symlink() and path.stat().st_size == blob.stat().st_size):
                return
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            draft.symlink_to(os.path.relpath(blob, path.parent))
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            shutil.copyfile(blob, draft)
        draft.replace(path)

    @contextmanager
    def lock(self, etag: str, stop: threading.Event) -> Iterator[None]:
        """Keep other processes from writing this blob; the system lets go of it when we die."""
        path = self.cache / ".locks" / self.name / f"{etag}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if stop.wait(_LOCK_POLL):
                        raise HubError(f"{self.repo}: the download was stopped") from None
            yield

    def _ref(self, revision: str) -> Path:
        parts = PurePosixPath(revision)
        if parts.is_absolute() or ".." in parts.parts:
            raise HubError(f"--revision {revision!r} is no name of a branch, tag or commit")
        return self.folder / "refs" / revision
