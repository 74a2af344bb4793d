"""Products with weights of 4 and 8 bits by `linear_few.cu` and `linear_tiles.cu`: which one, for which shapes, and how
blocks share out the inputs. All of it follows from shapes alone, so products can be captured."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from textgen.ops.cuda.bricks import BRICK, Bricks
from textgen.ops.cuda.device import Device
from textgen.ops.cuda.launches import DTYPES
from textgen.ops.cuda.source import Source
from textgen.ops.cuda.structures import Linear

HALVES = (torch.bfloat16, torch.float16)
FEW = 16  # rows that one pass over the weights serves, and the memory alone is waited for
WIDE = 64  # rows of a tile of many; half as many where that is enough
WARPS = 8  # of a tile of many, two for 64 outputs
SUMS = BRICK + 4  # floats of a row of sums in shared memory
MOST_SPLITS = 8
LARGEST = 1 << 32  # what kernels count the numbers of x and the bytes of weights in
RESIDENT = 2  # blocks that a multiprocessor has room for
AHEAD = 2  # loads of a warp under way


@dataclass(frozen=True, slots=True)
class Linears:
    """Where products run. counters: zeros that blocks meet by, for all products, which follow one another."""

    device: Device
    counters: Tensor

    @classmethod
    def on(cls, device: Device, there: torch.device) -> Linears:
        return cls(device, torch.zeros(RESIDENT * device.processors, dtype=torch.int32, device=there))

    def takes(self, x: Tensor, weight: Bricks) -> bool:
        """Whether there is a kernel for x [..., inputs]."""
        sizes = weight.inputs % 8 == 0 and x.numel() > 0 and max(x.numel(), weight.packed.numel()) < LARGEST
        return x.dtype in HALVES and sizes and self.device.holds(x)

    def multiply(self, x: Tensor, weight: Bricks, bias: Tensor | None) -> Tensor:
        """x @ w.T + bias with w = scale * (value - zero), summed in float32 and rounded to x's dtype once.

        x [..., inputs] as `takes` says; bias [outputs] in x's dtype. Returns [..., outputs].
        """
        rows = x.reshape(-1, weight.inputs)
        if rows.stride(1) != 1 or rows.stride(0) % 8 or rows.data_ptr() % 16:
            rows = rows.contiguous()
        if bias is not None:
            bias = bias.to(x.dtype).contiguous()
        out = torch.empty((len(rows), weight.outputs), dtype=x.dtype, device=x.device)
        launch = _few if len(rows) <= FEW else _tiles
        launch(self, rows, weight, bias, out)
        return out.view(*x.shape[:-1], weight.outputs)


def few_source(dtype: torch.dtype, weight: Bricks, rows: int) -> Source:
    """Up to `FEW` rows. More than 8 are read by two warps from one cache."""
    light = rows <= 8 or weight.group == 0  # in registers
    tiles, across, along, resident = (1, 1, 8, 2) if rows <= 8 else (2, 2, 4, 2 if light else 1)
    return _source(
        "linear_few", dtype, weight, TILES=tiles, WARPS_N=across, WARPS_K=along, AHEAD=AHEAD, RESIDENT=resident
    )


def tiles_source(dtype: torch.dtype, weight: Bricks, rows: int, shared_bytes: int) -> Source:
    """As many stages as two blocks of a multiprocessor have room for; where that are not three, as one has."""
    tokens = WIDE if rows > WIDE // 2 else WIDE // 2
    stage = stage_bytes(weight, tokens)
    fitting = [count for count in (4, 3) if RESIDENT * count * stage <= shared_bytes]
    stages = fitting[0] if fitting else 4 if 4 * stage <= shared_bytes else 3
    return _source("linear_tiles", dtype, weight, TOKENS=tokens, WARPS=WARPS, STAGES=stages)


def stage_bytes(weight: Bricks, tokens: int) -> int:
    """Of a brick's inputs in shared memory: x, weights, scales and zeros of a block."""
    groups = 0 if weight.group == 0 else max(BRICK // weight.group, 1)
    of_group = groups * BRICK * (weight.scales.itemsize + (0 if weight.zeros is None else 1))
    return 2 * tokens * BRICK + WARPS // 2 * (_brick_bytes(weight) + of_group)


def _source(name: str, dtype: torch.dtype, weight: Bricks, **constants: int) -> Source:
    zeros, scale = int(weight.zeros is not None), "f16" if weight.scales.dtype == torch.float16 else "float"
    return Source.of(name, T=DTYPES[dtype], FORM=weight.form, GROUP=weight.group, SCALE=scale, ZEROS=zeros, **constants)


def _few(linears: Linears, x: Tensor, weight: Bricks, bias: Tensor | None, out: Tensor) -> None:
    source = few_source(x.dtype, weight, len(x))
    constants = dict(source.constants)
    across, along, tiles = (int(constants[name]) for name in ("WARPS_N", "WARPS_K", "TILES"))
    blocks = -(-_count(weight.outputs) // across)
    units = _count(weight.inputs) * _brick_bytes(weight) // _UNIT_BYTES
    splits = _splits(linears.device, blocks, units // (AHEAD * along))
    params, kept = _params(linears, x, weight, bias, out, splits)
    shared = across * along * 8 * tiles * SUMS * 4
    linears.device.kernel(source)((blocks, splits, 1), 32 * across * along, params, shared)
    del kept


def _tiles(linears: Linears, x: Tensor, weight: Bricks, bias: Tensor | None, out: Tensor) -> None:
    source = tiles_source(x.dtype, weight, len(x), linears.device.shared_bytes)
    constants = dict(source.constants)
    tokens, stages = int(constants["TOKENS"]), int(constants["STAGES"])
    tiles, blocks = -(-len(x) // tokens), -(-_count(weight.outputs) // (WARPS // 2))
    splits = _splits(linears.device, tiles * blocks, _count(weight.inputs) // (2 * stages))
    params, kept = _params(linears, x, weight, bias, out, splits)
    shared = stages * stage_bytes(weight, tokens)
    linears.device.kernel(source)((tiles, blocks, splits), 32 * WARPS, params, shared)
    del kept


def _splits(device: Device, blocks: int, most: int) -> int:
    """Parts of the inputs, so that there are blocks for all multiprocessors, and each has something to do."""
    return max(min(RESIDENT * device.processors // blocks, most, MOST_SPLITS), 1)


def _params(
    linears: Linears, x: Tensor, weight: Bricks, bias: Tensor | None, out: Tensor, splits: int
) -> tuple[Linear, Tensor | None]:
    """And what must live until the launch."""
    partial = None
    if splits > 1:
        size = (splits, len(x), _count(weight.outputs) * BRICK)
        partial = torch.empty(size, dtype=torch.float32, device=x.device)
    address = [None if tensor is None else tensor.data_ptr() for tensor in (weight.zeros, bias, partial)]
    params = Linear(
        x=x.data_ptr(),
        packed=weight.packed.data_ptr(),
        scales=weight.scales.data_ptr(),
        zeros=address[0],
        bias=address[1],
        out=out.data_ptr(),
        partial=address[2],
        counters=linears.counters.data_ptr(),
        stride=x.stride(0),
        rows=len(x),
        inputs=weight.inputs,
        outputs=weight.outputs,
        splits=splits,
    )
    return params, partial


_UNIT_BYTES = 4 * 32 * 16  # that a warp loads at once


def _count(size: int) -> int:
    return -(-size // BRICK)


def _brick_bytes(weight: Bricks) -> int:
    return BRICK * BRICK // (2 if weight.form == "INT4" else 1)
