"""TGI's `grammar` on the native routes of the built-in model: answers are what was asked for, as others judge them."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from support.api import Api, together

pytestmark = pytest.mark.timeout(180)

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name_of_the_person": {"type": "string", "maxLength": 12},
        "age_of_the_person_in_years": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes_of_the_person": {"type": "array", "items": {"enum": ["tea", "coffee"]}, "maxItems": 2},
    },
    "required": ["name_of_the_person", "age_of_the_person_in_years", "likes_of_the_person"],
    "additionalProperties": False,
}
PHONE = r"\+[1-9][0-9]{6,8} \((home|work)\)"
PROMPT = "Tell me about yourself, please:"


def judge(grammar: dict[str, Any], text: str) -> None:
    if grammar["type"] == "regex":
        assert re.fullmatch(grammar["value"], text), text
        return
    value = json.loads(text)
    schema = grammar.get("value", {"type": "object"})
    jsonschema.validate(value, schema.get("schema", schema))


GRAMMARS: list[dict[str, Any]] = [
    {"type": "json", "value": PERSON},
    {"type": "json_object", "value": PERSON},
    {"type": "json_schema", "value": {"name": "person", "schema": PERSON}},
    {"type": "regex", "value": PHONE},
]


DRAWS: list[dict[str, Any]] = [{}, {"temperature": 1.5, "seed": 5}, {"seed": 6, "top_p": 0.9}, {"seed": 7}]


@pytest.mark.parametrize(
    ("grammar", "draw"), list(zip(GRAMMARS, DRAWS, strict=True)), ids=[grammar["type"] for grammar in GRAMMARS]
)
def test_answers_are_what_was_asked_for(api: Api, grammar: dict[str, Any], draw: dict[str, Any]) -> None:
    asked = {"grammar": grammar, "max_new_tokens": 500, "do_sample": bool(draw), **draw}
    whole = api.generate(PROMPT, **asked)
    assert whole.finish_reason == "eos_token"
    judge(grammar, whole.text)
    assert api.stream(PROMPT, **asked).text == whole.text
    # A grammar that is complete allows nothing but an end.
    assert api.generate(PROMPT, ignore_eos=True, **asked).text == whole.text


def test_any_object_is_an_object(api: Api) -> None:
    said = api.generate(PROMPT, grammar={"type": "json_object"}, max_new_tokens=120, do_sample=True, seed=3)
    assert said.text.startswith("{")
    if said.finish_reason == "eos_token":
        judge({"type": "json_object"}, said.text)


def details(api: Api, **parameters: Any) -> list[dict[str, Any]]:
    said = api.post("/generate", {"inputs": PROMPT, "parameters": parameters | {"details": True}})
    tokens: list[dict[str, Any]] = said["details"]["tokens"]
    return tokens


@pytest.mark.parametrize("drawn", [{}, {"do_sample": True, "temperature": 1.3, "seed": 9}], ids=["greedy", "drawn"])
def test_forced_text_is_what_would_be_sampled(api: Api, drawn: dict[str, Any]) -> None:
    """Alternatives are known only of sampled tokens, so with them nothing is run ahead."""
    asked = {"grammar": {"type": "json", "value": PERSON}, "max_new_tokens": 500, **drawn}
    run, sampled = details(api, **asked), details(api, top_n_tokens=1, **asked)
    assert [token["id"] for token in run] == [token["id"] for token in sampled]
    assert [token["text"] for token in run] == [token["text"] for token in sampled]
    for one, other in zip(run, sampled, strict=True):
        assert one["logprob"] == pytest.approx(other["logprob"], abs=2e-3)


def test_an_answer_is_cut_where_it_is_to_be(api: Api) -> None:
    grammar = {"type": "json", "value": PERSON}
    whole = api.generate(PROMPT, grammar=grammar, max_new_tokens=500)
    for length in range(1, 20, 3):
        cut = api.generate(PROMPT, grammar=grammar, max_new_tokens=length)
        assert (cut.tokens, cut.finish_reason) == (whole.tokens[:length], "length")
    stopped = api.generate(PROMPT, grammar=grammar, max_new_tokens=500, stop=["_person_in"])
    assert stopped.finish_reason == "stop_sequence"
    # On native routes the stop string stays, with what its last token has besides.
    assert "_person_in" in stopped.text and whole.text.startswith(stopped.text)


def test_the_best_of_several(api: Api) -> None:
    grammar = {"type": "json", "value": PERSON}
    asked = {"grammar": grammar, "best_of": 2, "do_sample": True, "max_new_tokens": 500, "details": True}
    said = api.post("/generate", {"inputs": PROMPT, "parameters": asked})
    others = said["details"]["best_of_sequences"]
    assert len(others) == 1
    for text in (said["generated_text"], others[0]["generated_text"]):
        judge(grammar, text)


def test_a_crowd_with_and_without(api: Api) -> None:
    def asked(number: int) -> dict[str, Any]:
        drawn = {"do_sample": True, "seed": 100 + number}
        grammars: list[dict[str, Any]] = [*GRAMMARS, {}]
        grammar = grammars[number % len(grammars)]
        return drawn | ({"grammar": grammar, "max_new_tokens": 500} if grammar else {"max_new_tokens": 40})

    wanted = [asked(number) for number in range(24)]
    said = together([lambda one=one: api.generate(PROMPT, **one) for one in wanted])
    for one, answer in zip(wanted, said, strict=True):
        if "grammar" in one:
            judge(one["grammar"], answer.text)
        else:
            assert answer == api.generate(PROMPT, **one)


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ({"type": "regex", "value": "(a"}, "regular expression"),
        ({"type": "json", "value": {"type": "object", "not": {"required": ["x"]}}}, "`not`"),
        ({"type": "json", "value": 5}, "`grammar.value`"),
        ({"type": "regex", "value": "((a{900}){900}){900}"}, "rammar"),
        ({"type": "regex", "value": "a" * 300_000}, "262144"),
        ({"type": "xml", "value": ""}, "xml"),
    ],
)
def test_what_cannot_be_enforced_is_refused_in_words(api: Api, grammar: dict[str, Any], words: str) -> None:
    for path in ("/generate", "/generate_stream"):
        answer = api.http.post(path, json={"inputs": PROMPT, "parameters": {"grammar": grammar}})
        assert answer.status_code == 422, answer.text
        assert answer.json()["error_type"] == "validation"
        assert words in answer.json()["error"]
