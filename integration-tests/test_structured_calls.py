"""Calls of tools under a grammar: required, named, strict, beside a shape, and as the official client reads them."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pydantic
import pytest
from support.api import Api
from support.server import Launcher
from support.shapes import ASKED, CHAT, PING, PLACE, REPORT, SHAPE, SMALL, TOOLS, Place, Report, chat, many

MODEL = "textgen-demo"
MODELS: dict[str, type[pydantic.BaseModel]] = {"report": Report, "place": Place}


@pytest.fixture(scope="module")
def gpt(built_in: Launcher) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{built_in.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def check_calls(answer: dict[str, Any]) -> list[str]:
    """The names of an answer's calls, whose arguments are right."""
    names = []
    for call in answer["message"].get("tool_calls") or []:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        if name == "ping":
            assert json.loads(arguments) == {}
        else:
            MODELS[name].model_validate_json(arguments, strict=True)
        assert call["type"] == "function"
        assert call["id"]
        names.append(name)
    return names


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_required_calls(model: Api, stream: bool) -> None:
    ask = functools.partial(chat, model, tools=TOOLS, tool_choice="required", max_tokens=300, stream=stream)
    answers = many(lambda n: ask(seed=n, parallel_tool_calls=n % 2 == 0), 8)
    ended = [answer for answer in answers if answer["finish_reason"] != "length"]
    assert len(ended) >= 4
    assert all(answer["finish_reason"] == "tool_calls" and not answer["message"]["content"] for answer in ended)
    assert all(check_calls(answer) for answer in ended)
    single = [answer for answer in answers[1::2] if answer["finish_reason"] != "length"]
    assert single
    assert all(len(check_calls(answer)) == 1 for answer in single)


@pytest.mark.parametrize(
    "choice", ["report", {"type": "function", "function": {"name": "report"}}], ids=["tgi", "openai"]
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_named_call(model: Api, choice: Any, stream: bool) -> None:
    answers = many(lambda n: chat(model, tools=TOOLS, tool_choice=choice, seed=n, stream=stream), 4)
    for answer in answers:
        assert answer["finish_reason"] == "stop"
        assert check_calls(answer) == ["report"]
        assert not answer["message"]["content"]


def test_calls_of_some_tools_alone(model: Api) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [PING, PLACE]}}
    for answer in many(lambda n: chat(model, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, seed=n), 6):
        assert set(check_calls(answer)) <= {"ping", "place"}
        assert answer["finish_reason"] == "tool_calls"


def test_strict_tools_are_called_rightly_or_not_at_all(api: Api) -> None:
    """The model calls because it wants to, and what it writes is held to the schema all the same."""
    question = [{"role": "user", "content": "What time is it in Paris?"}]
    zone = {
        "type": "object",
        "properties": {"zone": {"enum": ["A1", "B2"]}},
        "required": ["zone"],
        "additionalProperties": False,
    }
    tool = {
        "type": "function",
        "function": {"name": "current_time", "description": "The time in a city.", "parameters": zone},
    }
    body: dict[str, Any] = {"messages": question, "temperature": 0, "max_tokens": 60}
    free = api.post(CHAT, body | {"tools": [tool]})["choices"][0]
    assert free["finish_reason"] == "tool_calls"
    strict = {"type": "function", "function": tool["function"] | {"strict": True}}  # type: ignore[operator]
    held = api.post(CHAT, body | {"tools": [strict]})["choices"][0]
    assert held["finish_reason"] == "tool_calls"
    (call,) = held["message"]["tool_calls"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), zone)


def test_a_shape_beside_tools(model: Api) -> None:
    """An answer is text of the shape, or calls."""
    seen = set()
    for answer in many(lambda n: chat(model, tools=TOOLS, response_format=SHAPE, max_tokens=300, seed=n), 8):
        if answer["finish_reason"] == "stop":
            jsonschema.validate(json.loads(answer["message"]["content"]), SMALL)
        elif answer["finish_reason"] == "tool_calls":
            assert check_calls(answer)
            assert not answer["message"]["content"]
        seen.add(answer["finish_reason"])
    assert seen & {"stop", "tool_calls"}


def test_the_clients_own_parsing(gpt: openai.OpenAI) -> None:
    said = gpt.chat.completions.parse(model=MODEL, messages=ASKED, response_format=Place, max_tokens=200, seed=1)
    assert isinstance(said.choices[0].message.parsed, Place)
    with gpt.chat.completions.stream(model=MODEL, messages=ASKED, response_format=Report, max_tokens=200) as stream:
        message = stream.get_final_completion().choices[0].message
    assert isinstance(message.parsed, Report)
    called = gpt.chat.completions.parse(
        model=MODEL,
        messages=ASKED,
        tools=[REPORT, PLACE],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=200,
    )
    assert called.choices[0].message.tool_calls is not None
    (call,) = called.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, (Report, Place))
    with gpt.chat.completions.stream(
        model=MODEL, messages=ASKED, tools=[PLACE], tool_choice="required", parallel_tool_calls=False, max_tokens=200
    ) as stream:
        final = stream.get_final_completion().choices[0].message
    assert final.tool_calls is not None
    assert isinstance(final.tool_calls[0].function.parsed_arguments, Place)
