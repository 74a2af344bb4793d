"""The chat template renders these conversations to exactly these texts."""

from itertools import islice
from typing import Any

import pytest

from tools.demo_model.corpus import mixture
from tools.demo_model.rendering import render

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": " The weather of a city. ",
        "parameters": {
            "type": "object",
            "properties": {
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "city": {"type": "string", "description": "Where"},
                "days": {"type": ["integer", "null"]},
            },
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}


def _call(arguments: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "0", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}],
    }


CASES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None, bool, str]] = {
    "one question": (
        [{"role": "user", "content": " Hi!\n"}],
        None,
        True,
        "<|bos|><|user|>Hi!<|end|><|assistant|>",
    ),
    "system and turns": (
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "Two."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
        None,
        False,
        "<|bos|><|system|>Be brief.<|end|><|user|>One?<|end|><|assistant|>Two.<|end|><|user|>ab<|end|>",
    ),
    "developer is system": (
        [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
        None,
        True,
        "<|bos|><|system|>Be kind.<|end|><|user|>Hi<|end|><|assistant|>",
    ),
    "tools": (
        [{"role": "user", "content": "Rain?"}],
        [WEATHER, CLOCK],
        True,
        "<|bos|><|system|>Tools:\nget_weather(city: string, days: any, unit: celsius|fahrenheit) The weather of a city."
        "\nclock()<|end|><|user|>Rain?<|end|><|assistant|>",
    ),
    "tool call and result": (
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Rain?"},
            _call({"city": "Zürich"}),
            {"role": "tool", "content": '{"rain": true}'},
        ],
        [CLOCK],
        True,
        "<|bos|><|system|>Be brief.\nTools:\nclock()<|end|><|user|>Rain?<|end|><|assistant|>"
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Zürich"}}</tool_call><|end|>'
        '<|tool|>{"rain": true}<|end|><|assistant|>',
    ),
    "arguments as text": (
        [{"role": "user", "content": "Rain?"}, _call('{"city": "Rome"}')],
        None,
        False,
        "<|bos|><|user|>Rain?<|end|><|assistant|>"
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call><|end|>',
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_conversation_renders_exactly(tokenizer: Any, case: str) -> None:
    messages, tools, prompt, expected = CASES[case]
    text = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=prompt, tokenize=False)
    assert text == expected


def test_training_saw_what_the_template_renders(tokenizer: Any) -> None:
    for document in islice(mixture.documents(11), 60):
        if document.is_chat:
            messages = [message.to_template() for message in document.messages]
            text = tokenizer.apply_chat_template(messages, tools=list(document.tools) or None, tokenize=False)
            assert text == render(document)
