"""Checkpoints' tensors in MXFP4, the 4-bit floating point of the Open Compute Project's Microscaling Formats 1.0."""

from __future__ import annotations

import torch

from textgen.layers.weight import WeightSource
from textgen.quantization.blocks import KINDS, BlockWeight


def read_mxfp4(source: WeightSource, name: str, shape: tuple[int, int, int], index: int) -> BlockWeight:
    """[out, in]: one of the matrices of shape [count, out, in] that are stored as pairs of neighbours and scales.

    Raises `ModelError` when the tensors do not fit the shape.
    """
    (count, rows, columns), size = shape, KINDS["MXFP4"]
    groups = columns // size
    pairs = source.read_bytes(f"{name}_blocks", (count, rows, groups, size // 2), index).view(rows, groups, -1)
    scales = source.read_bytes(f"{name}_scales", (count, rows, groups), index).view(rows, groups, 1)
    values = torch.stack((pairs & 0xF, pairs >> 4), dim=-1).flatten(2)  # the low half of a byte comes first
    first, second = values.chunk(2, dim=-1)
    return BlockWeight("MXFP4", torch.cat((scales, first | second << 4), dim=-1).flatten(1), columns)
