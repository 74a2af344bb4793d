"""Attention to an encoder's input in plain torch: keys and values lie in the paged cache, and nothing is masked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from textgen.ops.interface import AttentionForm, CrossLayout, KvScales, SegmentLayout
from textgen.ops.reference_attention import PagedAttention


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One segment of several tokens."""

    tokens: slice
    rows: Tensor  # [context] rows of the cache


class CrossAttention:
    """See `Attention`; key and value are not used but for their shapes. Only plain forms of floats are known."""

    def __init__(self, layout: CrossLayout, device: torch.device) -> None:
        alone = np.flatnonzero(layout.lengths == 1)
        several = np.flatnonzero(layout.lengths > 1)
        self._count = int(layout.lengths.sum())
        self._single: PagedAttention | None = None
        self._alone: Tensor | None = None  # index of the single tokens; None where there are no others
        if alone.size:
            # Who stands behind the last token of an input sees all of it.
            ones, at = np.ones(len(alone), np.int64), np.arange(len(alone))
            behind = SegmentLayout(at, layout.contexts[alone] - 1, ones, layout.tables[alone], layout.block_size)
            self._single = PagedAttention(behind, None, device)
            if several.size:
                self._alone = torch.from_numpy(layout.offsets[alone]).to(device)
        self._chunks = [_chunk(layout, int(index), device) for index in several]

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
        if self._single is not None and not self._chunks:
            return self._single(query, key, value, keys, values, form)
        out = torch.empty((self._count, query.shape[1], value.shape[-1]), dtype=query.dtype, device=query.device)
        if self._single is not None and self._alone is not None:
            mine = query.index_select(0, self._alone)
            attended = self._single(mine, key, value, keys, values, form)
            out.index_copy_(0, self._alone, attended.view(len(mine), *out.shape[1:]))
        keys, values = keys.view(-1, *keys.shape[2:]), values.view(-1, *values.shape[2:])
        for chunk in self._chunks:
            k, v = keys.index_select(0, chunk.rows), values.index_select(0, chunk.rows)
            out[chunk.tokens] = _attend(query[chunk.tokens], k, v, form)
        return out.view(self._count, -1)


def _chunk(layout: CrossLayout, index: int, device: torch.device) -> _Chunk:
    offset, length, context = (int(column[index]) for column in (layout.offsets, layout.lengths, layout.contexts))
    blocks, within = np.divmod(np.arange(context), layout.block_size)
    rows = layout.tables[index, blocks].astype(np.int64) * layout.block_size + within
    return _Chunk(slice(offset, offset + length), torch.from_numpy(rows).to(device))


def _attend(query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
    """[tokens, heads, dim] for the tokens of one segment."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query, key, value))
    grouped = query.shape[1] != key.shape[1]
    return scaled_dot_product_attention(q, k, v, scale=form.scale, enable_gqa=grouped)[0].transpose(0, 1)
