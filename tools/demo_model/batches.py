"""From documents to tensors: token ids, and which of them are learned.

Documents of a step are sorted by length and cut into micro-batches, so that little is padded and no
document sees another.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tools.demo_model.corpus.document import Document
from tools.demo_model.rendering import render
from tools.demo_model.tokenizer import BOS, END, ROLES

MAX_TOKENS = 512


@dataclass(frozen=True)
class Example:
    """Token ids of a document and, for each, whether the model learns to predict it."""

    tokens: list[int]
    learned: list[bool]


@dataclass(frozen=True)
class MicroBatch:
    """int64 ``inputs`` ``[rows, length]``, the flat ``places`` in them that are learned, and the ``targets`` there."""

    inputs: Tensor
    places: Tensor
    targets: Tensor


class Encoder:
    """Turns documents into examples: of a conversation only the assistant's words are learned, of a plain text all."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._assistant, self._end = tokenizer.token_to_id("<|assistant|>"), tokenizer.token_to_id(END)
        self._roles = {tokenizer.token_to_id(role) for role in ROLES}
        self._bos = tokenizer.token_to_id(BOS)

    def encode(self, document: Document) -> Example:
        tokens: list[int] = self._tokenizer.encode(render(document), add_special_tokens=False).ids[:MAX_TOKENS]
        learned, speaking = [], not document.is_chat
        for token in tokens:
            learned.append(speaking and token != self._bos)
            if document.is_chat:
                speaking = token == self._assistant or (speaking and token != self._end)
        return Example(tokens, learned)


def micro_batches(examples: list[Example], tokens: int) -> Iterator[MicroBatch]:
    """Cut examples into padded batches of about ``tokens`` tokens, longest first."""
    group: list[Example] = []
    for example in sorted(examples, key=lambda example: -len(example.tokens)):
        if group and len(group[0].tokens) * (len(group) + 1) > tokens:
            yield _pad(group)
            group = []
        group.append(example)
    if group:
        yield _pad(group)


def _pad(group: list[Example]) -> MicroBatch:
    length = len(group[0].tokens) - 1
    inputs = torch.zeros(len(group), length, dtype=torch.int64)
    targets = torch.full((len(group), length), -1, dtype=torch.int64)
    for row, example in enumerate(group):
        size = len(example.tokens) - 1
        inputs[row, :size] = torch.tensor(example.tokens[:-1])
        aims = torch.tensor(example.tokens[1:])
        targets[row, :size] = torch.where(torch.tensor(example.learned[1:]), aims, -1)
    flat = targets.flatten()
    places = (flat >= 0).nonzero().squeeze(1)
    return MicroBatch(inputs, places, flat[places])
