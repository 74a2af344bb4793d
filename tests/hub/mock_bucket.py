"""Google Cloud Storage on loopback: the two calls of its JSON API that a download needs, with a machine's token."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "of-the-service-account"
PAGE = 2  # files on a page of a listing


class MockBucket:
    """Serves while its context is open.

    refuse: statuses for the next downloads of a file, by its name. damage: how often it comes with a wrong byte.
    token: what must be sent with each call; None asks for nothing.
    """

    def __init__(self, name: str, files: dict[str, bytes], token: str | None = None) -> None:
        self.name, self.files, self.token = name, dict(files), token
        self.refuse: dict[str, list[int]] = {}
        self.damage: dict[str, int] = {}
        self.generations = dict.fromkeys(files, 1)
        self._got: list[str] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def downloaded(self) -> list[str]:
        """Files that were asked for, sorted."""
        with self._lock:
            return sorted(self._got)

    def put(self, name: str, data: bytes) -> None:
        """Another generation of a file."""
        self.files[name] = data
        self.generations[name] = self.generations.get(name, 0) + 1

    def __enter__(self) -> MockBucket:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _listing(self, asked: dict[str, list[str]]) -> dict[str, Any]:
        prefix, begin = asked.get("prefix", [""])[0], int(asked.get("pageToken", ["0"])[0])
        inside = [name for name in sorted(self.files) if name.startswith(prefix) and "/" not in name[len(prefix) :]]
        items = [
            {
                "name": name, "size": str(len(self.files[name])), "generation": str(self.generations[name]),
                "md5Hash": base64.b64encode(hashlib.md5(self.files[name]).digest()).decode(),
            }
            for name in inside[begin : begin + PAGE]
        ]  # fmt: skip
        more = {"nextPageToken": str(begin + PAGE)} if len(inside) > begin + PAGE else {}
        return {"kind": "storage#objects", "items": items, **more} if items else {"kind": "storage#objects"}

    def _file(self, name: str) -> tuple[int, bytes]:
        with self._lock:
            self._got.append(name)
            if self.refuse.get(name):
                return self.refuse[name].pop(0), b""
            if name not in self.files:
                return 404, b""
            data = self.files[name]
            if self.damage.get(name, 0):
                self.damage[name] -= 1
                data = bytes([data[0] ^ 1]) + data[1:]
            return 200, data

    def _answer(self, path: str, headers: Any) -> tuple[int, bytes]:
        parts = urlsplit(path)
        if parts.path.endswith("/service-accounts/default/token"):
            given = json.dumps({"access_token": TOKEN, "expires_in": 3599, "token_type": "Bearer"}).encode()
            return (200, given) if headers.get("metadata-flavor") == "Google" else (403, b"")
        if self.token is not None and headers.get("authorization") != f"Bearer {self.token}":
            return 401, b""
        objects = f"/storage/v1/b/{self.name}/o"
        if parts.path == objects:
            return 200, json.dumps(self._listing(parse_qs(parts.query))).encode()
        if parts.path.startswith(f"{objects}/") and parse_qs(parts.query).get("alt") == ["media"]:
            return self._file(unquote(parts.path.removeprefix(f"{objects}/")))
        return 404, b""

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        bucket = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, body = bucket._answer(self.path, self.headers)
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
