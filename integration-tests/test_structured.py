"""Answers of a given shape, through the launcher: whatever a model draws, others judge what it wrote."""

from __future__ import annotations

import ast
import json
import os
import re
from typing import Any

import jsonschema
import pytest
from support.api import Api
from support.schemas import anything, drawn, patterns, schemas
from support.shapes import ASKED, CHAT, chat, finished, many

# How many schemas and regular expressions are tried; TEXTGEN_SHAPES=300 tries all.
SHAPES = int(os.environ.get("TEXTGEN_SHAPES", "40"))
SEED = int(os.environ.get("TEXTGEN_SEED", "20251121"))


def test_every_answer_under_a_schema_is_valid(model: Api) -> None:
    chosen = schemas(max(1, 300 // SHAPES), SEED)

    def ask(number: int) -> dict[str, Any]:
        shape = {"type": "json_schema", "json_schema": {"name": "s", "schema": chosen[number], "strict": True}}
        return chat(model, response_format=shape, seed=number, stream=number % 2 == 1)

    for number, text in finished(many(ask, len(chosen)), 0.7):
        value = json.loads(text)
        jsonschema.Draft202012Validator(chosen[number]).validate(value)


def test_a_schema_is_kept_or_refused_by_name(model: Api) -> None:
    """Whatever its keywords are: none is ignored. `format` alone says nothing that a validator checks unasked."""
    chosen = drawn(anything(1), SHAPES, SEED)

    def ask(number: int) -> tuple[int, dict[str, Any]]:
        shape = {"type": "json_schema", "json_schema": {"name": "s", "schema": chosen[number], "strict": True}}
        fields = {"messages": ASKED, "temperature": 1.5, "max_tokens": 100, "seed": number, "response_format": shape}
        answer = model.http.post(CHAT, json=fields)
        return answer.status_code, answer.json()

    answers = many(ask, len(chosen))
    assert {status for status, _ in answers} == {200, 422}
    for number, (status, answer) in enumerate(answers):
        told = f"{json.dumps(chosen[number])}: {json.dumps(answer)} (seed {SEED})"
        if status != 200:
            assert answer["error"]["param"] == "response_format", told
        elif answer["choices"][0]["finish_reason"] == "stop":
            value = json.loads(answer["choices"][0]["message"]["content"])
            assert jsonschema.Draft202012Validator(chosen[number]).is_valid(value), told


def test_every_answer_under_a_regular_expression_matches(model: Api) -> None:
    chosen = patterns(100, SEED)[:: max(1, 100 // SHAPES)]

    def ask(number: int) -> dict[str, Any]:
        return chat(model, guided_regex=chosen[number], seed=number, stream=number % 2 == 1)

    for number, text in finished(many(ask, len(chosen)), 0.95):
        assert re.fullmatch(chosen[number], text), f"{chosen[number]!r}: {text!r} (seed {SEED})"


def test_the_likeliest_answer_is_the_same_whoever_looks_at_it(model: Api) -> None:
    """Alternatives take whole masks, the likeliest token alone parts of them inside of strings."""
    for least, most in [(1, 30), (60, 90), (100, 400)]:
        text = {"type": "string", "minLength": least, "maxLength": most}
        shape = {"type": "object", "properties": {"text": text}, "required": ["text"], "additionalProperties": False}
        greedy = {"temperature": 0, "max_tokens": 120, "guided_json": shape}
        plain, watched = (chat(model, **greedy, **more) for more in ({}, {"logprobs": True, "top_logprobs": 2}))
        assert plain["message"] == watched["message"]
        assert plain["finish_reason"] == watched["finish_reason"]


def test_choices(model: Api) -> None:
    choices = ["yes", "no", "yes, but", "no\nbreak", "naïve 🎈", '"quoted"']
    fields: list[dict[str, Any]] = [{"guided_choice": choices}, {"structured_outputs": {"choice": choices}}]
    texts = [text for _, text in finished(many(lambda n: chat(model, seed=n, **fields[n % 2]), 24), 1)]
    assert set(texts) <= set(choices)
    assert len(set(texts)) > 1


def test_a_lark_grammar(model: Api) -> None:
    grammar = 'start: sum\nsum: term ("+" term){1,3}\nterm: NUMBER | "(" NUMBER "*" NUMBER ")"\nNUMBER: /[1-9][0-9]?/\n'
    answers = many(lambda n: chat(model, guided_grammar=grammar, seed=n, stream=n % 2 == 1), 16)
    for _, text in finished(answers, 1):
        term = r"([1-9][0-9]?|\([1-9][0-9]?\*[1-9][0-9]?\))"
        assert re.fullmatch(rf"{term}(\+{term}){{1,3}}", text), text


def test_a_gbnf_grammar(model: Api) -> None:
    """The same sums, in every field that takes a grammar; `[1-9]` and `"0"` would be taken for more of a number."""
    grammar = """
root   ::= sum
sum    ::= term | sum "+" term  # as long as the model likes
term   ::= number "0" | "(" sum ")"
number ::= [1-9] [0-9]{0,3}
"""
    fields: list[dict[str, Any]] = [
        {"guided_grammar": grammar},
        {"structured_outputs": {"grammar": grammar}},
        {"response_format": {"type": "grammar", "grammar": grammar}},
        {"grammar": {"type": "grammar", "value": grammar}},
    ]
    answers = many(lambda n: chat(model, seed=n, stream=n % 8 > 3, **fields[n % 4]), 16)
    for _, text in finished(answers, 0.3):
        assert re.fullmatch(r"[0-9+()]+", text), text
        assert all(re.fullmatch(r"[1-9][0-9]{0,3}0", number) for number in re.findall(r"[0-9]+", text)), text
        nodes = ast.walk(ast.parse(text, mode="eval"))
        assert all(isinstance(node, ast.Expression | ast.BinOp | ast.Add | ast.Constant) for node in nodes), text


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('root ::= ((("a"{100}){100}){100})', "repeats within repeats"),
        ("root ::= item\n", "refers to the rule `item`"),
        ('start ::= "a"', "begins with the rule `root`"),
        ('root ::= "a" root', "never ends"),
    ],
)
def test_a_gbnf_grammar_that_cannot_be_had_is_refused(api: Api, grammar: str, words: str) -> None:
    refusal = api.http.post(CHAT, json={"messages": ASKED, "guided_grammar": grammar})
    assert refusal.status_code == 422
    assert words in refusal.text
    assert "guided_grammar" in refusal.text


def test_a_structural_tag(model: Api) -> None:
    """A tag, whatever text stands around it, has the content it should have."""
    content = {"type": "json_schema", "json_schema": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}}
    tag = {"type": "tag", "begin": "<flags>", "content": content, "end": "</flags>"}
    format_ = {"type": "sequence", "elements": [tag, {"type": "const_string", "value": " and "}, tag]}
    fields = {"response_format": {"type": "structural_tag", "format": format_}}
    for _, text in finished(many(lambda n: chat(model, seed=n, **fields), 8), 1):
        found = re.fullmatch(r"<flags>(.*)</flags> and <flags>(.*)</flags>", text, re.DOTALL)
        assert found, text
        for inner in found.groups():
            value = json.loads(inner)
            assert len(value) <= 2
            assert all(isinstance(item, bool) for item in value)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object", "value": {"const": {"a": [1, None]}}}},
        {"grammar": {"type": "json", "value": {"const": {"a": [1, None]}}}},
        {"guided_json": json.dumps({"const": {"a": [1, None]}})},
        {"structured_outputs": {"json": {"const": {"a": [1, None]}}, "disable_any_whitespace": True}},
    ],
    ids=["object", "tgi", "grammar", "guided", "outputs"],
)
def test_forms_of_json(api: Api, fields: dict[str, Any]) -> None:
    """Every form is heeded, on both routes."""
    completion = api.post("/v1/completions", {"prompt": "JSON: ", "max_tokens": 160, "temperature": 0, **fields})[
        "choices"
    ][0]
    said = chat(api, temperature=0, **fields)
    for reason, text in [
        (said["finish_reason"], said["message"]["content"]),
        (completion["finish_reason"], completion["text"]),
    ]:
        assert text.startswith("{")
        if reason == "stop":
            assert isinstance(json.loads(text), dict)
        if fields != {"response_format": {"type": "json_object"}}:
            assert reason == "stop"
            assert json.loads(text) == {"a": [1, None]}
        if "structured_outputs" in fields:
            assert text == '{"a":[1,null]}'
