"""The tokens of a step that logits are wanted of: the last layer works on no others behind its cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from textgen.ops.interface import Attention, AttentionForm, Ints, KvScales, Ops, SegmentLayout
from textgen.ops.transfer import upload


@dataclass(frozen=True, slots=True)
class Outputs:
    """Of each segment its last tokens, or none of it; one token at least."""

    counts: Ints  # [segments] how many
    rows: Tensor  # [outputs] int64, their places in the packed batch
    attention: Attention  # theirs alone, one behind the other, in the last layer

    def take(self, x: Tensor) -> Tensor:
        """[outputs, ...] of x [tokens, ...]."""
        return x.index_select(0, self.rows)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keys: Tensor,
        values: Tensor,
        form: AttentionForm,
        scales: KvScales | None = None,
    ) -> Tensor:
        """As `Attention`, of what all tokens have; returns [outputs, heads * value_dim]."""
        query, key, value = (self.take(each) for each in (query, key, value))
        return self.attention(query, key, value, keys, values, form, scales)


def outputs_of(counts: Ints, layout: SegmentLayout, window: int | None, ops: Ops, like: Tensor) -> Outputs:
    """Of each segment its last `counts` [segments] tokens. layout, window: of the last layer."""
    some = counts > 0
    offsets = np.cumsum(counts) - counts
    rows = np.repeat(layout.offsets + layout.lengths - counts - offsets, counts) + np.arange(int(counts.sum()))
    own = SegmentLayout(
        offsets=offsets[some],
        starts=(layout.ends - counts)[some],
        lengths=counts[some],
        tables=layout.tables[some],
        block_size=layout.block_size,
        drawn=None if layout.drawn is None else layout.drawn[some],
    )
    return Outputs(counts, upload(rows, like.device), ops.attention(own, window, like))
