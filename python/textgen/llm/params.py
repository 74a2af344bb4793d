"""How texts are generated: vLLM's `SamplingParams`, its names and defaults. The router checks the values."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from textgen.llm.errors import request_error


class RequestOutputKind(Enum):
    """What each output of a stream holds."""

    CUMULATIVE = 0  # all so far
    DELTA = 1  # what is new
    FINAL_ONLY = 2  # all, once, at the end


@dataclass(slots=True, kw_only=True)
class StructuredOutputsParams:
    """What an answer must look like: one of these. `docs/compatibility.md` says what each can hold."""

    json: str | dict[str, Any] | None = None  # a schema
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None  # Lark or GBNF
    structural_tag: str | dict[str, Any] | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one prompt.

    n, best_of: answers to return, and sequences they are the best of. temperature: 0 is greedy. max_tokens: None is as
    many as fit. logprobs, prompt_logprobs: alternatives to report beside each token, 0 to 20. stop, stop_token_ids:
    what ends the text. truncate_prompt_tokens: keep only so many of the prompt's last tokens, -1 as many as are
    allowed. use_beam_search: follow the `best_of` likeliest texts instead of drawing. output_kind: for streams.
    """

    n: int = 1
    best_of: int | None = None
    temperature: float = 1.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    use_beam_search: bool = False
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def streamable(self) -> bool:
        """Whether something can be told before the end: not where the end decides what the answers are."""
        ranked = self.use_beam_search or (self.best_of or self.n) > self.n
        return not ranked and self.prompt_logprobs is None

    def body(self) -> dict[str, Any]:
        """The fields of a request's body. Raises `InvalidRequest` for what would mean something else in a body."""
        if self.max_tokens is not None and self.max_tokens < 1:  # 0 asks the route for the prompt alone
            raise request_error(
                f"`max_tokens` must be at least 1. Given: {self.max_tokens}", status=422, kind="validation"
            )
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        del given["output_kind"]
        body = {name: value for name, value in given.items() if value is not None and value is not False}
        for name, value in body.items():
            numbers = value.values() if isinstance(value, dict) else (value,)
            if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
                raise request_error(f"`{name}` must be finite. Given: {value}", status=422, kind="validation")
        if self.early_stopping is not None:
            body["early_stopping"] = self.early_stopping
        if not self.skip_special_tokens:
            body["skip_special_tokens"] = False
        if self.logit_bias is not None:
            body["logit_bias"] = {str(token): bias for token, bias in self.logit_bias.items()}
        if (shape := self.structured_outputs) is not None:
            asked = {field.name: getattr(shape, field.name) for field in fields(shape)}
            body["structured_outputs"] = {name: value for name, value in asked.items() if value is not None}
        return body
