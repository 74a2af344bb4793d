"""What Transformers answers, in float32 on one thread: the truth that the server is held to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from textgen.ops.sampling import uniform

PAD = 0  # fills up what ended before the longest answer

# Two logits closer than this may change places by rounding alone: sums in another order differ by some 1e-5.
TIE = 1e-3
# A draw closer than this to where the share of one token ends and that of the next begins may fall to either.
EDGE = 3e-5


@dataclass(frozen=True)
class Expected:
    """A greedy answer. `decided`: how many leading tokens won by more than `TIE`."""

    tokens: tuple[int, ...]  # the end-of-sequence token included, when it came
    decided: int
    text: str  # without special tokens

    @property
    def clear(self) -> bool:
        """Whether no choice was a tie."""
        return self.decided == len(self.tokens)


@dataclass(frozen=True)
class Beam:
    """An answer of a beam search."""

    tokens: tuple[int, ...]  # the one that ended it included
    text: str  # without it, and without special tokens
    score: float  # the sum of the log-probabilities by the length to the power of the penalty


class Reference:
    """A model folder in Transformers."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._model.train(False)
        self._known: dict[tuple[tuple[int, ...], int, float], Expected] = {}

    def encode(self, text: str) -> list[int]:
        """As a prompt: with the tokens that the tokenizer adds."""
        return list(self.tokenizer(text).input_ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def chat(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None) -> list[int]:
        """A conversation's tokens, ready for the answer."""
        text = self.tokenizer.apply_chat_template(
            list(messages), tools=list(tools) if tools else None, add_generation_prompt=True, tokenize=False
        )
        return list(self.tokenizer(str(text), add_special_tokens=False).input_ids)

    def chat_continued(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """A conversation whose last message is still to be ended."""
        text = self.tokenizer.apply_chat_template(list(messages), continue_final_message=True, tokenize=False)
        return list(self.tokenizer(str(text), add_special_tokens=False).input_ids)

    def greedy(self, prompt: Sequence[int], max_new_tokens: int, repetition_penalty: float = 1.0) -> Expected:
        """`generate` without sampling."""
        key = (tuple(prompt), max_new_tokens, repetition_penalty)
        if key not in self._known:
            self._known[key] = self._generate(list(prompt), max_new_tokens, repetition_penalty)
        return self._known[key]

    def greedy_with(self, prompt: Sequence[int], max_new_tokens: int, **processors: Any) -> Expected:
        """The same with other processors of Transformers' on the logits."""
        return self._generate(list(prompt), max_new_tokens, 1.0, **processors)

    @torch.inference_mode()
    def decided_draws(self, prompt: Sequence[int], tokens: Sequence[int], temperature: float, seed: int) -> int:
        """How many leading tokens of a drawn answer were drawn so far from a token's edge that no other order of sums
        could have drawn others.
        """
        end = len(prompt) + len(tokens)
        logits = self._model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : end - 1]
        edges = (logits.double() / temperature).softmax(-1).cumsum(-1)
        at = torch.from_numpy(uniform(np.array([seed], np.uint64), np.arange(len(prompt), end)))
        clear = (edges - at[:, None]).abs().amin(-1) > EDGE
        return int(clear.int().cumprod(0).sum())

    @property
    def config(self) -> Any:
        return self._model.config

    @torch.inference_mode()
    def beams(
        self, prompt: Sequence[int], max_new_tokens: int, *, width: int, returned: int, length_penalty: float,
        early_stopping: bool | str, stop_tokens: Sequence[int],
    ) -> list[Beam]:  # fmt: skip
        """`generate` with beams, the best answer first."""
        ids = torch.tensor([list(prompt)])
        made = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False, num_beams=width,
            num_return_sequences=returned, length_penalty=length_penalty, early_stopping=early_stopping,
            eos_token_id=list(stop_tokens), pad_token_id=PAD, output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
        scores = made.sequences_scores.tolist()
        return [
            self._beam(row, stop_tokens, score)
            for row, score in zip(made.sequences[:, len(prompt) :].tolist(), scores, strict=True)
        ]

    def _beam(self, row: list[int], stop_tokens: Sequence[int], score: float) -> Beam:
        ends = [place for place, token in enumerate(row) if token in stop_tokens]
        tokens = row[: ends[0] + 1] if ends else row
        return Beam(tuple(tokens), self.decode(tokens[:-1] if ends else tokens), score)

    @torch.inference_mode()
    def prompt_logprobs(self, text: str) -> list[float]:
        """Of each token but the first, given those before it."""
        ids = torch.tensor([self.encode(text)])
        logprobs = self._model(ids).logits[0, :-1].log_softmax(-1)
        chosen: list[float] = logprobs.gather(1, ids[0, 1:, None]).flatten().tolist()
        return chosen

    @torch.inference_mode()
    def prompt_distributions(self, ids: Sequence[int]) -> torch.Tensor:
        """Log-probabilities over the vocabulary of each token but the first: [tokens - 1, vocabulary]."""
        logprobs: torch.Tensor = self._model(torch.tensor([list(ids)])).logits[0, :-1].log_softmax(-1)
        return logprobs

    @torch.inference_mode()
    def _generate(
        self, prompt: list[int], max_new_tokens: int, repetition_penalty: float, **processors: Any
    ) -> Expected:
        ids = torch.tensor([prompt])
        made = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False,
            repetition_penalty=repetition_penalty, output_scores=True, return_dict_in_generate=True, **processors,
        )  # fmt: skip
        tokens = made.sequences[0, len(prompt) :].tolist()
        best, second = torch.cat(made.scores).topk(2).values.unbind(1)
        ties = torch.nonzero(best - second < TIE).flatten().tolist()
        return Expected(tuple(tokens), ties[0] if ties else len(tokens), self.decode(tokens))


def must_match(got: Sequence[int], expected: Expected, what: str) -> None:
    """Token for token, as far as rounding does not decide."""
    assert list(got[: expected.decided]) == list(expected.tokens[: expected.decided]), what
    if expected.clear:
        assert len(got) == len(expected.tokens), what
