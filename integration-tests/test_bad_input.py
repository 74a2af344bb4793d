"""Wrong requests and wrong starts: one clear sentence each, the right status or exit code, and the server goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.processes import running
from support.raw import RawAnswer, connect, send, send_json
from support.reference import Reference
from support.server import Launcher, Start

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
NATIVE = ("/", "/generate", "/generate_stream")
MESSAGES = [{"role": "user", "content": "Hello"}]
LIMIT = 50_000  # bytes of a body
MOST = 300  # tokens of prompt and answer


@pytest.fixture(scope="module")
def server(start_for_module: Start, tiny_folder: Path) -> Iterator[Launcher]:
    launcher = start_for_module(model=tiny_folder, payload_limit=LIMIT, max_total_tokens=MOST).wait_ready()
    yield launcher
    assert launcher.faults() == []


@pytest.fixture(autouse=True)
def still_up(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each refusal the server answers the next request as if nothing had been."""
    yield
    if "server" in request.fixturenames:
        launcher: Launcher = request.getfixturevalue("server")
        answer = send_json(launcher.url, "/generate", {"inputs": "Hello", "parameters": {"max_new_tokens": 2}})
        assert answer.status == 200
        assert launcher.faults() == []


def refused(answer: RawAnswer, path: str, status: int, error_type: str, *words: str) -> None:
    """The dialect's shape, the class, and a sentence that names what is wrong."""
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    if path.startswith("/v1/"):
        error = body["error"]
        assert set(error) >= {"message", "type", "param", "code"}
        assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")
        assert error["code"] == error_type
        sentence = error["message"]
    else:
        assert set(body) == {"error", "error_type"}
        sentence = body["error"]
    assert body["error_type"] == error_type
    clear(sentence, *words)


def clear(sentence: str, *words: str) -> None:
    """One sentence for a person: it names the field, and shows nothing of our insides."""
    assert 8 < len(sentence) < 400, sentence
    assert not re.search(r"[A-Z]\w+Error\(|Some\(|None|0x[0-9a-f]{6}|\.rs:\d|\.py\b|\n", sentence), sentence
    for word in words:
        assert word in sentence, sentence


# --- bodies that are no requests


@pytest.mark.parametrize("path", [*NATIVE, CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"inputs": "a"', b"{'inputs': 'a'}", b"inputs=a", b'{"inputs": "a",}',
     b"\0"],
    ids=["empty", "brace", "cut off", "single quotes", "form", "comma", "zero byte"],
)  # fmt: skip
def test_broken_json(server: Launcher, path: str, body: bytes) -> None:
    refused(send(server.url, "POST", path, body), path, 400, "invalid_json", "JSON")


@pytest.mark.parametrize("path", [*NATIVE, CHAT, COMPLETIONS])
@pytest.mark.parametrize("body", ["[]", '"text"', "null", "7", "true"])
def test_json_that_is_no_object(server: Launcher, path: str, body: str) -> None:
    refused(send(server.url, "POST", path, body.encode()), path, 422, "validation")


@pytest.mark.parametrize("path", [*NATIVE, CHAT, COMPLETIONS])
def test_text_that_is_not_utf_8(server: Launcher, path: str) -> None:
    text = b'"a \xff\xfe"'
    body = b'{"inputs": %s, "prompt": %s, "messages": [{"role": "user", "content": %s}]}' % (text, text, text)
    refused(send(server.url, "POST", path, body), path, 400, "invalid_json", "JSON")


@pytest.mark.parametrize("path", [*NATIVE, CHAT, COMPLETIONS])
def test_deep_nesting(server: Launcher, path: str) -> None:
    deep = b"[" * 5000 + b"]" * 5000
    body = (
        b'{"inputs": "a", "parameters": {"grammar": %s}, "prompt": %s, "messages": [{"role": "user", "content": %s}]}'
        % (deep, deep, deep)
    )
    answer = send(server.url, "POST", path, body)
    assert answer.status in (400, 422)
    refused(answer, path, answer.status, answer.json()["error_type"])


@pytest.mark.parametrize("path", ["/generate", COMPLETIONS])
def test_deep_nesting_where_nobody_looks(server: Launcher, path: str) -> None:
    """In a field that the route does not have. It may be ignored or refused."""
    body = b'{"inputs": "a", "prompt": "a", "parameters": {"max_new_tokens": 1}, "max_tokens": 1, "colour": '
    assert send(server.url, "POST", path, body + b"[" * 20_000 + b"]" * 20_000 + b"}").status in (200, 400)


@pytest.mark.parametrize("path", [*NATIVE, CHAT, COMPLETIONS])
def test_a_body_too_large(server: Launcher, path: str) -> None:
    body = json.dumps({"inputs": "a" * LIMIT, "prompt": "a", "messages": MESSAGES}).encode()
    refused(send(server.url, "POST", path, body), path, 413, "payload_too_large", str(LIMIT))


def test_a_body_too_large_whose_length_is_not_announced(server: Launcher) -> None:
    with connect(server.url) as connection:
        connection.sendall(
            b"POST /generate HTTP/1.1\r\nhost: x\r\n"
            b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        chunk = b"a" * 1000
        try:
            connection.sendall(b'd\r\n{"inputs": "b\r\n')
            for _ in range(LIMIT // 1000 + 1):
                connection.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            connection.sendall(b"0\r\n\r\n")
        except ConnectionError:
            pass  # the server need not read on
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("path", [*NATIVE, CHAT, COMPLETIONS])
@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_wrong_content_type(server: Launcher, path: str, content_type: str | None) -> None:
    answer = send(server.url, "POST", path, b'{"inputs": "a"}', content_type)
    refused(answer, path, 415, "unsupported_media_type", "application/json")


def test_garbage_instead_of_http(server: Launcher) -> None:
    with connect(server.url) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        connection.recv(1000)


@pytest.mark.parametrize("head", [b"x-long: " + b"a" * 500_000 + b"\r\n", b"x-many: a\r\n" * 500], ids=["long", "many"])
def test_a_head_over_the_limit(server: Launcher, head: bytes) -> None:
    with connect(server.url) as connection:
        with suppress(ConnectionError):  # the server need not read on
            connection.sendall(b"GET /info HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 431 ")


# --- routes


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing", "/generate/", "/%00", "/v1/embeddings"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_unknown_routes(server: Launcher, method: str, path: str) -> None:
    answer = send(server.url, method, path, b"{}" if method == "POST" else None)
    refused(answer, path, 404, "not_found", path)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/generate", "POST"), ("PUT", "/generate", "POST"), ("GET", "/generate_stream", "POST"),
        ("DELETE", "/", "GET"), ("POST", "/health", "GET"), ("POST", "/metrics", "GET"), ("GET", CHAT, "POST"),
        ("PATCH", COMPLETIONS, "POST"), ("POST", "/v1/models", "GET"), ("POST", "/info", "GET"),
    ],
)  # fmt: skip
def test_wrong_methods(server: Launcher, method: str, path: str, allowed: str) -> None:
    answer = send(server.url, method, path, b"{}" if method != "GET" else None)
    refused(answer, path, 405, "method_not_allowed", method)
    assert allowed in answer.headers["allow"]


# --- fields


@dataclass(frozen=True)
class Bad:
    """Parameters and the words that the refusal must have."""

    fields: dict[str, Any]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in self.fields.items())[:60]


# Out of range on every route; native ones have them in `parameters`.
RANGES = (
    Bad({"temperature": -1}, ("`temperature`", "-1")),
    Bad({"temperature": 1e300}, ("`temperature`",)),
    Bad({"top_p": 2}, ("`top_p`", "2")),
    Bad({"top_p": 0}, ("`top_p`",)),
    Bad({"typical_p": -0.5}, ("`typical_p`",)),
    Bad({"min_p": 1.5}, ("`min_p`", "1.5")),
    Bad({"top_k": -7}, ("`top_k`", "-7")),
    Bad({"repetition_penalty": 0}, ("`repetition_penalty`",)),
    Bad({"frequency_penalty": 2.5}, ("`frequency_penalty`", "2.5")),
    Bad({"presence_penalty": -3}, ("`presence_penalty`", "-3")),
    Bad({"stop": ["a", "b", "c", "d", "e"]}, ("`stop`", "4", "5")),
    Bad({"stop": [""]}, ("`stop`",)),
    Bad({"stop_token_ids": [10**9]}, ("`stop_token_ids`",)),
)
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
OPENAI_RANGES = (
    Bad({"logit_bias": {"5": 101}}, ("`logit_bias`", "100")),
    Bad({"logit_bias": {"the": 1}}, ("`logit_bias`", "the")),
    Bad({"logit_bias": {str(token): 1 for token in range(1025)}}, ("`logit_bias`", "1024")),
    Bad({"allowed_token_ids": []}, ("`allowed_token_ids`",)),
    Bad({"allowed_token_ids": [10**9]}, ("`allowed_token_ids`",)),
    Bad({"bad_words": [""]}, ("`bad_words`",)),
    Bad({"bad_words": ["a"] * 129}, ("`bad_words`", "128")),
    Bad({"max_tokens": 0}, ("max",)),
    Bad({"max_tokens": MOST + 1}, (str(MOST),)),
    Bad({"n": 0}, ("`n`",)),
    Bad({"n": 17}, ("`n`", "16")),
    Bad({"n": 2, "best_of": 1}, ("`best_of`", "`n`")),
    Bad({"priority": -1}, ("`priority`", "3")),
    Bad({"min_tokens": 3, "max_tokens": 2}, ("`min_tokens`", "2")),
    Bad({"logit_bias": {"5": 1}, "use_beam_search": True, "temperature": 0}, ("`logit_bias`", "beam search")),
)
TYPES = (
    Bad({"logit_bias": [1.0]}, ("logit_bias",)),
    Bad({"bad_words": "the"}, ("bad_words",)),
    Bad({"temperature": "hot"}, ("temperature",)),
    Bad({"top_k": 1.5}, ("top_k",)),
    Bad({"seed": "x"}, ("seed",)),
    Bad({"stop": 3}, ("stop",)),
    Bad({"stop": [3]}, ("stop",)),
    Bad({"top_p": []}, ("top_p",)),
    Bad({"stop_token_ids": [-1]}, ("stop_token_ids",)),
)
NATIVE_TYPES = (
    Bad({"max_new_tokens": "ten"}, ("max_new_tokens",)),
    Bad({"max_new_tokens": -5}, ("max_new_tokens",)),
    Bad({"max_new_tokens": 10**20}, ("max_new_tokens",)),
    Bad({"details": "yes"}, ("details",)),
    Bad({"seed": -1}, ("seed",)),
)
OPENAI_TYPES = (
    Bad({"max_tokens": -5}, ("max_tokens",)),
    Bad({"stream": "yes"}, ("stream",)),
    Bad({"n": "two"}, ("n",)),
)
OPENAI_SHAPES = (
    Bad({"response_format": {"type": "poem"}}, ("response_format",)),
    Bad({"guided_json": [1]}, ("guided_json",)),
)


@pytest.mark.parametrize("path", NATIVE)
@pytest.mark.parametrize("bad", [*RANGES, *NATIVE_RANGES], ids=str)
def test_native_values(server: Launcher, path: str, bad: Bad) -> None:
    answer = send_json(server.url, path, {"inputs": "Hello", "parameters": bad.fields})
    refused(answer, path, 422, "validation", "Input validation error: ", *bad.words)


@pytest.mark.parametrize("path", NATIVE)
@pytest.mark.parametrize("bad", [*TYPES, *NATIVE_TYPES], ids=str)
def test_native_types(server: Launcher, path: str, bad: Bad) -> None:
    answer = send_json(server.url, path, {"inputs": "Hello", "parameters": bad.fields})
    refused(answer, path, 422, "validation", *bad.words)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("bad", [*RANGES, *OPENAI_RANGES, *OPENAI_SHAPES], ids=str)
def test_openai_values(server: Launcher, path: str, bad: Bad, stream: bool) -> None:
    body = {"prompt": "Hello", "messages": MESSAGES, "stream": stream} | bad.fields
    refused(send_json(server.url, path, body), path, 422, "validation", *bad.words)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("bad", [*TYPES, *OPENAI_TYPES], ids=str)
def test_openai_types(server: Launcher, path: str, bad: Bad) -> None:
    body = {"prompt": "Hello", "messages": MESSAGES} | bad.fields
    refused(send_json(server.url, path, body), path, 422, "validation", *bad.words)


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
def test_native_bodies(server: Launcher, path: str, body: Any, words: tuple[str, ...]) -> None:
    answer = send_json(server.url, path, body)
    adapter = "adapter_id" in body.get("parameters", {}) if isinstance(body.get("parameters"), dict) else False
    refused(answer, path, *((404, "adapter_not_found") if adapter else (422, "validation")), *words)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (COMPLETIONS, {}, ("prompt",)),
        (COMPLETIONS, {"prompt": ""}, ("empty",)),
        (COMPLETIONS, {"prompt": []}, ("prompt",)),
        (COMPLETIONS, {"prompt": [[]]}, ("empty",)),
        (COMPLETIONS, {"prompt": {"text": "a"}}, ("prompt",)),
        (COMPLETIONS, {"prompt": [10**9]}, ("prompt",)),
        (COMPLETIONS, {"prompt": "word " * (2 * MOST)}, (str(MOST - 1),)),
        (COMPLETIONS, {"prompt": "a", "suffix": "b"}, ("suffix", "fill in the middle")),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, ("max_new_tokens",)),
        (COMPLETIONS, {"prompt": "a", "prompt_logprobs": 21}, ("`prompt_logprobs`", "20")),
        (COMPLETIONS, {"prompt": "a", "prompt_logprobs": 1, "stream": True}, ("`prompt_logprobs`", "streaming")),
        (COMPLETIONS, {"prompt": "a", "truncate_prompt_tokens": 0}, ("`truncate_prompt_tokens`",)),
        (CHAT, {"messages": MESSAGES, "chat_template_kwargs": {"messages": []}}, ("`messages`", "kwargs")),
        (CHAT, {"messages": MESSAGES, "reasoning_effort": "huge"}, ("reasoning_effort",)),
        (COMPLETIONS, {"prompt": "a", "logprobs": 50}, ("`logprobs`", "50")),
        (CHAT, {}, ("messages",)),
        (CHAT, {"messages": "Hello"}, ("messages",)),
        (CHAT, {"messages": ["Hello"]}, ("messages",)),
        (CHAT, {"messages": MESSAGES, "stream_options": [None] * 9}, ("stream_options", "a list, expected an object")),
        (CHAT, {"messages": [{"content": "Hello"}]}, ("role",)),
        (CHAT, {"messages": [{"role": "user", "content": "word " * (2 * MOST)}]}, (str(MOST - 1),)),
        (CHAT, {"messages": MESSAGES, "top_logprobs": 3}, ("logprobs",)),
        (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 500}, ("`top_logprobs`", "500")),
        (CHAT, {"messages": MESSAGES, "tool_choice": "required"}, ("tool_choice",)),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_openai_bodies(server: Launcher, path: str, body: Any, words: tuple[str, ...]) -> None:
    refused(send_json(server.url, path, body), path, 422, "validation", *words)


def test_the_longest_prompt_is_taken_and_one_token_more_is_not(server: Launcher, tiny_reference: Reference) -> None:
    text = "a" + " a" * MOST
    assert len(tiny_reference.encode(text)) > MOST
    fits = {"inputs": text, "parameters": {"truncate": MOST - 1, "max_new_tokens": 1, "details": True}}
    assert send_json(server.url, "/generate", fits).json()["details"]["generated_tokens"] == 1
    ids = tiny_reference.encode(text)[: MOST - 1]
    assert send_json(server.url, COMPLETIONS, {"prompt": ids, "max_tokens": 1}).status == 200
    for body in ({"prompt": ids, "max_tokens": 2}, {"prompt": [*ids, 7], "max_tokens": 1}):
        refused(send_json(server.url, COMPLETIONS, body), COMPLETIONS, 422, "validation", "tokens", str(len(ids)))


def test_too_many_prompts(server: Launcher) -> None:
    answer = send_json(server.url, COMPLETIONS, {"prompt": ["a"] * 5})
    refused(answer, COMPLETIONS, 422, "batch size exceeded", "`prompt`", "5", "4")


def test_images_are_refused(server: Launcher) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    answer = send_json(server.url, CHAT, {"messages": [{"role": "user", "content": [image]}]})
    assert answer.status == 422
    refused(answer, CHAT, 422, answer.json()["error_type"], "image")


def test_unknown_fields_are_ignored_as_tgi_does(server: Launcher) -> None:
    body = {"inputs": "Hello", "parameters": {"max_new_tokens": 2, "colour": "red"}, "more": 1}
    assert send_json(server.url, "/generate", body).status == 200


def test_a_client_that_says_nothing_does_not_stop_others(server: Launcher) -> None:
    with connect(server.url) as silent, connect(server.url) as half:
        half.sendall(b"POST /generate HTTP/1.1\r\ncontent-length: 100\r\ncontent-type: application/json\r\n\r\n{")
        assert send(server.url, "GET", "/health").status == 200
        silent.close()


# --- starts


@pytest.fixture
def damaged(tiny_folder: Path, tmp_path: Path) -> Callable[[], Path]:
    """A copy of the tiny model to break."""

    def copy() -> Path:
        return Path(shutil.copytree(tiny_folder, tmp_path / "broken-model"))

    return copy


def fails(launcher: Launcher, code: int, *words: str) -> str:
    """The launcher ends with this code and one `error:` line; no shard stays."""
    assert launcher.wait(90) == code, launcher.log
    assert launcher.faults() == []
    errors = [line for line in launcher.log.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, launcher.log
    sentence = errors[0].removeprefix("error: ")
    assert not re.search(r"\w+Error\b|Errno", sentence), sentence
    for word in words:
        assert word in sentence, sentence
    assert not any(running(pid) for pid in launcher.known_shards)
    return sentence


MODEL, MEMORY, SETTINGS, ADDRESS = 3, 4, 2, 6


def test_unknown_model_folder(start: Start, tmp_path: Path) -> None:
    fails(start(model=tmp_path / "nothing"), MODEL, "nothing", "no such folder")


def test_a_hub_name_without_a_network(start: Start) -> None:
    offline = {"HF_HUB_OFFLINE": "1"}
    fails(start(model="some-org/some-model", environ=offline), MODEL, "some-org/some-model", "HF_HUB_OFFLINE")


def test_a_file_instead_of_a_folder(start: Start, tiny_folder: Path) -> None:
    fails(start(model=tiny_folder / "config.json"), MODEL, "config.json", "folder")


def test_an_empty_folder(start: Start, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    fails(start(model=empty), MODEL, "config.json")


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "model.safetensors"])
def test_a_missing_file(start: Start, damaged: Callable[[], Path], name: str) -> None:
    folder = damaged()
    (folder / name).unlink()
    fails(start(model=folder), MODEL, name)


def test_weights_cut_off(start: Start, damaged: Callable[[], Path]) -> None:
    folder = damaged()
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1000)
    fails(start(model=folder), MODEL, "model.safetensors", "damaged")


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 7, b"\xff" * 8 + b"{}", struct.pack("<Q", 10) + b"{nonsense}", b"<html>404</html>" * 100,
     struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 60) + b'{"a":{"dtype":"F32","shape":[2],"data_offs' + b" " * 24],
    ids=["empty", "short", "huge header", "no JSON", "web page", "no tensors", "cut header"],
)  # fmt: skip
def test_weights_that_are_garbage(start: Start, damaged: Callable[[], Path], content: bytes) -> None:
    folder = damaged()
    (folder / "model.safetensors").write_bytes(content)
    fails(start(model=folder), MODEL, str(folder))


@pytest.mark.parametrize("change", ["one tensor less", "another shape"])
def test_weights_of_another_model(start: Start, damaged: Callable[[], Path], change: str) -> None:
    """The headers are sound, so only the shard can see it."""
    folder = damaged()
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.q_proj.weight"
    if change == "one tensor less":
        del weights[name]
    else:
        weights[name] = torch.zeros(3, 5)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    fails(start(model=folder), MODEL, name)


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", "{"), ("tokenizer.json", '{"model": 5}'), ("config.json", "{"), ("config.json", "[]"),
     ("tokenizer_config.json", "{")],
)  # fmt: skip
def test_damaged_text_files(start: Start, damaged: Callable[[], Path], name: str, content: str) -> None:
    folder = damaged()
    (folder / name).write_text(content)
    fails(start(model=folder), MODEL, name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["MambaForCausalLM"]}, ("MambaForCausalLM", "not supported")),
        ({"architectures": None}, ("architecture",)),
        ({"num_hidden_layers": None}, ("num_hidden_layers",)),
        ({"hidden_size": "many"}, ("hidden_size",)),
        ({"num_key_value_heads": 3}, ("num_key_value_heads",)),
        ({"hidden_act": "xielu"}, ("hidden_act",)),
        ({"rope_parameters": {"rope_type": "spiral", "factor": 2.0}}, ("spiral",)),
        ({"logit_scale": 0.5}, ("logit_scale", "does not know")),
        ({"quantization_config": {"quant_method": "gptq"}}, ("quantized",)),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_unsupported_configs(
    start: Start, damaged: Callable[[], Path], change: dict[str, Any], words: tuple[str, ...]
) -> None:
    folder = damaged()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    fails(start(model=folder), MODEL, *words)


def test_a_port_in_use(start: Start, tiny_folder: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        fails(start(model=tiny_folder, port=port), ADDRESS, f"127.0.0.1:{port}", "in use", "--port")


def test_an_address_of_another_machine(start: Start, tiny_folder: Path) -> None:
    launcher = start(model=tiny_folder, hostname="192.0.2.1", api_key="sesame")
    fails(launcher, ADDRESS, "192.0.2.1", "--hostname")


def test_a_network_without_a_key(start: Start, tiny_folder: Path) -> None:
    fails(start(model=tiny_folder, hostname="0.0.0.0"), SETTINGS, "--api-key", "--allow-unauthenticated")


def test_a_model_that_does_not_fit(start: Start, tiny_folder: Path) -> None:
    launcher = start(model=tiny_folder, kv_memory="200KiB")
    fails(launcher, MEMORY, "does not fit", "--max-total-tokens")
    for row in ("available", "weights", "KV cache"):
        assert row in launcher.log, "the arithmetic is missing"


def test_kv_memory_too_small(start: Start, tiny_folder: Path) -> None:
    fails(start(model=tiny_folder, kv_memory="1KiB"), MEMORY, "does not fit", "--kv-memory")


def test_weights_larger_than_the_machine(start: Start, damaged: Callable[[], Path]) -> None:
    """Weights of 8 TiB, as far as headers and file size tell: the file is a hole."""
    folder = damaged()
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**41], "data_offsets": [0, 2**43]}}).encode()
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + 2**43)
    launcher = start(model=folder)
    fails(launcher, MEMORY, "does not fit", "missing")
    assert "weights" in launcher.log


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": "many"}, ("--port", "many")),
        ({"port": 70_000}, ("--port", "70000")),
        ({"dtype": "int3"}, ("--dtype", "int3")),
        ({"max_total_tokens": -1}, ("--max-total-tokens",)),
        ({"max_input_tokens": 100, "max_total_tokens": 100}, ("--max-input-tokens", "--max-total-tokens")),
        ({"max_total_tokens": 10**6}, ("--max-total-tokens", "2048")),
        ({"max_batch_size": 64, "max_batch_prefill_tokens": 32}, ("--max-batch-size", "--max-batch-prefill-tokens")),
        ({"kv_memory": "lots"}, ("--kv-memory", "lots")),
        ({"num_shard": 2}, ("--num-shard",)),
        ({"quantize": "awq"}, ("--quantize",)),
        ({"max_total_token": 5}, ("--max-total-token", "--max-total-tokens")),
        ({"graceful_termination_timeout": "soon"}, ("--graceful-termination-timeout", "soon")),
        ({"device": "cuda"}, ("--device cuda",)),
        ({"model_id": ""}, ("--model-id",)),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_bad_flags(start: Start, tiny_folder: Path, flags: dict[str, Any], words: tuple[str, ...]) -> None:
    fails(start(**({"model_id": tiny_folder} | flags)), SETTINGS, *words)


@pytest.mark.parametrize(
    ("environ", "words"),
    [({"MAX_TOTAL_TOKENS": "x"}, ("MAX_TOTAL_TOKENS", "'x'")), ({"DTYPE": "float8"}, ("DTYPE", "float8"))],
    ids=["number", "choice"],
)  # fmt: skip
def test_bad_variables(start: Start, tiny_folder: Path, environ: dict[str, str], words: tuple[str, ...]) -> None:
    fails(start(model=tiny_folder, environ=environ), SETTINGS, *words)


def test_a_bad_start_in_json_logs(start: Start, tmp_path: Path) -> None:
    """Whoever asked for JSON gets the reason as JSON too, and nothing else."""
    launcher = start(model=tmp_path / "nothing", json_output=True)
    assert launcher.wait() == MODEL
    lines = [json.loads(line) for line in launcher.log.splitlines()]
    assert lines[-1]["level"] == "ERROR"
    assert "no such folder" in lines[-1]["message"]


def test_a_broken_chat_template_leaves_the_rest_working(start: Start, damaged: Callable[[], Path]) -> None:
    folder = damaged()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": "{% for x in"}))
    launcher = start(model=folder, max_total_tokens=64).wait_ready()
    assert send_json(launcher.url, "/generate", {"inputs": "a", "parameters": {"max_new_tokens": 2}}).status == 200
    answer = send_json(launcher.url, CHAT, {"messages": MESSAGES})
    refused(answer, CHAT, 422, "template_error", "emplate")
    assert launcher.faults() == []
