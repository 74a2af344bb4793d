"""Paged attention by the kernels of `csrc/cuda`: what a step's layout asks of them, worked out once for all layers."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from textgen.ops import reference
from textgen.ops.cuda.device import Device
from textgen.ops.cuda.launches import DTYPES
from textgen.ops.cuda.source import Source
from textgen.ops.cuda.structures import Attention
from textgen.ops.interface import AttentionForm, Ints, KvScales, SegmentLayout
from textgen.ops.transfer import upload

DECODE_THREADS = 128
MAX_DIM = 256
MAX_GROUP = 8  # query heads whose sums a thread can hold
MIN_PROMPT = 8  # tokens: a shorter segment's are attended to one by one, its context in parts
TILE_ROWS = 64  # tokens times query heads of a block
MAX_TILE_GROUP = 16  # of them query heads
MIN_CHUNK = 256  # positions: less is over before it has begun
CHUNK_STEP = 64  # positions of a part are a multiple of it
MAX_SPLITS = 64
WAVES = 4  # blocks for each multiprocessor, before a context is cut no further


class CudaAttention:
    """See `Attention`. `window` counts the tokens a token sees, itself included."""

    def __init__(
        self, device: Device, layout: SegmentLayout, window: int | None, like: Tensor, chunk: int | None = None
    ) -> None:
        """chunk: contexts are cut into parts of so many positions, whatever else is in the step; None: as suits it."""
        self.layout, self.window, self._device, self._like, self._chunk = layout, window, device, like, chunk
        self._work: dict[int, Tensor] = {}  # by how many tokens: those of short segments, or all
        self._tile_work: dict[int, Tensor] = {}  # by the tokens of a tile

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
        if scales is not None or not self._takes(query, keys, values, form):
            plain = reference.attention(self.layout, self.window, self._like)
            return plain(query, key, value, keys, values, form, scales)
        query = self._aligned(query)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        params = self._params(query, keys, values, form, out)
        if _has_matrices(query):
            self._attend_single(query, form, params, self._single)
            self._attend_tiles(query, form, params)
        else:
            self._attend_single(query, form, params, np.arange(len(query)))
        return out.view(len(out), -1)

    def _takes(self, query: Tensor, keys: Tensor, values: Tensor, form: AttentionForm) -> bool:
        dim, tensors = query.shape[2], (query, keys, values)
        return (
            query.dtype in DTYPES
            and all(self._device.holds(x) and x.dtype == query.dtype and x.shape[-1] == dim for x in tensors)
            and dim <= MAX_DIM
            and dim * query.element_size() % 16 == 0
            and all(x.data_ptr() % 16 == 0 and x.is_contiguous() for x in (keys, values))
        )

    def _params(self, query: Tensor, keys: Tensor, values: Tensor, form: AttentionForm, out: Tensor) -> Attention:
        return Attention(
            query=query.data_ptr(),
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            out=out.data_ptr(),
            tables=self._tables.data_ptr(),
            slopes=_address(form.slopes),
            biases=_address(form.biases),
            sinks=_address(form.sinks),
            query_stride=query.stride(0),
            table_stride=self._tables.stride(0),
            heads=query.shape[1],
            kv_heads=keys.shape[2],
            window=self.window or 0,
            distances=0 if form.biases is None else form.biases.shape[1],
            scale=form.scale,
            soft_cap=form.soft_cap or 0.0,
        )

    def _attend_single(self, query: Tensor, form: AttentionForm, params: Attention, tokens: Ints) -> None:
        """Each of the tokens on its own."""
        if not len(tokens):
            return
        groups, group = _groups(params, MAX_GROUP)
        across = params.kv_heads * groups
        splits, chunk = self._splits(len(tokens) * across)
        shape = (len(tokens), params.heads, splits) if splits > 1 else (0,)
        partial = query.new_empty((*shape, query.shape[2]), dtype=torch.float32)
        state = query.new_empty((*shape, 2), dtype=torch.float32)
        params.work = self._work_of(tokens).data_ptr()
        params.partial, params.state = partial.data_ptr(), state.data_ptr()
        params.splits, params.chunk = splits, chunk
        source = decode_source(query, form, self.layout.block_size, group)
        self._device.kernel(source)((len(tokens), across, splits), DECODE_THREADS, params)
        if splits > 1:
            self._device.kernel(source, "attention_combine")((len(tokens), params.heads, 1), DECODE_THREADS, params)

    def _attend_tiles(self, query: Tensor, form: AttentionForm, params: Attention) -> None:
        """Segments of several tokens, as many of them together as a block takes."""
        groups, group = _groups(params, MAX_TILE_GROUP)
        tiles = self._tiles(TILE_ROWS // group)
        if not len(tiles):
            return
        params.work = tiles.data_ptr()
        source = prompt_source(query, form, self.layout.block_size, group)
        grid = (len(tiles), params.kv_heads * groups, 1)
        self._device.kernel(source)(grid, 2 * TILE_ROWS, params, prompt_shared_bytes(query))

    def _splits(self, blocks: int) -> tuple[int, int]:
        """Into how many parts the contexts are cut, and how many positions a part has, if there are so many blocks."""
        longest = self._longest
        if self._chunk is not None:  # parts that a context has not add nothing
            return -(-longest // self._chunk), self._chunk
        wanted = -(-self._device.processors * WAVES // blocks)
        splits = max(min(wanted, MAX_SPLITS, -(-longest // MIN_CHUNK)), 1)
        chunk = -(-longest // (splits * CHUNK_STEP)) * CHUNK_STEP
        return -(-longest // chunk), chunk

    @cached_property
    def _longest(self) -> int:
        longest = int(self.layout.ends.max())
        return longest if self.window is None else min(longest, self.window)

    @cached_property
    def _tables(self) -> Tensor:
        return self._to_device(np.ascontiguousarray(self.layout.tables))

    @cached_property
    def _single(self) -> Ints:
        """Tokens of segments that are too short for tiles."""
        return np.flatnonzero(self._alone[self._segments])

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

    def _work_of(self, tokens: Ints) -> Tensor:
        """[n, 3] int32: the token, its row of the tables, its position."""
        if len(tokens) not in self._work:
            layout, segments = self.layout, self._segments[tokens]
            positions = layout.starts[segments] + tokens - layout.offsets[segments]
            columns = np.stack((tokens, segments, positions), axis=1)
            self._work[len(tokens)] = self._to_device(columns.astype(np.int32))
        return self._work[len(tokens)]

    def _tiles(self, size: int) -> Tensor:
        """[tiles, 4] int32: row of the tables, first token, how many (up to `size`), position of the first; those with
        the longest contexts first, lest one is left over at the end."""
        if size not in self._tile_work:
            layout, tiles = self.layout, []
            for segment in np.flatnonzero(~self._alone):
                begins = np.arange(0, layout.lengths[segment], size)
                counts = np.minimum(layout.lengths[segment] - begins, size)
                first = np.full_like(begins, segment)
                columns = (first, layout.offsets[segment] + begins, counts, layout.starts[segment] + begins)
                tiles.append(np.stack(columns, axis=1))
            rows = np.concatenate(tiles) if tiles else np.empty((0, 4), np.int64)
            self._tile_work[size] = self._to_device(rows[np.argsort(-rows[:, 3])].astype(np.int32))
        return self._tile_work[size]

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


def decode_source(query: Tensor, form: AttentionForm, block_size: int, group: int) -> Source:
    """The kernel of single tokens for heads of the query's size and dtype, `group` of which share what they read."""
    wide = group > 4 or query.shape[2] * query.element_size() % 128 != 0  # lanes without work cost registers too
    return Source.of("attention_decode", UNROLL=2 if wide else 4, **_constants(query, form, block_size, group))


def prompt_source(query: Tensor, form: AttentionForm, block_size: int, group: int) -> Source:
    """The kernel of prompt chunks for heads of the query's size and dtype, `group` of which share what they read."""
    return Source.of(
        "attention_prompt",
        ROWS=TILE_ROWS,
        KEYS=_tile_keys(query.shape[2]),
        **_constants(query, form, block_size, group),
    )


def prompt_shared_bytes(query: Tensor) -> int:
    """Dynamic shared memory of that kernel: the queries, and two tiles each of keys and values."""
    dim = query.shape[2]
    return (TILE_ROWS + 4 * _tile_keys(dim)) * (dim + 8) * query.element_size()


def _tile_keys(dim: int) -> int:
    """Positions of a tile: as many as leave room for a second block on a multiprocessor."""
    return 64 if dim <= 64 else 32 if dim <= 128 else 16


def _constants(query: Tensor, form: AttentionForm, block_size: int, group: int) -> dict[str, str | int]:
    return {
        "T": DTYPES[query.dtype],
        "DIM": query.shape[2],
        "BLOCK_SIZE": block_size,
        "GROUP": group,
        "SOFT_CAP": int(form.soft_cap is not None),
        "SLOPES": int(form.slopes is not None),
        "BIASES": int(form.biases is not None),
    }


def _groups(params: Attention, largest: int) -> tuple[int, int]:
    """Into how many groups the query heads of a kv head are divided, and how many heads a group has."""
    share = params.heads // params.kv_heads
    groups = -(-share // largest)
    return groups, -(-share // groups)


def _has_matrices(query: Tensor) -> bool:
    """Whether tensor cores take such heads."""
    return query.element_size() == 2 and query.shape[2] % 16 == 0


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
