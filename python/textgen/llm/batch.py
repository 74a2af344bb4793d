"""Files of requests in the form of OpenAI's batch API: a line in, a line out, and a run that was stopped goes on.

Form: https://platform.openai.com/docs/guides/batch. Answers are written as they come, in no order; `custom_id` tells
them apart.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeAlias

import msgspec

from textgen.llm.engine import Engine
from textgen.llm.errors import TextgenError
from textgen.llm.replies import Reply, RouteAnswer

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
ENVELOPE = 4096  # bytes of a line around a body of the largest size

Progress: TypeAlias = Callable[[], object]


class BatchError(TextgenError):
    """A batch cannot be run; the message says what to change."""


class Entry(msgspec.Struct):
    """A line of the input."""

    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class _Body(msgspec.Struct):
    """What of a body concerns the batch."""

    stream: Any = None


class _Fault(msgspec.Struct):
    code: str
    message: str
    line: int
    param: None = None


class _Answer(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Result(msgspec.Struct):
    """A line of the output."""

    id: str
    custom_id: str | None
    response: _Answer | None
    error: _Fault | None


class _Known(msgspec.Struct):
    """What matters of a line that an earlier run wrote."""

    class Error(msgspec.Struct):
        line: int = 0

    id: str
    custom_id: str | None
    error: Error | None = None


@dataclass(slots=True)
class Outcome:
    """What became of the lines: answered with 2xx, answered otherwise, and answered by an earlier run."""

    answered: int = 0
    failed: int = 0
    skipped: int = 0


class Output(AbstractContextManager["Output"]):
    """The output file, which only one run may hold. Each line is appended by one write; one that was torn is taken
    away.

    known: custom ids that have an answer. lines: numbers of input lines that were told to be unusable.
    Raises `BatchError`.
    """

    def __init__(self, path: Path) -> None:
        self.known: set[str] = set()
        self.lines: set[int] = set()
        try:
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise BatchError(f"{path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read(path)
        except BlockingIOError:
            self._file.close()
            raise BatchError(f"{path} is being written by another run; wait for it, or name another output") from None
        except BaseException:
            self._file.close()
            raise

    def _read(self, path: Path) -> None:
        decode = msgspec.json.Decoder(_Known).decode
        whole = 0
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    break  # torn by the end of an earlier run
                whole += len(line)
                if not line.strip():
                    continue
                try:
                    found = decode(line)
                except msgspec.MsgspecError:
                    raise BatchError(
                        f"{path}, line {number}, is no answer of a batch; name another output, so that nothing is lost"
                    ) from None
                if found.error is not None:
                    self.lines.add(found.error.line)
                elif found.custom_id is not None:
                    self.known.add(found.custom_id)
        self._file.truncate(whole)

    def write(self, result: _Result) -> None:
        """Append a line."""
        data = memoryview(msgspec.json.encode(result) + b"\n")
        while data:
            data = data[self._file.write(data) or 0 :]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.fsync(self._file.fileno())
        self._file.close()


class _Unusable(Exception):
    """A line that is no request."""

    def __init__(self, code: str, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code, self.custom_id = code, custom_id


class Batch:
    """One run over a file.

    progress: told of each line that is done.
    """

    def __init__(self, engine: Engine, output: Output, progress: Progress = lambda: None) -> None:
        self.outcome = Outcome()
        self._engine, self._output, self._progress = engine, output, progress
        self._longest = 2 * engine.plan.settings.payload_limit + ENVELOPE  # escapes may double a body
        self._seen: set[str] = set()

    def run(self, file: IO[bytes]) -> Outcome:
        """Answer every line that has no answer yet. Raises `EngineClosed`; what was written stays."""
        calls = self._engine.calls()
        entries = self._entries(file)
        # As many as run at once, and as many again, so that none of the former's places is ever empty.
        window = 2 * self._engine.plan.settings.max_concurrent_requests
        running: dict[int, tuple[Entry, list[RouteAnswer]]] = {}
        tag = 0
        try:
            while True:
                while len(running) < window and (entry := next(entries, None)) is not None:
                    calls.post(tag, entry.url, bytes(entry.body))
                    running[tag] = entry, []
                    tag += 1
                if not running:
                    return self.outcome
                for number, reply in self._engine.replies(calls):
                    entry, answers = running[number]
                    if reply.response is not None:
                        answers.append(reply.response)
                    if reply.done:
                        del running[number]
                        self._answer(entry, answers, reply)
        finally:
            calls.cancel()

    def _answer(self, entry: Entry, answers: list[RouteAnswer], reply: Reply) -> None:
        if reply.fault is not None:
            raise self._engine.error(reply.fault)
        (answer,) = answers
        if answer.status >= 500 and self._engine.failure() is not None:
            raise self._engine.closed()  # another run will have its real answer
        body = msgspec.Raw(answer.body.encode())
        response = _Answer(answer.status, answer.request_id, body)
        self._write(entry.custom_id, response, None, failed=not 200 <= answer.status < 300)

    def _entries(self, file: IO[bytes]) -> Iterator[Entry]:
        """The requests that have no answer yet; what is none is told in the output."""
        for number, line in self._lines(file):
            try:
                entry = self._entry(line)
            except _Unusable as error:
                if number in self._output.lines:
                    self._skip()
                else:
                    fault = _Fault(error.code, f"line {number}: {error}", number)
                    self._write(error.custom_id, None, fault, failed=True)
                continue
            self._seen.add(entry.custom_id)
            if entry.custom_id in self._output.known:
                self._skip()
            else:
                yield entry

    def _lines(self, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
        """Numbers and lines, but for empty ones; a line that is too long is cut, so that it takes no more memory."""
        number = 0
        while line := file.readline(self._longest + 1):
            number += 1
            end = line
            while not end.endswith(b"\n") and (end := file.readline(self._longest)):
                pass
            if line.strip():
                yield number, line

    def _entry(self, line: bytes) -> Entry:
        if len(line) > self._longest:
            raise _Unusable("line_too_long", f"the line is longer than {self._longest} bytes; see --payload-limit")
        try:
            entry = _decode_entry(line)
        except msgspec.ValidationError as error:
            raise _Unusable("invalid_request", f"the line is no request of a batch: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _Unusable("invalid_json_line", f"the line is no JSON: {error}") from None
        name = entry.custom_id
        if name in self._seen:
            raise _Unusable("duplicate_custom_id", f"an earlier line has the custom_id {name!r} too", name)
        if entry.method.upper() != "POST":
            raise _Unusable("invalid_method", f"`method` is {entry.method!r}; it must be POST", name)
        if entry.url not in ROUTES:
            raise _Unusable("invalid_url", f"`url` is {entry.url!r}; it must be one of {', '.join(ROUTES)}", name)
        try:
            streamed = _decode_body(entry.body).stream
        except (msgspec.DecodeError, RecursionError) as error:
            raise _Unusable("invalid_request", f"`body` is no JSON object: {error}", name) from None
        if streamed:
            raise _Unusable("invalid_request", "`stream` must be left out: an answer of a batch is a whole one", name)
        return entry

    def _write(self, name: str | None, response: _Answer | None, error: _Fault | None, *, failed: bool) -> None:
        self._output.write(_Result(f"batch_req_{uuid.uuid4().hex}", name, response, error))
        if failed:
            self.outcome.failed += 1
        else:
            self.outcome.answered += 1
        self._progress()

    def _skip(self) -> None:
        self.outcome.skipped += 1
        self._progress()


_decode_entry = msgspec.json.Decoder(Entry).decode
_decode_body = msgspec.json.Decoder(_Body).decode
