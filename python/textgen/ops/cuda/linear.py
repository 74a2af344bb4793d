"""Products with weights of 4 and 8 bits by `linear_few.cu` and `linear_tiles.cu`: which one, for which shapes, and how
blocks share out the inputs. All of it follows from shapes alone, so products can be captured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from textgen.ops.cuda.bricks import BRICK, FOUR_BITS, Bricks, Kind
from textgen.ops.cuda.device import Device
from textgen.ops.cuda.grouped import LANES, MAX_GROUPS, row_tiles
from textgen.ops.cuda.launches import DTYPES
from textgen.ops.cuda.source import Source
from textgen.ops.cuda.structures import Linear

HALVES = (torch.bfloat16, torch.float16)
FEW = 16  # rows that one pass over the weights serves, and the memory alone is waited for
WIDE = 64  # rows of a tile of many; half as many where that is enough
WARPS = 8  # of a tile of many, two for 64 outputs
SUMS = BRICK + 4  # floats of a row of sums in shared memory
MOST_SPLITS = 8
LARGEST = 1 << 32  # what kernels count the numbers of x and the quads of weights in
QUAD = 16
RESIDENT = 2  # blocks that a multiprocessor has room for
AHEAD = 2  # loads of a warp under way
UNIT_BYTES = 4 * 32 * 16  # of such a load


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
        sizes = weight.inputs % 8 == 0 and x.numel() > 0 and max(x.numel(), weight.packed.numel() // QUAD) < LARGEST
        return x.dtype in HALVES and sizes and self.device.holds(x)

    def multiply(self, x: Tensor, weight: Bricks, bias: Tensor | None) -> Tensor:
        """x @ w.T + bias with w as `Plain` says, summed in float32 and rounded to x's dtype once.

        x [..., inputs] as `takes` says; bias [outputs] in x's dtype. Returns [..., outputs].
        """
        rows = _aligned(x.reshape(-1, weight.inputs))
        out = torch.empty((len(rows), weight.outputs), dtype=x.dtype, device=x.device)
        self._launch(_Product(rows, weight, _bias(bias, x.dtype), out))
        return out.view(*x.shape[:-1], weight.outputs)

    def takes_experts(self, x: Tensor, weights: Bricks, ends: Tensor) -> bool:
        """Whether there is a kernel for rows x [rows, inputs] of so many experts."""
        return self.takes(x, weights) and len(ends) <= MAX_GROUPS

    def multiply_experts(
        self, x: Tensor, weights: Bricks, ends: Tensor, biases: Tensor | None, sources: Tensor | None
    ) -> Tensor:
        """As `Ops.grouped_linear`, of what `takes_experts`, with the matrices of all experts in `weights`."""
        rows = len(x) if sources is None else len(sources)
        out = torch.empty((rows, weights.outputs), dtype=x.dtype, device=x.device)
        if rows:
            self._launch(_Product(_aligned(x), weights, _bias(biases, x.dtype), out, ends, sources))
        return out

    def _launch(self, product: _Product) -> None:
        (_few if product.share <= FEW else _tiles)(self, product)


@dataclass(frozen=True, slots=True)
class _Product:
    """ends: of experts, the row each one's end before; sources: see `Ops.grouped_linear`."""

    x: Tensor
    weight: Bricks
    bias: Tensor | None
    out: Tensor
    ends: Tensor | None = None
    sources: Tensor | None = None

    @property
    def experts(self) -> int:
        """0: one matrix for all rows."""
        return 0 if self.ends is None else len(self.ends)

    @property
    def share(self) -> int:
        """The rows of a matrix, if experts have rows evenly."""
        return -(-len(self.out) // max(min(self.experts, len(self.out)), 1))

    def tiles(self, height: int) -> int:
        """The most that there can be."""
        return row_tiles(len(self.out), max(self.experts, 1), height)


@dataclass(frozen=True, slots=True)
class Few:
    """`linear_few` for up to 8 or 16 rows."""

    source: Source
    rows: int
    across: int  # warps of a block: for 64 outputs each, and along the inputs
    along: int
    resident: int  # blocks that a multiprocessor has room for
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """`linear_tiles` for so many rows a tile."""

    source: Source
    rows: int
    stages: int
    shared_bytes: int


@cache
def few_kernel(dtype: torch.dtype, kind: Kind, wide: bool, experts: int = 0) -> Few:
    """wide: for more than 8 rows of a matrix. Those are read by two warps from one cache, and where scales are groups'
    take the registers of a second block. Minima take those of a quarter of the warps."""
    if wide:
        tiles, across, along, resident = 2, 2, 4, 2 if kind.group == 0 else 1
    else:
        tiles, across, along, resident = (1, 1, 4, 3) if _zeros(kind) == "MINIMA" else (1, 1, 8, 2)
    source = _source(
        "linear_few", dtype, kind, experts, TILES=tiles, WARPS_N=across, WARPS_K=along, AHEAD=AHEAD, RESIDENT=resident
    )
    return Few(source, 8 * tiles, across, along, resident, across * along * 8 * tiles * SUMS * 4)


@cache
def tiles_kernel(dtype: torch.dtype, kind: Kind, rows: int, shared_bytes: int, experts: int = 0) -> Tiles:
    """As many stages as two blocks of a multiprocessor have room for; where that are not three, as one has."""
    stage = _stage_bytes(kind, rows)
    fitting = [count for count in (4, 3) if RESIDENT * count * stage <= shared_bytes]
    stages = fitting[0] if fitting else 4 if 4 * stage <= shared_bytes else 3
    source = _source("linear_tiles", dtype, kind, experts, TOKENS=rows, WARPS=WARPS, STAGES=stages)
    return Tiles(source, rows, stages, stages * stage)


def _stage_bytes(kind: Kind, rows: int) -> int:
    """Of a brick's inputs in shared memory: x, weights, scales and zeros of a block."""
    groups = 0 if kind.group == 0 else max(BRICK // kind.group, 1)
    of_group = groups * BRICK * (kind.scales.itemsize + (0 if kind.zeros is None else kind.zeros.itemsize))
    return 2 * rows * BRICK + WARPS // 2 * (_brick_bytes(kind) + of_group)


def _source(name: str, dtype: torch.dtype, kind: Kind, experts: int, **constants: int) -> Source:
    return Source.of(
        name, T=DTYPES[dtype], FORM=kind.form, GROUP=kind.group, SCALE=DTYPES[kind.scales], ZEROS=_zeros(kind),
        SEARCHED=-(-experts // LANES), **constants,
    )  # fmt: skip


def _zeros(kind: Kind) -> str:
    return "NO_ZEROS" if kind.zeros is None else "POINTS" if kind.zeros == torch.uint8 else "MINIMA"


def _few(linears: Linears, product: _Product) -> None:
    weight = product.weight
    kernel = few_kernel(product.x.dtype, weight.kind, product.share > 8, product.experts)
    blocks = -(-_count(weight.outputs) // kernel.across)
    tiles = product.tiles(kernel.rows) if product.experts else 1
    units = _count(weight.inputs) * _brick_bytes(weight.kind) // UNIT_BYTES
    splits = _splits(kernel.resident * linears.device.processors, blocks * tiles, units // (AHEAD * kernel.along))
    params, kept = _params(linears, product, splits)
    threads = 32 * kernel.across * kernel.along
    linears.device.kernel(kernel.source)((blocks, splits, tiles), threads, params, kernel.shared_bytes)
    del kept


def _tiles(linears: Linears, product: _Product) -> None:
    weight, rows = product.weight, WIDE if product.share > WIDE // 2 else WIDE // 2
    kernel = tiles_kernel(product.x.dtype, weight.kind, rows, linears.device.shared_bytes, product.experts)
    tiles, blocks = product.tiles(rows), -(-_count(weight.outputs) // (WARPS // 2))
    most = _count(weight.inputs) // (2 * kernel.stages)
    splits = _splits(RESIDENT * linears.device.processors, tiles * blocks, most)
    params, kept = _params(linears, product, splits)
    linears.device.kernel(kernel.source)((tiles, blocks, splits), 32 * WARPS, params, kernel.shared_bytes)
    del kept


def _splits(room: int, blocks: int, most: int) -> int:
    """Parts of the inputs, so that blocks fill the room on all multiprocessors, and each has something to do."""
    return max(min(room // blocks, most, MOST_SPLITS), 1)


def _params(linears: Linears, product: _Product, splits: int) -> tuple[Linear, Tensor | None]:
    """And what must live until the launch."""
    x, weight, out = product.x, product.weight, product.out
    partial = None
    if splits > 1:
        size = (splits, len(out), _count(weight.outputs) * BRICK)
        partial = torch.empty(size, dtype=torch.float32, device=x.device)
    params = Linear(
        x=x.data_ptr(),
        packed=weight.packed.data_ptr(),
        scales=weight.scales.data_ptr(),
        zeros=_address(weight.zeros),
        bias=_address(product.bias),
        out=out.data_ptr(),
        partial=_address(partial),
        counters=linears.counters.data_ptr(),
        ends=_address(product.ends),
        sources=_address(product.sources),
        stride=x.stride(0),
        rows=len(out),
        inputs=weight.inputs,
        outputs=weight.outputs,
        splits=splits,
        experts=product.experts,
    )
    return params, partial


def _aligned(rows: Tensor) -> Tensor:
    """[rows, inputs] as kernels load them."""
    loaded = rows.stride(1) == 1 and rows.stride(0) % 8 == 0 and rows.data_ptr() % 16 == 0
    return rows if loaded else rows.contiguous()


def _bias(bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if bias is None else bias.to(dtype).contiguous()


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _count(size: int) -> int:
    return -(-size // BRICK)


def _brick_bytes(kind: Kind) -> int:
    return BRICK * BRICK // (2 if kind.form in FOUR_BITS else 1)
