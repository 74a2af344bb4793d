"""HTTP without a client library's opinions: the very bytes of an answer."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

SECONDS = 60.0


@dataclass(frozen=True)
class RawAnswer:
    """Status, headers by lower-case name, and the body with its chunks joined."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def send(
    url: str, method: str, path: str, body: bytes | None = None, content_type: str | None = "application/json"
) -> RawAnswer:
    """One request on a connection of its own."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=SECONDS)
    try:
        headers = {"content-type": content_type} if content_type is not None and body is not None else {}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        named = {name.lower(): value for name, value in answer.getheaders()}
        return RawAnswer(answer.status, named, answer.read())
    finally:
        connection.close()


def send_json(url: str, path: str, body: Any) -> RawAnswer:
    return send(url, "POST", path, json.dumps(body).encode())


def connect(url: str, receive_buffer: int | None = None) -> socket.socket:
    """A connection; `receive_buffer` is how many bytes the system may keep for a reader that does not read."""
    parts = urlsplit(url)
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(SECONDS)
    connection.connect((parts.hostname, parts.port))
    return connection


def events_of(body: bytes) -> list[bytes]:
    """The data of every event; fails on anything that is not `data: ...` and one blank line."""
    assert body.endswith(b"\n\n"), body[-80:]
    frames = body.removesuffix(b"\n\n").split(b"\n\n")
    for frame in frames:
        assert frame.startswith(b"data: "), frame
        assert b"\n" not in frame, frame
        assert b"\r" not in frame, frame
    return [frame.removeprefix(b"data: ") for frame in frames]
