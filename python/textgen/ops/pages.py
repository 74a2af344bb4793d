"""What the system is told of pages of memory. Where it does not listen, nothing is wrong but speed and size."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from textgen._router import Room

LARGE = 64 << 10  # bytes of a tensor for which it pays: rooms share huge pages

# A mapped file that cannot be written to and of which no page is the process's own, as those that linking wrote are.
_ONLY_READ = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) r-.p \S+ \S+ \d+ +/.*\n(?:[A-Z].*\n)*?Anonymous: +0 kB$", re.MULTILINE
)


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Memory for anything. A processor's comes out of what was reserved for weights, if that is left, and is in huge
    pages where the system gives them. Raises `MemoryError`."""
    size = prod(shape) * dtype.itemsize
    if (device is not None and device.type != "cpu") or size < LARGE:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    room = Room(size)
    memory = (ctypes.c_uint8 * size).from_address(room.address)
    memory.room = room  # type: ignore[attr-defined]  # the tensor keeps this, and this the room
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))


def let_go(view: Tensor | NDArray[np.uint8]) -> None:
    """Take whole pages of a mapped file, which nobody wrote to, out of this process's memory; they are read again when
    somebody asks for them."""
    page = mmap.PAGESIZE
    if isinstance(view, Tensor):
        address, whole = view.data_ptr(), view.is_contiguous()
    else:
        address, whole = view.ctypes.data, view.flags.c_contiguous
    begin = -(-address // page) * page
    end = (address + view.nbytes) // page * page
    if whole:
        _let_go(begin, end)


def let_go_of_libraries() -> None:
    """Take files that are mapped and were only read out of this process's memory: those that are used come back.

    Linking reads a library's tables once. Of torch's usual build and the libraries for GPUs that it loads these are
    0.2 GB.
    """
    with suppress(OSError):  # not every system has it
        for begin, end in _ONLY_READ.findall(Path("/proc/self/smaps").read_bytes()):
            _let_go(int(begin, 16), int(end, 16))


def _let_go(begin: int, end: int) -> None:
    if end > begin:
        _LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


_LIBC = ctypes.CDLL(None)
