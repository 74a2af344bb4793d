"""The socket to the router, written by the executor thread, and the inbox that it reads from."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeAlias

import anyio

from textgen.shard.protocol import Admit, Frame, FrameReader, ProtocolError, Step, Stop, decode, encode

PIECE = 256 << 10  # bytes read at once
INBOX_FRAMES = 4096


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
    at_ns: int  # monotonic


class FrameWriter:
    """Writes whole frames to the non-blocking socket, waiting when the router reads slowly. One thread only."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._poll = select.poll()
        self._poll.register(link, select.POLLOUT)

    def send(self, frames: Sequence[Frame]) -> None:
        """Raises `RouterGone`."""
        rest = memoryview(b"".join(map(encode, frames)))
        while rest:
            try:
                rest = rest[self._link.send(rest) :]
            except BlockingIOError:
                self._poll.poll()
            except OSError as error:
                raise RouterGone(error.strerror) from None


class Inbox:
    """A bounded queue of what was received, from the event loop to the executor thread."""

    def __init__(self, limit: int = INBOX_FRAMES) -> None:
        self._items: SimpleQueue[Received] = SimpleQueue()
        self._limit = limit

    async def put(self, item: Received) -> None:
        """Wait for room, and with it stop reading the socket: a router that floods blocks itself."""
        while self._items.qsize() >= self._limit:
            await anyio.sleep(0.001)
        self._items.put(item)

    def stop(self) -> None:
        """Ask for the end after what is already queued; never waits."""
        self._items.put(Received(Stop(), time.monotonic_ns()))

    def get(self) -> Received:
        return self._items.get()

    def poll(self, seconds: float) -> Received | None:
        """What is there, or comes within so many seconds."""
        try:
            return self._items.get(timeout=seconds)
        except Empty:
            return None


async def read_frames(link: socket.socket, inbox: Inbox) -> None:
    """Fill the inbox until a Stop, the end of the stream, or a stream that cannot be read; ends with a Stop."""
    reader, piece = FrameReader(), bytearray(PIECE)
    while count := await _receive(link, piece):
        now = time.monotonic_ns()
        try:
            for kind, payload in reader.feed(memoryview(piece)[:count]):
                message = _message(kind, payload)
                await inbox.put(Received(message, now))
                if isinstance(message, Stop):
                    return
        except ProtocolError as error:
            await inbox.put(Received(Broken(str(error), fatal=True), now))
            return
    inbox.stop()


async def _receive(link: socket.socket, piece: bytearray) -> int:
    """Bytes read, 0 at the end of the stream."""
    while True:
        await anyio.wait_readable(link)
        try:
            return link.recv_into(piece)
        except BlockingIOError:
            continue
        except OSError:
            return 0


def _message(kind: int, payload: bytes) -> Message:
    try:
        frame = decode(kind, payload)
    except ProtocolError as error:
        return Broken(str(error), fatal=False)
    if isinstance(frame, Admit | Step | Stop):
        return frame
    return Broken(f"a router may not send a {type(frame).__name__} frame", fatal=False)
