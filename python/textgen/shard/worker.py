"""The event loop around the executor: signals, the ops app, and an end that always comes."""

from __future__ import annotations

import logging
import os
import select
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

import anyio
from anyio import to_thread

from textgen.shard.errors import ShardError
from textgen.shard.executor import Executor
from textgen.shard.link import Link
from textgen.shard.ops_app import OpsApp, serve_ops
from textgen.shard.protocol import Hello

log = logging.getLogger(__name__)

END_GRACE = 30.0  # seconds the executor gets to finish its last step once the shard was asked to end


PrepareHello: TypeAlias = Callable[[], Hello]


class Worker:
    """Runs until the executor ends; the executor ends on Stop, at the end of the stream, and on SIGTERM."""

    def __init__(self, link: Link, executor: Executor, app: OpsApp, ops_path: str) -> None:
        self._link, self._executor = link, executor
        self._app, self._ops_path = app, ops_path
        self._failure: Exception | None = None

    def run(self, prepare: PrepareHello) -> None:
        """`prepare` runs in the executor's thread and makes the Hello. Raises `ShardError`."""
        anyio.run(self._main, prepare)

    async def _main(self, prepare: PrepareHello) -> None:
        ended = anyio.Event()
        async with anyio.create_task_group() as serving:
            serving.start_soon(self._guarded, partial(self._serve_ops, ended))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._guarded, self._watch)
                tasks.start_soon(self._guarded, self._signals)
                await self._guarded(partial(to_thread.run_sync, lambda: self._executor.run(prepare())))
                tasks.cancel_scope.cancel()
            ended.set()  # the ops app ends by itself: cancelled, it would leave its connections' errors in the log
        if self._failure is not None:
            raise self._failure

    async def _guarded(self, task: Callable[[], Awaitable[None]]) -> None:
        """The first failure of any task ends them all, in order, and is what `run` raises."""
        try:
            await task()
        except Exception as error:
            self._failure = self._failure or error
            self._link.stop()

    async def _serve_ops(self, ended: anyio.Event) -> None:
        try:
            await serve_ops(self._app, self._ops_path, ended.wait)
        except OSError as error:
            raise ShardError(f"--ops-socket {self._ops_path} cannot be served: {error.strerror or error}") from None

    async def _watch(self) -> None:
        """The executor sees by itself that the router is gone, unless a step hangs."""
        with select.epoll() as gone:
            gone.register(self._link, select.EPOLLRDHUP)  # nothing that arrives wakes the loop
            await anyio.wait_readable(gone.fileno())
        await self._end_in_time()

    async def _signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                log.info("SIGTERM: finishing the steps received so far")
                self._link.stop()
                await self._end_in_time()

    async def _end_in_time(self) -> None:
        """A step that hangs must not keep a shard alive that nobody talks to any more."""
        await anyio.sleep(END_GRACE)
        log.error("the executor did not end within %.0f seconds; exiting without it", END_GRACE)
        os._exit(1)
