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
