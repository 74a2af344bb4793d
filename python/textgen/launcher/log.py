"""Log lines on standard output, as text or JSON. A reader that stalls costs lines, never a thread."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import IO, Any

LEVELS = ("trace", "debug", "info", "warn", "error")
TARGET = "textgen_launcher"
QUEUED_LINES = 4096
CLOSE_SECONDS = 2.0


class Log:
    """Lines are queued here and written by one thread. Same fields and text form as the router's lines."""

    def __init__(self, stream: IO[str], *, as_json: bool = False, level: str = "info") -> None:
        self.as_json = as_json
        self._stream = stream
        self._least = LEVELS.index(level)
        self._lines: queue.Queue[str | None] = queue.Queue(QUEUED_LINES)
        self._lost = 0
        self._writer = threading.Thread(target=self._write, name="log", daemon=True)
        self._writer.start()

    def debug(self, message: str, **fields: Any) -> None:
        self.record("debug", message, **fields)

    def info(self, message: str, **fields: Any) -> None:
        self.record("info", message, **fields)

    def warn(self, message: str, **fields: Any) -> None:
        self.record("warn", message, **fields)

    def error(self, message: str, **fields: Any) -> None:
        self.record("error", message, **fields)

    def record(self, level: str, message: str, *, target: str = TARGET, **fields: Any) -> None:
        """One line, unless the level is below the asked one."""
        if LEVELS.index(level) < self._least:
            return
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if self.as_json:
            entry = {"timestamp": now, "level": level.upper(), "message": message, **fields, "target": target}
            self.raw(json.dumps(entry, default=str))
        else:
            rest = "".join(f" {name}={value}" for name, value in fields.items())
            self.raw(f"{now} {level.upper():>5} {target}: {message}{rest}")

    def raw(self, line: str) -> None:
        """A line that is already in its final form."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._lost += 1

    def block(self, lines: Iterable[str]) -> None:
        """Lines for a person at a terminal; nothing in JSON."""
        if not self.as_json and self._least <= LEVELS.index("info"):
            self.raw("\n".join(lines))

    def close(self) -> None:
        """Write what is queued, within a bound."""
        try:
            self._lines.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            return
        self._writer.join(CLOSE_SECONDS)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            if self._lost and self._lines.empty():
                lost, self._lost = self._lost, 0
                self.warn(f"{lost} log lines were dropped because standard output was not read fast enough")
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # nobody reads any more: keep emptying the queue
                continue
