"""Waiting for something to become true, with a deadline and a sentence instead of a sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE = 0.02


class TooLate(AssertionError):
    """A deadline passed."""


def until(look: Callable[[], T | None], what: str, seconds: float = 60.0) -> T:
    """The first true value that `look` gives. Raises `TooLate` naming `what` when there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise TooLate(f"after {seconds:g} s still not: {what} (last seen: {found!r})")
        time.sleep(PAUSE)
