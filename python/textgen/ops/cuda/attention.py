"""Paged attention by the kernels of `csrc/cuda`: what a step's layout asks of them, worked out once for all layers."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from textgen.ops import reference
from textgen.ops.cuda.attention_kernels import THREADS, AttentionKernel, kernel_for, shape_of, takes
from textgen.ops.cuda.device import Device
from textgen.ops.cuda.structures import Attention
from textgen.ops.interface import AttentionForm, Ints, KvScales, SegmentLayout
from textgen.ops.transfer import upload

MIN_PROMPT = 8  # tokens: a shorter segment's are attended to one by one, its context in parts
MAX_SPLITS = 64
CHUNK_STEP = 64  # positions of a part are a multiple of it
MIN_CHUNK = 256  # positions of a single token's part: less is over before it has begun
WAVES = 4  # blocks for each multiprocessor, before such contexts are cut no further
MIN_TILE_CHUNK = 1024  # the same of several tokens, whose results are more to put together
TILE_WAVES = 2


class Work(NamedTuple):
    """What there is to attend to: rows of several tokens, then rows of single ones; the longest context of each."""

    rows: Tensor  # [tiles + singles, 4] int32: row of the tables, first token, how many, position of the first
    tiles: int
    singles: int
    tile_longest: int
    longest: int


class CudaAttention:
    """See `Attention`. `window` counts the tokens a token sees, itself included."""

    def __init__(
        self, device: Device, layout: SegmentLayout, window: int | None, like: Tensor, chunk: int | None = None
    ) -> None:
        """chunk: contexts of single tokens are cut into parts of so many positions, others not, whatever is in a step;
        None: as suits it."""
        self.layout, self.window, self._device, self._like, self._chunk = layout, window, device, like, chunk
        self._works: dict[int | None, Work] = {}  # by the tokens of a tile

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keys: Tensor,
        values: Tensor,
        form: AttentionForm,
        scales: KvScales | None = None,
    ) -> Tensor:
        kernel = self._kernel(query, keys, values, form, scales)
        if kernel is None:
            plain = reference.attention(self.layout, self.window, self._like)
            return plain(query, key, value, keys, values, form, scales)
        return self._attend(kernel, self._aligned(query), keys, values, form, scales)

    def _kernel(
        self, query: Tensor, keys: Tensor, values: Tensor, form: AttentionForm, scales: KvScales | None
    ) -> AttentionKernel | None:
        if not all(map(self._device.holds, (query, keys, values))) or not takes(keys, values, scales):
            return None
        return kernel_for(shape_of(query, keys, values, form, self.layout.block_size), self._device.shared_bytes)

    def _attend(
        self,
        kernel: AttentionKernel,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        form: AttentionForm,
        scales: KvScales | None,
    ) -> Tensor:
        """[tokens, heads * value_dim]: all rows of work in one launch, and one more where contexts are in parts."""
        value_dim, heads, kv_heads = kernel.shape.value_dim, query.shape[1], keys.shape[2]
        out = query.new_empty(len(query), heads, value_dim)
        work, across = self._work_of(kernel.tile_tokens), kv_heads * kernel.groups
        blocks, tile_tokens = (work.tiles + work.singles) * across, kernel.tile_tokens or 1
        if self._chunk is None:
            splits, chunk = _parts(work.longest, -(-self._device.processors * WAVES // blocks), MIN_CHUNK)
            tile_splits, tile_chunk = _parts(
                work.tile_longest, self._device.processors * TILE_WAVES // blocks, MIN_TILE_CHUNK
            )
        else:  # parts that a context has not add nothing
            splits, chunk = max(-(-work.longest // self._chunk), 1), self._chunk
            tile_splits, tile_chunk = 1, max(work.tile_longest, 1)
        joined = work.singles * splits if splits > 1 or tile_splits > 1 else 0
        joined += work.tiles * tile_tokens * tile_splits if tile_splits > 1 else 0
        partial = query.new_empty((joined * heads, value_dim), dtype=torch.float32)
        state = query.new_empty((joined * heads, 2), dtype=torch.float32)
        params = Attention(
            query=query.data_ptr(),
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            key_scales=None if scales is None else scales.keys.data_ptr(),
            value_scales=None if scales is None else scales.values.data_ptr(),
            out=out.data_ptr(),
            tables=self._tables.data_ptr(),
            work=work.rows.data_ptr(),
            slopes=_address(form.slopes),
            biases=_address(form.biases),
            sinks=_address(form.sinks),
            partial=partial.data_ptr(),
            state=state.data_ptr(),
            query_stride=query.stride(0),
            table_stride=self._tables.stride(0),
            heads=heads,
            kv_heads=kv_heads,
            tiles=work.tiles,
            singles=work.singles,
            tile_tokens=tile_tokens,
            splits=splits,
            tile_splits=tile_splits,
            chunk=chunk,
            tile_chunk=tile_chunk,
            window=self.window or 0,
            distances=0 if form.biases is None else form.biases.shape[1],
            scale=form.scale,
            soft_cap=form.soft_cap or 0.0,
        )
        grid = (work.tiles + work.singles, across, max(splits, tile_splits))
        self._device.kernel(kernel.source)(grid, kernel.threads, params, kernel.shared_bytes)
        if joined:
            tokens = work.singles + (work.tiles * tile_tokens if tile_splits > 1 else 0)
            self._device.kernel(kernel.combine)((tokens, heads, 1), THREADS, params)
        return out.view(len(out), -1)

    @cached_property
    def _tables(self) -> Tensor:
        return self._to_device(np.ascontiguousarray(self.layout.tables))

    @cached_property
    def _alone(self) -> NDArray[np.bool_]:
        """[segments] whether tiles are not for them: the short ones, or, where bits must not depend on how prompts are
        cut, those that are no prompt."""
        layout = self.layout
        if self._chunk is None:
            return layout.lengths < MIN_PROMPT
        return layout.lengths == 1 if layout.drawn is None else layout.drawn

    @cached_property
    def _segments(self) -> Ints:
        """[tokens] each token's segment."""
        layout = self.layout
        order = np.argsort(layout.offsets, kind="stable")
        return order.repeat(layout.lengths[order])

    def _work_of(self, size: int | None) -> Work:
        """size: tokens of a tile; None: each token is on its own. Tiles with the longest contexts come first, lest one
        is left over at the end."""
        if size not in self._works:
            layout, alone = self.layout, self._alone[self._segments]
            singles = np.flatnonzero(alone) if size is not None else np.arange(len(alone))
            segments = self._segments[singles]
            positions = layout.starts[segments] + singles - layout.offsets[segments]
            tiles = self._tiles(size) if size is not None else np.empty((0, 4), np.int64)
            rows = np.concatenate((tiles, np.stack((segments, singles, np.ones_like(singles), positions), axis=1)))
            longest = self._longest(tiles[:, 2] + tiles[:, 3], size or 1), self._longest(positions + 1, 1)
            self._works[size] = Work(self._to_device(rows.astype(np.int32)), len(tiles), len(singles), *longest)
        return self._works[size]

    def _longest(self, ends: Ints, size: int) -> int:
        """Positions that `size` tokens see at most."""
        longest = int(ends.max(initial=0))
        return longest if self.window is None else min(longest, self.window + size - 1)

    def _tiles(self, size: int) -> Ints:
        """[tiles, 4] of the segments that are long enough."""
        layout, tiles = self.layout, [np.empty((0, 4), np.int64)]
        for segment in np.flatnonzero(~self._alone):
            begins = np.arange(0, layout.lengths[segment], size)
            counts = np.minimum(layout.lengths[segment] - begins, size)
            first = np.full_like(begins, segment)
            columns = (first, layout.offsets[segment] + begins, counts, layout.starts[segment] + begins)
            tiles.append(np.stack(columns, axis=1))
        rows = np.concatenate(tiles)
        longest_first: Ints = rows[np.argsort(-rows[:, 3], kind="stable")]
        return longest_first

    @staticmethod
    def _aligned(query: Tensor) -> Tensor:
        """[tokens, heads, dim], its heads one behind the other tokens at multiples of 16 bytes: itself, or a copy."""
        _, by_head, by_number = query.stride()
        fits = by_number == 1 and by_head == query.shape[2] and query.stride(0) * query.element_size() % 16 == 0
        return query if fits and query.data_ptr() % 16 == 0 else query.clone(memory_format=torch.contiguous_format)

    def _to_device(self, values: NDArray[np.int32]) -> Tensor:
        return upload(values, self._like.device)


def fixed_chunk(max_context: int) -> int:
    """Positions of a part where only the longest context that is served decides."""
    return max(MIN_CHUNK, -(-max_context // (MAX_SPLITS * CHUNK_STEP)) * CHUNK_STEP)


def _parts(longest: int, wanted: int, least: int) -> tuple[int, int]:
    """Into how many parts contexts are cut, and how many positions a part has: `least` or more, but for the last."""
    splits = max(min(wanted, MAX_SPLITS, -(-longest // least)), 1)
    chunk = max(-(-longest // (splits * CHUNK_STEP)), 1) * CHUNK_STEP
    return max(-(-longest // chunk), 1), chunk


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
