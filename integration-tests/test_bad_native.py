"""Wrong requests to TGI's own routes: the right status and a sentence that names the field."""

from __future__ import annotations

from typing import Any

import pytest
from support.raw import send_json
from support.refusals import MOST, NATIVE, RANGES, TYPES, Bad, refused
from support.server import Launcher

NATIVE_RANGES = (
    Bad({"temperature": 0}, ("`temperature`",)),
    Bad({"top_k": 0}, ("`top_k`",)),
    Bad({"max_new_tokens": 0}, ("`max_new_tokens`",)),
    Bad({"max_new_tokens": MOST + 1}, ("`max_new_tokens`", str(MOST))),
    Bad({"truncate": 0}, ("`truncate`",)),
    Bad({"truncate": 10**6}, ("`truncate`",)),
    Bad({"top_n_tokens": 6}, ("`top_n_tokens`", "5")),
    Bad({"best_of": 0}, ("`best_of`",)),
    Bad({"best_of": 3, "do_sample": True}, ("`best_of`", "2")),
    Bad({"best_of": 2}, ("`best_of`",)),
    Bad({"best_of": 2, "do_sample": True, "seed": 1}, ("`best_of`",)),
    Bad({"priority": 4}, ("`priority`", "3")),
    Bad({"cache_salt": ""}, ("`cache_salt`",)),
)
NATIVE_TYPES = (
    Bad({"max_new_tokens": "ten"}, ("max_new_tokens",)),
    Bad({"max_new_tokens": -5}, ("max_new_tokens",)),
    Bad({"max_new_tokens": 10**20}, ("max_new_tokens",)),
    Bad({"details": "yes"}, ("details",)),
    Bad({"seed": -1}, ("seed",)),
)


@pytest.mark.parametrize("path", NATIVE)
@pytest.mark.parametrize("bad", [*RANGES, *NATIVE_RANGES], ids=str)
def test_native_values(strict_server: Launcher, path: str, bad: Bad) -> None:
    answer = send_json(strict_server.url, path, {"inputs": "Hello", "parameters": bad.fields})
    refused(answer, path, 422, "validation", "Input validation error: ", *bad.words)


@pytest.mark.parametrize("path", NATIVE)
@pytest.mark.parametrize("bad", [*TYPES, *NATIVE_TYPES], ids=str)
def test_native_types(strict_server: Launcher, path: str, bad: Bad) -> None:
    answer = send_json(strict_server.url, path, {"inputs": "Hello", "parameters": bad.fields})
    refused(answer, path, 422, "validation", *bad.words)


@pytest.mark.parametrize("path", NATIVE)
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, ("inputs",)),
        ({"inputs": None}, ("inputs",)),
        ({"inputs": 5}, ("inputs",)),
        ({"inputs": ["a"]}, ("inputs",)),
        ({"inputs": ""}, ("`inputs`", "empty")),
        ({"inputs": "a", "parameters": 5}, ("parameters",)),
        ({"inputs": "a", "parameters": []}, ("parameters", "a list, expected an object")),
        ({"inputs": "a", "parameters": [None] * 100}, ("parameters", "a list, expected an object")),
        ({"inputs": "word " * (2 * MOST)}, ("`inputs`", str(MOST - 1))),
        ({"inputs": "a", "parameters": {"adapter_id": "other"}}, ("other",)),
    ],
    ids=["missing", "null", "number", "list", "empty", "parameters", "no parameters", "listed", "too long", "adapter"],
)  # fmt: skip
def test_native_bodies(strict_server: Launcher, path: str, body: Any, words: tuple[str, ...]) -> None:
    answer = send_json(strict_server.url, path, body)
    adapter = "adapter_id" in body.get("parameters", {}) if isinstance(body.get("parameters"), dict) else False
    refused(answer, path, *((404, "adapter_not_found") if adapter else (422, "validation")), *words)


def test_unknown_fields_are_ignored_as_tgi_does(strict_server: Launcher) -> None:
    body = {"inputs": "Hello", "parameters": {"max_new_tokens": 2, "colour": "red"}, "more": 1}
    assert send_json(strict_server.url, "/generate", body).status == 200
