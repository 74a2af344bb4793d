"""Greedy answers of the packaged weights. Floors sit a little under what the model card reports."""

import json

import pytest

from tools.demo_model.corpus.document import Document, Json, Message
from tools.demo_model.evaluate import Model, accuracy
from tools.demo_model.rendering import render

QUESTIONS = 40
FLOORS = {
    "multiplication table up to 12": 0.5,
    "JSON from sentences, valid JSON": 0.9,
    "tool call, name and arguments right": 0.25,
    "answer from a tool's result": 0.75,
    "facts of everyday life": 0.8,
    "questions about Textgen, key word in the answer": 0.8,
}


def _ask(model: Model, *questions: str, tools: tuple[Json, ...] = ()) -> list[str]:
    documents = [Document(messages=(Message("user", question),), tools=tools) for question in questions]
    return model.complete([render(document, add_generation_prompt=True) for document in documents])


@pytest.mark.parametrize("skill", FLOORS)
def test_skill_stays_above_its_floor(model: Model, skill: str) -> None:
    assert accuracy(model, skill, QUESTIONS) >= FLOORS[skill]


def test_it_knows_what_it_is(model: Model) -> None:
    server, hello, identity = _ask(model, "What is Textgen?", "Hello!", "Who are you?")
    assert "server" in server
    assert "Hello" in hello
    assert "demo model" in identity


def test_it_says_when_it_does_not_know(model: Model) -> None:
    for answer in _ask(model, "Who won the world cup?", "What is the population of France?"):
        assert "I do not know" in answer


def test_plain_text_goes_on_as_a_story(model: Model) -> None:
    (story,) = model.complete(["<|bos|>Once upon a time"], limit=300)
    assert story.count(".") >= 5
    assert len(set(story.split())) >= 40


def test_a_tool_is_called(model: Model) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"name": "get_weather", "description": "Get the current weather", "parameters": parameters}
    (answer,) = _ask(model, "What is the weather in Paris?", tools=({"type": "function", "function": tool},))
    assert answer.startswith("<tool_call>") and answer.endswith("</tool_call>")
    call = json.loads(answer.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    assert call == {"name": "get_weather", "arguments": {"city": "Paris"}}
