"""Answers of a given shape with everything else: several at once, logprobs, cached prompts, limits, thinking."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from support.api import Api
from support.scripted import write_script
from support.server import Start
from support.shapes import ASKED, CHAT, SHAPE, SMALL


def test_several_answers_each_follow_the_schema(model: Api) -> None:
    body = {"messages": ASKED, "temperature": 1.5, "max_tokens": 160, "response_format": SHAPE, "n": 4, "seed": 3}
    answer = model.post(CHAT, body)
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert len(texts) == 4
    for choice, text in zip(answer["choices"], texts, strict=True):
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(text), SMALL)
    assert len(set(texts)) > 1
    streamed = [""] * 4
    with model.events(CHAT, body | {"stream": True}) as events:
        for event in events:
            for choice in event["choices"]:
                streamed[choice["index"]] += choice["delta"].get("content") or ""
    assert streamed == texts


def test_every_token_has_a_log_probability(model: Api) -> None:
    """Those that were forced too; and all of them are counted."""
    body = {"messages": ASKED, "temperature": 1.5, "max_tokens": 160, "response_format": SHAPE, "seed": 4}
    answer = model.post(CHAT, body | {"logprobs": True, "top_logprobs": 2})
    (choice,) = answer["choices"]
    entries = choice["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"]
    text = b"".join(bytes(entry["bytes"] or []) for entry in entries).decode()
    assert text.startswith(choice["message"]["content"])
    assert all(entry["logprob"] <= 0 for entry in entries)
    assert choice["message"]["content"] == model.post(CHAT, body)["choices"][0]["message"]["content"]


def test_a_cached_prefix_changes_nothing(model: Api) -> None:
    body = {"messages": [{"role": "user", "content": "A long question. " * 30}], "temperature": 0, "max_tokens": 160}
    first, second = (model.post(CHAT, body | {"response_format": SHAPE}) for _ in range(2))
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert first["choices"] == second["choices"]
    free = model.post(CHAT, body)
    assert free["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_limits_cut_what_is_forced(model: Api) -> None:
    """A run of forced tokens is cut like any other: by the number of tokens, and by a stop string inside it."""
    long = {"const": {"a_long_key_that_is_forced": "and a long value that is forced as well, to its end"}}
    shape = {"type": "json_schema", "json_schema": {"name": "long", "schema": long}}
    body = {"messages": ASKED, "temperature": 0, "response_format": shape, "max_tokens": 160}
    whole = model.post(CHAT, body)
    text, tokens = whole["choices"][0]["message"]["content"], whole["usage"]["completion_tokens"]
    assert json.loads(text) == long["const"]
    for most in (1, 5, tokens - 1):
        cut = model.post(CHAT, body | {"max_tokens": most})
        assert cut["usage"]["completion_tokens"] == most
        assert cut["choices"][0]["finish_reason"] == "length"
        assert text.startswith(cut["choices"][0]["message"]["content"])
    stopped = model.post(CHAT, body | {"stop": "value that"})["choices"][0]
    assert stopped["finish_reason"] == "stop"
    assert stopped["message"]["content"] == text.partition("value that")[0]


@pytest.mark.parametrize("opened_by", ["message", "template"])
def test_thinking_is_free_and_the_answer_is_not(start: Start, tmp_path: Path, opened_by: str) -> None:
    """The prompt ends inside the reasoning: by a message that is continued, or as the chat template always does."""
    script = write_script(tmp_path / "thinker", ends=False, text="Hm, so 7 it is.</think>")
    messages = [*ASKED, {"role": "assistant", "content": "<think>"}]
    if opened_by == "template":
        messages = ASKED
        config = script.folder / "tokenizer_config.json"
        written = json.loads(config.read_text())
        written["chat_template"] += "{% if add_generation_prompt %}<think>\n{% endif %}"
        config.write_text(json.dumps(written))
    server = start(model=script.folder, reasoning_parser="<think>...</think>" if opened_by == "message" else None)
    api = Api(server.wait_ready().url)
    for stream in (False, True):
        body = {"messages": messages, "temperature": 0, "max_tokens": 160, "response_format": SHAPE, "stream": stream}
        if stream:
            with api.events(CHAT, body) as events:
                deltas = [choice["delta"] for event in events for choice in event["choices"]]
            thought = "".join(delta.get("reasoning_content") or "" for delta in deltas)
            text = "".join(delta.get("content") or "" for delta in deltas)
        else:
            message = api.post(CHAT, body)["choices"][0]["message"]
            thought, text = message["reasoning_content"], message["content"]
        assert thought == "Hm, so 7 it is."
        jsonschema.validate(json.loads(text), SMALL)
    api.close()
