"""Answers of a given shape, through the launcher: whatever a model draws, others judge what it wrote."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pydantic
import pytest
from support.api import Api, collect, native
from support.schemas import patterns, schemas
from support.scripted import write_script
from support.server import Launcher, Start

MODEL = "textgen-demo"
AT_ONCE = 32
# How many schemas and regular expressions are tried; TEXTGEN_SHAPES=300 tries all.
SHAPES = int(os.environ.get("TEXTGEN_SHAPES", "40"))
SEED = int(os.environ.get("TEXTGEN_SEED", "20251121"))
ASKED: list[Any] = [{"role": "user", "content": "Tell me a story about the weather in Bern."}]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def wild(start_for_module: Start, tiny_folder: Path) -> Iterator[Api]:
    """A client of random weights."""
    client = Api(start_for_module(model=tiny_folder).wait_ready().url)
    yield client
    client.close()


@pytest.fixture(params=["built-in", "random"])
def model(request: pytest.FixtureRequest) -> Api:
    """The built-in model, and random weights."""
    client: Api = request.getfixturevalue("api" if request.param == "built-in" else "wild")
    return client


@pytest.fixture(scope="module")
def gpt(built_in: Launcher) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{built_in.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(api: Api, **fields: Any) -> dict[str, Any]:
    """A drawn chat answer's only choice; its text may be streamed."""
    body = {"messages": ASKED, "temperature": 1.5, "max_tokens": 160} | fields
    if not body.get("stream"):
        choice: dict[str, Any] = api.post(CHAT, body)["choices"][0]
        return choice
    calls: list[dict[str, Any]] = []
    text, reason = "", None
    with api.events(CHAT, body) as events:
        for event in events:
            (choice,) = event["choices"]
            text += choice["delta"].get("content") or ""
            calls += choice["delta"].get("tool_calls") or []
            reason = choice["finish_reason"] or reason
    return {"message": {"content": text, "tool_calls": joined(calls)}, "finish_reason": reason}


def joined(deltas: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls put together from a stream's pieces."""
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        if delta["index"] == len(calls):
            calls.append({"id": delta["id"], "type": delta["type"], "function": {**delta["function"]}})
        else:
            calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    return calls


def many(ask: Callable[[int], dict[str, Any]], count: int) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(ask, range(count)))


def finished(answers: Sequence[dict[str, Any]], at_least: float) -> list[tuple[int, str]]:
    """Number and text of the answers that came to an end; there must be some."""
    assert {answer["finish_reason"] for answer in answers} <= {"stop", "length"}
    whole = [
        (number, answer["message"]["content"] or "")
        for number, answer in enumerate(answers)
        if answer["finish_reason"] == "stop"
    ]
    assert len(whole) >= at_least * len(answers), f"only {len(whole)} of {len(answers)} ended"
    return whole


# --- what is written is valid


def test_every_answer_under_a_schema_is_valid(model: Api) -> None:
    chosen = schemas(300, SEED)[:: max(1, 300 // SHAPES)]

    def ask(number: int) -> dict[str, Any]:
        shape = {"type": "json_schema", "json_schema": {"name": "s", "schema": chosen[number], "strict": True}}
        return chat(model, response_format=shape, seed=number, stream=number % 2 == 1)

    for number, text in finished(many(ask, len(chosen)), 0.7):
        value = json.loads(text)
        jsonschema.Draft202012Validator(chosen[number]).validate(value)


def test_every_answer_under_a_regular_expression_matches(model: Api) -> None:
    chosen = patterns(100, SEED)[:: max(1, 100 // SHAPES)]

    def ask(number: int) -> dict[str, Any]:
        return chat(model, guided_regex=chosen[number], seed=number, stream=number % 2 == 1)

    for number, text in finished(many(ask, len(chosen)), 0.95):
        assert re.fullmatch(chosen[number], text), f"{chosen[number]!r}: {text!r} (seed {SEED})"


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


# --- with everything else


DAYS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3}
SMALL = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome", "Oslo"]}, "days": DAYS},
    "required": ["city", "days"],
    "additionalProperties": False,
}
SHAPE = {"type": "json_schema", "json_schema": {"name": "small", "schema": SMALL, "strict": True}}


def test_several_answers_each_follow_the_schema(model: Api) -> None:
    body = {"messages": ASKED, "temperature": 1.5, "max_tokens": 160, "response_format": SHAPE, "n": 4, "seed": 3}
    answer = model.post(CHAT, body)
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert len(texts) == 4
    for choice, text in zip(answer["choices"], texts, strict=True):
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(text), SMALL)
    assert len(set(texts)) > 1
    streamed = [""] * 4
    with model.events(CHAT, body | {"stream": True}) as events:
        for event in events:
            for choice in event["choices"]:
                streamed[choice["index"]] += choice["delta"].get("content") or ""
    assert streamed == texts


def test_every_token_has_a_log_probability(model: Api) -> None:
    """Those that were forced too; and all of them are counted."""
    body = {"messages": ASKED, "temperature": 1.5, "max_tokens": 160, "response_format": SHAPE, "seed": 4}
    answer = model.post(CHAT, body | {"logprobs": True, "top_logprobs": 2})
    (choice,) = answer["choices"]
    entries = choice["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"]
    text = b"".join(bytes(entry["bytes"] or []) for entry in entries).decode()
    assert text.startswith(choice["message"]["content"])
    assert all(entry["logprob"] <= 0 for entry in entries)
    assert choice["message"]["content"] == model.post(CHAT, body)["choices"][0]["message"]["content"]


def test_a_cached_prefix_changes_nothing(model: Api) -> None:
    body = {"messages": [{"role": "user", "content": "A long question. " * 30}], "temperature": 0, "max_tokens": 160}
    first, second = (model.post(CHAT, body | {"response_format": SHAPE}) for _ in range(2))
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert first["choices"] == second["choices"]
    free = model.post(CHAT, body)
    assert free["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_limits_cut_what_is_forced(model: Api) -> None:
    """A run of forced tokens is cut like any other: by the number of tokens, and by a stop string inside it."""
    long = {"const": {"a_long_key_that_is_forced": "and a long value that is forced as well, to its end"}}
    shape = {"type": "json_schema", "json_schema": {"name": "long", "schema": long}}
    body = {"messages": ASKED, "temperature": 0, "response_format": shape, "max_tokens": 160}
    whole = model.post(CHAT, body)
    text, tokens = whole["choices"][0]["message"]["content"], whole["usage"]["completion_tokens"]
    assert json.loads(text) == long["const"]
    for most in (1, 5, tokens - 1):
        cut = model.post(CHAT, body | {"max_tokens": most})
        assert cut["usage"]["completion_tokens"] == most
        assert cut["choices"][0]["finish_reason"] == "length"
        assert text.startswith(cut["choices"][0]["message"]["content"])
    stopped = model.post(CHAT, body | {"stop": "value that"})["choices"][0]
    assert stopped["finish_reason"] == "stop"
    assert stopped["message"]["content"] == text.partition("value that")[0]


@pytest.mark.parametrize("opened_by", ["message", "template"])
def test_thinking_is_free_and_the_answer_is_not(start: Start, tmp_path: Path, opened_by: str) -> None:
    """The prompt ends inside the reasoning: by a message that is continued, or as the chat template always does."""
    script = write_script(tmp_path / "thinker", ends=False, text="Hm, so 7 it is.</think>")
    messages = [*ASKED, {"role": "assistant", "content": "<think>"}]
    if opened_by == "template":
        messages = ASKED
        config = script.folder / "tokenizer_config.json"
        written = json.loads(config.read_text())
        written["chat_template"] += "{% if add_generation_prompt %}<think>\n{% endif %}"
        config.write_text(json.dumps(written))
    server = start(model=script.folder, reasoning_parser="<think>...</think>" if opened_by == "message" else None)
    api = Api(server.wait_ready().url)
    for stream in (False, True):
        body = {"messages": messages, "temperature": 0, "max_tokens": 160, "response_format": SHAPE, "stream": stream}
        if stream:
            with api.events(CHAT, body) as events:
                deltas = [choice["delta"] for event in events for choice in event["choices"]]
            thought = "".join(delta.get("reasoning_content") or "" for delta in deltas)
            text = "".join(delta.get("content") or "" for delta in deltas)
        else:
            message = api.post(CHAT, body)["choices"][0]["message"]
            thought, text = message["reasoning_content"], message["content"]
        assert thought == "Hm, so 7 it is."
        jsonschema.validate(json.loads(text), SMALL)
    api.close()


# --- calls


class Report(pydantic.BaseModel):
    """The weather of a place."""

    city: Literal["Bern", "Rome"]
    degrees: int = pydantic.Field(ge=-50, le=50)
    windy: bool


class Place(pydantic.BaseModel):
    """Where something is."""

    kind: Literal["town", "lake"]
    report: Report


PING: dict[str, Any] = {"type": "function", "function": {"name": "ping"}}
REPORT: Any = openai.pydantic_function_tool(Report, name="report")
PLACE: Any = openai.pydantic_function_tool(Place, name="place")
TOOLS: list[Any] = [REPORT, PLACE, PING]
MODELS: dict[str, type[pydantic.BaseModel]] = {"report": Report, "place": Place}


def check_calls(answer: dict[str, Any]) -> list[str]:
    """The names of an answer's calls, whose arguments are right."""
    names = []
    for call in answer["message"].get("tool_calls") or []:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        if name == "ping":
            assert json.loads(arguments) == {}
        else:
            MODELS[name].model_validate_json(arguments, strict=True)
        assert call["type"] == "function"
        assert call["id"]
        names.append(name)
    return names


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_required_calls(model: Api, stream: bool) -> None:
    ask = functools.partial(chat, model, tools=TOOLS, tool_choice="required", max_tokens=300, stream=stream)
    answers = many(lambda n: ask(seed=n, parallel_tool_calls=n % 2 == 0), 8)
    ended = [answer for answer in answers if answer["finish_reason"] != "length"]
    assert len(ended) >= 4
    assert all(answer["finish_reason"] == "tool_calls" and not answer["message"]["content"] for answer in ended)
    assert all(check_calls(answer) for answer in ended)
    single = [answer for answer in answers[1::2] if answer["finish_reason"] != "length"]
    assert single
    assert all(len(check_calls(answer)) == 1 for answer in single)


@pytest.mark.parametrize(
    "choice", ["report", {"type": "function", "function": {"name": "report"}}], ids=["tgi", "openai"]
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_named_call(model: Api, choice: Any, stream: bool) -> None:
    answers = many(lambda n: chat(model, tools=TOOLS, tool_choice=choice, seed=n, stream=stream), 4)
    for answer in answers:
        assert answer["finish_reason"] == "stop"
        assert check_calls(answer) == ["report"]
        assert not answer["message"]["content"]


def test_calls_of_some_tools_alone(model: Api) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [PING, PLACE]}}
    for answer in many(lambda n: chat(model, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, seed=n), 6):
        assert set(check_calls(answer)) <= {"ping", "place"}
        assert answer["finish_reason"] == "tool_calls"


def test_strict_tools_are_called_rightly_or_not_at_all(api: Api) -> None:
    """The model calls because it wants to, and what it writes is held to the schema all the same."""
    question = [{"role": "user", "content": "What time is it in Paris?"}]
    zone = {
        "type": "object",
        "properties": {"zone": {"enum": ["A1", "B2"]}},
        "required": ["zone"],
        "additionalProperties": False,
    }
    tool = {
        "type": "function",
        "function": {"name": "current_time", "description": "The time in a city.", "parameters": zone},
    }
    body: dict[str, Any] = {"messages": question, "temperature": 0, "max_tokens": 60}
    free = api.post(CHAT, body | {"tools": [tool]})["choices"][0]
    assert free["finish_reason"] == "tool_calls"
    strict = {"type": "function", "function": tool["function"] | {"strict": True}}  # type: ignore[operator]
    held = api.post(CHAT, body | {"tools": [strict]})["choices"][0]
    assert held["finish_reason"] == "tool_calls"
    (call,) = held["message"]["tool_calls"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), zone)


def test_a_shape_beside_tools(model: Api) -> None:
    """An answer is text of the shape, or calls."""
    seen = set()
    for answer in many(lambda n: chat(model, tools=TOOLS, response_format=SHAPE, max_tokens=300, seed=n), 8):
        if answer["finish_reason"] == "stop":
            jsonschema.validate(json.loads(answer["message"]["content"]), SMALL)
        elif answer["finish_reason"] == "tool_calls":
            assert check_calls(answer)
            assert not answer["message"]["content"]
        seen.add(answer["finish_reason"])
    assert seen & {"stop", "tool_calls"}


def test_the_clients_own_parsing(gpt: openai.OpenAI) -> None:
    said = gpt.chat.completions.parse(model=MODEL, messages=ASKED, response_format=Place, max_tokens=200, seed=1)
    assert isinstance(said.choices[0].message.parsed, Place)
    with gpt.chat.completions.stream(model=MODEL, messages=ASKED, response_format=Report, max_tokens=200) as stream:
        message = stream.get_final_completion().choices[0].message
    assert isinstance(message.parsed, Report)
    called = gpt.chat.completions.parse(
        model=MODEL,
        messages=ASKED,
        tools=[REPORT, PLACE],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=200,
    )
    assert called.choices[0].message.tool_calls is not None
    (call,) = called.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, (Report, Place))
    with gpt.chat.completions.stream(
        model=MODEL, messages=ASKED, tools=[PLACE], tool_choice="required", parallel_tool_calls=False, max_tokens=200
    ) as stream:
        final = stream.get_final_completion().choices[0].message
    assert final.tool_calls is not None
    assert isinstance(final.tool_calls[0].function.parsed_arguments, Place)


# --- what is refused


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
