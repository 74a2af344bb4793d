"""What the system is told of a tensor's pages. Where it does not listen, nothing is wrong but the speed."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from textgen._router import Room

LARGE = 64 << 10  # bytes of a tensor for which it pays: rooms share huge pages


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
    if end > begin and whole:
        _LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


_LIBC = ctypes.CDLL(None)
