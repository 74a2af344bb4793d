"""MXFP4, the 4-bit floating point format of the Open Compute Project's microscaling specification (MX 1.0)."""

from __future__ import annotations

import torch
from torch import Tensor

from textgen.layers.weight import WeightSource

BLOCK = 32  # numbers that share a scale
_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of a sign bit, two exponent bits, one mantissa bit
_VALUES = torch.tensor([*_POSITIVE, *(-value for value in _POSITIVE)])
_SCALE_BIAS = 127


def read_mxfp4(source: WeightSource, name: str, shape: tuple[int, int, int], index: int) -> Tensor:
    """[out, in] float32: one of the matrices of shape [count, out, in] that are stored as blocks and scales.

    Raises `ModelError` when the tensors do not fit the shape.
    """
    count, rows, columns = shape
    blocks = source.read_bytes(f"{name}_blocks", (count, rows, columns // BLOCK, BLOCK // 2), index)
    scales = source.read_bytes(f"{name}_scales", (count, rows, columns // BLOCK), index)
    pairs = torch.stack((blocks & 0xF, blocks >> 4), dim=-1)  # the low half of a byte comes first
    values = _VALUES[pairs.int()].view(rows, columns // BLOCK, BLOCK)
    return torch.ldexp(values, scales.int()[..., None] - _SCALE_BIAS).view(rows, columns)
