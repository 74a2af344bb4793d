"""One engine in this process: what the launcher starts, but for the listener and the signals."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from textgen.launcher.assembly import find_model, supervisor
from textgen.launcher.errors import LauncherError
from textgen.launcher.hardware import inspect
from textgen.launcher.log import Log
from textgen.launcher.plan import make_plan
from textgen.launcher.process import SocketFolder
from textgen.launcher.report import Phases, report_plan, report_ready
from textgen.launcher.router import Router, start_silent_router
from textgen.launcher.settings import Settings
from textgen.launcher.supervisor import Supervisor
from textgen.llm.errors import EngineClosed, RequestError, request_error
from textgen.llm.replies import Fault, Reply, decode

if TYPE_CHECKING:
    from textgen import _router

PATIENCE = 3600.0  # seconds of one wait for replies; then it waits again
ENDED = ("draining", "incomplete_generation", "incomplete_generation_stream")  # what requests are told when all ends


class Engine:
    """A router without a listener, a shard, and the thread that supervises them. `close` ends all.

    Raises `LauncherError` when it cannot be started. Every method may be called from any thread.
    """

    def __init__(self, settings: Settings) -> None:
        phases = Phases(of_process=False)
        self._log = Log(sys.stderr, as_json=settings.json_output, level=settings.log_level)
        self._router: _router.Router | None = None
        self._failure: LauncherError | None = None
        self._ready = threading.Event()  # or ended
        self._closed = False
        self._supervisor: Supervisor | None = None
        self._thread: threading.Thread | None = None
        try:
            model = find_model(settings, self._log)
            phases.end("resolve")
            self.plan = make_plan(settings, model, inspect(device=settings.device))
            report_plan(self._log, self.plan)
            phases.end("plan")
            self._begin(phases)
        except BaseException:
            self.close()
            raise

    def _begin(self, phases: Phases) -> None:
        began = threading.Event()

        def router() -> Router:
            self._router = start_silent_router(self.plan)
            phases.end("router")
            return self._router

        def ready(router: Router, hello: str) -> None:
            report_ready(self._log, self.plan, router, hello, phases)
            self._ready.set()

        def supervise() -> None:
            try:
                with SocketFolder() as folder:
                    self._supervisor = supervisor(self.plan, self._log, folder, router, ready)
                    began.set()
                    self._supervisor.supervise()
            except LauncherError as error:
                self._failure = error
            except Exception as error:
                self._failure = LauncherError(f"the engine failed: {type(error).__name__}: {error}")
            finally:
                began.set()
                self._ready.set()

        self._thread = threading.Thread(target=supervise, name="textgen-engine", daemon=True)
        self._thread.start()
        began.wait()
        self._ready.wait()
        if (failure := self.failure()) is not None:
            raise failure

    def calls(self) -> _router.Calls:
        """A new caller of the router. Raises `EngineClosed`."""
        if self._router is None or self._closed or self.failure() is not None:
            raise self.closed()
        try:
            return self._router.calls()
        except RuntimeError:
            raise self.closed() from None

    def replies(self, calls: _router.Calls, patience: float = PATIENCE) -> Iterator[tuple[int, Reply]]:
        """What came for a caller, after waiting for it. Holds no lock while it waits; Ctrl-C interrupts it."""
        for tag, packed in calls.take(patience):
            yield tag, decode(packed)

    def error(self, fault: Fault, index: int = 0) -> RequestError | EngineClosed:
        """A fault as an exception."""
        if fault.kind in ENDED and (self._closed or self.failure() is not None):
            return self.closed()
        return request_error(fault.message, status=fault.status, kind=fault.kind, index=index)

    def closed(self) -> EngineClosed:
        """What is raised where the engine has ended."""
        failure = self.failure()
        return EngineClosed(f"the engine has ended: {failure}" if failure else "the engine was closed")

    def failure(self) -> LauncherError | None:
        """Why it ended, where that was not by `close`."""
        return self._failure or (self._supervisor.failure if self._supervisor is not None else None)

    def in_flight(self) -> int:
        """Sequences that were let in and have not ended."""
        return 0 if self._router is None else self._router.in_flight()

    def close(self) -> None:
        """End it and wait for the shard's end. Running requests fail. Harmless when it has ended."""
        self._closed = True
        if self._supervisor is not None:
            self._supervisor.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._log.close()
