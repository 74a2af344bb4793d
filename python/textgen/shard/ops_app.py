"""What an operator asks a shard: /health, /metrics and /stacks, over a Unix socket of its own."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import msgspec
from hypercorn.asyncio import serve
from hypercorn.config import Config
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope

from textgen.shard.executor import Executor
from textgen.shard.metrics import Metrics

Reply = tuple[HTTPStatus, str, bytes]


class OpsApp:
    """An ASGI application over the executor's state; it never waits for the executor."""

    def __init__(self, executor: Executor, metrics: Metrics) -> None:
        self._executor, self._metrics = executor, metrics
        self._routes: dict[str, Callable[[], Reply]] = {
            "/health": self._health,
            "/metrics": self._metric_text,
            "/stacks": self._stacks,
        }

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            await _respond(send, *self._reply(scope["method"], scope["path"]))

    def _reply(self, method: str, path: str) -> Reply:
        route = self._routes.get(path)
        if route is None:
            return HTTPStatus.NOT_FOUND, "text/plain", f"no such page; there are {', '.join(self._routes)}\n".encode()
        if method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"use GET\n"
        return route()

    def _health(self) -> Reply:
        wrong = self._executor.check_integrity()
        if wrong is None:
            return HTTPStatus.OK, "application/json", b'{"status":"ok"}'
        body = msgspec.json.encode({"status": "error", "error": wrong})
        return HTTPStatus.SERVICE_UNAVAILABLE, "application/json", body

    def _metric_text(self) -> Reply:
        self._executor.count_steps()
        return HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", self._metrics.text()

    def _stacks(self) -> Reply:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        parts = [
            f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
            for ident, frame in sys._current_frames().items()
        ]
        return HTTPStatus.OK, "text/plain; charset=utf-8", "\n".join(parts).encode()


async def serve_ops(app: OpsApp, path: str, stopped: Callable[[], Awaitable[None]]) -> None:
    """Serve the app on a Unix socket at `path`, for this user alone, until `stopped` returns."""
    config = Config()
    config.bind = [f"unix:{path}"]
    config.umask = 0o177
    config.graceful_timeout = 1.0
    config.loglevel = "WARNING"
    await serve(app, config, shutdown_trigger=stopped)


async def _lifespan(receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    while True:
        if (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await send({"type": "lifespan.shutdown.complete"})
            return


async def _respond(send: ASGISendCallable, status: HTTPStatus, content_type: str, body: bytes) -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": body, "more_body": False})
