"""Asynchronous calls through the launcher: the built-in model talks while its tool runs, and uses the result."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import openai
import pytest
from support.reference import Reference
from support.server import Launcher

EXAMPLE = Path(__file__).parent.parent / "examples" / "async_tools.py"
QUESTION = "What time is it in Paris?"
# What the server writes where a result is to be.
PENDING = "The tool is running. Its result will follow."
RESULT = json.dumps({"time": "14:05"})
SECONDS = 120.0


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("async_tools_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look
    spec.loader.exec_module(module)
    return module


class Truth:
    """What Transformers says in the model's place, turn by turn."""

    def __init__(self, reference: Reference, tool: Any) -> None:
        question = {"role": "user", "content": QUESTION}
        self.call = reference.greedy(reference.chat([question], [tool]), 60)
        called = json.loads(self.call.text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
        self.arguments: dict[str, Any] = called["arguments"]
        assert called["name"] == "current_time"

        def told(said: str, result: str) -> list[dict[str, Any]]:
            call = {"function": {"name": called["name"], "arguments": self.arguments}}
            made = {"role": "assistant", "content": said, "tool_calls": [call]}
            return [question, made, {"role": "tool", "content": result}]

        self.meanwhile = reference.greedy(reference.chat(told("", PENDING), [tool]), 60)
        said = self.meanwhile.text
        # Its answer from the result, by what it has said before: all of it, or some of its sentences.
        cuts = [place.end() for place in re.finditer(r"[.!?](?=\s|$)", said)]
        answers = {said[:cut]: reference.greedy(reference.chat(told(said[:cut], RESULT), [tool]), 60) for cut in cuts}
        # The texts are compared, so nothing in them may hang on rounding; and every answer is of the result.
        assert all(turn.clear for turn in (self.call, self.meanwhile, *answers.values()))
        assert len(answers) > 1
        assert "14:05" not in said
        self.answers = {before: answer.text for before, answer in answers.items()}
        assert all("14:05" in answer for answer in self.answers.values())


@pytest.fixture(scope="module")
def truth(built_in_reference: Reference, example: ModuleType) -> Truth:
    return Truth(built_in_reference, example.CLOCK)


def test_the_example_shows_the_overlap(built_in: Launcher, example: ModuleType, truth: Truth) -> None:
    """The tool returns once the model has said all it has to say without it, so that nothing hangs on who is faster."""
    nothing_more = threading.Event()
    seen: list[tuple[str, str]] = []
    given: list[dict[str, Any]] = []

    def clock(arguments: dict[str, Any]) -> str:
        given.append(arguments)
        assert nothing_more.wait(SECONDS)
        return RESULT

    def show(kind: str, what: str) -> None:
        seen.append((kind, what))
        if kind == "waiting":
            nothing_more.set()

    text = example.chat(built_in.url, QUESTION, {"current_time": clock}, [example.CLOCK], show)
    assert given == [truth.arguments]
    kinds = [kind for kind, _ in seen]
    call, waiting, result = kinds.index("call"), kinds.index("waiting"), kinds.index("result")
    assert call < waiting < result
    # Text came between the finished call and the result, and from the result the answer.
    said = ["".join(what for kind, what in part if kind == "text") for part in (seen[call:waiting], seen[result:])]
    assert said == [truth.meanwhile.text, f"\n\n{truth.answers[truth.meanwhile.text]}"]
    assert text == "".join(said)


def test_a_result_cuts_in_behind_a_sentence(built_in: Launcher, example: ModuleType, truth: Truth) -> None:
    """Posted while the model talks: it ends its sentence, whichever that is by then, and answers from the result."""
    content, events, usage, finish = "", [], None, None
    with openai.OpenAI(base_url=f"{built_in.url}/v1", api_key="none", max_retries=0) as client:
        for chunk in client.chat.completions.create(
            model="textgen", messages=[{"role": "user", "content": QUESTION}], tools=[example.CLOCK], temperature=0,
            stream=True, stream_options={"include_usage": True}, extra_body={"async_tools": True},
        ):  # fmt: skip
            usage = chunk.usage or usage
            for choice in chunk.choices:
                content += choice.delta.content or ""
                finish = choice.finish_reason or finish
            event = (chunk.model_extra or {}).get("async_tools")
            if event:
                events.append(event)
            if content and all(event["type"] != "posted" for event in events):
                call_id = events[0]["tool_call_id"]
                path = f"{built_in.url}/v1/chat/completions/{chunk.id}/tool_results"
                body = {"tool_call_id": call_id, "content": RESULT}
                answered = httpx.post(path, json=body, headers={"authorization": "Bearer none"}, trust_env=False)
                assert answered.status_code == 202, answered.text
                events.append({"type": "posted"})
    kinds = [event["type"] for event in events if event["type"] != "waiting"]
    assert kinds == ["call_complete", "posted", "results_inserted"]
    assert finish == "stop"
    before, _, after = content.rpartition("\n\n")
    assert after == truth.answers[before]
    assert usage is not None
    assert usage.completion_tokens > len(truth.call.tokens)


def test_the_clients_own_reading_of_such_a_stream(built_in: Launcher, example: ModuleType, truth: Truth) -> None:
    """A client that knows nothing of events reads a message; here nobody answers, and a stop string ends it."""
    before, stop, _ = truth.meanwhile.text.partition(" only ")
    assert stop
    with (
        openai.OpenAI(base_url=f"{built_in.url}/v1", api_key="none", max_retries=0) as client,
        client.chat.completions.stream(
            model="textgen", messages=[{"role": "user", "content": QUESTION}], tools=[example.CLOCK], temperature=0,
            stop=stop, extra_body={"async_tools": True},
        ) as stream,
    ):  # fmt: skip
        choice = stream.get_final_completion().choices[0]
    assert (choice.finish_reason, choice.message.content) == ("stop", before)
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert json.loads(call.function.arguments) == truth.arguments
