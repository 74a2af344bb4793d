"""One decoder for every spec: it runs a packed batch of segments, whatever their lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from textgen.layers.block import Block, Residual, load_block
from textgen.layers.cache import LayerCache, Rotation
from textgen.layers.embedding import Embedding, Head, load_embedding, load_head
from textgen.layers.norm import Norm, load_norm
from textgen.layers.outputs import Outputs
from textgen.layers.rotary import Frequencies, frequencies
from textgen.layers.weight import LoadContext
from textgen.models.names import WeightNames
from textgen.models.spec import DecoderSpec
from textgen.ops import Attention, Ops
from textgen.ops.sampling import Allowed, Histories, SamplingRows


@dataclass(frozen=True, slots=True)
class EncoderBatch:
    """What the encoder reads in a step, and how the decoder's tokens attend to it and to what it has read before."""

    inputs: Sequence[Tensor]  # [tokens] int64 each: the whole inputs of sequences that are new
    rows: Tensor  # [tokens of all inputs] int64, where their keys and values go
    attention: Attention


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """The tokens of a step, segment after segment, and where their keys and values go."""

    ids: Tensor  # [tokens] int64
    positions: Tensor  # [tokens] int64
    rows: Sequence[Tensor]  # by layer: [tokens] int64, page * block_size + offset
    attention: Sequence[Attention]  # by layer
    encoder: EncoderBatch | None = None  # of an encoder-decoder model, whose decoder's tokens are the ones above
    outputs: Outputs | None = None  # the tokens that are asked for; None: all

    def asked(self, hidden: Tensor) -> Tensor:
        """[outputs, hidden] of [tokens, hidden]."""
        return hidden if self.outputs is None else self.outputs.take(hidden)


@dataclass(frozen=True, slots=True)
class Likeliest:
    """Of rows of logits: the first of the largest, and the log of the sum of their exp."""

    tokens: Tensor  # [rows] int64
    normaliser: Tensor  # [rows] float32


class Model(Protocol):
    """What a shard runs: a `Decoder`, or what stands in for one."""

    @property
    def spec(self) -> DecoderSpec: ...

    @property
    def like(self) -> Tensor:
        """Some weight: its device and type are the model's."""
        ...

    def hidden(self, batch: PackedBatch, caches: Sequence[LayerCache]) -> Tensor:
        """[outputs, hidden] after the last layer, not yet normed; writes the cache."""
        ...

    def logits(self, hidden: Tensor) -> Tensor: ...


@runtime_checkable
class FindsLikeliest(Protocol):
    """A model that looks for the likeliest tokens while it makes logits."""

    def likeliest(self) -> Likeliest | None:
        """Of the rows of the last `logits`; None where it did not look. The next `logits` overwrite it."""
        ...


@runtime_checkable
class Draws(Protocol):
    """A model that draws tokens from its logits."""

    def draw(
        self, rows: SamplingRows, source: Histories | Tensor | None, allowed: Allowed | None = None
    ) -> Tensor | None:
        """[rows] int64: a token of each row of the last `logits`, None where it does not draw such rows. A row that may
        draw nothing gets any token. source: what the penalised rows have said; or what is drawn from instead, [rows,
        vocab] float32, with penalties on it. allowed: what some rows may draw."""
        ...


class Begun(NamedTuple):
    """Sequences of a batch whose token is the first of a block, and that block's page. For one group of layers."""

    sequences: NDArray[np.int64]
    pages: NDArray[np.int64]


class Found(NamedTuple):
    """The likeliest token of each sequence, [n] int64, and its log-probability, [n] float32."""

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32]


class Repeat(Protocol):
    """A batch of one token for each sequence, which can be run again one position further."""

    def run(self, begun: Begun | None, keep: bool) -> Found | None:
        """From each sequence's last token on. None where a logit is NaN, or where there is nothing to draw.

        keep: what is found becomes the last token of each. The next run overwrites it.
        """
        ...

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """As `Follower.answer` takes them, to run it."""
        ...

    def room(self) -> int:
        """Steps that can be run so now, one or more."""
        ...

    def choose_again(self, rows: NDArray[np.int64], bits: NDArray[np.uint8]) -> bool:
        """Put the likeliest token that bits [rows, whole 4 bytes] allow, little-endian by token id, into some rows of
        what `run` gave. Whether each of them may have one."""
        ...


@runtime_checkable
class Repeats(Protocol):
    """A model whose batches can be run again."""

    def repeat(
        self,
        slots: NDArray[np.int64],
        last: NDArray[np.int64],
        drawn: SamplingRows | None = None,
        history: Tensor | None = None,
    ) -> Repeat | None:
        """The batch of the last `hidden`, of which all rows went through the last `logits`; None where it cannot.

        slots [n]: whose tokens they are. last: by slot, the token that was sampled last. drawn: how the tokens of the
        next run are drawn; None: each is the likeliest. history [slots, positions] int32: what penalised sequences
        consist of, which goes on with what is kept.
        """
        ...


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """A block, and which of the step's rotary tables it takes."""

    block: Block
    rotary: int | None  # index of `Decoder.rotary`; None: no rotation


@dataclass(frozen=True, slots=True)
class Decoder:
    """Embedding, layers, final norm and head."""

    spec: DecoderSpec
    embedding: Embedding
    layers: tuple[DecoderLayer, ...]
    norm: Norm | None
    head: Head
    rotary: tuple[Frequencies, ...]  # the distinct forms of the layers
    ops: Ops

    @property
    def like(self) -> Tensor:
        return self.embedding.table.new_empty(0)

    def hidden(self, batch: PackedBatch, caches: Sequence[LayerCache]) -> Tensor:
        """See `Model`."""
        x = self.embedding(batch.ids, batch.positions)
        rotations = [self._rotation(form, batch.positions, x) for form in self.rotary]
        residual: Residual = x, None
        for layer, cache, rows, attention in zip(self.layers, caches, batch.rows, batch.attention, strict=True):
            rotation = None if layer.rotary is None else rotations[layer.rotary]
            outputs = batch.outputs if layer is self.layers[-1] else None
            residual = layer.block(residual, rotation, cache, rows, attention, outputs)
        x, added = residual
        return x if added is None else x.add_(added)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, vocab] float32 from rows of `hidden`."""
        scalings = self.spec.scalings
        logits = self.head(hidden if self.norm is None else self.norm(hidden)).float()
        if scalings.logits != 1.0:
            logits = logits * scalings.logits
        if scalings.logits_soft_cap is not None:
            logits = scalings.logits_soft_cap * torch.tanh(logits / scalings.logits_soft_cap)
        return logits

    def _rotation(self, form: Frequencies, positions: Tensor, like: Tensor) -> Rotation:
        return Rotation(*self.ops.rotary_table(positions, form.inverse, form.factor, like))


def load_decoder(spec: DecoderSpec, names: WeightNames, context: LoadContext, length: int, ops: Ops) -> Decoder:
    """Read every weight into place, to serve sequences of up to `length` tokens.

    Raises `ModelError`, and `ValueError` when ranks cannot share a dimension.
    """
    forms = list(dict.fromkeys(layer.rotary for layer in spec.layers if layer.rotary is not None))
    layers = []
    with torch.inference_mode():
        embedding, tied = load_embedding(context, spec, names, ops)
        for index, layer in enumerate(spec.layers):
            block = load_block(context, spec, layer, names.of_layer(index), ops)
            rotary = None if layer.rotary is None else forms.index(layer.rotary)
            layers.append(DecoderLayer(block, rotary))
        final = names.full(names.final_norm)
        return Decoder(
            spec=spec,
            embedding=embedding,
            layers=tuple(layers),
            norm=load_norm(context, final, spec.hidden_size, spec.norm, ops) if spec.final_norm else None,
            head=load_head(context, spec, names, tied),
            rotary=tuple(frequencies(form, length, context.device) for form in forms),
            ops=ops,
        )
