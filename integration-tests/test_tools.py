"""Calls of tools through the official client: the built-in model's own, streamed and not, and what comes after."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from support.api import Api
from support.reference import Reference
from support.scripted import write_script
from support.server import START_SECONDS, Launcher, Start

MODEL = "textgen-demo"


def tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {parameter: {"type": kind} for parameter, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TIME = tool("current_time", "The time in a city.", timezone="string")
LIGHT = tool("light", "Control the lights", place="string", state="string")
TOOLS: list[Any] = [LIGHT, TIME]
QUESTION: list[Any] = [{"role": "user", "content": "What time is it in Paris?"}]


@pytest.fixture(scope="module")
def gpt(built_in: Launcher) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{built_in.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def written(built_in_reference: Reference) -> str:
    """What the model writes to call the tool."""
    answer = built_in_reference.greedy(built_in_reference.chat(QUESTION, TOOLS), 60)
    assert answer.clear
    assert answer.text.startswith("<tool_call>")
    return answer.text


def the_call(written: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(written.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    return said


def test_a_call_and_the_answer_from_its_result(gpt: openai.OpenAI, written: str, built_in_reference: Reference) -> None:
    said = gpt.chat.completions.create(model=MODEL, messages=QUESTION, tools=TOOLS, temperature=0, max_tokens=60)
    choice = said.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    expected = the_call(written)
    assert call.function.name == expected["name"] == "current_time"
    arguments = json.loads(call.function.arguments)
    assert arguments == expected["arguments"]
    jsonschema.validate(arguments, TIME["function"]["parameters"])

    result = {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"time": "14:05"})}
    history: list[Any] = [*QUESTION, choice.message.model_dump(exclude_none=True), result]
    then = gpt.chat.completions.create(model=MODEL, messages=history, tools=TOOLS, temperature=0, max_tokens=40)
    # Transformers' own rendering wants arguments as an object; the server makes one of the client's text.
    as_object: dict[str, Any] = {"function": {"name": call.function.name, "arguments": arguments}}
    rendered = [*QUESTION, {"role": "assistant", "content": "", "tool_calls": [as_object]}, result]
    expected_text = built_in_reference.greedy(built_in_reference.chat(rendered, TOOLS), 40)
    assert then.choices[0].message.content == expected_text.text
    assert then.choices[0].message.tool_calls is None
    assert then.choices[0].finish_reason == "stop"


def test_a_streamed_call_is_the_same(gpt: openai.OpenAI, written: str) -> None:
    chunks = list(
        gpt.chat.completions.create(
            model=MODEL, messages=QUESTION, tools=TOOLS, temperature=0, max_tokens=60, stream=True
        )
    )
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    first, *others = deltas
    assert first.id is not None
    assert first.type == "function"
    assert first.function is not None
    assert first.function.name == "current_time"
    assert len(others) > 1  # the arguments come as they are written
    assert all(call.index == 0 and call.id is None for call in others)
    arguments = "".join((call.function.arguments or "") for call in deltas if call.function)
    assert json.loads(arguments) == the_call(written)["arguments"]
    assert all(not chunk.choices[0].delta.content for chunk in chunks)
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_the_clients_own_reading_of_a_stream(gpt: openai.OpenAI, written: str) -> None:
    with gpt.chat.completions.stream(
        model=MODEL, messages=QUESTION, tools=TOOLS, temperature=0, max_tokens=60
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.content is None
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == the_call(written)["arguments"]


def test_tools_that_may_not_be_called(gpt: openai.OpenAI, built_in_reference: Reference) -> None:
    said = gpt.chat.completions.create(
        model=MODEL, messages=QUESTION, tools=TOOLS, tool_choice="none", temperature=0, max_tokens=24
    )
    assert said.choices[0].message.content == built_in_reference.greedy(built_in_reference.chat(QUESTION), 24).text
    assert said.choices[0].message.tool_calls is None
    unknown: Any = {"type": "function", "function": {"name": "unknown"}}
    with pytest.raises(openai.UnprocessableEntityError, match="tool_choice"):
        gpt.chat.completions.create(model=MODEL, messages=QUESTION, tools=TOOLS, tool_choice=unknown)


def test_parsers_by_flag(start: Start, written: str) -> None:
    """Without a parser a call is text; read as reasoning, it shows that the other flag arrives."""
    server = start(dtype="float32", tool_call_parser="none", reasoning_parser="<tool_call>...</tool_call>")
    api = Api(server.wait_ready().url)
    body = {"messages": QUESTION, "tools": TOOLS, "temperature": 0, "max_tokens": 60}
    answer = api.post("/v1/chat/completions", body)
    message = answer["choices"][0]["message"]
    inner = written.removeprefix("<tool_call>").removesuffix("</tool_call>")
    assert message == {"role": "assistant", "content": None, "reasoning_content": inner}
    details = answer["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] <= answer["usage"]["completion_tokens"]
    # With a budget the end is written after three tokens, streamed too, and then comes an answer.
    short = api.post("/v1/chat/completions", body | {"thinking_budget": 3, "max_tokens": 12, "ignore_eos": True})
    assert short["usage"]["completion_tokens_details"]["reasoning_tokens"] == 1 + 3 + 1
    thought = short["choices"][0]["message"]["reasoning_content"]
    assert thought and inner.startswith(thought) and thought != inner
    assert short["choices"][0]["finish_reason"] == "length"
    api.close()


def test_channels_are_bounded(start: Start, tmp_path: Path) -> None:
    """The model thinks aloud and ends; with a budget it goes over to the final channel, and says the same there."""
    marks = ["<|start|>", "<|channel|>", "<|message|>", "<|return|>"]  # the tokenizer's own `<|end|>` is the fifth
    said = "<|channel|>analysis<|message|>Hm, so 7 it.<|return|>"
    script = write_script(tmp_path / "channels", ends=False, text=said, marks=marks)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        config = json.loads((script.folder / name).read_text())
        end = {"eos_token": marks[-1]} if "tokenizer" in name else {"eos_token_id": script.tokens[-1]}
        (script.folder / name).write_text(json.dumps(config | end))
    api = Api(start(model=script.folder, reasoning_parser="openai_gptoss").wait_ready().url)
    body = {"messages": QUESTION, "temperature": 0, "max_tokens": 60}
    whole = "Hm, so 7 it."
    for budget, thought, answer in [(None, whole, None), (4, "Hm, so", whole), (0, None, whole)]:
        choice = api.post("/v1/chat/completions", body | {"thinking_budget": budget})["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert (choice["message"].get("reasoning_content"), choice["message"]["content"]) == (thought, answer)
        with api.events("/v1/chat/completions", body | {"thinking_budget": budget, "stream": True}) as events:
            deltas = [choice["delta"] for event in events for choice in event["choices"]]
        parts = ["".join(delta.get(name) or "" for delta in deltas) for name in ("reasoning_content", "content")]
        assert parts == [thought or "", answer or ""]
    api.close()


@pytest.mark.parametrize("flag", ["tool_call_parser", "reasoning_parser"])
def test_an_unknown_parser_is_refused_at_the_start(start: Start, flag: str) -> None:
    launcher = start(**{flag: "nobody"})
    assert launcher.wait(START_SECONDS) != 0
    assert "there is no " in launcher.log
    assert '"nobody"' in launcher.log
