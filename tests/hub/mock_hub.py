"""A hub on loopback: the API and the addresses of files as `huggingface_hub` uses them, and faults on demand.

Large files are redirected to a second address, as the real hub does to its content network, so that a token that goes
further than it should is seen.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = (".safetensors", ".bin", ".gguf", ".h5", ".onnx", ".msgpack")
_API = re.compile(r"/api/models/(?P<repo>[^/]+(?:/[^/]+)?)/revision/(?P<revision>[^/]+)")
_TREE = re.compile(r"/api/models/(?P<repo>[^/]+(?:/[^/]+)?)/tree/(?P<revision>[^/]+)")
_RESOLVE = re.compile(r"/(?P<repo>[^/]+(?:/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
_STEP = 64 * 1024


@dataclass
class Faults:
    """What goes wrong with one file. Numbers count down to 0, which is no fault."""

    drop_after: list[int] = field(default_factory=list)  # bytes sent before a connection breaks, an entry a request
    corrupt: int = 0  # answers with one wrong byte
    refuse: list[int] = field(default_factory=list)  # statuses instead of an answer
    no_ranges: bool = False
    etag: str | None = None  # told instead of the right one
    hold_after: int | None = None  # an answer that gets there waits until the hub lets go


@dataclass
class Repo:
    """Files by their paths, one commit at a time."""

    files: dict[str, bytes]
    gated: bool = False
    private: bool = False
    disabled: bool = False
    no_hashes: bool = False
    branch: str = "main"
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.commit(self.files)

    def commit(self, files: Mapping[str, bytes]) -> str:
        """Make `files` what the branch names; the commit."""
        self.files = dict(files)
        told = "".join(f"{name} {hashlib.sha256(data).hexdigest()}\n" for name, data in sorted(files.items()))
        self.head = hashlib.sha1(told.encode()).hexdigest()
        self.commits[self.head] = self.files
        return self.head

    def find(self, revision: str) -> str | None:
        return self.head if revision == self.branch else revision if revision in self.commits else None


@dataclass(frozen=True)
class Request:
    method: str
    path: str  # of the file, or of the API call
    range: str | None
    token: str | None
    agent: str


class MockHub:
    """Serves while its context is open."""

    def __init__(self, **repos: Repo) -> None:
        self.repos: dict[str, Repo] = {name.replace("__", "/"): repo for name, repo in repos.items()}
        self.tokens = {"hf_good"}  # accepted
        self.readers = {"hf_good"}  # accepted, and let into gated and private repositories
        self.requests: list[Request] = []
        self.content: list[Request] = []  # what arrived at the second address
        self.faults: dict[str, Faults] = {}
        self.sent = threading.Event()  # a held answer has sent what it may
        self.go_on = threading.Event()
        self.down = False  # 503 for everything
        self.moved: dict[str, str] = {}  # names that were changed
        self._lock = threading.Lock()

    def __enter__(self) -> MockHub:
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, serve)) for serve in (_hub, _content)]
        for server in self._servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Nobody listens there any more. Harmless when it was called before."""
        self.go_on.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._servers[0].server_port}"

    @property
    def content_address(self) -> str:
        return f"http://127.0.0.1:{self._servers[1].server_port}"

    def asked(self, method: str = "GET") -> list[str]:
        """The paths of files that were asked for, one entry a request."""
        return [each.path for each in self.requests if each.method == method and not each.path.startswith("/api/")]

    def fault(self, path: str) -> Faults:
        return self.faults.setdefault(path, Faults())

    def record(self, into: list[Request], request: Request) -> None:
        with self._lock:
            into.append(request)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: MockHub

    def log_message(self, *_: object) -> None:
        pass

    def described(self, path: str) -> Request:
        given = self.headers.get("authorization", "")
        return Request(
            self.command, path, self.headers.get("range"), given.removeprefix("Bearer ") or None,
            self.headers.get("user-agent", ""),
        )  # fmt: skip

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in ({"Content_Length": str(len(body))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            with suppress(OSError):  # whoever asked may be gone
                self.wfile.write(body)

    def refuse(self, status: int, code: str = "", message: str = "") -> None:
        told = {"X_Error_Code": code} if code else {}
        self.answer(status, b"{}", **told, X_Error_Message=message)


def _handler(hub: MockHub, serve: Any) -> type[_Handler]:
    made = type("Handler", (_Handler,), {"hub": hub, "do_GET": serve, "do_HEAD": serve})
    return made


def _hub(self: _Handler) -> None:
    parts = urlsplit(self.path)
    path, hub = unquote(parts.path), self.hub
    api, tree = _API.fullmatch(parts.path), _TREE.fullmatch(parts.path)
    resolve = _RESOLVE.fullmatch(path)
    request = self.described(resolve["path"] if resolve else path)
    hub.record(hub.requests, request)
    found = api or tree or resolve
    if hub.down:
        return self.refuse(503)
    for old, new in hub.moved.items():
        if f"/{old}/" in path:
            return self.answer(307, Location=self.path.replace(f"/{old}/", f"/{new}/"))
    if request.token is not None and request.token not in hub.tokens:
        return self.refuse(401, message="Invalid credentials in Authorization header")
    if found is None:
        return self.refuse(404)
    repo = hub.repos.get(unquote(found["repo"]))
    reader = request.token in hub.readers
    if repo is None or (repo.private and not reader):
        return self.refuse(404 if request.token else 401, "RepoNotFound", "Repository not found")
    if repo.disabled:
        return self.refuse(403, message="Access to this resource is disabled.")
    commit = repo.find(unquote(found["revision"]))
    if commit is None:
        return self.refuse(404, "RevisionNotFound", "Invalid rev id")
    if api is not None:
        return self.answer(
            200, _info(api["repo"], repo, commit, parse_qs(parts.query)), Content_Type="application/json"
        )
    if tree is not None:
        return self.answer(200, _listing(repo, commit), Content_Type="application/json")
    if repo.gated and not reader:
        return self.refuse(403 if request.token else 401, "GatedRepo", "Access to this model is restricted")
    _resolve(self, repo, commit, request)


def _info(name: str, repo: Repo, commit: str, query: Mapping[str, list[str]]) -> bytes:
    blobs = query.get("blobs") == ["true"] and not repo.no_hashes
    siblings = [{"rfilename": path} | (_hashes(path, data) if blobs else {}) for path, data in _files(repo, commit)]
    info = {"id": unquote(name), "modelId": unquote(name), "sha": commit, "siblings": siblings, "tags": []}
    return json.dumps(info | {"private": repo.private, "gated": "auto" if repo.gated else False}).encode()


def _listing(repo: Repo, commit: str) -> bytes:
    entries = []
    for path, data in _files(repo, commit):
        known = _hashes(path, data)
        large = (
            {"lfs": {"oid": known["lfs"]["sha256"], "size": len(data), "pointerSize": 130}} if "lfs" in known else {}
        )
        entries.append({"type": "file", "path": path, "size": len(data), "oid": known["blobId"]} | large)
    return json.dumps(entries).encode()


def _files(repo: Repo, commit: str) -> Iterator[tuple[str, bytes]]:
    yield from sorted(repo.commits[commit].items())


def _hashes(path: str, data: bytes) -> dict[str, Any]:
    known: dict[str, Any] = {"size": len(data), "blobId": _git(data)}
    if path.endswith(LARGE):
        known["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return known


def _git(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _resolve(self: _Handler, repo: Repo, commit: str, request: Request) -> None:
    path, data = request.path, repo.commits[commit].get(request.path)
    if data is None:
        return self.refuse(404, "EntryNotFound", "Entry not found")
    fault = self.hub.fault(path)
    if fault.refuse and self.command == "GET":
        return self.refuse(fault.refuse.pop(0))
    if not path.endswith(LARGE):
        return _send(self, data, request, fault, X_Repo_Commit=commit, ETag=f'"{fault.etag or _git(data)}"')
    digest = hashlib.sha256(data).hexdigest()
    self.answer(
        302, X_Repo_Commit=commit, X_Linked_Etag=f'"{digest}"', X_Linked_Size=str(len(data)),
        Location=f"{self.hub.content_address}/{commit}/{path}?signature=hidden",
    )  # fmt: skip


def _content(self: _Handler) -> None:
    commit, _, path = unquote(urlsplit(self.path).path).removeprefix("/").partition("/")
    request = self.described(path)
    self.hub.record(self.hub.content, request)
    (data,) = [repo.commits[commit][path] for repo in self.hub.repos.values() if commit in repo.commits]
    _send(self, data, request, self.hub.fault(path), ETag='"of the content network"')


def _send(self: _Handler, data: bytes, request: Request, fault: Faults, **headers: str) -> None:
    whole = len(data)
    if fault.corrupt and self.command == "GET":
        fault.corrupt -= 1
        data = data[:-1] + bytes([data[-1] ^ 1])
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.range or "")
    first = 0
    if wanted and not fault.no_ranges:
        first, last = int(wanted[1]), int(wanted[2] or whole - 1)
        if first >= whole:
            return self.refuse(416)
        data = data[first : last + 1]
        headers |= {"Content_Range": f"bytes {first}-{first + len(data) - 1}/{whole}"}
    status = 206 if "Content_Range" in headers else 200
    if self.command == "HEAD":
        return self.answer(status, data, **headers)
    drop = fault.drop_after.pop(0) if fault.drop_after else None
    hold = fault.hold_after
    self.answer(status, b"", **(headers | {"Content_Length": str(len(data))}))
    with suppress(OSError):
        if drop is not None:
            self.wfile.write(data[:drop])
            self.close_connection = True
            return None
        if hold is not None and hold > first:
            self.wfile.write(data[: hold - first])
            self.wfile.flush()
            self.hub.sent.set()
            self.hub.go_on.wait()
            data = data[hold - first :]
        for start in range(0, len(data), _STEP):
            self.wfile.write(data[start : start + _STEP])
    return None


@contextmanager
def serving(**repos: Repo) -> Iterator[MockHub]:
    """A hub with these repositories; two underscores in a name are the slash."""
    with MockHub(**repos) as hub:
        yield hub
