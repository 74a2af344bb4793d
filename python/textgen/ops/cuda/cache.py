"""Compiled kernels on disk, so that a second start compiles nothing. An entry that is not whole is compiled again.

An entry is a file: a line of JSON (its own form, what each kernel takes, the hash of the code), then the code.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from textgen.ops.cuda.source import Binary, Resources, Source, key_of

FOLDER_VARIABLE = "TEXTGEN_CUDA_CACHE"
LIMIT_VARIABLE = "TEXTGEN_CUDA_CACHE_MB"
DEFAULT_LIMIT_MB = 256
FORM = 1  # of an entry

_log = logging.getLogger(__name__)


class Compiler(Protocol):
    """Makes machine code of sources."""

    @property
    def arch(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def options(self) -> list[str]: ...
    def compile(self, source: Source) -> Binary: ...


class CompileCache:
    """The compiler, asked only for what is not in the folder yet."""

    def __init__(self, compiler: Compiler, folder: Path, limit_bytes: int) -> None:
        """The folder is made for its owner alone. Beyond the limit, what was used longest ago is removed."""
        self.compiler, self._folder, self._limit = compiler, folder, limit_bytes

    def get(self, source: Source) -> Binary:
        """The source's machine code. Raises as the compiler does; a folder that cannot be used costs a warning."""
        compiler = self.compiler
        path = self._folder / key_of(source, compiler.options, compiler.arch, compiler.version)
        binary = self._read(path)
        if binary is None:
            binary = compiler.compile(source)
            try:
                self._write(path, binary)
            except OSError as error:
                _log.warning(
                    "%s is not kept in %s: %s; name another folder by %s", source, self._folder, error, FOLDER_VARIABLE
                )
        return binary

    def _read(self, path: Path) -> Binary | None:
        try:
            head, _, code = path.read_bytes().partition(b"\n")
        except OSError:
            return None
        try:
            entry = json.loads(head)
            if entry["form"] != FORM or entry["sha256"] != hashlib.sha256(code).hexdigest():
                return None
            binary = Binary(code, {name: Resources(**of) for name, of in entry["resources"].items()})
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        with suppress(OSError):
            os.utime(path)  # used now
        return binary

    def _write(self, path: Path, binary: Binary) -> None:
        """By a new name first: who reads meanwhile, or a loss of power, sees all of it or nothing."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        head = {
            "form": FORM,
            "sha256": hashlib.sha256(binary.code).hexdigest(),
            "resources": {name: asdict(of) for name, of in binary.resources.items()},
        }
        descriptor, temporary = tempfile.mkstemp(dir=self._folder, prefix=".")  # for its owner alone
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps(head).encode() + b"\n" + binary.code)
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        self._trim(path)

    def _trim(self, newest: Path) -> None:
        entries = []
        for path in self._folder.iterdir():
            with suppress(OSError):  # somebody else removed it
                status = path.stat()
                entries.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self._limit:
                return
            if path != newest:
                with suppress(OSError):
                    path.unlink()
                total -= size


def default_folder() -> Path:
    """`TEXTGEN_CUDA_CACHE`, or `textgen/cuda` among the user's caches."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "textgen" / "cuda"


def default_limit() -> int:
    """Bytes: `TEXTGEN_CUDA_CACHE_MB`, or 256 MiB. `ValueError`: it is no number."""
    text = os.environ.get(LIMIT_VARIABLE) or str(DEFAULT_LIMIT_MB)
    if not text.isdigit():
        raise ValueError(f"{LIMIT_VARIABLE} is {text!r}; give a whole number of MiB")
    return int(text) << 20
