"""Shapes that cannot be had: refused within a moment, and nobody else notices."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from support.api import Api, collect, native
from support.shapes import ASKED, AT_ONCE, CHAT, SHAPE, TOOLS, chat


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def doubling(levels: int) -> dict[str, Any]:
    """Each definition holds the next one twice."""
    pair = [
        {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 2, "items": False} for n in range(levels)
    ]
    definitions: dict[str, Any] = {f"d{n}": one for n, one in enumerate(pair)} | {f"d{levels}": {"type": "null"}}
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


REFUSED: dict[str, dict[str, Any]] = {
    "nesting": {"guided_json": nested(100)},
    "size": {"guided_json": {"enum": [f"{n:0>400}" for n in range(1000)]}},
    "not-a-schema": {"guided_json": {"type": "poem"}},
    "unenforceable": {"guided_json": {"type": "array", "uniqueItems": True}},
    "multiples": {"guided_json": {"allOf": [{"type": "integer", "multipleOf": n} for n in (97, 89, 83, 79, 73)]}},
    "impossible": {"guided_json": {"type": "integer", "minimum": 5, "maximum": 4}},
    "unknown-reference": {"guided_json": {"$ref": "#/$defs/nothing"}},
    "back-reference": {"guided_regex": r"(a)\1"},
    "look-ahead": {"guided_regex": "(?=a)b"},
    "broken": {"guided_regex": "(a"},
    "deep-groups": {"guided_regex": "(" * 300 + "a" + ")" * 300},
    "long-repeats": {"guided_regex": "(a{1000}){1000}"},
    "no-grammar": {"guided_grammar": "rule: "},
    "repeats-of-a-token": {"guided_grammar": 'start: C\nC: B{200}\nB: A{200}\nA: "a"{200}\n'},
    "repeats-of-gbnf": {"guided_grammar": 'root ::= ((("a"{100}){100}){100})'},
    "no-choice": {"guided_choice": []},
    "two-shapes": {"guided_regex": "a", "response_format": {"type": "json_object"}},
    "unknown-function": {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nothing"}}},
    "no-tools": {"tool_choice": "required"},
    "bad-choice": {"tools": TOOLS, "tool_choice": {"type": "poem"}},
}
# What looks like a bomb, but is served or refused: never waited for.
EITHER: dict[str, dict[str, Any]] = {
    "catastrophe": {"guided_regex": "(.*a){40}(.*b){40}.{400}"},
    "doubling": {"guided_json": doubling(20)},
    "many-properties": {"guided_json": {"type": "object", "properties": {f"p{n}": {} for n in range(2000)}}},
    "many-alternatives": {
        "guided_json": {"anyOf": [{"type": "string", "pattern": f"^a{{{n}}}b*$"} for n in range(99)]}
    },
    "alternatives-in-groups": {"guided_regex": r"\w|(\w|\p{L}|ab)"},
    "alternatives-in-a-terminal": {"guided_grammar": r"start: /\w|(\w|\p{L}|ab)/"},
    "nested-stars": {"guided_regex": "((a*)*)*b"},
    "nested repeats of GBNF": {"guided_grammar": 'root ::= a?\na ::= ([a-z]{0,200} b){0,200}\nb ::= "b"? | a a'},
    "ambiguous": {"guided_grammar": 'start: a\na: a a | /x/ | ""\n'},
}


def test_bombs_are_refused_and_nobody_else_notices(api: Api) -> None:
    """While grammars of every bad kind come in, a stream goes on and says what it says alone."""
    prompt, many_tokens = "Once upon a time", 200
    alone = api.generate(prompt, max_new_tokens=many_tokens)
    with api.events("/generate_stream", native(prompt, max_new_tokens=many_tokens)) as events:
        first = next(events)

        def ask(case: tuple[str, dict[str, Any]]) -> httpx.Response:
            return api.http.post(CHAT, json={"messages": ASKED, "max_tokens": 4, **case[1]})

        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = dict(zip([*REFUSED, *EITHER], pool.map(ask, [*REFUSED.items(), *EITHER.items()]), strict=True))
        stream = collect(iter([first, *events]))
    assert stream.tokens == alone.tokens
    for name, answer in answers.items():
        if name in REFUSED:
            assert answer.status_code in (400, 422), f"{name}: {answer.status_code} {answer.text}"
        assert answer.status_code in (200, 400, 422), f"{name}: {answer.status_code} {answer.text}"
        if answer.status_code != 200:
            error = answer.json()["error"]
            assert error["type"] == "invalid_request_error"
            assert len(error["message"]) > 20
    # The server is as it was.
    assert chat(api, response_format=SHAPE, temperature=0)["finish_reason"] == "stop"
