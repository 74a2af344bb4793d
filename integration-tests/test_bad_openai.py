"""Wrong requests to OpenAI's routes: its error object, the right status and a sentence that names the field."""

from __future__ import annotations

from typing import Any

import pytest
from support.raw import send_json
from support.reference import Reference
from support.refusals import CHAT, COMPLETIONS, MESSAGES, MOST, RANGES, TYPES, Bad, refused
from support.server import Launcher

OPENAI_RANGES = (
    Bad({"logit_bias": {"5": 101}}, ("`logit_bias`", "100")),
    Bad({"logit_bias": {"the": 1}}, ("`logit_bias`", "the")),
    Bad({"logit_bias": {str(token): 1 for token in range(1025)}}, ("`logit_bias`", "1024")),
    Bad({"allowed_token_ids": []}, ("`allowed_token_ids`",)),
    Bad({"allowed_token_ids": [10**9]}, ("`allowed_token_ids`",)),
    Bad({"bad_words": [""]}, ("`bad_words`",)),
    Bad({"bad_words": ["a"] * 129}, ("`bad_words`", "128")),
    Bad({"max_tokens": 0}, ("max",)),
    Bad({"max_tokens": MOST + 1}, (str(MOST),)),
    Bad({"n": 0}, ("`n`",)),
    Bad({"n": 17}, ("`n`", "16")),
    Bad({"n": 2, "best_of": 1}, ("`best_of`", "`n`")),
    Bad({"priority": -1}, ("`priority`", "3")),
    Bad({"min_tokens": 3, "max_tokens": 2}, ("`min_tokens`", "2")),
    Bad({"logit_bias": {"5": 1}, "use_beam_search": True, "temperature": 0}, ("`logit_bias`", "beam search")),
)
OPENAI_TYPES = (
    Bad({"max_tokens": -5}, ("max_tokens",)),
    Bad({"stream": "yes"}, ("stream",)),
    Bad({"n": "two"}, ("n",)),
)
OPENAI_SHAPES = (
    Bad({"response_format": {"type": "poem"}}, ("response_format",)),
    Bad({"guided_json": [1]}, ("guided_json",)),
)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("bad", [*RANGES, *OPENAI_RANGES, *OPENAI_SHAPES], ids=str)
def test_openai_values(strict_server: Launcher, path: str, bad: Bad, stream: bool) -> None:
    body = {"prompt": "Hello", "messages": MESSAGES, "stream": stream} | bad.fields
    refused(send_json(strict_server.url, path, body), path, 422, "validation", *bad.words)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("bad", [*TYPES, *OPENAI_TYPES], ids=str)
def test_openai_types(strict_server: Launcher, path: str, bad: Bad) -> None:
    body = {"prompt": "Hello", "messages": MESSAGES} | bad.fields
    refused(send_json(strict_server.url, path, body), path, 422, "validation", *bad.words)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (COMPLETIONS, {}, ("prompt",)),
        (COMPLETIONS, {"prompt": ""}, ("empty",)),
        (COMPLETIONS, {"prompt": []}, ("prompt",)),
        (COMPLETIONS, {"prompt": [[]]}, ("empty",)),
        (COMPLETIONS, {"prompt": {"text": "a"}}, ("prompt",)),
        (COMPLETIONS, {"prompt": [10**9]}, ("prompt",)),
        (COMPLETIONS, {"prompt": "word " * (2 * MOST)}, (str(MOST - 1),)),
        (COMPLETIONS, {"prompt": "a", "suffix": "b"}, ("suffix", "fill in the middle")),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, ("max_new_tokens",)),
        (COMPLETIONS, {"prompt": "a", "prompt_logprobs": 21}, ("`prompt_logprobs`", "20")),
        (COMPLETIONS, {"prompt": "a", "prompt_logprobs": 1, "stream": True}, ("`prompt_logprobs`", "streaming")),
        (COMPLETIONS, {"prompt": "a", "truncate_prompt_tokens": 0}, ("`truncate_prompt_tokens`",)),
        (CHAT, {"messages": MESSAGES, "chat_template_kwargs": {"messages": []}}, ("`messages`", "kwargs")),
        (CHAT, {"messages": MESSAGES, "reasoning_effort": "huge"}, ("reasoning_effort",)),
        (COMPLETIONS, {"prompt": "a", "logprobs": 50}, ("`logprobs`", "50")),
        (CHAT, {}, ("messages",)),
        (CHAT, {"messages": "Hello"}, ("messages",)),
        (CHAT, {"messages": ["Hello"]}, ("messages",)),
        (CHAT, {"messages": MESSAGES, "stream_options": [None] * 9}, ("stream_options", "a list, expected an object")),
        (CHAT, {"messages": [{"content": "Hello"}]}, ("role",)),
        (CHAT, {"messages": [{"role": "user", "content": "word " * (2 * MOST)}]}, (str(MOST - 1),)),
        (CHAT, {"messages": MESSAGES, "top_logprobs": 3}, ("logprobs",)),
        (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 500}, ("`top_logprobs`", "500")),
        (CHAT, {"messages": MESSAGES, "tool_choice": "required"}, ("tool_choice",)),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_openai_bodies(strict_server: Launcher, path: str, body: Any, words: tuple[str, ...]) -> None:
    refused(send_json(strict_server.url, path, body), path, 422, "validation", *words)


def test_the_longest_prompt_is_taken_and_one_token_more_is_not(
    strict_server: Launcher, tiny_reference: Reference
) -> None:
    url = strict_server.url
    text = "a" + " a" * MOST
    assert len(tiny_reference.encode(text)) > MOST
    fits = {"inputs": text, "parameters": {"truncate": MOST - 1, "max_new_tokens": 1, "details": True}}
    assert send_json(url, "/generate", fits).json()["details"]["generated_tokens"] == 1
    ids = tiny_reference.encode(text)[: MOST - 1]
    assert send_json(url, COMPLETIONS, {"prompt": ids, "max_tokens": 1}).status == 200
    for body in ({"prompt": ids, "max_tokens": 2}, {"prompt": [*ids, 7], "max_tokens": 1}):
        refused(send_json(url, COMPLETIONS, body), COMPLETIONS, 422, "validation", "tokens", str(len(ids)))


def test_too_many_prompts(strict_server: Launcher) -> None:
    answer = send_json(strict_server.url, COMPLETIONS, {"prompt": ["a"] * 5})
    refused(answer, COMPLETIONS, 422, "batch size exceeded", "`prompt`", "5", "4")


def test_images_are_refused(strict_server: Launcher) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    answer = send_json(strict_server.url, CHAT, {"messages": [{"role": "user", "content": [image]}]})
    assert answer.status == 422
    refused(answer, CHAT, 422, answer.json()["error_type"], "image")
