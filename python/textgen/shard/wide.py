"""Results too wide for a frame: the most likely tokens of a step, and the log-probabilities of a prompt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from textgen.models.decoder import Model
from textgen.ops.sampling import score
from textgen.ops.transfer import upload
from textgen.shard.batch import Segments
from textgen.shard.protocol import Ints, pack_f32, pack_u32
from textgen.shard.slots import Slots

ROWS = 64  # prompt logits looked at together: [ROWS, vocab] float32 stays small beside the weights


def top_tokens(logits: Tensor, normaliser: Tensor, top_n: Ints) -> list[bytes]:
    """Per row the ids of its `top_n` most likely tokens, then their log-probabilities; empty when no row asks."""
    widest = min(int(top_n.max()), logits.shape[-1])
    if widest == 0:
        return []
    asking = np.flatnonzero(top_n)
    rows = upload(asking, logits.device)
    values, ids = logits.index_select(0, rows).topk(widest, dim=-1)
    values -= normaliser.index_select(0, rows)[:, None]
    packed = [b""] * len(top_n)
    for row, row_ids, row_values in zip(asking, ids.cpu().numpy(), values.cpu().numpy(), strict=True):
        count = int(top_n[row])
        packed[row] = pack_u32(_padded(row_ids[:count], count)) + pack_f32(_padded(row_values[:count], count))
    return packed


def _padded(values: np.ndarray[tuple[int], np.dtype[np.generic]], count: int) -> object:
    """A vocabulary smaller than the count leaves places over: they repeat the last entry."""
    return np.pad(values, (0, count - len(values)), mode="edge")


@dataclass(frozen=True, slots=True)
class _Scored:
    """What a segment of a prompt is told: one row for each of its tokens."""

    logprobs: Tensor  # [length] NaN where nothing comes before
    ranks: Tensor  # [length] how many tokens are at least as likely, itself included; 0 where nothing comes before
    top_ids: Tensor  # [length, top_n] the most likely tokens, best first
    top_logprobs: Tensor

    @staticmethod
    def empty(length: int, top_n: int, device: torch.device) -> _Scored:
        return _Scored(
            torch.full((length,), torch.nan, device=device),
            torch.zeros(length, dtype=torch.int64, device=device),
            torch.zeros((length, top_n), dtype=torch.int64, device=device),
            torch.full((length, top_n), torch.nan, device=device),
        )

    def fill(self, begin: int, logits: Tensor, tokens: Tensor) -> None:
        """The rows from `begin` on, from the logits before their tokens."""
        rows = slice(begin, begin + len(tokens))
        scores = score(logits, tokens)
        self.logprobs[rows] = scores.chosen
        chosen = logits.gather(-1, tokens[:, None])
        self.ranks[rows] = (logits > chosen).sum(dim=-1) + 1
        width = min(self.top_ids.shape[-1], logits.shape[-1])
        if width:
            top = logits.topk(width, dim=-1)
            self.top_ids[rows, :width] = top.indices
            self.top_logprobs[rows, :width] = top.values - scores.normaliser[:, None]
            self.top_ids[rows, width:] = top.indices[:, -1:]  # a vocabulary smaller than the count
            self.top_logprobs[rows, width:] = self.top_logprobs[rows, width - 1 : width]

    def packed(self) -> bytes:
        columns = (self.logprobs, self.ranks, self.top_ids.flatten(), self.top_logprobs.flatten())
        logprobs, ranks, ids, tops = (column.cpu().numpy() for column in columns)
        return pack_f32(logprobs) + pack_u32(ranks) + pack_u32(ids) + pack_f32(tops)


def prompt_logprobs(model: Model, slots: Slots, segments: Segments, ids: Tensor, hidden: Tensor) -> dict[int, bytes]:
    """By slot, what the tokens of the segments that ask are told.

    A token is scored by the logits before it. The first of a later chunk is scored by the last logits of the chunk
    before, of which one row per slot is kept; with nothing before it the value is NaN.
    """
    results = {}
    for index in np.flatnonzero(segments.prompt_logprobs):
        slot, offset, length = (int(column[index]) for column in (segments.slot, segments.offset, segments.length))
        before = slots.last_logits.pop(slot, None)
        own = slice(offset, offset + length)
        scored = _Scored.empty(length, int(slots.prompt_top_n[slot]), hidden.device)
        if before is not None and segments.start[index] > 0:
            scored.fill(0, before, ids[own][:1])
        last = _score_chunk(model, ids[own], hidden[own], scored)
        if segments.end[index] < slots.prompt_len[slot]:
            slots.last_logits[slot] = last
        results[slot] = scored.packed()
    return results


def _score_chunk(model: Model, ids: Tensor, hidden: Tensor, scored: _Scored) -> Tensor:
    """Fills all rows but the first; the last row of logits [1, vocab]."""
    logits = hidden  # replaced below: a segment has at least one token
    for begin in range(0, len(ids), ROWS):
        logits = model.logits(hidden[begin : begin + ROWS])
        following = ids[begin + 1 : begin + 1 + logits.shape[0]]
        if len(following):
            scored.fill(begin + 1, logits[: len(following)], following)
    return logits[-1:].clone()
