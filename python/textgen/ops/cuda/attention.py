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
from textgen.ops.interface import AttentionForm, SegmentLayout

THREADS = 128
MAX_DIM = 256
MAX_GROUP = 8  # query heads whose sums a thread can hold
MIN_CHUNK = 256  # positions: less is over before it has begun
CHUNK_STEP = 64  # positions of a part are a multiple of it
MAX_SPLITS = 64
WAVES = 4  # blocks for each multiprocessor, before a context is cut no further


class CudaAttention:
    """See `Attention`. `window` counts the tokens a token sees, itself included."""

    def __init__(self, device: Device, layout: SegmentLayout, window: int | None, like: Tensor) -> None:
        self.layout, self.window, self._device, self._like = layout, window, device, like

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, form: AttentionForm
    ) -> Tensor:
        if not self._takes(query, keys, values, form):
            return reference.attention(self.layout, self.window, self._like)(query, key, value, keys, values, form)
        query = _aligned(query)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        self._attend_tokens(query, keys, values, form, out)
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

    def _attend_tokens(self, query: Tensor, keys: Tensor, values: Tensor, form: AttentionForm, out: Tensor) -> None:
        """Each token on its own."""
        tokens, heads, dim = query.shape
        share = heads // keys.shape[2]
        groups = -(-share // MAX_GROUP)
        across = keys.shape[2] * groups
        splits, chunk = self._splits(tokens * across)
        source = decode_source(query, form, self.layout.block_size, -(-share // groups))
        partial = query.new_empty((tokens, heads, splits, dim) if splits > 1 else 0, dtype=torch.float32)
        state = query.new_empty((tokens, heads, splits, 2) if splits > 1 else 0, dtype=torch.float32)
        params = Attention(
            query=query.data_ptr(),
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            out=out.data_ptr(),
            tables=self._tables.data_ptr(),
            work=self._work.data_ptr(),
            slopes=_address(form.slopes),
            biases=_address(form.biases),
            sinks=_address(form.sinks),
            partial=partial.data_ptr(),
            state=state.data_ptr(),
            query_stride=query.stride(0),
            table_stride=self._tables.stride(0),
            heads=heads,
            kv_heads=keys.shape[2],
            splits=splits,
            chunk=chunk,
            window=self.window or 0,
            distances=0 if form.biases is None else form.biases.shape[1],
            scale=form.scale,
            soft_cap=form.soft_cap or 0.0,
        )
        self._device.kernel(source)((tokens, across, splits), THREADS, params)
        if splits > 1:
            self._device.kernel(source, "attention_combine")((tokens, heads, 1), THREADS, params)

    def _splits(self, blocks: int) -> tuple[int, int]:
        """Into how many parts the contexts are cut, and how many positions a part has, if there are so many blocks."""
        longest = self._longest
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
    def _work(self) -> Tensor:
        """[tokens, 2] int32: the row of the tables, the position; segments lie one behind the other."""
        layout = self.layout
        segments = np.repeat(np.arange(len(layout.lengths)), layout.lengths)
        within = np.arange(len(segments)) - layout.offsets[segments]
        order = np.argsort(layout.offsets[segments] + within)
        return self._to_device(np.stack((segments, layout.starts[segments] + within), axis=1)[order].astype(np.int32))

    def _to_device(self, values: NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(values).to(self._like.device)


def decode_source(query: Tensor, form: AttentionForm, block_size: int, group: int) -> Source:
    """The kernel of single tokens for heads of the query's size and dtype, `group` of which share what they read."""
    wide = group > 4 or query.shape[2] * query.element_size() % 128 != 0  # lanes without work cost registers too
    return Source.of(
        "attention_decode",
        T=DTYPES[query.dtype],
        DIM=query.shape[2],
        BLOCK_SIZE=block_size,
        GROUP=group,
        UNROLL=2 if wide else 4,
        SOFT_CAP=int(form.soft_cap is not None),
        SLOPES=int(form.slopes is not None),
        BIASES=int(form.biases is not None),
    )


def _aligned(query: Tensor) -> Tensor:
    """[tokens, heads, dim], its heads one behind the other tokens at multiples of 16 bytes: itself, or a copy."""
    _, by_head, by_number = query.stride()
    fits = by_number == 1 and by_head == query.shape[2] and query.stride(0) * query.element_size() % 16 == 0
    return query if fits and query.data_ptr() % 16 == 0 else query.clone(memory_format=torch.contiguous_format)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
