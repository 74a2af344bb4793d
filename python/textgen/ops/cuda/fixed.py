"""Attention of single tokens whose tables and positions lie on the device already: the form that CUDA graphs replay.

What a kernel's launch has as numbers is fixed: how many tokens there are, and the longest context that they may have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from textgen.ops.cuda.attention import CudaAttention
from textgen.ops.cuda.device import Device
from textgen.ops.interface import AttentionForm, Ints, KvScales, SegmentLayout


class NotFixed(Exception):
    """What a model asks for depends on numbers that only the host has; such steps are not captured."""


@dataclass(frozen=True, slots=True)
class FixedTokens:
    """Single tokens on the device."""

    tables: Tensor  # [tokens, blocks] int32
    work: Tensor  # [tokens, 3] int32: the token, its row of the tables, its position
    longest: int  # positions that a context has at most
    block_size: int
    chunk: int | None = None  # see `CudaAttention`


class FixedAttention(CudaAttention):
    """See `Attention`. Raises `NotFixed` where the kernel does not take what a layer has."""

    def __init__(self, device: Device, fixed: FixedTokens, window: int | None, like: Tensor) -> None:
        nothing = np.zeros(0, np.int64)
        layout = SegmentLayout(nothing, nothing, nothing, np.zeros((0, 0), np.int32), fixed.block_size)
        super().__init__(device, layout, window, like, fixed.chunk)
        self._fixed = fixed
        self._longest = fixed.longest if window is None else min(fixed.longest, window)
        self._tables = fixed.tables

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
            raise NotFixed(f"no kernel attends in {keys.dtype} over heads of {keys.shape[-1]} and {values.shape[-1]}")
        query = self._aligned(query)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        params = self._params(query, keys, values, form, out)
        self._attend_single(query, form, params, np.arange(len(query)))
        return out.view(len(out), -1)

    def _work_of(self, tokens: Ints) -> Tensor:
        return self._fixed.work
