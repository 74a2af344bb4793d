"""JSON schemas of every kind that a grammar can keep: written ones, keyword by keyword, and random ones."""

from __future__ import annotations

import functools
import json
import random
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis_jsonschema import from_schema

Schema = dict[str, Any]

# A model that draws wildly hardly ever closes a string that may be long.
TEXT: Schema = {"type": "string", "maxLength": 6}
WHOLE: Schema = {"type": "integer", "minimum": -999, "maximum": 999}


def closed(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> Schema:
    """An object of these properties alone; all of them are required unless some are named."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False, **more}


def array(items: Any, least: int = 0, most: int = 3) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def written() -> list[Schema]:
    """A group for each keyword, in the order of the standard's own tests."""
    types: list[Schema] = [{"type": kind} for kind in ("integer", "number", "boolean", "null")]
    types += [TEXT, {"type": ["boolean", "null"]}, {"type": ["integer", "null", "boolean"]}, array({}, 0, 0)]
    enums: list[Schema] = [
        {"enum": [1, 2, 3]},
        {"enum": [0.5, -1.25]},
        {"enum": ["red", "green", "blue"]},
        {"enum": [6, "foo", [], True, {"foo": 12}]},
        {"enum": ["foo\nbar", "foo\rbar", 'q"uote', "back\\slash"]},
        {"enum": ["", "é", "日本", "😀"]},
        {"enum": [None]},
        {"enum": [[False], [True, None]]},
        {"enum": [{"a": {"b": [1]}}]},
        {"type": "string", "enum": ["a", "ab", "abc"]},
        {"const": 2},
        {"const": {"foo": "bar", "baz": "bax"}},
        {"const": [{"foo": "bar"}]},
        {"const": None},
        {"const": False},
        {"const": "hello\u0000there"},
        {"const": 9007199254740992},
        {"const": -2.5},
    ]
    numbers: list[Schema] = [
        {"type": "integer", "minimum": 3},
        {"type": "integer", "maximum": -7},
        {"type": "integer", "minimum": 5, "maximum": 7},
        {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 2},
        {"type": "integer", "minimum": -100, "maximum": 100},
        {"type": "integer", "minimum": 1.5, "maximum": 9.5},
        {"type": "integer", "minimum": 0, "maximum": 4294967295},
        {"type": "number", "minimum": 0, "maximum": 1},
        {"type": "number", "minimum": -2.5, "maximum": 3.25},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
        {"type": "number", "minimum": 1.1, "exclusiveMaximum": 3.0},
        {"type": "integer", "multipleOf": 2},
        {"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 50},
        {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 4},
        {"type": "integer", "multipleOf": 10, "minimum": 0},
    ]
    strings: list[Schema] = [
        {"type": "string", "minLength": 2, "maxLength": 4},
        {"type": "string", "maxLength": 0},
        {"type": "string", "minLength": 5, "maxLength": 5},
        {"type": "string", "pattern": "^[a-z]{1,4}$"},
        {"type": "string", "pattern": "^a*$", "maxLength": 5},
        {"type": "string", "pattern": "^(foo|bar)-[0-9]{2}$"},
        {"type": "string", "pattern": r"^\d{3}-\d{4}$"},
        {"type": "string", "pattern": r"^[^\"\\]{1,3}$"},
        {"type": "string", "pattern": r"^\w+@\w+\.com$", "maxLength": 20},
        {"type": "string", "pattern": "^(true|false)?$"},
        {"type": "string", "pattern": "^[A-Z][a-z]{0,5}( [A-Z][a-z]{0,5}){0,2}$"},
        {"type": "string", "pattern": "^\\S{1,3}$"},
        {"type": "string", "pattern": "^(a|b)(c|d)?$", "minLength": 2},
        {"type": "string", "pattern": "^é{1,2}😀$"},
        {"type": "string", "format": "date"},
        {"type": "string", "format": "time"},
        {"type": "string", "format": "date-time"},
        {"type": "string", "format": "uuid"},
        {"type": "string", "format": "ipv4"},
    ]
    arrays: list[Schema] = [
        array(WHOLE),
        array({"type": "boolean"}, 1, 2),
        array(TEXT, 2, 2),
        array(array(WHOLE, 0, 2), 1, 2),
        array({"enum": ["a", "b"]}, 3, 5),
        array(closed({"x": WHOLE}), 0, 2),
        array(True, 0, 0),
        {"type": "array", "prefixItems": [WHOLE, {"type": "boolean"}], "items": False, "minItems": 2},
        {"type": "array", "prefixItems": [{"const": 1}], "items": {"type": "null"}, "minItems": 1, "maxItems": 4},
        {"type": "array", "prefixItems": [TEXT, TEXT], "items": False},
        array({"type": ["integer", "null"]}, 1, 4),
        {"type": "array", "items": False},
        array(array(array({"type": "null"}, 0, 2), 0, 2), 0, 2),
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 6},
        array(closed({}), 0, 3),
    ]
    objects: list[Schema] = [
        closed({}),
        closed({"a": WHOLE}),
        closed({"a": WHOLE, "b": TEXT}),
        closed({"a": WHOLE, "b": TEXT}, ["b"]),
        closed({"a": WHOLE, "b": TEXT, "c": {"type": "null"}}, []),
        closed({"foo bar": WHOLE, 'a"b': {"type": "boolean"}}),
        closed({"é": WHOLE, "日本": TEXT}),
        closed({"nested": closed({"deeper": closed({"deepest": WHOLE})})}),
        closed({"list": array(closed({"x": WHOLE, "y": WHOLE}), 1, 2), "name": TEXT}),
        {"type": "object", "properties": {"a": WHOLE}, "required": ["a"], "maxProperties": 1},
        {"type": "object", "additionalProperties": WHOLE, "maxProperties": 0},
        {"type": "object", "patternProperties": {"^x-[a-c]$": WHOLE}, "additionalProperties": False},
        {
            "type": "object",
            "properties": {"id": WHOLE},
            "patternProperties": {"^[ab]$": TEXT},
            "additionalProperties": False,
            "required": ["id"],
        },
        closed(
            {
                "on": {"const": True},
                "mode": {"enum": ["fast", "slow"]},
                "level": {"type": "number", "minimum": 0, "maximum": 1},
            }
        ),
        closed({f"field_{n}": {"type": "boolean"} for n in range(12)}),
        closed({f"option_{n}": {"type": "null"} for n in range(6)}, ["option_3"]),
        {
            "properties": {"a": WHOLE},
            "required": ["a"],
            "additionalProperties": False,
            "type": "object",
            "title": "T",
            "description": "Remarks change nothing.",
            "default": {},
            "examples": [{}],
            "$comment": "no",
        },
    ]
    combined: list[Schema] = [
        {"anyOf": [WHOLE, {"type": "boolean"}]},
        {"anyOf": [closed({"a": WHOLE}), closed({"b": TEXT})]},
        {"anyOf": [{"type": "null"}, array(WHOLE, 1, 2)]},
        {"anyOf": [TEXT, {"enum": [1, None]}]},
        {"oneOf": [{"type": "integer"}, {"type": "boolean"}]},
        {"oneOf": [closed({"kind": {"const": "a"}, "x": WHOLE}), closed({"kind": {"const": "b"}, "y": TEXT})]},
        {"allOf": [{"type": "integer", "minimum": 1}, {"maximum": 9}]},
        {"allOf": [closed({"a": WHOLE}), {"required": ["a"]}]},
        {"allOf": [{"type": "string", "minLength": 1}, {"maxLength": 3}]},
        {"anyOf": [{"const": 1}, {"const": 2}, {"const": "x"}]},
        closed({"a": {"anyOf": [{"type": "null"}, closed({"b": {"type": "boolean"}})]}}),
    ]
    references: list[Schema] = [
        {"$ref": "#/$defs/n", "$defs": {"n": WHOLE}},
        closed({"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/n"}}) | {"$defs": {"n": array(WHOLE, 1, 2)}},
        {
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/c"}, "c": {"enum": ["end"]}},
            "$ref": "#/$defs/a",
        },
        closed({"value": WHOLE, "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}),
        {
            "$ref": "#/definitions/tree",
            "definitions": {
                "tree": closed({"leaf": {"type": "boolean"}, "children": array({"$ref": "#/definitions/tree"}, 0, 1)})
            },
        },
        closed({"person": {"$ref": "#/$defs/person"}, "friends": array({"$ref": "#/$defs/person"}, 0, 2)})
        | {"$defs": {"person": closed({"name": TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 130}})}},
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": "https://example.com/s",
            **closed({"a": WHOLE}),
        },
    ]
    return [*types, *enums, *numbers, *strings, *arrays, *objects, *combined, *references]


# Pieces of patterns, as a pattern.
PIECES = r"((\[a-f\]|x|\(yes\|no\)|\\d|\[\^a-y\]|é|\\\.|\(a\|bc\))(\?|\{1,3\})?){1,4}"
SCALARS: Schema = {
    "anyOf": [{"type": "integer", "minimum": -9, "maximum": 9}, {"type": "string", "maxLength": 4}]
    + [{"enum": [True, None, 2.5, [1, "x"], {"k": None}]}]
}


def whole(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


def shapes(depth: int) -> Schema:
    """A schema of schemas of so many levels that some value keeps: hypothesis-jsonschema draws from it."""
    found = [
        closed({"type": one_of("boolean", "null", "integer")}),
        closed({"type": one_of("integer", "number"), "minimum": whole(-1000, 0), "maximum": whole(0, 1000)}),
        closed(
            {"type": one_of("integer"), "multipleOf": whole(1, 12), "minimum": whole(-99, 0), "maximum": whole(12, 99)}
        ),
        closed({"type": one_of("string"), "minLength": whole(0, 3), "maxLength": whole(3, 8)}),
        closed({"type": one_of("string"), "pattern": {"type": "string", "pattern": rf"\A\^{PIECES}\$\Z"}}),
        closed({"enum": array(SCALARS, 1, 5) | {"uniqueItems": True}}),
    ]
    if depth > 0:
        inner = shapes(depth - 1)
        properties = closed({"to be": inner, 'q"': inner, "é😀": inner}, ["to be", 'q"'])
        required = array(one_of("to be", 'q"'), 0, 2) | {"uniqueItems": True}
        found += [
            closed({"type": one_of("array"), "items": inner, "minItems": whole(0, 2), "maxItems": whole(2, 4)}),
            closed(
                {
                    "type": one_of("array"),
                    "prefixItems": array(inner, 1),
                    "items": one_of(False),
                    "minItems": whole(0, 1),
                }
            ),
            closed({"anyOf": array(inner, 2, 3)}),
            closed(
                {"type": one_of("object"), "properties": properties, "required": required}
                | {"additionalProperties": one_of(False)}
            ),
        ]
    return {"anyOf": found}


def anything(depth: int) -> Schema:
    """A schema of schemas of any keywords with values of their types, also such as nothing keeps."""
    inner: Schema = anything(depth - 1) if depth > 0 else {"enum": [True, False, {}, {"type": "null"}, {"minimum": 1}]}
    types = ("null", "boolean", "integer", "number", "string", "array", "object")
    number, few, name = {"type": "integer", "minimum": -9, "maximum": 9}, whole(0, 3), one_of("a", "b")
    named: Schema = {"type": "object", "properties": {"a": inner, "b": inner}, "additionalProperties": False}
    keywords = (
        dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), number)
        | dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), few)
        | dict.fromkeys(("minContains", "maxContains"), few)
        | dict.fromkeys(("not", "if", "then", "else", "contains", "propertyNames", "items"), inner)
        | dict.fromkeys(("additionalProperties", "unevaluatedProperties", "unevaluatedItems"), inner)
        | dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), array(inner, 1, 2))
        | dict.fromkeys(("properties", "dependentSchemas", "$defs"), named)
    )
    keywords |= {
        "type": {"anyOf": [one_of(*types), array(one_of(*types), 1, 3) | {"uniqueItems": True}]},
        "enum": array(SCALARS, 1, 3),
        "const": SCALARS,
        "multipleOf": whole(1, 5),
        "pattern": one_of("^a", "b$", "[ab]{2}", "^(?!a)", "^$"),
        "format": one_of("date", "uuid", "email", "ipv6", "regex", "unheard-of"),
        "uniqueItems": one_of(True, False),
        "required": array(name, 0, 2) | {"uniqueItems": True},
        "dependentRequired": {"type": "object", "properties": {"a": array(name, 0, 1)}, "additionalProperties": False},
        "patternProperties": {"type": "object", "properties": {"^a": inner}, "additionalProperties": False},
        "$ref": one_of("#", "#/$defs/a", "#/properties/b", "https://example.com/other"),
        "title": one_of("T"),
    }
    return {
        "type": "object",
        "properties": keywords,
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 4,
    }


def drawn(shape: Schema, count: int, seed: int) -> list[Any]:
    """So many values that keep the schema, by hypothesis-jsonschema; fewer where it draws one twice."""
    found: dict[str, Any] = {}

    @hypothesis.seed(seed)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(from_schema(shape))
    def collect(value: Any) -> None:
        found.setdefault(json.dumps(value), value)

    collect()
    return list(found.values())


@functools.cache
def schemas(share: int, seed: int) -> list[Schema]:
    """Every so many of 300: written ones, and drawn ones that some value keeps."""
    known = written()
    return [*known[::share], *drawn(shapes(2), (300 - len(known)) // share, seed)]


def patterns(count: int, seed: int) -> list[str]:
    """Regular expressions that Python reads as the server does."""
    known = [
        "",
        "a",
        "abc",
        "a|b",
        "(foo|bar|baz){2}",
        "[0-9]{3}-[0-9]{4}",
        r"\d{1,3}(\.\d{1,3}){3}",
        "[a-z]{2,5}",
        "[^a-z]{3}",
        r"[A-Z]\w{2,4}",
        "(ab)*c",
        "a{3}",
        "a{0,4}b{1,2}",
        r"(\+|-)?[1-9]\d{0,5}",
        "(true|false|null)",
        "é{2}ü?",
        "[日本]{1,4}",
        "😀{1,3}",
        r"\(\[\{\}\]\)",
        r"a\.b\*c\?",
        r"\$\^\|",
        "[-a-c]{1,3}",
        r"[\]\\]{2}",
        "(a(b(c(d)?)?)?)?",
        "(?i:ab){2}",
        "x{2}|y{3}|z",
        r"\s{1,2}x",
        r"\S{3}",
        r"[\w.]{1,8}@[a-z]{1,6}\.(com|org)",
        "#[0-9a-fA-F]{6}",
        r"\d\d:\d\d",
        "(a|ab)(c|bcd)",
        r"<b>[^<>]{0,5}</b>",
        r"v\d{1,2}\.\d{1,2}(-rc\d)?",
        "(?:no|yes)(?:, (?:no|yes)){0,3}",
        "[\\u00e0-\\u00ff]{2}",
        '"[^"]{0,3}"',
        "a/b/[c/]",
        "0|[1-9][0-9]{0,3}",
        "(Mon|Tue|Wed) [0-3][0-9]",
        "[a-c]{2}[x-z]{2}|[0-4]{4}",
        "(.)x",
        ".{2,4}",
        "(?s:.{3})",
        "^anchored$",
        "^[ab]{2}",
        "c{2}$",
    ]
    draw = random.Random(seed)
    parts = ["[a-m]", "[^x]", r"\d", "q", "(to|from)", r"\.", "(a|bc|def)", "é", "[0-9a-f]", " "]

    def one() -> str:
        pieces = [draw.choice(parts) + draw.choice(["", "", "?", "{2}", "{1,3}"]) for _ in range(draw.randint(1, 6))]
        return "".join(pieces)

    return [*known[:count], *(one() for _ in range(count - len(known)))]
