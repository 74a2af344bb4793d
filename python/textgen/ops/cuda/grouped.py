"""Products of groups of rows, each with a matrix of its own, by `grouped_linear.cu`: which tile a product gets.

The bits of a row's result do not depend on the tile: it may be chosen by how many rows and groups there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from textgen.ops.cuda.device import Device
from textgen.ops.cuda.launches import DTYPES
from textgen.ops.cuda.source import Source
from textgen.ops.cuda.structures import GroupedLinear

LANES = 32
MAX_GROUPS = LANES * 32
FEW, SOME = 16, 64  # rows of a group: tiles have as many
ROOMY, WIDE = 200 << 10, 160 << 10  # shared memory of a block on the largest GPUs, and on others for computing


@dataclass(frozen=True, slots=True)
class TileShape:
    """The constants of `grouped_linear.cuh`. depth is in bytes."""

    rows: int
    columns: int
    depth: int
    stages: int
    down: int
    across: int

    @property
    def threads(self) -> int:
        return 32 * self.down * self.across

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.rows + self.columns) * self.depth


NARROW = TileShape(FEW, 32, 128, 8, 1, 2)  # enough under way where a multiprocessor has one block
FLAT = TileShape(FEW, 64, 128, 4, 1, 4)
MIDDLE = TileShape(SOME, 64, 128, 3, 2, 2)


def largest(shared_bytes: int) -> TileShape:
    """64 by 64 for each warp; two blocks have room on a multiprocessor whose blocks may have so much shared memory."""
    depth, stages = (128, 3) if shared_bytes >= ROOMY else (64, 4) if shared_bytes >= WIDE else (64, 3)
    return TileShape(128, 128, depth, stages, 2, 2)


def row_tiles(rows: int, groups: int, size: int) -> int:
    """The most tiles of `size` rows that so many rows make in so many groups."""
    used = min(rows, groups)
    return (rows - used) // size + used


def choose_shape(device: Device, dtype: torch.dtype, rows: int, groups: int, outputs: int) -> TileShape:
    """As high as groups are if they share the rows evenly, and so large that all multiprocessors have work."""

    def blocks(shape: TileShape) -> int:
        return row_tiles(rows, groups, shape.rows) * -(-outputs // shape.columns)

    share = -(-rows // min(rows, groups))
    if share <= FEW:
        return FLAT if blocks(FLAT) >= 2 * device.processors else NARROW
    large = largest(device.shared_bytes)
    if share <= SOME or dtype == torch.float32 or blocks(large) < device.processors:
        return MIDDLE
    return large


def grouped_source(shape: TileShape, dtype: torch.dtype, inputs: int, groups: int) -> Source:
    depth = shape.depth // dtype.itemsize
    return Source.of(
        "grouped_linear", T=DTYPES[dtype], MATRICES=int(dtype != torch.float32), ROWS=shape.rows,
        COLUMNS=shape.columns, DEPTH=depth, STAGES=shape.stages, DOWN=shape.down, ACROSS=shape.across,
        TAIL=int(inputs % depth != 0), SEARCHED=-(-groups // LANES),
    )  # fmt: skip


def takes(device: Device, x: Tensor, weights: Tensor) -> bool:
    """Whether the kernel multiplies them: x [rows, inputs], weights [..., inputs]."""
    return (
        x.dtype in DTYPES
        and x.dtype == weights.dtype
        and x.numel() > 0
        and weights.numel() > 0
        and all(device.holds(tensor) and tensor.data_ptr() % 16 == 0 for tensor in (x, weights))
        and weights.is_contiguous()
        and x.stride(1) == 1
        and all(size * x.element_size() % 16 == 0 for size in (x.shape[1], x.stride(0)))
        and (weights.dim() == 2 or len(weights) <= MAX_GROUPS)
    )


def multiply(
    device: Device, x: Tensor, weights: Tensor, ends: Tensor | None, biases: Tensor | None, sources: Tensor | None
) -> Tensor:
    """`Ops.grouped_linear`, of what `takes`; ends None: weights [outputs, inputs] of all rows, biases [outputs]."""
    groups = 1 if ends is None else len(weights)
    outputs, inputs = weights.shape[-2:]
    rows = len(x) if sources is None else len(sources)
    out = x.new_empty(rows, outputs)
    if not rows:
        return out
    shape = choose_shape(device, x.dtype, rows, groups, outputs)
    tiles = row_tiles(rows, groups, shape.rows)
    across = -(-outputs // shape.columns)
    params = GroupedLinear(
        x=x.data_ptr(),
        weights=weights.data_ptr(),
        biases=_address(biases),
        out=out.data_ptr(),
        ends=_address(ends),
        sources=_address(sources),
        x_stride=x.stride(0),
        rows=rows,
        inputs=inputs,
        outputs=outputs,
        groups=groups,
        row_tiles=tiles,
        column_tiles=across,
    )
    kernel = device.kernel(grouped_source(shape, x.dtype, inputs, groups))
    kernel((tiles * across, 1, 1), shape.threads, params, shape.shared_bytes)
    return out


def fixed_linear(device: Device, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`Ops.linear` in one order: a row's result has the same bits whatever rows are beside it. x [rows, inputs]."""
    beyond = -x.shape[1] % (16 // x.element_size())
    if beyond:
        x, weight = pad(x, (0, beyond)), pad(weight, (0, beyond))  # zeros add nothing
    x, weight = _aligned(x), _aligned(weight)
    return multiply(device, x, weight, None, bias, None)


def _aligned(tensor: Tensor) -> Tensor:
    """Itself where the kernel takes it, else a copy."""
    fits = tensor.is_contiguous() and tensor.data_ptr() % 16 == 0
    return tensor if fits else tensor.clone(memory_format=torch.contiguous_format)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
