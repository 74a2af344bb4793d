"""What can go wrong when the engine is used as a library. `textgen.launcher.errors` has why it cannot be started."""

from __future__ import annotations


class TextgenError(Exception):
    """A request, or the engine, failed; the message says why in one sentence."""


class RequestError(TextgenError):
    """One request failed.

    status, kind: what an HTTP client would see, as status and as `error_type`. index: its place in the list of prompts.
    """

    def __init__(self, message: str, *, status: int, kind: str, index: int = 0) -> None:
        super().__init__(message)
        self.status, self.kind, self.index = status, kind, index


class InvalidRequest(RequestError, ValueError):
    """A prompt or a parameter cannot be used."""


class EngineClosed(TextgenError, RuntimeError):
    """The engine was closed, or its shard died too often."""


def request_error(message: str, *, status: int, kind: str, index: int = 0) -> RequestError:
    """The class that fits the status."""
    made = InvalidRequest if 400 <= status < 500 and status not in (408, 424, 429) else RequestError
    return made(message, status=status, kind=kind, index=index)
