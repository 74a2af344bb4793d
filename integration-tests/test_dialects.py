"""Anthropic's and Ollama's official clients, SageMaker's and Vertex AI's routes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import jsonschema
import ollama
import pytest
from support.api import Api
from support.reference import Reference
from support.scripted import Script
from support.server import Launcher
from transformers import LogitsProcessor
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

MODEL = "textgen-demo"
GREEDY = {"temperature": 0}  # newer clients have no parameter for it
MESSAGES: list[Any] = [{"role": "user", "content": "Tell me a story."}]
SYSTEM = "You are helpful."
WITH_SYSTEM: list[Any] = [{"role": "system", "content": SYSTEM}, *MESSAGES]
QUESTION: list[Any] = [{"role": "user", "content": "What time is it in Paris?"}]
ZONE = {"type": "object", "properties": {"timezone": {"type": "string"}}, "required": ["timezone"]}
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
FUNCTIONS: list[Any] = [
    {"type": "function", "function": {"name": "light", "description": "Control the lights", "parameters": PLACE}},
    {
        "type": "function",
        "function": {"name": "current_time", "description": "The time in a city.", "parameters": ZONE},
    },
]
# Small enough to be whole in every answer.
SHAPE: dict[str, Any] = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "ready": {"type": "boolean"}},
    "required": ["colour", "ready"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {
        "name": tool["function"]["name"],
        "description": tool["function"]["description"],
        "input_schema": tool["function"]["parameters"],
    }
    for tool in FUNCTIONS
]


class PenaltyOfTheLast(LogitsProcessor):  # type: ignore[misc]
    """Transformers' repetition penalty over so many of the last tokens."""

    def __init__(self, penalty: float, last: int) -> None:
        self.penalise = RepetitionPenaltyLogitsProcessor(penalty)
        self.last = last

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return self.penalise(input_ids[:, -self.last :], scores)


@pytest.fixture
def chat_text(built_in_reference: Reference) -> str:
    return built_in_reference.greedy(built_in_reference.chat(WITH_SYSTEM), 24).text


@pytest.fixture
def the_call(built_in_reference: Reference) -> dict[str, Any]:
    """What the model calls, and with what."""
    answer = built_in_reference.greedy(built_in_reference.chat(QUESTION, FUNCTIONS), 60)
    assert answer.clear
    said: dict[str, Any] = json.loads(answer.text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    return said


# --- anthropic


@pytest.fixture(scope="module")
def claude(built_in: Launcher) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=built_in.url, api_key="none", max_retries=0) as client:
        yield client


def test_anthropic_message(claude: anthropic.Anthropic, built_in_reference: Reference, chat_text: str) -> None:
    said = claude.messages.create(model=MODEL, max_tokens=24, system=SYSTEM, messages=MESSAGES, extra_body=GREEDY)
    (block,) = said.content
    assert isinstance(block, anthropic.types.TextBlock)
    assert block.text == chat_text
    assert said.role == "assistant"
    assert said.stop_reason in ("end_turn", "max_tokens")
    prompt = len(built_in_reference.chat(WITH_SYSTEM))
    assert said.usage.input_tokens + (said.usage.cache_read_input_tokens or 0) == prompt
    counted = claude.messages.count_tokens(model=MODEL, system=SYSTEM, messages=MESSAGES)
    assert counted.input_tokens == prompt


def test_anthropic_stream(claude: anthropic.Anthropic, chat_text: str) -> None:
    events = list(
        claude.messages.create(
            model=MODEL, max_tokens=24, system=SYSTEM, messages=MESSAGES, extra_body=GREEDY, stream=True
        )
    )
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    with claude.messages.stream(
        model=MODEL, max_tokens=24, system=SYSTEM, messages=MESSAGES, extra_body=GREEDY
    ) as stream:
        assert "".join(stream.text_stream) == chat_text
        assert stream.get_final_message().usage.output_tokens > 3


def test_anthropic_prefill_and_stop(claude: anthropic.Anthropic, scripted_server: Launcher, script: Script) -> None:
    with anthropic.Anthropic(base_url=scripted_server.url, api_key="none", max_retries=0) as client:
        said = client.messages.create(
            model="m", max_tokens=40, messages=MESSAGES, extra_body=GREEDY, stop_sequences=["never", "at so"]
        )
    (block,) = said.content
    assert isinstance(block, anthropic.types.TextBlock)
    assert block.text == script.text[: script.text.index("at so")]
    assert (said.stop_reason, said.stop_sequence) == ("stop_sequence", "at so")


def test_anthropic_tools(claude: anthropic.Anthropic, the_call: dict[str, Any], built_in_reference: Reference) -> None:
    said = claude.messages.create(model=MODEL, max_tokens=60, messages=QUESTION, tools=TOOLS, extra_body=GREEDY)
    (call,) = said.content
    assert isinstance(call, anthropic.types.ToolUseBlock)
    assert (call.name, call.input) == (the_call["name"], the_call["arguments"])
    assert said.stop_reason == "tool_use"
    with claude.messages.stream(
        model=MODEL, max_tokens=60, messages=QUESTION, tools=TOOLS, extra_body=GREEDY
    ) as stream:
        (streamed,) = stream.get_final_message().content
    assert isinstance(streamed, anthropic.types.ToolUseBlock)
    assert (streamed.name, streamed.input) == (call.name, call.input)
    result = json.dumps({"time": "14:05"})
    history: list[Any] = [
        *QUESTION,
        {"role": "assistant", "content": said.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": result}]},
    ]
    then = claude.messages.create(model=MODEL, max_tokens=40, messages=history, tools=TOOLS, extra_body=GREEDY)
    made: dict[str, Any] = {"function": {"name": call.name, "arguments": call.input}}
    rendered: list[Any] = [
        *QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [made]},
        {"role": "tool", "content": result},
    ]
    expected = built_in_reference.greedy(built_in_reference.chat(rendered, FUNCTIONS), 40).text
    assert [block.text for block in then.content if block.type == "text"] == [expected]


def test_anthropic_forced(claude: anthropic.Anthropic) -> None:
    """A schema, any tool, one tool; whatever the model would have said."""
    form: Any = {"format": {"type": "json_schema", "schema": SHAPE}}
    said = claude.messages.create(model=MODEL, max_tokens=80, messages=MESSAGES, output_config=form, extra_body=GREEDY)
    jsonschema.validate(json.loads("".join(block.text for block in said.content if block.type == "text")), SHAPE)
    for choice, names in (({"type": "any"}, {"light", "current_time"}), ({"type": "tool", "name": "light"}, {"light"})):
        chosen: Any = {**choice, "disable_parallel_tool_use": True}
        forced = claude.messages.create(
            model=MODEL, max_tokens=200, messages=MESSAGES, tools=TOOLS, tool_choice=chosen, extra_body=GREEDY
        )
        (call,) = forced.content
        assert call.type == "tool_use"
        assert call.name in names
        if forced.stop_reason != "max_tokens":
            assert forced.stop_reason == "tool_use"
            schema = next(tool["input_schema"] for tool in TOOLS if tool["name"] == call.name)
            jsonschema.validate(call.input, schema)


def test_anthropic_models(claude: anthropic.Anthropic) -> None:
    (model,) = claude.models.list()
    assert (model.id, model.display_name, model.type) == (MODEL, MODEL, "model")
    assert model.created_at.year == 1970
    assert claude.models.retrieve(MODEL) == model
    with pytest.raises(anthropic.NotFoundError, match="claude-3"):
        claude.models.retrieve("claude-3")


def test_anthropic_documents(claude: anthropic.Anthropic, built_in_reference: Reference) -> None:
    """What is text is read as text, also where a tool has found it."""
    source = {"type": "text", "media_type": "text/plain", "data": "The cat sat."}
    found = {
        "type": "search_result",
        "title": "Cats",
        "source": "a book",
        "content": [{"type": "text", "text": "Mew."}],
    }
    blocks: list[Any] = [{"type": "document", "title": "Story", "source": source}, {"type": "text", "text": "Why?"}]
    asked: list[Any] = [{"role": "user", "content": [found, *blocks]}]
    said = claude.messages.create(model=MODEL, max_tokens=12, messages=asked, extra_body=GREEDY)
    rendered = [{"role": "user", "content": "Cats\na book\nMew.\nStory\nThe cat sat.\nWhy?"}]
    expected = built_in_reference.greedy(built_in_reference.chat(rendered), 12).text
    assert [block.text for block in said.content if block.type == "text"] == [expected]


def test_anthropic_errors(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature") as caught:
        claude.messages.create(model=MODEL, max_tokens=4, messages=MESSAGES, extra_body={"temperature": -1})
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert caught.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        claude.messages.create(
            model=MODEL, max_tokens=4, messages=MESSAGES, extra_body={"temperature": -1}, stream=True
        )
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\]"):
        claude.messages.create(model=MODEL, max_tokens=4, messages=[{"role": "user", "content": [image]}])


# --- ollama


@pytest.fixture(scope="module")
def llama(built_in: Launcher) -> Iterator[ollama.Client]:
    client = ollama.Client(host=built_in.url)
    yield client
    client._client.close()  # it has no other way


def test_ollama_chat(llama: ollama.Client, chat_text: str, built_in_reference: Reference) -> None:
    options = {"temperature": 0, "num_predict": 24, "num_ctx": 512}
    said = llama.chat(model=MODEL, messages=WITH_SYSTEM, options=options)
    assert said.message.content == chat_text
    assert said.done
    assert said.prompt_eval_count == len(built_in_reference.chat(WITH_SYSTEM))
    pieces = list(llama.chat(model=MODEL, messages=WITH_SYSTEM, options=options, stream=True))
    assert len(pieces) > 3
    assert "".join(piece.message.content or "" for piece in pieces) == chat_text
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].eval_count == said.eval_count


def test_ollama_generate(llama: ollama.Client, chat_text: str, built_in_reference: Reference) -> None:
    options = {"temperature": 0, "num_predict": 24}
    prompt = MESSAGES[0]["content"]
    assert llama.generate(model=MODEL, prompt=prompt, system=SYSTEM, options=options).response == chat_text
    pieces = list(llama.generate(model=MODEL, prompt=prompt, system=SYSTEM, options=options, stream=True))
    assert "".join(piece.response or "" for piece in pieces) == chat_text
    raw = llama.generate(model=MODEL, prompt="Once upon a time", raw=True, options=options)
    assert raw.response == built_in_reference.greedy(built_in_reference.encode("Once upon a time"), 24).text


def test_ollama_options(llama: ollama.Client, built_in_reference: Reference) -> None:
    """All of those of Ollama's own documentation at once; and penalties that look at the last tokens alone."""
    options: dict[str, Any] = {
        "num_keep": 5, "seed": 42, "num_predict": 12, "top_k": 20, "top_p": 0.9, "min_p": 0.0, "typical_p": 0.7,
        "repeat_last_n": 33, "temperature": 0.8, "repeat_penalty": 1.2, "presence_penalty": 1.5,
        "frequency_penalty": 1.0, "penalize_newline": True, "stop": ["\n", "user:"], "numa": False, "num_ctx": 1024,
        "num_batch": 2, "num_gpu": 1, "main_gpu": 0, "use_mmap": True, "num_thread": 8,
    }  # fmt: skip
    drawn = [llama.chat(model=MODEL, messages=MESSAGES, options=options).message.content for _ in range(2)]
    assert drawn[0] == drawn[1]
    ids = built_in_reference.encode("Once upon a time")
    kept = {"temperature": 0, "num_predict": 24, "repeat_penalty": 1.5, "repeat_last_n": 4}
    said = llama.generate(model=MODEL, prompt="Once upon a time", raw=True, options=kept).response
    expected = built_in_reference.greedy_with(ids, 24, logits_processor=[PenaltyOfTheLast(1.5, 4)])
    assert expected.clear
    assert said == expected.text
    assert said != built_in_reference.greedy(ids, 24, repetition_penalty=1.5).text


def test_ollama_tools(llama: ollama.Client, the_call: dict[str, Any]) -> None:
    said = llama.chat(model=MODEL, messages=QUESTION, tools=FUNCTIONS, options={"temperature": 0, "num_predict": 60})
    assert said.message.tool_calls is not None
    (call,) = said.message.tool_calls
    assert (call.function.name, call.function.arguments) == (the_call["name"], the_call["arguments"])
    result = {"role": "tool", "tool_name": call.function.name, "content": '{"time": "14:05"}'}
    history: list[Any] = [*QUESTION, said.message, result]
    then = llama.chat(model=MODEL, messages=history, tools=FUNCTIONS, options={"temperature": 0, "num_predict": 40})
    assert then.message.content
    assert not then.message.tool_calls


def test_ollama_formats(llama: ollama.Client) -> None:
    options = {"temperature": 0, "num_predict": 80}
    said = llama.chat(model=MODEL, messages=MESSAGES, format=SHAPE, options=options)
    jsonschema.validate(json.loads(said.message.content or ""), SHAPE)
    answered = llama.generate(model=MODEL, prompt="A form:", raw=True, format=SHAPE, options=options)
    jsonschema.validate(json.loads(answered.response or ""), SHAPE)
    whatever = llama.chat(model=MODEL, messages=MESSAGES, format="json", options={**options, "num_predict": 200})
    if whatever.done_reason == "stop":
        assert isinstance(json.loads(whatever.message.content or ""), dict)
    with pytest.raises(ollama.ResponseError, match="xml"):
        llama.chat(model=MODEL, messages=MESSAGES, format={"type": "xml"}, options=options)


def test_ollama_models(llama: ollama.Client) -> None:
    (model,) = llama.list().models
    assert model.model is not None
    assert model.model.startswith(MODEL)
    assert model.size is not None
    assert model.size > 1000
    assert [running.model for running in llama.ps().models] == [model.model]
    shown = llama.show(model.model)
    assert shown.capabilities is not None
    assert {"completion", "tools"} <= set(shown.capabilities)
    assert shown.modelinfo is not None
    assert shown.modelinfo["general.parameter_count"] > 1000
    with pytest.raises(ollama.ResponseError, match="nobody") as caught:
        llama.show("nobody")
    assert caught.value.status_code == 404


def test_ollama_errors(llama: ollama.Client) -> None:
    for streamed in (False, True):
        with pytest.raises(ollama.ResponseError, match="temperature") as caught:
            list(llama.chat(model=MODEL, messages=MESSAGES, options={"temperature": -1}, stream=streamed))
        assert caught.value.status_code == 400


# --- clouds


def test_sagemaker(api: Api, built_in_reference: Reference, chat_text: str) -> None:
    plain = built_in_reference.greedy(built_in_reference.encode("Once upon a time"), 12).text
    generate = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 12}}
    assert api.post("/invocations", generate) == [{"generated_text": f"Once upon a time{plain}"}]
    chat = {"messages": WITH_SYSTEM, "max_tokens": 24, "temperature": 0}
    assert api.post("/invocations", chat)["choices"][0]["message"]["content"] == chat_text
    completion = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
    assert api.post("/invocations", completion)["choices"][0]["text"] == plain


def test_vertex(built_in: Launcher, built_in_reference: Reference, chat_text: str) -> None:
    plain = built_in_reference.greedy(built_in_reference.encode("Once upon a time"), 12).text
    instances = [
        {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 12}},
        {"messages": WITH_SYSTEM, "max_tokens": 24, "temperature": 0},
    ]
    answer = httpx.post(f"{built_in.url}/vertex", json={"instances": instances}, timeout=60)
    assert answer.json() == {"predictions": [plain, chat_text]}
