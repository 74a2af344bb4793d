"""Attention by the package `flash_attn` (FA2) or `flash_attn_interface` (FA3), if somebody installed it; every other
operation stays with the kernels of `csrc/cuda`.

Both read the paged cache by block tables. FA2 takes pages of 256 positions and multiples of it, FA3 of any size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from textgen.ops.cuda.attention import CudaAttention
from textgen.ops.cuda.device import Device
from textgen.ops.cuda.ops import CudaOps
from textgen.ops.interface import Attention, AttentionForm, KvScales, SegmentLayout
from textgen.ops.transfer import upload

FA2_PAGE = 256
MAX_DIM = 256
HALVES = (torch.bfloat16, torch.float16)


class FlashMissing(Exception):
    """flash-attn cannot be used here; the message says what to change."""


class Flash(Protocol):
    """A version of the package, behind one call."""

    @property
    def takes_slopes(self) -> bool: ...

    def attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        tables: Tensor,
        starts: Tensor,
        lengths: Tensor,
        longest: tuple[int, int],
        window: int | None,
        form: AttentionForm,
    ) -> Tensor:
        """query [tokens, heads, dim]; keys, values [pages, page size, kv_heads, dim]; tables [n, pages] int32; starts
        [n + 1] int32, where each segment's tokens begin; lengths [n] int32, of the contexts with the segments; longest:
        segment and context. Returns [tokens, heads, dim]."""
        ...


def find_flash(block_size: int, dtype: torch.dtype) -> Flash:
    """FA3 where it is installed, else FA2. Raises `FlashMissing`."""
    if dtype not in HALVES:
        raise FlashMissing("--attention flash-attn takes bfloat16 and float16; give --dtype, or another --attention")
    try:
        return _Third(import_module("flash_attn_interface").flash_attn_with_kvcache)
    except (ImportError, AttributeError):
        pass
    try:
        function = import_module("flash_attn").flash_attn_varlen_func
    except (ImportError, AttributeError) as error:
        raise FlashMissing(
            f"--attention flash-attn: flash_attn is not there ({error}); pip install flash-attn, "
            "or use --attention native"
        ) from None
    if block_size % FA2_PAGE:
        raise FlashMissing(
            f"--attention flash-attn: flash_attn 2 takes blocks of {FA2_PAGE} positions, not of {block_size}; give "
            f"--block-size {FA2_PAGE}, or use --attention native"
        )
    return _Second(function)


@dataclass(frozen=True, slots=True)
class _Second:
    function: Callable[..., Any]  # flash_attn.flash_attn_varlen_func
    takes_slopes: bool = True

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, *, tables: Tensor, starts: Tensor, lengths: Tensor,
        longest: tuple[int, int], window: int | None, form: AttentionForm,
    ) -> Tensor:  # fmt: skip
        ends = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        out: Tensor = self.function(
            query, keys, values, starts, ends, *longest,
            softmax_scale=form.scale, causal=True, window_size=_sides(window), softcap=form.soft_cap or 0.0,
            alibi_slopes=form.slopes, block_table=tables,
        )  # fmt: skip
        return out


@dataclass(frozen=True, slots=True)
class _Third:
    function: Callable[..., Any]  # flash_attn_interface.flash_attn_with_kvcache
    takes_slopes: bool = False

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, *, tables: Tensor, starts: Tensor, lengths: Tensor,
        longest: tuple[int, int], window: int | None, form: AttentionForm,
    ) -> Tensor:  # fmt: skip
        out: Tensor = self.function(
            query, keys, values, cache_seqlens=lengths, page_table=tables, cu_seqlens_q=starts,
            max_seqlen_q=longest[0], softmax_scale=form.scale, causal=True, window_size=_sides(window),
            softcap=form.soft_cap or 0.0,
        )  # fmt: skip
        return out


def _sides(window: int | None) -> tuple[int, int]:
    """How many positions before and behind a token it sees beside itself; -1: all."""
    return (-1, -1) if window is None else (window - 1, 0)


class FlashAttention:
    """See `Attention`; what the package has not (sinks, biases by distance, heads of other sizes) is the kernels'."""

    def __init__(self, flash: Flash, native: CudaAttention, like: Tensor) -> None:
        self._flash, self._native, self._like = flash, native, like

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
            return self._native(query, key, value, keys, values, form, scales)
        layout, (tables, starts, lengths) = self._native.layout, self._columns
        out = self._flash.attend(
            query,
            keys,
            values,
            tables=tables,
            starts=starts,
            lengths=lengths,
            longest=(int(layout.lengths.max()), int(layout.ends.max())),
            window=self._native.window,
            form=form,
        )
        return out.reshape(len(query), -1)

    def _takes(self, query: Tensor, keys: Tensor, values: Tensor, form: AttentionForm) -> bool:
        dim = query.shape[2]
        plain = form.sinks is None and form.biases is None
        plain &= form.slopes is None or self._flash.takes_slopes
        in_order = bool((np.diff(self._native.layout.offsets) > 0).all())
        same = all(x.dtype == query.dtype and x.shape[-1] == dim for x in (keys, values))
        return plain and in_order and same and query.dtype in HALVES and dim <= MAX_DIM and dim % 8 == 0

    @cached_property
    def _columns(self) -> tuple[Tensor, Tensor, Tensor]:
        layout, there = self._native.layout, self._like.device
        starts = np.append(layout.offsets, layout.offsets[-1] + layout.lengths[-1]).astype(np.int32)
        columns = (np.ascontiguousarray(layout.tables), starts, layout.ends.astype(np.int32))
        tables, begins, ends = (upload(column, there) for column in columns)
        return tables, begins, ends


class FlashOps(CudaOps):
    """`CudaOps` whose attention is the package's where it takes what a layer has."""

    def __init__(self, device: Device, flash: Flash) -> None:
        super().__init__(device)
        self._flash = flash

    def attention(self, layout: SegmentLayout, window: int | None, like: Tensor) -> Attention:
        return FlashAttention(self._flash, CudaAttention(self._device, layout, window, like), like)
