"""Where the buffers of a program lie: in one arena, over each other where their lifetimes allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from textgen.ops.cpu.instructions import Buffer, Program

ALIGNED = 64  # bytes: a cache line, so that no two rows share one


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes from the arena's beginning, and elements from row to row."""

    offset: int
    stride: int


@dataclass(frozen=True, slots=True)
class Layout:
    places: Mapping[Buffer, Place]
    size: int  # bytes


def lay_out(program: Program, rows: int) -> Layout:
    """Place every buffer for up to `rows` rows: the largest first, each as low as those it lives beside let it."""
    lifetimes = _lifetimes(program)
    sizes = {buffer: _aligned(buffer.width * buffer.dtype.itemsize) for buffer in lifetimes}
    taken: list[tuple[int, int, range]] = []
    places: dict[Buffer, Place] = {}
    for buffer in sorted(lifetimes, key=lambda each: -sizes[each]):
        life, size, offset = lifetimes[buffer], sizes[buffer] * rows, 0
        for begin, end, other in sorted(taken, key=lambda each: each[0]):
            if life.start < other.stop and other.start < life.stop and begin < offset + size:
                offset = max(offset, end)
        taken.append((offset, offset + size, life))
        places[buffer] = Place(offset, sizes[buffer] // buffer.dtype.itemsize)
    return Layout(places, max(end for _, end, _ in taken))


def _lifetimes(program: Program) -> dict[Buffer, range]:
    """The instructions during which each buffer holds something that is still needed."""
    touched: dict[Buffer, tuple[int, int]] = {}
    if program.given is not None:
        touched[program.given.buffer] = (0, 0)
    for index, each in enumerate(program.instructions):
        for _, view in each.operands():
            touched[view.buffer] = (touched.get(view.buffer, (index,))[0], index)
    first, _ = touched.get(program.result.buffer, (0, 0))
    touched[program.result.buffer] = first, len(program.instructions)
    return {buffer: range(first, last + 1) for buffer, (first, last) in touched.items()}


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
