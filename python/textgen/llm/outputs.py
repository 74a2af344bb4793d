"""What comes back for a prompt, under vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's log-probability. rank: its place by probability, from 1; None where it is not among those reported."""

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One answer, or what is new of it.

    logprobs: for each token, by token id: the token itself and its alternatives; None unless asked for. finish_reason:
    `stop` or `length`; None while it goes on. stop_reason: the stop string or the stop token that ended it; None for
    the model's own end. message: a conversation's answer in OpenAI's form, taken apart into `content`,
    `reasoning_content` and `tool_calls`; None on streams.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    message: dict[str, Any] | None = None

    def finished(self) -> bool:
        """Whether this is all of it."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """When things happened, in seconds since 1970.

    arrival_time: the prompt was handed over. first_scheduled_time: its first step began. first_token_time,
    last_token_time: of all its answers the first and the last token were there.
    """

    arrival_time: float
    first_scheduled_time: float
    first_token_time: float
    last_token_time: float


@dataclass(slots=True)
class RequestOutput:
    """A prompt with its answers, the best first.

    prompt: its text; None when token ids were given. prompt_logprobs: for each token what `logprobs` is for answers;
    the first is None. num_cached_tokens: tokens of the prompt that were in the prefix cache. metrics: None until the
    first of its answers has ended.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int
    metrics: RequestMetrics | None = None
