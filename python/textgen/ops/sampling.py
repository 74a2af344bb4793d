"""Sampling: penalties, filters and the draw, over all sampled rows at once and only where a row asks for it.

Order: token rules, repetition penalty, frequency and presence penalties, grammar mask, temperature, top-k, top-p,
min-p, typical-p; each filter as Transformers' logits warpers define it. Everything is float32 except the cumulative sum
of the draw (float64).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from textgen.ops.rules import RuledRows, restricted
from textgen.ops.transfer import upload

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

NUCLEUS = 1024  # tokens looked at first for top-p: a nucleus is rarely wider, and sorting a vocabulary is slow
SPAN = 256  # the draw sums runs of this many tokens, then looks into one of them


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How each sampled row is drawn: host columns of one length."""

    temperature: Floats  # 0: the most likely token
    top_k: Ints  # 0: off
    top_p: Floats  # 1: off
    min_p: Floats  # 0: off
    typical_p: Floats  # 1: off
    repetition: Floats  # 1: off
    frequency: Floats  # 0: off
    presence: Floats  # 0: off
    window: Ints  # how many of the last tokens the three look at; 0: all
    seed: NDArray[np.uint64]
    position: Ints  # of the token to be sampled
    prompt_len: Ints

    @property
    def penalised(self) -> Mask:
        mask: Mask = (self.repetition != 1) | (self.frequency != 0) | (self.presence != 0)
        return mask

    @property
    def plain(self) -> bool:
        """Whether each row takes the most likely token, without penalties."""
        return not ((self.temperature > 0) | self.penalised).any()


@dataclass(frozen=True, slots=True)
class Histories:
    """What sequences consist of."""

    tokens: Tensor  # [slots, positions] int32
    slots: Ints  # [rows] whose


@dataclass(frozen=True, slots=True)
class Allowed:
    """Which tokens some rows may draw; rows without a grammar are not named."""

    rows: Ints  # [n] which rows of the logits
    bits: NDArray[np.uint8]  # [n, at least vocab / 8] little-endian bits by token id

    def restrict(self, logits: Tensor) -> Tensor:
        """logits [rows, vocab] with minus infinity where a row may not draw."""
        if not self.rows.size:
            return logits
        bits = upload(self.bits, logits.device)
        if len(self.rows) == len(logits) and bool((self.rows == np.arange(len(logits))).all()):
            return restricted(logits, bits)
        where = upload(self.rows, logits.device)
        return logits.index_copy(0, where, restricted(logits.index_select(0, where), bits))

    def permits(self, tokens: Ints) -> Mask:
        """[n] whether the tokens, [rows], are among those their row may draw."""
        drawn = tokens[self.rows]
        permitted: Mask = (self.bits[np.arange(len(drawn)), drawn >> 3] >> (drawn & 7)) & 1 == 1
        return permitted

    def likeliest(self, logits: Tensor, known: Tensor) -> Tensor:
        """[rows] int64: the most likely token that each row may draw. `known` [rows] int64 is the most likely of all:
        only rows that may not draw theirs are looked at again."""
        needed = ~self.permits(known.cpu().numpy())
        if not needed.any():
            return known.clone()
        where = upload(self.rows[needed], logits.device)
        bits = upload(self.bits[needed], logits.device)
        return known.index_copy(0, where, restricted(logits.index_select(0, where), bits).argmax(dim=-1))


@dataclass(frozen=True, slots=True)
class Scores:
    """What the model itself said, before any penalty or filter."""

    normaliser: Tensor  # [rows] log of the sum of exp(logits); not finite where the logits are broken
    chosen: Tensor  # [rows] log-probability of the sampled token


def sample(
    logits: Tensor, rows: SamplingRows, history: Callable[[Mask], Tensor], allowed: Allowed | None = None
) -> Tensor:
    """[rows] int64 token ids: what `choose` takes of the `shape`d logits."""
    return choose(shape(logits, rows, history, allowed), rows)


def shape(
    logits: Tensor,
    rows: SamplingRows,
    history: Callable[[Mask], Tensor],
    allowed: Allowed | None = None,
    rules: RuledRows | None = None,
) -> Tensor:
    """What tokens are chosen from: logits [rows, vocab] float32, which stay as they are, with rules, penalties and
    grammar masks on them.

    `history(mask)` gives the token ids of the masked rows, [masked, longest] int64, by position; read only for rows
    with a penalty.
    """
    if rules is not None:
        logits = rules.shape(logits)
    penalised = rows.penalised
    if penalised.any():
        logits = _on_rows(logits, penalised, lambda x, of: _penalise(x, history(penalised), rows, of))
    return logits if allowed is None else allowed.restrict(logits)


def choose(logits: Tensor, rows: SamplingRows, largest: Tensor | None = None) -> Tensor:
    """[rows] int64 token ids from shaped logits. A row that may draw nothing gets any token: ask `Allowed.permits` and
    `RuledRows.forbids`. `largest` [rows] int64: the likeliest token of each row, where somebody has looked already."""
    drawn = rows.temperature > 0
    if drawn.all():
        return _draw(logits, rows, drawn)
    tokens = logits.argmax(dim=-1) if largest is None else largest.clone()
    if not drawn.any():
        return tokens
    where = _indices(drawn, logits)
    return tokens.index_copy_(0, where, _draw(logits.index_select(0, where), rows, drawn))


def score(logits: Tensor, tokens: Tensor, normaliser: Tensor | None = None) -> Scores:
    """The model's own log-probabilities of the tokens."""
    if normaliser is None:
        normaliser = logits.logsumexp(dim=-1)
    return Scores(normaliser, logits.gather(-1, tokens[:, None]).squeeze(-1) - normaliser)


def uniform(seed: NDArray[np.uint64], position: Ints) -> NDArray[np.float64]:
    """The number in [0, 1) that a token is drawn with: SplitMix64 of (seed, position), its top 53 bits."""
    z = seed + (position.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    u: NDArray[np.float64] = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return u


def draw(probabilities: Tensor, u: Tensor) -> Tensor:
    """[rows] the first token, by id, whose cumulative share of the row's sum exceeds u.

    probabilities [rows, vocab] float32, u [rows] float64 in [0, 1). Sums are float64: over spans first, then inside
    the span that the draw falls in. A token of probability 0 is never drawn.
    """
    spans = F.pad(probabilities, (0, -probabilities.shape[-1] % SPAN)).double().view(len(probabilities), -1, SPAN)
    ends = spans.sum(dim=-1).cumsum(dim=-1)
    target = torch.minimum(u[:, None] * ends[:, -1:], _just_below(ends[:, -1:]))
    span = torch.searchsorted(ends, target, right=True).clamp_max(spans.shape[1] - 1)  # NaN sorts behind the end
    inside = torch.take_along_dim(spans, span[:, :, None], dim=1).squeeze(1).cumsum(dim=-1)
    rest = target - torch.where(span > 0, ends.gather(-1, (span - 1).clamp_min(0)), 0.0)
    offset = torch.searchsorted(inside, torch.minimum(rest, _just_below(inside[:, -1:])), right=True)
    return (span * SPAN + offset).squeeze(-1).clamp_max(probabilities.shape[-1] - 1)


def _just_below(x: Tensor) -> Tensor:
    return torch.nextafter(x, torch.zeros_like(x))


def _draw(logits: Tensor, rows: SamplingRows, drawn: Mask) -> Tensor:
    # The largest logit is taken off first, so that a tiny temperature cannot overflow.
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / _column(rows.temperature[drawn], logits)
    filtered = _filter(scaled, rows, drawn)
    u = upload(uniform(rows.seed[drawn], rows.position[drawn]), logits.device)
    return draw(filtered.softmax(dim=-1), u)


def _filter(x: Tensor, rows: SamplingRows, drawn: Mask) -> Tensor:
    top_k, top_p = rows.top_k[drawn], rows.top_p[drawn]
    min_p, typical_p = rows.min_p[drawn], rows.typical_p[drawn]
    x = _on_rows(x, top_k > 0, lambda part, of: _top_k(part, top_k[of]))
    x = _on_rows(x, top_p < 1, lambda part, of: _top_p(part, _column(top_p[of], part)))
    x = _on_rows(x, min_p > 0, lambda part, of: _min_p(part, _column(min_p[of], part)))
    return _on_rows(x, typical_p < 1, lambda part, of: _typical_p(part, _column(typical_p[of], part)))


def _on_rows(x: Tensor, mask: Mask, change: Callable[[Tensor, Mask], Tensor]) -> Tensor:
    """x with `change(part, mask)` in the masked rows; x itself is not written."""
    if not mask.any():
        return x
    if mask.all():
        return change(x, mask)
    where = _indices(mask, x)
    return x.index_copy(0, where, change(x.index_select(0, where), mask))


def _indices(mask: Mask, like: Tensor) -> Tensor:
    return upload(np.flatnonzero(mask), like.device)


def _column(values: NDArray[np.generic], like: Tensor) -> Tensor:
    return upload(np.ascontiguousarray(values), like.device)[:, None]


def _top_k(x: Tensor, k: Ints) -> Tensor:
    """Keep the k largest, and what ties with the last of them."""
    k = np.minimum(k, x.shape[-1])
    largest = x.topk(int(k.max()), dim=-1).values
    return x.masked_fill(x < largest.gather(-1, _column(k - 1, x)), -torch.inf)


def _top_p(x: Tensor, p: Tensor) -> Tensor:
    """Keep the most likely tokens until their probabilities reach p (arXiv 1904.09751), at least one."""
    largest, kept = _nucleus(x, p, min(NUCLEUS, x.shape[-1]))
    if largest.shape[-1] < x.shape[-1] and bool((kept == largest.shape[-1]).any()):
        largest, kept = _nucleus(x, p, x.shape[-1])
    return x.masked_fill(x < largest.gather(-1, kept - 1), -torch.inf)


def _nucleus(x: Tensor, p: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` largest and how many of them are kept: those before which less than p is reached."""
    largest = x.topk(width, dim=-1).values
    probabilities = (largest - x.logsumexp(dim=-1, keepdim=True)).exp()
    before = probabilities.cumsum(dim=-1) - probabilities
    return largest, (before < p).sum(dim=-1, keepdim=True).clamp_min(1)


def _min_p(x: Tensor, p: Tensor) -> Tensor:
    """Keep tokens at least p times as likely as the most likely one (arXiv 2407.01082)."""
    probabilities = x.softmax(dim=-1)
    return x.masked_fill(probabilities < p * probabilities.amax(dim=-1, keepdim=True), -torch.inf)


def _typical_p(x: Tensor, mass: Tensor) -> Tensor:
    """Keep the tokens whose surprise is nearest to the entropy until they hold `mass` (arXiv 2202.00666)."""
    logs = x.log_softmax(dim=-1)
    probabilities = logs.exp()
    entropy = -(logs * probabilities).nansum(dim=-1, keepdim=True)
    distance, order = (-logs - entropy).abs().sort(dim=-1)
    held = probabilities.gather(-1, order).cumsum(dim=-1)
    last = (held < mass).sum(dim=-1, keepdim=True).clamp_max(x.shape[-1] - 1)
    too_far = distance > distance.gather(-1, last)
    too_far[:, 0] = False
    return x.masked_fill(torch.zeros_like(too_far).scatter_(-1, order, too_far), -torch.inf)


def _penalise(x: Tensor, history: Tensor, rows: SamplingRows, of: Mask) -> Tensor:
    """Repetition (arXiv 1909.05858; prompt and output), then frequency and presence (OpenAI's; output only)."""
    known, prompt = _column(rows.position[of], x), _column(rows.prompt_len[of], x)
    positions = torch.arange(history.shape[1], device=x.device)
    window = rows.window[of]
    first = _column(np.where(window > 0, rows.position[of] - window, 0), x)
    vocab = x.shape[-1]
    x = F.pad(x, (0, 1))  # one column more, where the tokens that do not count go
    seen = history.masked_fill((positions >= known) | (positions < first), vocab)
    chosen, repetition = x.gather(-1, seen), _column(rows.repetition[of], x)
    x = x.scatter(-1, seen, torch.where(chosen < 0, chosen * repetition, chosen / repetition))
    frequency, presence = _column(rows.frequency[of], x), _column(rows.presence[of], x)
    output = seen.masked_fill(positions < prompt, vocab)
    counts = torch.zeros_like(x).scatter_add_(-1, output, torch.ones_like(output, dtype=x.dtype))
    return (x - counts * frequency - (counts > 0) * presence)[:, :vocab]
