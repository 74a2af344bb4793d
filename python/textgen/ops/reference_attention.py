"""Paged attention in plain torch: one-token segments in padded groups, longer ones each on its own.

Which rows of the cache a token sees is worked out once per step; a layer only gathers and attends. Rows are gathered
one by one and padding repeats a row of the same sequence, so that what another sequence left in a block is never read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from textgen.ops.interface import AttentionForm, Ints, KvScales, SegmentLayout
from textgen.ops.reference_scores import attend_with_form
from textgen.ops.transfer import upload
from textgen.quantization.rows import copyable

MIN_GROUP = 64  # contexts shorter than this share a group: padding them costs less than one more call


@dataclass(frozen=True, slots=True)
class _SingleTokens:
    """Segments of one token whose contexts have similar lengths."""

    count: int
    tokens: Tensor | None  # [n] index in the packed batch; None: the group is the batch
    rows: Tensor  # [n * context] rows of the cache
    mask: Tensor | None  # [n, 1, 1, context] True where a row is the token's to see; None when all are
    context: int
    lengths: Tensor  # [n] how many of the rows are real


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One segment of several tokens."""

    tokens: slice
    positions: range  # of its tokens, counted from the first row that is gathered
    rows: Tensor  # [context] rows of the cache
    mask: Tensor | None  # [tokens, context]; None: plainly causal, and the segment is its whole context


class PagedAttention:
    """See `Attention`. `window` counts the tokens a token sees, itself included.

    What it works out of the layout it does when it is first called: a plan takes the layout alone.
    """

    def __init__(self, layout: SegmentLayout, window: int | None, device: torch.device) -> None:
        self.layout, self.window, self._device = layout, window, device

    @cached_property
    def _groups(self) -> list[_SingleTokens]:
        single = np.flatnonzero(self.layout.lengths == 1)
        return [self._single_tokens(group) for group in _similar(self.layout.ends, single, self.window)]

    @cached_property
    def _chunks(self) -> list[_Chunk]:
        return [self._chunk(int(index)) for index in np.flatnonzero(self.layout.lengths != 1)]

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
        tokens, heads = query.shape[:2]
        cached = _Cached(keys, values, scales, query.dtype)
        if len(self._groups) == 1 and self._groups[0].tokens is None:
            return _attend_single(self._groups[0], query, cached, form).view(tokens, -1)
        out = torch.empty((tokens, heads, value.shape[-1]), dtype=query.dtype, device=query.device)
        for group in self._groups:
            if group.tokens is not None:
                mine = query.index_select(0, group.tokens)
                out.index_copy_(0, group.tokens, _attend_single(group, mine, cached, form))
        for chunk in self._chunks:
            own = chunk.tokens
            # Numbers of 8 bits in the cache are not what the segment brings.
            brought = chunk.mask is None and keys.dtype == query.dtype
            k, v = (key[own], value[own]) if brought else cached.rows(chunk.rows)
            if form.is_plain:
                out[own] = _attend_chunk(query[own], k, v, chunk.mask, form.scale)
            else:
                out[own] = self._attend_chunk_with_form(chunk, query[own], k, v, form)
        return out.view(tokens, -1)

    def _attend_chunk_with_form(
        self, chunk: _Chunk, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm
    ) -> Tensor:
        at = torch.arange(chunk.positions.start, chunk.positions.stop, device=self._device)
        return attend_with_form(query[None], key[None], value[None], at[None], self.window, form)[0]

    def _single_tokens(self, group: Ints) -> _SingleTokens:
        ends = self.layout.ends[group]
        begins = np.zeros_like(ends) if self.window is None else np.maximum(ends - self.window, 0)
        lengths = ends - begins
        context = int(lengths.max())
        within = np.arange(context)
        real = within < lengths[:, None]
        positions = begins[:, None] + np.where(real, within, 0)
        mask = None if real.all() else upload(real[:, None, None], self._device)
        return _SingleTokens(
            count=len(group),
            tokens=None if len(group) == len(self.layout.lengths) else self._to_device(self.layout.offsets[group]),
            rows=self._to_device(self._rows(group[:, None], positions).reshape(-1)),
            mask=mask,
            context=context,
            lengths=self._to_device(lengths),
        )

    def _chunk(self, index: int) -> _Chunk:
        layout = self.layout
        offset, start, length = (int(column[index]) for column in (layout.offsets, layout.starts, layout.lengths))
        tokens, end = slice(offset, offset + length), start + length
        if start == 0 and (self.window is None or end <= self.window):
            rows = self._to_device(self._rows(np.int64(index), np.arange(length)))
            return _Chunk(tokens, range(length), rows, mask=None)
        begin = 0 if self.window is None else max(start - self.window + 1, 0)
        of_query = torch.arange(start, end, device=self._device)[:, None]
        of_key = torch.arange(begin, end, device=self._device)
        mask = of_key <= of_query
        if self.window is not None:
            mask &= of_key > of_query - self.window
        rows = self._to_device(self._rows(np.int64(index), np.arange(begin, end)))
        return _Chunk(tokens, range(start - begin, end - begin), rows, mask)

    def _rows(self, segment: Ints | np.int64, positions: Ints) -> Ints:
        blocks, offsets = np.divmod(positions, self.layout.block_size)
        rows: Ints = self.layout.tables[segment, blocks].astype(np.int64) * self.layout.block_size + offsets
        return rows

    def _to_device(self, values: Ints) -> Tensor:
        return upload(values, self._device)


def _similar(ends: Ints, members: Ints, window: int | None) -> list[Ints]:
    """Split the members into groups in which the longest context is at most twice the shortest."""
    if not members.size:
        return []
    contexts = ends[members] if window is None else np.minimum(ends[members], window)
    classes = np.ceil(np.log2(np.maximum(contexts, MIN_GROUP)))
    if classes.min() == classes.max():
        return [members]
    return [members[classes == value] for value in np.unique(classes)]


@dataclass(frozen=True, slots=True)
class _Cached:
    """Keys and values of a layer, read as numbers of a dtype where they have 8 bits."""

    keys: Tensor
    values: Tensor
    scales: KvScales | None
    dtype: torch.dtype

    def rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [rows, kv_heads, dim]."""
        if self.scales is None:
            return _take(self.keys, rows).to(self.dtype), _take(self.values, rows).to(self.dtype)
        key, value = (
            (_take(numbers, rows) * _take(scales, rows)[..., None]).to(self.dtype)
            for numbers, scales in ((self.keys, self.scales.keys), (self.values, self.scales.values))
        )
        return key, value


def _take(stored: Tensor, rows: Tensor) -> Tensor:
    taken = copyable(stored).view(-1, *stored.shape[2:]).index_select(0, rows)
    return taken.view(stored.dtype)


def _attend_single(group: _SingleTokens, query: Tensor, cached: _Cached, form: AttentionForm) -> Tensor:
    """[n, heads, value_dim]. Query heads that share a kv head stand in for a sequence of queries: no repeated KV."""
    _, heads, head_dim = query.shape
    kv_heads = cached.keys.shape[2]
    k, v = (taken.view(group.count, group.context, kv_heads, -1) for taken in cached.rows(group.rows))
    if not form.is_plain:
        return attend_with_form(query[:, None], k, v, group.lengths[:, None] - 1, None, form)[:, 0]
    q = query.view(group.count, kv_heads, heads // kv_heads, head_dim)
    attended = scaled_dot_product_attention(
        q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=group.mask, scale=form.scale
    )
    return attended.reshape(group.count, heads, -1)


def _attend_chunk(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """[tokens, heads, head_dim] for the tokens of one segment."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query, key, value))
    attended = scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    return attended.squeeze(0).transpose(0, 1)
