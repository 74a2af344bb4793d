"""What an implementation of the operations offers; the decoder and the shard call nothing else on the hot path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from textgen.models.spec import Activation, GatedActivation, RouterSpec
from textgen.ops.sampling import SamplingRows

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """Where the segments of a step lie in the packed batch and in the paged cache (on the host)."""

    offsets: Ints  # [n] index of the segment's first token in the packed batch
    starts: Ints  # [n] position of that token in its sequence
    lengths: Ints  # [n] tokens, at least 1
    tables: NDArray[np.int32]  # [n, blocks] block table rows; entries after the sequence's end mean nothing
    block_size: int
    drawn: NDArray[np.bool_] | None = None  # [n] whether its one token was drawn in a step before; None: nobody knows

    @property
    def ends(self) -> Ints:
        """[n] tokens in the sequence once the segment has run."""
        return self.starts + self.lengths


@dataclass(frozen=True, slots=True)
class CrossLayout:
    """Where the segments of a step lie in the packed batch, and where the input that each attends to is cached."""

    offsets: Ints  # [n] index of the segment's first token in the packed batch
    lengths: Ints  # [n] tokens, at least 1
    contexts: Ints  # [n] tokens of the input, at least 1: each token of the segment sees all of them
    tables: NDArray[np.int32]  # [n, blocks] the input's blocks; entries after its end mean nothing
    block_size: int


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """What a layer does to its scores: scale * query · key, then the soft cap, then the biases, then softmax.

    One bias of a head is slope * (key position - query position), another is looked up by how many tokens back the key
    is; the last entry stands for all that are farther. A sink is a score that takes its share of the softmax and gives
    no value.
    """

    scale: float
    soft_cap: float | None = None
    slopes: Tensor | None = None  # [heads] float32
    sinks: Tensor | None = None  # [heads] float32
    biases: Tensor | None = None  # [heads, distances] float32

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing but the scale."""
        return all(part is None for part in (self.soft_cap, self.slopes, self.biases, self.sinks))


class KvScales(NamedTuple):
    """Of keys and values in int8: a scale for each token and head, each [blocks, block_size, kv_heads] float32."""

    keys: Tensor
    values: Tensor


class RowGroups(NamedTuple):
    """Entries sorted by group: a row stands at several places, one for each group that it is in."""

    sources: Tensor  # [rows * share] int32, by place: the row that stands there
    places: Tensor  # [rows, share] int32, where the row's entries stand
    ends: Tensor  # [groups] int32, the place each group ends before


class Attention(Protocol):
    """One step's attention over one window: built once per step, used by every layer with that window."""

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
        """Attend from each token to its own sequence, up to itself.

        query [tokens, heads, head_dim]; key [tokens, kv_heads, head_dim] and value [tokens, kv_heads, value_dim] of the
        step, already in the cache; keys, values [blocks, block_size, kv_heads, head_dim or value_dim].
        scales: where keys and values are int8; each number is then number * scale in the query's dtype. Those in FP8
        have none, and are the same numbers in the query's dtype.
        Returns [tokens, heads * value_dim].
        """
        ...


class Ops(Protocol):
    """The operations of a decoder. `reference` states each; every other implementation equals it."""

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor: ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor | None, eps: float) -> Tensor: ...

    def layer_norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor: ...

    def rotary_table(
        self, positions: Tensor, inverse_frequencies: Tensor, factor: float, like: Tensor
    ) -> tuple[Tensor, Tensor]: ...

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor: ...

    def activate(self, x: Tensor, kind: Activation) -> Tensor: ...

    def activate_gated(self, gate_up: Tensor, kind: GatedActivation) -> Tensor: ...

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor: ...

    def route(self, scores: Tensor, spec: RouterSpec, correction: Tensor | None) -> tuple[Tensor, Tensor]: ...

    def group_rows(self, chosen: Tensor, groups: int) -> RowGroups: ...

    def grouped_linear(
        self, x: Tensor, weights: Tensor, ends: Tensor, biases: Tensor | None = None, sources: Tensor | None = None
    ) -> Tensor: ...

    def weighted_sum(self, y: Tensor, places: Tensor, shares: Tensor) -> Tensor: ...

    def write_kv(self, cache: Tensor, rows: Tensor, new: Tensor, scales: Tensor | None = None) -> None: ...

    def rotate_and_write(
        self,
        turned: Tensor,
        value: Tensor,
        tables: tuple[Tensor, Tensor] | None,
        keys: Tensor,
        values: Tensor,
        rows: Tensor,
        scales: KvScales | None = None,
    ) -> Tensor: ...

    def copy_blocks(self, cache: Tensor, sources: Tensor, targets: Tensor) -> None: ...

    def attention(self, layout: SegmentLayout, window: int | None, like: Tensor) -> Attention: ...

    def cross_attention(self, layout: CrossLayout, like: Tensor) -> Attention: ...

    def choose(self, logits: Tensor, rows: SamplingRows, largest: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """As `sampling.choose`; with the log of the sum of exp(logits), [rows] float32, where it comes along."""
        ...
