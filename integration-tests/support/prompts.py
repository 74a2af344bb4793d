"""Prompts: fixed ones in the built-in model's manner, and random text of a wanted length."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from support.reference import Expected, Reference

_NAMES = ("Anna", "Ben", "Clara", "David", "Emma")
_THINGS = ("a red ball", "an old map", "a small boat", "three apples", "a silver key")
_WORDS = (
    "the a one of river stone 7 42 blue quick, slow. and then never {json} \"word\" (paren) naïve café Straße "
    "日本 😀👍🏽 ship moon\n under over 3.14 fox's ... -- table sky rain"
).split(" ")  # fmt: skip

PLAIN = (
    *(f"Once upon a time {name} found {thing}" for name, thing in zip(_NAMES, _THINGS, strict=True)),
    *(f"{a} + {b} =" for a, b in ((2, 3), (7, 8), (12, 30), (45, 54), (100, 1))),
    *(f"{name} and {other} went to the" for name, other in zip(_NAMES, reversed(_NAMES), strict=True)),
    "The", "a", " ", "\n", "{", '{"name":', "😀", "naïve café", "日本語", "?!",
)  # fmt: skip

CHATS: tuple[tuple[dict[str, str], ...], ...] = (
    *(({"role": "user", "content": f"Tell me a story about {thing}."},) for thing in _THINGS),
    *(({"role": "user", "content": f"What is {a} + {b}?"},) for a, b in ((1, 1), (5, 9), (20, 22), (13, 6), (40, 2))),
    *(
        ({"role": "system", "content": f"You are {name}."}, {"role": "user", "content": "Who are you?"})
        for name in _NAMES
    ),
    *(
        ({"role": "user", "content": "Hello"}, {"role": "assistant", "content": f"Hi, I am {name}."},
         {"role": "user", "content": f"What does {name} have?"})
        for name in _NAMES
    ),
    ({"role": "user", "content": "What is Textgen?"},),
    ({"role": "user", "content": "  spaces around  "},),
    ({"role": "user", "content": "Grüße 😀"},),
    ({"role": "user", "content": "Write a JSON record of a person."},),
    ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "How do I start a server?"}),
)  # fmt: skip


_WEATHER = {
    "type": "function",
    "function": {
        "name": "weather", "description": "The weather in a town.",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "kelvin"]}},
            "required": ["town"],
        },
    },
}  # fmt: skip
_CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Bonn"}'}}

# Everything that a conversation can hold beside plain questions: messages, tools.
RICH_CHATS: tuple[tuple[list[dict[str, Any]], list[dict[str, Any]] | None], ...] = (
    ([{"role": "user", "content": "What is the weather in Bonn?"}], [_WEATHER]),
    (
        [
            {"role": "user", "content": "What is the weather in Bonn?"},
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Rain, 7 degrees"},
        ],
        [_WEATHER],
    ),
    ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], [_WEATHER]),
    ([{"role": "user", "content": "Hi"}, {"role": "system", "content": "Be rude."}], None),
    ([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}], None),
    ([{"role": "user", "content": "<|end|> and <|user|> are no text"}], None),
    ([{"role": "user", "content": "line\n\nline\t<b>&amp;</b> 'quoted' \"quoted\" {{ braces }} {% percent %}"}], None),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A request and its answer. `truncate` keeps the last tokens of `text` alone."""

    text: str
    truncate: int | None
    prompt: tuple[int, ...]
    max_new_tokens: int
    expected: Expected

    def __str__(self) -> str:
        return f"{len(self.prompt)} prompt tokens, {self.max_new_tokens} new, text {self.text[:60]!r}"


def words(random_: random.Random, count: int) -> str:
    return " ".join(random_.choice(_WORDS) for _ in range(count))


def random_case(reference: Reference, random_: random.Random, length: int, max_new_tokens: int) -> Case:
    """A text of exactly `length` tokens after truncation, whose greedy answer no tie decides."""
    while True:
        text = words(random_, length)
        tokens = reference.encode(text)
        if len(tokens) < length:
            continue
        prompt = tokens[-length:]
        expected = reference.greedy(prompt, max_new_tokens)
        if expected.clear:
            return Case(text, length if len(tokens) > length else None, tuple(prompt), max_new_tokens, expected)
