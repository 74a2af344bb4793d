"""OpenAI's Responses through the official client: created, streamed, kept, gone on from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest
from support.api import Api
from support.reference import Reference
from support.server import Launcher, Start

MODEL = "textgen-demo"
SYSTEM = "You are helpful."
STORY = "Tell me a story."
MESSAGES: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": STORY}]
QUESTION: list[Any] = [{"role": "user", "content": "What time is it in Paris?"}]
ZONE = {"type": "object", "properties": {"timezone": {"type": "string"}}, "required": ["timezone"]}
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
FUNCTIONS: list[dict[str, Any]] = [
    {"name": "light", "description": "Control the lights", "parameters": PLACE},
    {"name": "current_time", "description": "The time in a city.", "parameters": ZONE},
]
TOOLS: list[Any] = [{"type": "function", "strict": False, **function} for function in FUNCTIONS]
AS_IN_A_CHAT: list[Any] = [{"type": "function", "function": function} for function in FUNCTIONS]


@pytest.fixture(scope="module")
def gpt(built_in: Launcher) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{built_in.url}/v1", api_key="ours", max_retries=0) as client:
        yield client


@pytest.fixture
def chat_text(built_in_reference: Reference) -> str:
    return built_in_reference.greedy(built_in_reference.chat(MESSAGES), 24).text


def test_create(gpt: openai.OpenAI, chat_text: str, built_in_reference: Reference) -> None:
    said = gpt.responses.create(
        model=MODEL, instructions=SYSTEM, input=STORY, temperature=0, max_output_tokens=24, store=False
    )
    assert said.output_text == chat_text
    assert said.status in ("completed", "incomplete")
    assert said.usage is not None
    assert said.usage.input_tokens == len(built_in_reference.chat(MESSAGES))
    assert said.usage.total_tokens == said.usage.input_tokens + said.usage.output_tokens
    counted = gpt.responses.input_tokens.count(model=MODEL, instructions=SYSTEM, input=STORY)
    assert counted.input_tokens == said.usage.input_tokens
    with pytest.raises(openai.NotFoundError):
        gpt.responses.retrieve(said.id)


def test_stream(gpt: openai.OpenAI, chat_text: str) -> None:
    events = list(
        gpt.responses.create(
            model=MODEL, instructions=SYSTEM, input=STORY, temperature=0, max_output_tokens=24, stream=True
        )
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[1].type) == ("response.created", "response.in_progress")
    assert events[-1].type in ("response.completed", "response.incomplete")
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 3
    assert "".join(deltas) == chat_text
    with gpt.responses.stream(model=MODEL, input="Anna has", temperature=0, max_output_tokens=200) as stream:
        final = stream.get_final_response()
    again = gpt.responses.create(model=MODEL, input="Anna has", temperature=0, max_output_tokens=200)
    assert final.output_text == again.output_text != ""


def test_a_conversation_that_is_kept(gpt: openai.OpenAI, built_in_reference: Reference, built_in: Launcher) -> None:
    first = gpt.responses.create(model=MODEL, input=STORY, temperature=0, max_output_tokens=24)
    kept = gpt.responses.retrieve(first.id)
    assert kept.output_text == first.output_text
    assert [item.type for item in gpt.responses.input_items.list(first.id)] == ["message"]
    then = gpt.responses.create(
        model=MODEL, input="And then?", previous_response_id=first.id, temperature=0, max_output_tokens=24
    )
    history: list[Any] = [
        {"role": "user", "content": STORY},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And then?"},
    ]
    assert then.output_text == built_in_reference.greedy(built_in_reference.chat(history), 24).text
    assert then.previous_response_id == first.id
    with openai.OpenAI(base_url=f"{built_in.url}/v1", api_key="theirs", max_retries=0) as other:
        with pytest.raises(openai.NotFoundError):
            other.responses.retrieve(first.id)
        with pytest.raises(openai.NotFoundError):
            other.responses.create(model=MODEL, input="And then?", previous_response_id=first.id)
        with pytest.raises(openai.NotFoundError):
            other.responses.delete(first.id)
    gpt.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        gpt.responses.retrieve(first.id)


def test_tools(gpt: openai.OpenAI, built_in_reference: Reference) -> None:
    written = built_in_reference.greedy(built_in_reference.chat(QUESTION, AS_IN_A_CHAT), 60).text
    expected = json.loads(written.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    said = gpt.responses.create(model=MODEL, input=QUESTION, tools=TOOLS, temperature=0, max_output_tokens=60)
    (call,) = said.output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == (expected["name"], expected["arguments"])
    with gpt.responses.stream(model=MODEL, input=QUESTION, tools=TOOLS, temperature=0, max_output_tokens=60) as stream:
        (streamed,) = stream.get_final_response().output
    assert streamed.type == "function_call"
    assert (streamed.name, streamed.arguments) == (call.name, call.arguments)
    result = json.dumps({"time": "14:05"})
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": result}
    items: list[Any] = [*QUESTION, call, output]
    by_items = gpt.responses.create(model=MODEL, input=items, tools=TOOLS, temperature=0, max_output_tokens=40)
    by_id = gpt.responses.create(
        model=MODEL, input=[output], previous_response_id=said.id, tools=TOOLS, temperature=0, max_output_tokens=40
    )
    made: dict[str, Any] = {"function": {"name": call.name, "arguments": expected["arguments"]}}
    rendered: list[Any] = [
        *QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [made]},
        {"role": "tool", "content": result},
    ]
    then = built_in_reference.greedy(built_in_reference.chat(rendered, AS_IN_A_CHAT), 40).text
    assert by_items.output_text == by_id.output_text == then


class Lamp(pydantic.BaseModel):
    """Small enough to be whole in every answer."""

    colour: Literal["red", "green"]
    ready: bool


def test_forced(gpt: openai.OpenAI) -> None:
    """A model of the client's own, any tool, one tool; whatever the model would have said."""
    parsed = gpt.responses.parse(model=MODEL, input=STORY, text_format=Lamp, temperature=0, max_output_tokens=80)
    assert isinstance(parsed.output_parsed, Lamp)
    with gpt.responses.stream(
        model=MODEL, input=STORY, text_format=Lamp, temperature=0, max_output_tokens=80
    ) as stream:
        assert stream.get_final_response().output_parsed == parsed.output_parsed
    named: Any = {"type": "function", "name": "light"}
    for choice in ("required", named):
        said = gpt.responses.create(
            model=MODEL, input=STORY, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, temperature=0,
            max_output_tokens=200,
        )  # fmt: skip
        (call,) = said.output
        assert call.type == "function_call"
        assert call.name == "light" if choice is named else call.name in ("light", "current_time")
        if said.status == "completed":
            schema = next(function["parameters"] for function in FUNCTIONS if function["name"] == call.name)
            jsonschema.validate(json.loads(call.arguments), schema)


def test_errors(gpt: openai.OpenAI) -> None:
    for streamed in (False, True):
        with pytest.raises(openai.UnprocessableEntityError, match="temperature"):
            gpt.responses.create(model=MODEL, input=STORY, temperature=-1, stream=streamed)
    with pytest.raises(openai.UnprocessableEntityError, match="background"):
        gpt.responses.create(model=MODEL, input=STORY, background=True)
    with pytest.raises(openai.NotFoundError, match="resp_nothing"):
        gpt.responses.create(model=MODEL, input=STORY, previous_response_id="resp_nothing")


def test_async(built_in: Launcher, chat_text: str) -> None:
    async def use() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{built_in.url}/v1", api_key="none", max_retries=0) as client:

            async def one() -> str:
                said = await client.responses.create(
                    model=MODEL, instructions=SYSTEM, input=STORY, temperature=0, max_output_tokens=24
                )
                return said.output_text

            return await asyncio.gather(*(one() for _ in range(6)))

    assert asyncio.run(use()) == [chat_text] * 6


def test_a_server_that_keeps_nothing(start: Start) -> None:
    api = Api(start(response_store_bytes=0).wait_ready().url)
    said = api.post("/v1/responses", {"input": STORY, "max_output_tokens": 2})
    assert said["store"] is False
    assert api.http.get(f"/v1/responses/{said['id']}").status_code == 404
    assert api.http.post("/v1/responses", json={"input": STORY, "store": True}).status_code == 422
    api.close()
