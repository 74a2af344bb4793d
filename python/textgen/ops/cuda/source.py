"""What is compiled: a kernel file of `csrc/cuda` with constants, and what comes out of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "kernels"  # to which csrc/cuda of a checkout is a link


@dataclass(frozen=True, slots=True)
class Source:
    """A file of `csrc/cuda` and the constants that it is compiled for, by name without the prefix TG_."""

    name: str  # without .cu: also the name of its first kernel
    constants: tuple[tuple[str, str | int], ...]

    @classmethod
    def of(cls, name: str, **constants: str | int) -> Source:
        return cls(name, tuple(sorted(constants.items())))

    @property
    def text(self) -> str:
        return _read(f"{self.name}.cu")

    @property
    def defines(self) -> list[str]:
        return [f"-DTG_{name}={value}" for name, value in self.constants]

    def __str__(self) -> str:
        constants = ", ".join(f"{name}={value}" for name, value in self.constants)
        return f"{self.name}.cu ({constants})"


@dataclass(frozen=True, slots=True)
class Resources:
    """What a kernel takes of a multiprocessor, as ptxas counts it."""

    registers: int  # of a thread
    stack_bytes: int  # of a thread, in local memory
    spill_bytes: int  # stores and loads of registers that did not fit
    shared_bytes: int  # of a block, beside what a launch asks for


@dataclass(frozen=True, slots=True)
class Binary:
    """Machine code for one architecture, and what each of its kernels takes."""

    code: bytes
    resources: Mapping[str, Resources]


def headers() -> dict[str, str]:
    """The text of each header of `csrc/cuda`, by name."""
    return {path.name: _read(path.name) for path in sorted(FOLDER.glob("*.cuh"))}


def key_of(source: Source, options: list[str], *compiler: str) -> str:
    """Names everything that the machine code depends on: texts, constants, options, architecture, compiler."""
    digest = hashlib.sha256()
    parts = [source.name, source.text, *source.defines, *options, *compiler]
    for part in [*parts, *(part for header in headers().items() for part in header)]:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


@cache
def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
