"""Signals as calls from a thread, at once and without a race.

A Python handler runs only when the main thread gets to it: a signal that arrives just before that thread blocks waits
until it wakes. The wakeup descriptor is written by the signal itself, so a thread that reads it misses nothing.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

_END = b"\0"


@contextmanager
def forwarded(numbers: Collection[signal.Signals], receive: Callable[[int], None]) -> Iterator[None]:
    """While open, each of the signals becomes a call of `receive`. Main thread only."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)  # the interpreter asks for it: a handler must never wait

    def read() -> None:
        while (byte := os.read(reading, 1)) != _END:
            if byte[0] in numbers:
                receive(byte[0])

    reader = threading.Thread(target=read, name="signals", daemon=True)
    reader.start()
    descriptor = signal.set_wakeup_fd(writing)
    handlers = {number: signal.signal(number, lambda *_: None) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(descriptor)
        os.write(writing, _END)
        reader.join()
        os.close(reading)
        os.close(writing)
