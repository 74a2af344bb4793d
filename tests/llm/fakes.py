"""An engine whose router answers as a test says."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec

from textgen.launcher.errors import LauncherError
from textgen.llm.engine import Engine
from textgen.llm.errors import EngineClosed, request_error
from textgen.llm.replies import Fault, Reply, decode

Answer = Callable[[str, dict[str, Any]], "tuple[int, Any]"]  # a path and a body: status and body


class FakeCalls:
    """Answers posts, the last one first, so that nobody relies on their order."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.cancelled, self.most = answer, False, 0
        self.posted: deque[tuple[int, str, bytes]] = deque()

    def post(self, tag: int, path: str, body: bytes) -> None:
        self.posted.append((tag, path, body))
        self.most = max(self.most, len(self.posted))

    def take(self, timeout: float) -> list[tuple[int, bytes]]:
        tag, path, body = self.posted.pop()
        status, answer = self.answer(path, json.loads(body))
        if status == 0:
            return [(tag, packed(done=True, fault=[503, "draining", "the server is shutting down"]))]
        response = [status, f"request-{tag}", json.dumps(answer)]
        return [(tag, packed(done=True, response=response))]

    def cancel(self) -> None:
        self.cancelled = True


def packed(**fields: Any) -> bytes:
    """A reply as the router writes it."""
    plain: dict[str, Any] = {"prompt": None, "cached_tokens": 0, "parts": {}, "done": False, "fault": None}
    return msgspec.msgpack.encode(list((plain | {"response": None} | fields).values()))


class FakeEngine:
    """What a batch asks of `Engine`."""

    def __init__(self, answer: Answer, *, limit: int = 4, payload_limit: int = 4096) -> None:
        self.fake = FakeCalls(answer)
        self.failed: LauncherError | None = None
        self.plan = SimpleNamespace(
            settings=SimpleNamespace(max_concurrent_requests=limit, payload_limit=payload_limit)
        )

    def calls(self) -> FakeCalls:
        return self.fake

    def replies(self, calls: FakeCalls, patience: float = 0.0) -> list[tuple[int, Reply]]:
        return [(tag, decode(reply)) for tag, reply in calls.take(patience)]

    def error(self, fault: Fault, index: int = 0) -> Exception:
        return self.closed() if fault.kind == "draining" else request_error(fault.message, status=500, kind=fault.kind)

    def closed(self) -> EngineClosed:
        return EngineClosed("the engine has ended")

    def failure(self) -> LauncherError | None:
        return self.failed


def as_engine(fake: FakeEngine) -> Engine:
    """For the type checker's sake."""
    return fake  # type: ignore[return-value]
