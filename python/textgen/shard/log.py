"""Log lines on stderr: plain text, or one JSON object per line."""

from __future__ import annotations

import logging
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from logging import _SysExcInfoType as SysExcInfoType

_LEVELS = {"trace": "DEBUG", "warn": "WARNING"}


class JsonFormatter(logging.Formatter):
    """{"timestamp", "level", "target", "message"} and "traceback" where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "timestamp": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
            "level": record.levelname,
            "target": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class PlainFormatter(logging.Formatter):
    """Time, level, target, message; tracebacks only when the level is debug."""

    def __init__(self, tracebacks: bool) -> None:
        super().__init__("%(asctime)s %(levelname)5s %(name)s: %(message)s")
        self._tracebacks = tracebacks

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return datetime.fromtimestamp(record.created, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def formatException(self, ei: SysExcInfoType) -> str:
        return super().formatException(ei) if self._tracebacks else ""


def set_up_log(level: str, json: bool) -> None:
    """Send every record of at least `level` to stderr."""
    name = _LEVELS.get(level, level.upper())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if json else PlainFormatter(tracebacks=name == "DEBUG"))
    logging.basicConfig(level=name, handlers=[handler], force=True)
