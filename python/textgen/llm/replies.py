"""The router's records of what came of a request (`router/src/http/library/reply.rs`), and the outputs made of them."""

from __future__ import annotations

import time

import msgspec

from textgen.llm.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput


class _Array(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """An array of its fields in order."""


class Scored(_Array, frozen=True):
    id: int
    text: str
    logprob: float
    rank: int | None
    top: list[tuple[int, str, float]]

    def by_token(self) -> dict[int, Logprob]:
        """The alternatives, and the token itself."""
        found = {token: Logprob(logprob, rank, text) for rank, (token, text, logprob) in enumerate(self.top, 1)}
        found.setdefault(self.id, Logprob(self.logprob, self.rank, self.text))
        return found


class Prompt(_Array, frozen=True):
    text: str | None
    token_ids: list[int]
    scores: list[Scored | None]


class Moments(_Array, frozen=True):
    """Seconds since the request arrived."""

    started: float
    first: float
    last: float


class Part(_Array, frozen=True):
    text: str
    token_ids: list[int]
    scores: list[Scored]
    logprob: float
    finish: str | None
    stop_text: str | None
    stop_token: int | None
    message: str | None
    moments: Moments | None = None


class Fault(_Array, frozen=True):
    status: int
    kind: str
    message: str


class RouteAnswer(_Array, frozen=True):
    status: int
    request_id: str
    body: str


class Reply(_Array, frozen=True):
    prompt: Prompt | None
    cached_tokens: int
    parts: dict[int, Part]
    done: bool
    fault: Fault | None
    response: RouteAnswer | None


decode = msgspec.msgpack.Decoder(Reply).decode


class Account:
    """What is known of one request so far."""

    def __init__(self, request_id: str, *, scored: bool, prompt_scored: bool) -> None:
        """scored, prompt_scored: whether log-probabilities of answers and of the prompt were asked for."""
        self._scored, self._prompt_scored = scored, prompt_scored
        self.output = RequestOutput(request_id, None, [], None, [], False, 0)
        self._arrived = time.time()

    def add(self, reply: Reply) -> list[CompletionOutput]:
        """Take a reply in; what is new of each answer."""
        output = self.output
        output.finished = reply.done
        output.num_cached_tokens = max(output.num_cached_tokens, reply.cached_tokens)
        if (prompt := reply.prompt) is not None:
            output.prompt, output.prompt_token_ids = prompt.text, prompt.token_ids
            if self._prompt_scored:
                output.prompt_logprobs = [None if score is None else score.by_token() for score in prompt.scores]
        return [self._join(index, part) for index, part in sorted(reply.parts.items())]

    def _join(self, index: int, part: Part) -> CompletionOutput:
        fresh = CompletionOutput(
            index=index,
            text=part.text,
            token_ids=part.token_ids,
            cumulative_logprob=part.logprob,
            logprobs=[score.by_token() for score in part.scores] if self._scored else None,
            finish_reason=part.finish,
            stop_reason=part.stop_token if part.stop_text is None else part.stop_text,
            message=None if part.message is None else msgspec.json.decode(part.message),
        )
        if part.moments is not None:
            self._note(part.moments)
        outputs = self.output.outputs
        while len(outputs) <= index:
            outputs.append(CompletionOutput(len(outputs), logprobs=[] if self._scored else None))
        whole = outputs[index]
        whole.text += fresh.text
        whole.token_ids.extend(fresh.token_ids)
        whole.cumulative_logprob += fresh.cumulative_logprob
        if whole.logprobs is not None and fresh.logprobs is not None:
            whole.logprobs.extend(fresh.logprobs)
        whole.finish_reason, whole.stop_reason, whole.message = fresh.finish_reason, fresh.stop_reason, fresh.message
        return fresh

    def _note(self, moments: Moments) -> None:
        began, first, last = (self._arrived + after for after in (moments.started, moments.first, moments.last))
        if (before := self.output.metrics) is not None:
            began, first = min(began, before.first_scheduled_time), min(first, before.first_token_time)
            last = max(last, before.last_token_time)
        self.output.metrics = RequestMetrics(self._arrived, began, first, last)
