"""Token rules as they come with an Admit: checked, then ready for use."""

from __future__ import annotations

import numpy as np
import torch

from textgen.ops.rules import Thinking, TokenRules, Watermark
from textgen.shard.protocol import Ints, Rules, unpack_f32, unpack_u32


def check_rules(rules: Rules, vocab_size: int) -> str | None:
    """Why the rules cannot be followed, if they cannot. Raises `ProtocolError` on a torn column."""
    bias_ids, biases = unpack_u32(rules.bias_ids, "bias_ids"), unpack_f32(rules.biases, "biases")
    if len(bias_ids) != len(biases):
        return f"there are {len(biases)} biases for {len(bias_ids)} tokens"
    if not np.isfinite(biases).all():
        return "a bias is not a finite number"
    words = -(-vocab_size // 32)
    if rules.allowed and len(rules.allowed) != 4 * words:
        return f"the allowed tokens have {len(rules.allowed)} bytes and the vocabulary needs {4 * words}"
    ids = [bias_ids, unpack_u32(rules.endings, "endings")]
    columns = {"banned": rules.banned}
    thinking = rules.thinking
    if thinking is not None:
        end = unpack_u32(thinking.end, "end")
        if not end.size:
            return "the thinking has no tokens that end it"
        ids.append(end)
        columns |= {"openings": thinking.openings, "closings": thinking.closings}
    for name, column in columns.items():
        parts = sequences(column, name)
        if parts is None:
            return f"the sequences of `{name}` are not whole: each is its length and so many tokens, at least one"
        ids += parts
    if any(part.size and int(part.max()) >= vocab_size for part in ids):
        return f"a token id of the rules is not below the vocabulary's size of {vocab_size}"
    mark = rules.watermark
    if mark is not None and not (0 < mark.gamma < 1 and np.isfinite(mark.delta)):
        return f"a watermark of gamma {mark.gamma} and delta {mark.delta} is out of range"
    return None


def sequences(column: bytes, name: str) -> list[Ints] | None:
    """The sequences of tokens in the column of that name; None when it is not made of whole ones."""
    numbers = unpack_u32(column, name)
    parts, at = [], 0
    while at < len(numbers):
        end = at + 1 + int(numbers[at])
        if end == at + 1 or end > len(numbers):
            return None
        parts.append(numbers[at + 1 : end])
        at = end
    return parts


def token_rules(rules: Rules, device: torch.device) -> TokenRules:
    """Rules that were checked, for the sampler."""
    allowed = torch.frombuffer(bytearray(rules.allowed), dtype=torch.uint8).to(device) if rules.allowed else None
    mark, thought = rules.watermark, rules.thinking
    thinking = None
    if thought is not None:
        thinking = Thinking(
            thought.budget,
            openings=tuple(sequences(thought.openings, "openings") or ()),
            end=unpack_u32(thought.end, "end"),
            closings=tuple(sequences(thought.closings, "closings") or ()),
        )
    return TokenRules(
        bias_ids=unpack_u32(rules.bias_ids, "bias_ids"),
        biases=unpack_f32(rules.biases, "biases"),
        allowed=allowed,
        banned=[tokens.tolist() for tokens in sequences(rules.banned, "banned") or ()],
        min_tokens=rules.min_tokens,
        endings=unpack_u32(rules.endings, "endings"),
        watermark=None if mark is None else Watermark(mark.gamma, mark.delta),
        thinking=thinking,
    )
