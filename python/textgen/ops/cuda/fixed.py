"""Attention of single tokens whose tables and positions lie on the device already: the form that CUDA graphs replay.

What a kernel's launch has as numbers is fixed: how many tokens there are, and the longest context that they may have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from textgen.ops.cuda.attention import CudaAttention, Work
from textgen.ops.cuda.device import Device
from textgen.ops.interface import AttentionForm, KvScales, SegmentLayout


class NotFixed(Exception):
    """What a model asks for depends on numbers that only the host has; such steps are not captured."""


@dataclass(frozen=True, slots=True)
class FixedTokens:
    """Single tokens on the device."""

    tables: Tensor  # [tokens, blocks] int32
    work: Tensor  # [tokens, 4] int32: its row of the tables, the token, 1, its position
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
        kernel = self._kernel(query, keys, values, form, scales)
        if kernel is None:
            raise NotFixed(
                f"no kernel attends with {query.dtype} in {keys.dtype} over heads of {keys.shape[-1]} and "
                f"{values.shape[-1]} numbers"
            )
        return self._attend(kernel, self._aligned(query), keys, values, form, scales)

    def _work_of(self, size: int | None) -> Work:
        longest = self._fixed.longest if self.window is None else min(self._fixed.longest, self.window)
        return Work(self._fixed.work, 0, len(self._fixed.work), 0, longest)
