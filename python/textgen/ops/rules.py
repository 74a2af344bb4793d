"""Token rules: what a sequence may or may not draw whatever the model says. Biases, an allowed set, banned sequences of
tokens, tokens that may not come yet, and a watermark, each as Transformers' logits processors define it; and an end of
reasoning that has become too long.

All rules but the last two and the allowed set become one list of (row, token, value) that is added to the logits at
once, minus infinity for what is forbidden. Rows without rules are never looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from textgen.ops.transfer import upload

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

HASH_KEY = 15485863  # of the published watermark (arXiv 2301.10226), so that its detectors read ours
GREEN_LISTS = 64  # kept for tokens that come again: [vocab] bool each

Lookup = Callable[[Ints, Ints], Tensor]
"""Token ids by sequence (an index into the rules at hand) and position, [n] int64."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """A share of the vocabulary, chosen by the token before, becomes likelier."""

    gamma: float  # the share
    delta: float  # added to its logits


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning that may not be longer than a budget: then the tokens that end it are forced, one after the other."""

    budget: int  # tokens, those that open it not counted
    openings: Sequence[Ints]  # an output that begins with any of them thinks; none: it has begun
    end: Ints  # what is forced, at least one; where it stands, the thinking is over
    closings: Sequence[Ints] = ()  # where any of these stands, it is over too

    @property
    def least(self) -> int:
        """No shorter output has spent the budget."""
        return self.budget + min(map(len, self.openings), default=0)

    def forced(self, output: Ints) -> int | None:
        """The token that must follow the output; None where nobody thinks, or not for too long."""
        opened = [len(opening) for opening in self.openings if np.array_equal(output[: len(opening)], opening)]
        if len(output) < self.budget + max(opened, default=0) or (self.openings and not opened):
            return None
        ending = _begun(self.end, output)
        before = output[: len(output) - ending]
        if _stands(self.end, output) or any(_stands(closing, before) for closing in self.closings):
            return None
        if not ending:
            # Inside of marks: those that open more thinking are completed, others are the model's to complete.
            for opening in self.openings:
                if (begun := _begun(opening, output)) > 1:
                    return int(opening[begun])
            if any(_begun(closing, output) for closing in self.closings):
                return None
        return int(self.end[ending])


def _stands(part: Ints, output: Ints) -> bool:
    """Whether the part is somewhere in the output."""
    size = len(part)
    return len(output) >= size and bool((np.lib.stride_tricks.sliding_window_view(output, size) == part).all(-1).any())


def _begun(part: Ints, output: Ints) -> int:
    """With how many tokens of the part, not all, the output ends."""
    lengths = range(min(len(part) - 1, len(output)), 0, -1)
    return next((n for n in lengths if (output[-n:] == part[:n]).all()), 0)


@dataclass(frozen=True)
class TokenRules:
    """The rules of one sequence."""

    bias_ids: Ints
    biases: Floats
    allowed: Tensor | None  # [at least vocab / 8] uint8, little-endian bits by token id; None: all
    banned: Sequence[Sequence[int]]  # none of them may be completed
    min_tokens: int  # before so many are generated, none of `endings` may come
    endings: Ints
    watermark: Watermark | None
    thinking: Thinking | None

    @property
    def needs_history(self) -> bool:
        """Whether what may come depends on the tokens before."""
        mark_or_thought = self.watermark is not None or self.thinking is not None
        return mark_or_thought or any(len(tokens) > 1 for tokens in self.banned)

    @cached_property
    def always(self) -> tuple[Ints, Floats]:
        """Tokens and what is added to their logits at every position."""
        alone = [tokens[0] for tokens in self.banned if len(tokens) == 1]
        return np.append(self.bias_ids, np.array(alone, np.int64)), np.append(self.biases, _never(len(alone)))

    @cached_property
    def prefixes(self) -> _Prefixes:
        return _Prefixes.of([tokens for tokens in self.banned if len(tokens) > 1])


@dataclass(frozen=True, slots=True)
class _Prefixes:
    """Banned sequences of several tokens: all but the last of each, flat, and the last."""

    tokens: Ints  # [sum of lengths]
    back: Ints  # how far before the position to sample each must stand
    word: Ints  # which sequence each belongs to
    last: Ints  # [words]
    length: Ints  # [words] of the prefix

    @staticmethod
    def of(banned: Sequence[Sequence[int]]) -> _Prefixes:
        lengths = [len(tokens) - 1 for tokens in banned]
        return _Prefixes(
            tokens=np.array([token for tokens in banned for token in tokens[:-1]], np.int64),
            back=np.array([back for length in lengths for back in range(length, 0, -1)], np.int64),
            word=np.repeat(np.arange(len(banned)), lengths),
            last=np.array([tokens[-1] for tokens in banned], np.int64),
            length=np.array(lengths, np.int64),
        )


@dataclass(frozen=True, slots=True)
class RuledRows:
    """The rows of a step that have rules; columns of one length."""

    rows: Ints  # of the logits
    rules: Sequence[TokenRules]
    position: Ints  # of the token to be sampled
    prompt_len: Ints
    tokens: Lookup

    def shape(self, logits: Tensor) -> Tensor:
        """logits [rows, vocab] float32 with the rules on them, as a copy."""
        pieces = [*self._fixed(), *self._banned(logits)]
        where = upload(np.concatenate([rows for rows, _, _ in pieces]), logits.device)
        ids = upload(np.concatenate([ids for _, ids, _ in pieces]), logits.device)
        values = torch.cat([values.to(logits.device) for _, _, values in pieces])
        logits = logits.index_put((where, ids), values, accumulate=True)
        self._mark(logits)
        self._restrict(logits)
        self._end_thoughts(logits)
        return logits

    def forbids(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """[n] bool: whether the tokens, [rows] int64, are forbidden in the shaped logits: nothing else was left."""
        rows = upload(self.rows, logits.device)
        return logits[rows, tokens.index_select(0, rows)] == -torch.inf

    def _fixed(self) -> list[tuple[Ints, Ints, Tensor]]:
        """What the position alone decides."""
        pieces = []
        for row, rules, generated in zip(self.rows.tolist(), self.rules, self.position - self.prompt_len, strict=True):
            ids, values = rules.always
            if generated < rules.min_tokens:
                ids, values = np.append(ids, rules.endings), np.append(values, _never(len(rules.endings)))
            pieces.append((np.full(len(ids), row), ids, torch.from_numpy(values)))
        return pieces

    def _banned(self, logits: Tensor) -> list[tuple[Ints, Ints, Tensor]]:
        """Last tokens of banned sequences: minus infinity where all before it stand in place, 0 elsewhere."""
        having = [(index, rules.prefixes) for index, rules in enumerate(self.rules) if len(rules.prefixes.last)]
        if not having:
            return []
        counts = [len(prefixes.last) for _, prefixes in having]
        first = np.cumsum(counts) - counts
        index = np.repeat([index for index, _ in having], [len(prefixes.tokens) for _, prefixes in having])
        place = self.position[index] - np.concatenate([prefixes.back for _, prefixes in having])
        word = np.concatenate([prefixes.word + begin for (_, prefixes), begin in zip(having, first, strict=True)])
        expected = upload(np.concatenate([prefixes.tokens for _, prefixes in having]), logits.device)
        there = self.tokens(index, place.clip(0)) == expected
        there &= upload(place >= 0, logits.device)
        hits = torch.zeros(sum(counts), dtype=torch.int64, device=logits.device)
        hits.index_add_(0, upload(word, logits.device), there.long())
        length = upload(np.concatenate([prefixes.length for _, prefixes in having]), logits.device)
        values = torch.zeros(len(hits), device=logits.device).masked_fill_(hits == length, -torch.inf)
        rows = np.repeat(self.rows[[index for index, _ in having]], counts)
        return [(rows, np.concatenate([prefixes.last for _, prefixes in having]), values)]

    def _mark(self, logits: Tensor) -> None:
        for index, (row, rules) in enumerate(zip(self.rows.tolist(), self.rules, strict=True)):
            if rules.watermark is not None and self.position[index] > 0:
                before = int(self.tokens(np.array([index]), self.position[[index]] - 1)[0])
                green = green_list(logits.shape[-1], rules.watermark.gamma, before).to(logits.device)
                logits[row] += green * rules.watermark.delta

    def _end_thoughts(self, logits: Tensor) -> None:
        for index, (row, rules) in enumerate(zip(self.rows.tolist(), self.rules, strict=True)):
            thinking = rules.thinking
            begin, end = int(self.prompt_len[index]), int(self.position[index])
            if thinking is None or end - begin < thinking.least:
                continue
            output = self.tokens(np.full(end - begin, index), np.arange(begin, end)).cpu().numpy()
            forced = thinking.forced(output)
            if forced is not None:
                logits[row] = -torch.inf
                logits[row, forced] = 0.0

    def _restrict(self, logits: Tensor) -> None:
        bound = [(row, rules.allowed) for row, rules in zip(self.rows.tolist(), self.rules, strict=True)
                 if rules.allowed is not None]  # fmt: skip
        if bound:
            rows = torch.tensor([row for row, _ in bound], device=logits.device)
            bits = torch.stack([bits for _, bits in bound])
            logits.index_copy_(0, rows, restricted(logits.index_select(0, rows), bits))


def restricted(logits: Tensor, bits: Tensor) -> Tensor:
    """logits [n, vocab] float32 with minus infinity where `bits` are 0: [n, at least vocab / 8] uint8, little-endian by
    token id. Adding costs the same for all masks; choosing by each bit takes several times longer where bits are mixed.
    An infinite logit stays no choice: rows with such a one are broken anyway."""
    added = _added(bits.device).index_select(0, bits.flatten().int()).view(len(bits), -1)
    return added[:, : logits.shape[-1]].add_(logits)


@lru_cache(maxsize=8)
def _added(device: torch.device) -> Tensor:
    """[256, 8] float32: for the eight bits of each byte, lowest first, 0 where they are set, else minus infinity."""
    table = ((torch.arange(256)[:, None] >> torch.arange(8)) & 1).bool()
    return torch.zeros(256, 8).masked_fill_(~table, -torch.inf).to(device)


@lru_cache(maxsize=GREEN_LISTS)
def green_list(vocab: int, gamma: float, before: int) -> Tensor:
    """[vocab] bool: the tokens that a watermark makes likelier after the token `before`. The same on every device."""
    order = torch.randperm(vocab, generator=torch.Generator().manual_seed(HASH_KEY * before))
    return torch.zeros(vocab, dtype=torch.bool).index_fill_(0, order[: int(vocab * gamma)], True)


def _never(count: int) -> Floats:
    return np.full(count, -np.inf, np.float32)
