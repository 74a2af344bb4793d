"""From what a caller gives to bodies of requests."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, cast

import msgspec

from textgen.llm.errors import request_error
from textgen.llm.params import SamplingParams


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt as token ids."""

    prompt_token_ids: list[int]


Prompt: TypeAlias = "str | Sequence[int] | TextPrompt | TokensPrompt"
Message: TypeAlias = Mapping[str, Any]


class Body(msgspec.Struct, frozen=True):
    """A request that is ready to be sent."""

    content: bytes
    chat: bool
    params: SamplingParams
    streamed: bool


def prompts_of(given: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list."""
    if isinstance(given, (str, Mapping)) or (given and isinstance(given[0], int)):
        return [cast(Prompt, given)]
    return list(cast("Sequence[Prompt]", given))


def conversations_of(given: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """One conversation or several, as a list."""
    if given and isinstance(given[0], Mapping):
        return [cast("Sequence[Message]", given)]
    return list(cast("Sequence[Sequence[Message]]", given))


def params_of(given: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams]:
    """Parameters for each of `count` prompts. Raises `InvalidRequest` when their numbers differ."""
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * count
    if len(given) != count:
        raise _invalid(f"there are {len(given)} sampling parameters for {count} prompts; give one, or one for each")
    return given


def completion(prompt: Prompt, params: SamplingParams, *, streamed: bool = False) -> Body:
    """A prompt's body. Raises `InvalidRequest`."""
    given: Any = prompt
    if isinstance(prompt, Mapping):
        given = prompt.get("prompt_token_ids", prompt.get("prompt"))
    if not isinstance(given, str):
        try:
            given = [operator.index(token) for token in given]
        except TypeError:
            raise _invalid(
                "a prompt is a text, a list of token ids, or a dict with `prompt` or `prompt_token_ids`"
            ) from None
    if not given:
        raise _invalid("a prompt is empty; give a text, or at least one token id")
    return _made({"prompt": given, **params.body()}, False, params, streamed)


def chat(
    messages: Sequence[Message], params: SamplingParams, options: Mapping[str, Any], *, streamed: bool = False
) -> Body:
    """A conversation's body. options: more fields of it; None is not given. Raises `InvalidRequest`."""
    body = {"messages": list(messages), **params.body()}
    body |= {name: value for name, value in options.items() if value is not None}
    if params.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": params.logprobs}
    return _made(body, True, params, streamed)


def _made(body: dict[str, Any], chat: bool, params: SamplingParams, streamed: bool) -> Body:
    body |= {"return_token_ids": True, "stream": streamed}
    try:
        return Body(msgspec.json.encode(body), chat, params, streamed)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _invalid(f"the request cannot be written as JSON: {error}") from None


def _invalid(message: str) -> Exception:
    return request_error(message, status=422, kind="validation")
