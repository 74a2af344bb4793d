"""What the system is told of a tensor's pages. Where it does not listen, nothing is wrong but the speed."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

HUGE = 2 << 20  # bytes
LARGE = 2 * HUGE  # of a tensor for which huge pages are asked


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Memory that nobody has touched; a processor's is in huge pages where the system gives them."""
    size = prod(shape) * dtype.itemsize
    if (device is not None and device.type != "cpu") or size < LARGE:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    memory = torch.empty(size + HUGE, dtype=torch.uint8)  # what is not touched takes none
    begin = -memory.data_ptr() % HUGE
    tensor = memory[begin : begin + size].view(dtype).view(tuple(shape))
    _advise(tensor, HUGE, mmap.MADV_HUGEPAGE)
    return tensor


def let_go(view: Tensor) -> None:
    """Take whole pages of a mapped file, which nobody wrote to, out of this process's memory; they are read again when
    somebody asks for them."""
    _advise(view, mmap.PAGESIZE, mmap.MADV_DONTNEED)


def _advise(tensor: Tensor, page: int, advice: int) -> None:
    """For the whole pages within."""
    begin = -(-tensor.data_ptr() // page) * page
    end = (tensor.data_ptr() + tensor.nbytes) // page * page
    if end > begin and tensor.is_contiguous():
        _LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)


_LIBC = ctypes.CDLL(None)
