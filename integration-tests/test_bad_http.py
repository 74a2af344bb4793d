"""Bodies that are no requests, heads, routes and methods: one clear sentence each, and the server goes on."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from support.raw import connect, send
from support.refusals import CHAT, COMPLETIONS, LIMIT, MESSAGES, NATIVE, refused
from support.server import Launcher

# --- bodies that are no requests


@pytest.mark.parametrize("path", [*NATIVE, CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"inputs": "a"', b"{'inputs': 'a'}", b"inputs=a", b'{"inputs": "a",}',
     b"\0"],
    ids=["empty", "brace", "cut off", "single quotes", "form", "comma", "zero byte"],
)  # fmt: skip
def test_broken_json(strict_server: Launcher, path: str, body: bytes) -> None:
    refused(send(strict_server.url, "POST", path, body), path, 400, "invalid_json", "JSON")


@pytest.mark.parametrize("path", [*NATIVE, CHAT, COMPLETIONS])
@pytest.mark.parametrize("body", ["[]", '"text"', "null", "7", "true"])
def test_json_that_is_no_object(strict_server: Launcher, path: str, body: str) -> None:
    refused(send(strict_server.url, "POST", path, body.encode()), path, 422, "validation")


@pytest.mark.parametrize("path", [*NATIVE, CHAT, COMPLETIONS])
def test_text_that_is_not_utf_8(strict_server: Launcher, path: str) -> None:
    text = b'"a \xff\xfe"'
    body = b'{"inputs": %s, "prompt": %s, "messages": [{"role": "user", "content": %s}]}' % (text, text, text)
    refused(send(strict_server.url, "POST", path, body), path, 400, "invalid_json", "JSON")


@pytest.mark.parametrize("path", [*NATIVE, CHAT, COMPLETIONS])
def test_deep_nesting(strict_server: Launcher, path: str) -> None:
    deep = b"[" * 5000 + b"]" * 5000
    body = (
        b'{"inputs": "a", "parameters": {"grammar": %s}, "prompt": %s, "messages": [{"role": "user", "content": %s}]}'
        % (deep, deep, deep)
    )
    answer = send(strict_server.url, "POST", path, body)
    assert answer.status in (400, 422)
    refused(answer, path, answer.status, answer.json()["error_type"])


@pytest.mark.parametrize("path", ["/generate", COMPLETIONS])
def test_deep_nesting_where_nobody_looks(strict_server: Launcher, path: str) -> None:
    """In a field that the route does not have. It may be ignored or refused."""
    body = b'{"inputs": "a", "prompt": "a", "parameters": {"max_new_tokens": 1}, "max_tokens": 1, "colour": '
    assert send(strict_server.url, "POST", path, body + b"[" * 20_000 + b"]" * 20_000 + b"}").status in (200, 400)


@pytest.mark.parametrize("path", [*NATIVE, CHAT, COMPLETIONS])
def test_a_body_too_large(strict_server: Launcher, path: str) -> None:
    body = json.dumps({"inputs": "a" * LIMIT, "prompt": "a", "messages": MESSAGES}).encode()
    refused(send(strict_server.url, "POST", path, body), path, 413, "payload_too_large", str(LIMIT))


def test_a_body_too_large_whose_length_is_not_announced(strict_server: Launcher) -> None:
    with connect(strict_server.url) as connection:
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
def test_a_wrong_content_type(strict_server: Launcher, path: str, content_type: str | None) -> None:
    answer = send(strict_server.url, "POST", path, b'{"inputs": "a"}', content_type)
    refused(answer, path, 415, "unsupported_media_type", "application/json")


def test_garbage_instead_of_http(strict_server: Launcher) -> None:
    with connect(strict_server.url) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        connection.recv(1000)


@pytest.mark.parametrize("head", [b"x-long: " + b"a" * 500_000 + b"\r\n", b"x-many: a\r\n" * 500], ids=["long", "many"])
def test_a_head_over_the_limit(strict_server: Launcher, head: bytes) -> None:
    with connect(strict_server.url) as connection:
        with suppress(ConnectionError):  # the server need not read on
            connection.sendall(b"GET /info HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 431 ")


# --- routes


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing", "/generate/", "/%00", "/v1/embeddings"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_unknown_routes(strict_server: Launcher, method: str, path: str) -> None:
    answer = send(strict_server.url, method, path, b"{}" if method == "POST" else None)
    refused(answer, path, 404, "not_found", path)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/generate", "POST"), ("PUT", "/generate", "POST"), ("GET", "/generate_stream", "POST"),
        ("DELETE", "/", "GET"), ("POST", "/health", "GET"), ("POST", "/metrics", "GET"), ("GET", CHAT, "POST"),
        ("PATCH", COMPLETIONS, "POST"), ("POST", "/v1/models", "GET"), ("POST", "/info", "GET"),
    ],
)  # fmt: skip
def test_wrong_methods(strict_server: Launcher, method: str, path: str, allowed: str) -> None:
    answer = send(strict_server.url, method, path, b"{}" if method != "GET" else None)
    refused(answer, path, 405, "method_not_allowed", method)
    assert allowed in answer.headers["allow"]


def test_a_client_that_says_nothing_does_not_stop_others(strict_server: Launcher) -> None:
    with connect(strict_server.url) as silent, connect(strict_server.url) as half:
        half.sendall(b"POST /generate HTTP/1.1\r\ncontent-length: 100\r\ncontent-type: application/json\r\n\r\n{")
        assert send(strict_server.url, "GET", "/health").status == 200
        silent.close()
