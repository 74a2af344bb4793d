"""The router as the launcher sees it, and how it is made from the extension module."""

from __future__ import annotations

import errno
import sys
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from textgen.launcher.errors import AddressError, LauncherError, ModelError, SettingsError
from textgen.launcher.plan import Plan

if TYPE_CHECKING:
    from textgen import _router


class Router(Protocol):
    """`textgen._router.Router`. Every call is thread-safe; none holds the interpreter while it waits."""

    @property
    def address(self) -> str | None:
        """Host and real port; None when it does not listen."""
        ...

    def attach_shard(self, socket_fd: int, memory_fd: int, ops_socket: str) -> None:
        """Duplicates both descriptors; called again after a shard died."""
        ...

    def wait_ready(self, timeout: float) -> str | None:
        """The shard's Hello as JSON, None on timeout. `RuntimeError` when the link closed before it, `ValueError` when
        the router cannot work with this shard or any other of its kind.
        """
        ...

    def wait_lost(self, timeout: float) -> bool:
        """Whether, within so many seconds, the router has lost the shard or given it up."""
        ...

    def in_flight(self) -> int:
        """Requests accepted and not yet answered."""
        ...

    def ready(self, total: float, parts: list[tuple[str, float]]) -> None:
        """Show in the metrics how many seconds the start took, and each of its parts."""
        ...

    def drain(self, timeout: float) -> bool:
        """Refuse new requests and wait for the running ones; True when all ended."""
        ...

    def stop(self) -> None:
        """End at once."""
        ...


_OURS = ("--api-key-file ", "--tls-", "--otlp-")  # of the router's sentence where a setting is at fault
_FOREIGN = "the router's settings cannot be read"  # an extension of another version, whose settings are others


def start_router(plan: Plan) -> Router:
    """Load the tokenizer, bind the port, begin to answer. Raises `AddressError` and `ModelError`."""
    extension, settings = _extension(), plan.settings
    sys.stdout.flush()
    extension.init_logging(settings.json_output, settings.log_level)
    try:
        return _made(plan, listen=True)
    except OSError as error:
        raise AddressError(_bind_sentence(error, settings.hostname, settings.port)) from None


def start_silent_router(plan: Plan) -> _router.Router:
    """One that only this process calls. Its log goes to standard error. Raises `ModelError`."""
    with suppress(RuntimeError):  # an earlier one in this process has begun the log
        _extension().init_logging(plan.settings.json_output, plan.settings.log_level, True)
    try:
        return _made(plan, listen=False)
    except OSError as error:
        raise LauncherError(f"the router cannot be started: {error}") from None


def _extension() -> ModuleType:
    try:
        from textgen import _router  # here, so that its absence can be worded
    except ImportError as error:
        raise LauncherError(f"the router extension cannot be loaded ({error}); build it with `make build`") from None
    return _router


def _made(plan: Plan, *, listen: bool) -> _router.Router:
    try:
        made: _router.Router = _extension().Router(plan.router_settings(listen=listen))
        return made
    except ValueError as error:
        if str(error).startswith(_FOREIGN):
            raise LauncherError(
                f"the router extension does not fit this package ({error}); build it with `make build`"
            ) from None
        if str(error).startswith(_OURS):
            raise SettingsError(str(error)) from None
        raise ModelError(str(error)) from None


def _bind_sentence(error: OSError, hostname: str, port: int) -> str:
    where = f"{hostname}:{port}"
    match error.errno:
        case errno.EADDRINUSE:
            return f"{where} is in use by another program; stop it, or choose another with --port (0 takes a free one)"
        case errno.EACCES:
            return f"{where} needs privileges that this process lacks; choose a port above 1023 with --port"
        case errno.EADDRNOTAVAIL:
            return f"{hostname} is not an address of this machine; use --hostname 127.0.0.1, or 0.0.0.0 for all"
    return f"{where} cannot be listened on: {error.strerror or error}; check --hostname and --port"
