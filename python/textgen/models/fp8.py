"""The numbers that 8-bit floating point numbers and their scales stand for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from textgen.models.fp8_config import Fp8

DTYPES = ("F8_E4M3", "F8_E5M2")
SUFFIXES = ("_scale_inv", "_scale")  # of a scale, behind the name of what it is of
CHUNK = 2**22  # numbers that are turned at once


def read_scaled(
    fp8: Fp8,
    scale: Tensor,
    shape: tuple[int, int],
    cut: tuple[slice, slice],
    get: Callable[[slice], Tensor],
    into: Tensor,
) -> None:
    """Numbers of a matrix of that shape, some rows at a time. get: rows of the cut as they are stored.

    Raises `ValueError` for a scale that does not fit.
    """
    rows, columns = (range(size)[part] for size, part in zip(shape, cut, strict=True))
    spread = _spread(fp8, scale.float(), shape)
    across = torch.arange(columns.start, columns.stop, columns.step)
    step = max(CHUNK // max(len(columns), 1), 1)
    for start in range(0, len(rows), step):
        chosen = rows[start : start + step]
        down = torch.arange(chosen.start, chosen.stop, chosen.step)
        values = get(slice(chosen.start, chosen.stop, chosen.step)).float()
        into[start : start + len(chosen)].copy_(values.mul_(spread(down, across)))


def group_scales(
    fp8: Fp8, scale: Tensor, shape: tuple[int, int], cut: tuple[slice, slice]
) -> tuple[Tensor, int] | None:
    """Of that cut of a matrix the scales [rows, groups] float32 and how many inputs a group has, 0 for all.

    None where it begins or ends within a group. Raises as `read_scaled`.
    """
    rows, columns = (range(size)[part] for size, part in zip(shape, cut, strict=True))
    spread = _spread(fp8, scale.float(), shape)
    down, width, firsts = torch.tensor(rows), 0, [0]
    if scale.numel() > 1 and fp8.block is not None:
        width = fp8.block[1]
        if columns.step != 1 or columns.start % width or (columns.stop % width and columns.stop != shape[1]):
            return None
        firsts = list(columns[::width])
    return spread(down, torch.tensor(firsts)).expand(len(rows), len(firsts)).contiguous(), width


def _spread(fp8: Fp8, scale: Tensor, shape: tuple[int, int]) -> Callable[[Tensor, Tensor], Tensor]:
    """The scale of each number at those rows and columns, broadcast where it is the same."""
    if scale.numel() == 1:
        return lambda rows, columns: scale.view(1, 1)
    if fp8.block is None and scale.numel() == shape[0]:
        return lambda rows, columns: scale.view(-1, 1)[rows]
    if fp8.block is not None:
        height, width = fp8.block
        if tuple(scale.shape) == (-(-shape[0] // height), -(-shape[1] // width)):
            return lambda rows, columns: scale[rows // height][:, columns // width]
    raise ValueError(f"a scale of shape {tuple(scale.shape)} does not fit a matrix of {shape}")
