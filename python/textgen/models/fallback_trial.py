"""The trial of a model that nobody has tested: chunks over a paged cache against one pass with its own attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from textgen.layers.cache import LayerCache
from textgen.models.decoder import EncoderBatch, PackedBatch
from textgen.models.errors import ModelError
from textgen.models.spec import DecoderSpec
from textgen.ops import CrossLayout, Ops, SegmentLayout

BLOCK, TOKENS = 4, 22
SOURCES = (13, 6)  # tokens of each sequence's encoder input, where there is an encoder
TOGETHER = (9, 21, 14)  # tokens of inputs that the encoder reads in one pass
STEPS = (((0, 9),), ((0, 1), (1, 6)), ((0, 11), (1, 1)), ((0, 1), (1, 15)))  # sequence and tokens of each segment
TOLERANCE = {torch.float32: 1e-3}  # of a row's length; half precision is far from itself already
HALF = 0.1


class Tried(Protocol):
    """What is tried."""

    spec: DecoderSpec
    like: Tensor
    ops: Ops

    def hidden(self, batch: PackedBatch, caches: Sequence[LayerCache]) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...

    def own_logits(self, ids: Tensor, *source: Tensor) -> Tensor: ...


def must_agree(model: Tried, dtype: torch.dtype) -> None:
    """Raises `ModelError` when it does not. By the median over tokens: rounding may turn over a choice of experts."""
    spec, device = model.spec, model.like.device
    rng = np.random.default_rng(0)

    def drawn(length: int) -> Tensor:
        # Id 0 pads in many models with an encoder, and id 1 in the others: what pads is none of a text.
        return torch.from_numpy(rng.integers(0 if spec.encoder is None else 2, spec.vocab_size, length)).to(device)

    ids = [drawn(TOKENS) for _ in range(2)]
    sources = None if spec.encoder is None else [drawn(length) for length in SOURCES]
    width = -(-TOKENS // BLOCK) + (0 if sources is None else -(-max(SOURCES) // BLOCK))
    tables = rng.permutation(2 * width).astype(np.int32).reshape(2, -1)
    shape = (tables.size, BLOCK, spec.num_kv_heads, spec.head_dim)

    def empty() -> Tensor:
        return torch.full(shape, torch.nan, dtype=dtype, device=device)

    caches = [LayerCache(empty(), empty()) for _ in range(spec.num_layers)]
    done = [0, 0]
    found: list[list[Tensor]] = [[], []]
    for segments in STEPS:
        batch = _batch(model, ids, tables, done, segments, sources)
        logits = model.logits(model.hidden(batch, caches))
        for (sequence, length), part in zip(
            segments, torch.split(logits, [length for _, length in segments]), strict=True
        ):
            found[sequence].append(part)
            done[sequence] += length
    for sequence, (own, parts) in enumerate(zip(ids, found, strict=True)):
        truth = model.own_logits(own, *(() if sources is None else (sources[sequence],)))
        away = (torch.cat(parts) - truth).norm(dim=-1) / truth.norm(dim=-1).clamp_min(1e-6)
        if not bool(away.median() < TOLERANCE.get(dtype, HALF)):
            raise ModelError("in chunks it says something else than in one pass, so it keeps more than keys and values")


class Encodes(Protocol):
    """What encodes inputs in one pass."""

    spec: DecoderSpec
    like: Tensor

    def encode_together(self, inputs: Sequence[Tensor]) -> list[Tensor]: ...


def agree_together(model: Encodes, dtype: torch.dtype) -> bool:
    """Whether inputs that are encoded in one pass give what each gives alone."""
    rng = np.random.default_rng(1)
    inputs = [
        torch.from_numpy(rng.integers(2, model.spec.vocab_size, length)).to(model.like.device) for length in TOGETHER
    ]
    try:
        together = model.encode_together(inputs)
    except Exception:  # of modelling that was not made for this: each alone is what it was tried with
        return False
    for ids, states in zip(inputs, together, strict=True):
        alone = model.encode_together([ids])[0]
        away = (states.float() - alone.float()).norm(dim=-1) / alone.float().norm(dim=-1).clamp_min(1e-6)
        if not bool(away.max() < TOLERANCE.get(dtype, HALF)):
            return False
    return True


def _batch(
    model: Tried,
    ids: list[Tensor],
    tables: np.ndarray[tuple[int, ...], np.dtype[np.int32]],
    done: list[int],
    segments: Sequence[tuple[int, int]],
    sources: list[Tensor] | None,
) -> PackedBatch:
    device = model.like.device
    inputs = 0 if sources is None else -(-max(SOURCES) // BLOCK)  # blocks that go before the decoder's
    crossed, tables = tables[:, :inputs], tables[:, inputs:]
    chosen = [sequence for sequence, _ in segments]
    lengths = np.array([length for _, length in segments], np.int64)
    starts = np.array([done[sequence] for sequence in chosen], np.int64)
    layout = SegmentLayout(np.cumsum(lengths) - lengths, starts, lengths, tables[chosen], BLOCK)
    spans = [np.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)]
    rows = [
        tables[sequence][span // BLOCK] * BLOCK + span % BLOCK for sequence, span in zip(chosen, spans, strict=True)
    ]
    plans = {window: model.ops.attention(layout, window, model.like) for window in set(model.spec.windows)}
    return PackedBatch(
        ids=torch.cat([ids[sequence][span[0] : span[-1] + 1] for sequence, span in zip(chosen, spans, strict=True)]),
        positions=torch.from_numpy(np.concatenate(spans)).to(device),
        rows=[torch.from_numpy(np.concatenate(rows).astype(np.int64)).to(device)] * model.spec.num_layers,
        attention=[plans[window] for window in model.spec.windows],
        encoder=None if sources is None else _encoder(model, layout, chosen, crossed, sources),
    )


def _encoder(
    model: Tried,
    layout: SegmentLayout,
    chosen: list[int],
    tables: np.ndarray[tuple[int, ...], np.dtype[np.int32]],
    sources: list[Tensor],
) -> EncoderBatch:
    new = [sequence for sequence, start in zip(chosen, layout.starts, strict=True) if start == 0]
    spans = {sequence: np.arange(len(sources[sequence])) for sequence in chosen}
    rows = [tables[each][spans[each] // BLOCK] * BLOCK + spans[each] % BLOCK for each in new]
    lengths = np.array([len(sources[sequence]) for sequence in chosen], np.int64)
    cross = CrossLayout(layout.offsets, layout.lengths, lengths, tables[chosen], BLOCK)
    return EncoderBatch(
        inputs=[sources[sequence] for sequence in new],
        rows=torch.from_numpy(np.concatenate([*rows, np.zeros(0)]).astype(np.int64)).to(model.like.device),
        attention=model.ops.cross_attention(cross, model.like),
    )
