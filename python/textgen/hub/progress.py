"""How a download looks: a bar on a terminal, and a line when it begins and ends."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


class Progress:
    """Told by many threads.

    say, warn: take a finished sentence. bar: None shows one where standard error is a terminal.
    """

    def __init__(
        self, say: Callable[[str], None], *, warn: Callable[[str], None] | None = None, bar: bool | None = None
    ) -> None:
        self.say, self.warn = say, warn or say
        self._shown = sys.stderr.isatty() if bar is None else bar
        self._lock = threading.Lock()
        self._bar: tqdm[Any] | None = None
        self._began = 0.0

    def begin(self, title: str) -> None:
        self._began = time.monotonic()
        if self._shown:
            self._bar = tqdm(desc=title, total=0, unit="B", unit_scale=True, leave=False, dynamic_ncols=True)

    def announce(self, sentence: str) -> None:
        """Say what a bar would show."""
        if not self._shown:
            self.say(sentence)

    def expect(self, size: int) -> None:
        """So many more bytes will come."""
        with self._lock:
            if self._bar is not None:
                self._bar.total = (self._bar.total or 0) + size
                self._bar.refresh()

    def advance(self, size: int) -> None:
        """So many bytes came; fewer than none when some must come again."""
        with self._lock:
            if self._bar is not None:
                self._bar.update(size)

    def end(self) -> float:
        """The seconds it took."""
        with self._lock:
            if self._bar is not None:
                self._bar.close()
                self._bar = None
        return time.monotonic() - self._began


def amount(size: int) -> str:
    """Bytes for people: 4.1 GB."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
