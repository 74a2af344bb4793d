"""Which kernel of paged attention takes a layer, what it is compiled for, and what a block of it takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from textgen.ops.cuda.launches import DTYPES, NARROW, STORED
from textgen.ops.cuda.source import Source
from textgen.ops.interface import AttentionForm, KvScales

MAX_DIM = 256
THREADS = 128
TILE_ROWS = 64  # tokens times query heads of a block
MATRIX = 16  # rows of a warp's matrices
LATENT_KEYS = 32  # positions of a tile
LATENT_PARTS = 4  # warps that share the rows of a matrix
MAX_GROUP = {4: 8, 2: 8, 1: 4}  # query heads whose sums a thread can hold, by the bytes of a cached number


@dataclass(frozen=True, slots=True)
class Shape:
    """What a layer attends with, as far as kernels differ by it."""

    dtype: torch.dtype  # of queries and results
    stored: torch.dtype  # of the cache
    dim: int
    value_dim: int
    share: int  # query heads of a kv head
    block_size: int
    soft_cap: bool
    slopes: bool
    biases: bool
    latent: bool = False  # values are the first numbers of the keys


@dataclass(frozen=True)
class AttentionKernel:
    """A block takes up to `group` query heads of a kv head, of a single token or, where it takes tiles, of several."""

    shape: Shape
    name: str
    group: int
    constants: tuple[tuple[str, str | int], ...] = ()
    tile_tokens: int | None = None  # None: each token is on its own
    threads: int = THREADS
    shared_bytes: int = 0  # dynamic ones

    @property
    def groups(self) -> int:
        """Blocks that share the query heads of a kv head."""
        return -(-self.shape.share // self.group)

    @cached_property
    def source(self) -> Source:
        """The kernel."""
        return self._source(self.name, **dict(self.constants))

    @cached_property
    def combine(self) -> Source:
        """What joins the parts of contexts."""
        return self._source("attention_combine")

    def _source(self, name: str, **constants: str | int) -> Source:
        shape = self.shape
        return Source.of(
            name,
            T=DTYPES[shape.dtype],
            STORED=STORED[shape.stored],
            DIM=shape.dim,
            VALUE_DIM=shape.value_dim,
            BLOCK_SIZE=shape.block_size,
            GROUP=self.group,
            SOFT_CAP=int(shape.soft_cap),
            SLOPES=int(shape.slopes),
            BIASES=int(shape.biases),
            **constants,
        )


def shape_of(query: Tensor, keys: Tensor, values: Tensor, form: AttentionForm, block_size: int) -> Shape:
    """query [tokens, heads, dim]; keys, values [blocks, block_size, kv_heads, dim or value_dim]."""
    return Shape(
        query.dtype,
        keys.dtype,
        query.shape[2],
        values.shape[3],
        query.shape[1] // keys.shape[2],
        block_size,
        form.soft_cap is not None,
        form.slopes is not None,
        form.biases is not None,
        _in_keys(keys, values),
    )


def _in_keys(keys: Tensor, values: Tensor) -> bool:
    same = values.data_ptr() == keys.data_ptr() and values.stride() == keys.stride()
    return same and values.shape[3] < keys.shape[3]


def takes(keys: Tensor, values: Tensor, scales: KvScales | None) -> bool:
    """Whether kernels can read such a cache."""
    if keys.dtype != values.dtype or (scales is not None) != (keys.dtype == torch.int8):
        return False
    stored = (keys,) if _in_keys(keys, values) else (keys, values)
    aligned = all(x.data_ptr() % 16 == 0 for x in stored)
    return aligned and all(x.is_contiguous() for x in (*stored, *(scales or ())))


@cache
def kernel_for(shape: Shape, shared_bytes: int) -> AttentionKernel | None:
    """The kernel; None: there is none. shared_bytes: the most that a block may have."""
    size = shape.stored.itemsize
    known = shape.dtype in DTYPES and (shape.stored == shape.dtype or shape.stored in NARROW)
    if known and shape.latent:
        return _latent(shape, shared_bytes)
    if not known or shape.dim != shape.value_dim or shape.dim > MAX_DIM or shape.dim * size % 16:
        return None
    if shape.dtype.itemsize == 2 and shape.dim % MATRIX == 0:
        return _tiles(shape)
    group = _group(shape.share, MAX_GROUP[size])
    wide = group > 4 or size == 1 or shape.dim * size % 128 != 0  # lanes without work cost registers too
    return AttentionKernel(shape, "attention_decode", group, (("UNROLL", 2 if wide else 4),))


def _tiles(shape: Shape) -> AttentionKernel:
    """The tensor cores', for prompt chunks and single tokens."""
    dim, group = shape.dim, _group(shape.share, MATRIX)
    keys = 64 if dim <= 64 else 32 if dim <= 128 else 16  # as many as leave room for a second block beside this one
    row = (dim + 8) * 2  # of 16-bit numbers in shared memory
    if shape.stored in NARROW:
        chunk = TILE_ROWS * row + 2 * keys * (dim + 4 + row)
        single = MATRIX * row + THREADS // 32 * MATRIX * (2 * (dim + 4) + row)
    else:
        chunk = TILE_ROWS * row + 4 * keys * row
        single = MATRIX * row + THREADS // 32 * MATRIX * 2 * row
    needed = max(chunk, single, THREADS // 32 * group * (dim + 2) * 4)
    constants = (("ROWS", TILE_ROWS), ("KEYS", keys), ("SHARED_BYTES", needed))
    return AttentionKernel(shape, "attention_tiles", group, constants, TILE_ROWS // group, 2 * TILE_ROWS, needed)


def _latent(shape: Shape, shared_bytes: int) -> AttentionKernel | None:
    """The tensor cores', where keys have their values in them: with as many rows as there are heads and room for."""
    if shape.dtype.itemsize != 2 or shape.dim % 32 or shape.value_dim % (16 * LATENT_PARTS):
        return None
    row = (shape.dim + 8) * 2  # of 16-bit numbers in shared memory
    tile = LATENT_KEYS * row
    tiles = tile + (LATENT_KEYS * (shape.dim + 4) if shape.stored in NARROW else tile)
    for rows in (2 * MATRIX, MATRIX):
        needed = rows * row + tiles + rows * (LATENT_KEYS + 8) * 2 + 2 * rows * LATENT_PARTS * 4
        if needed <= shared_bytes and (shape.share > MATRIX or rows == MATRIX):
            group, threads = _group(shape.share, rows), rows // MATRIX * LATENT_PARTS * 32
            constants = (("ROWS", rows), ("SHARED_BYTES", needed))
            return AttentionKernel(shape, "attention_latent", group, constants, rows // group, threads, needed)
    return None


def _group(share: int, largest: int) -> int:
    """Query heads of a block, where `share` of them have a kv head."""
    return -(-share // -(-share // largest))
