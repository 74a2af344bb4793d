"""The link to the router: whole frames over an inherited socket, read and written by the executor's thread."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from textgen._router import Follower
from textgen.shard.protocol import Admit, Frame, ProtocolError, Step, Stop, cut, decode, encode

PIECE = 256 << 10  # bytes read at once


class RouterGone(Exception):
    """The other end of the socket is closed."""


@dataclass(frozen=True, slots=True)
class Broken:
    """What arrived instead of a frame. `fatal`: the stream cannot be read on."""

    message: str
    fatal: bool


Message: TypeAlias = Admit | Step | Stop | Broken


@dataclass(frozen=True, slots=True)
class Received:
    message: Message
    at_ns: int  # monotonic; when it was read


class Link:
    """Frames in and out of a non-blocking socket. One thread only, but for `stop`.

    The thread that runs steps reads them itself: one more would take a core from the kernels in each step. What comes
    meanwhile waits in the socket, and a router that floods blocks itself.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self.pending = bytearray()  # what was read and is not given out
        self._piece, self._read_ns = bytearray(PIECE), 0
        self._ended = self._stopping = False
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.follower = Follower(link.fileno(), self._bell)
        self._input, self._room = select.poll(), select.poll()
        self._input.register(link, select.POLLIN)
        self._input.register(self._bell, select.POLLIN)
        self._room.register(link, select.POLLOUT)

    def fileno(self) -> int:
        """Of the socket."""
        return self._link.fileno()

    def close(self) -> None:
        self._link.close()
        os.close(self._bell)

    def send(self, frames: Sequence[Frame]) -> None:
        """Waits when the router reads slowly. Raises `RouterGone`."""
        rest = memoryview(b"".join(map(encode, frames)))
        while rest:
            try:
                rest = rest[self._link.send(rest) :]
            except BlockingIOError:
                self._room.poll()
            except OSError as error:
                raise RouterGone(error.strerror) from None

    def stop(self) -> None:
        """Ask for the end after what has come by now; never waits, and any thread may."""
        self._stopping = True
        os.eventfd_write(self._bell, 1)

    def get(self) -> Received:
        """What comes next; after the end of the stream, and after one that cannot be read, a Stop."""
        while (received := self._next()) is None:
            self._input.poll()
        return received

    def poll(self, seconds: float) -> Received | None:
        """What is there, or is after so many seconds."""
        received = self._next()
        if received is None:
            time.sleep(seconds)
            received = self._next()
        return received

    def put_back(self, data: bytes) -> None:
        """What the follower, which was given all that is pending, has left of that and read."""
        self.pending[:], self._read_ns = data, time.monotonic_ns()

    def _next(self) -> Received | None:
        try:
            while (frame := cut(self.pending)) is None:
                if self._ended or not self._read():
                    break
        except ProtocolError as error:
            self.pending.clear()
            self._ended = True
            return Received(Broken(str(error), fatal=True), self._read_ns)
        if frame is not None:
            return Received(_message(*frame), self._read_ns)
        if self._ended or self._stopping:
            return Received(Stop(), time.monotonic_ns())
        return None

    def _read(self) -> bool:
        """Whether there was something."""
        try:
            count = self._link.recv_into(self._piece)
        except BlockingIOError:
            return False
        except OSError:
            count = 0
        self._ended = count == 0
        self._read_ns = time.monotonic_ns()
        self.pending += memoryview(self._piece)[:count]
        return not self._ended


def _message(kind: int, payload: bytes) -> Message:
    try:
        frame = decode(kind, payload)
    except ProtocolError as error:
        return Broken(str(error), fatal=False)
    if isinstance(frame, Admit | Step | Stop):
        return frame
    return Broken(f"a router may not send a {type(frame).__name__} frame", fatal=False)
