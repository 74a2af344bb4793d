"""The Rust router, compiled by maturin. Built from `router/src/python.rs`; all calls are thread-safe."""

import os
from typing import final

__all__ = ["Calls", "Follower", "Room", "Router", "__version__", "cpu_api", "init_logging", "reserve_weights"]

__version__: str

def init_logging(json: bool, level: str, stderr: bool = False) -> None:
    """Sends the router's log lines to standard output or standard error, as text or as one JSON object a line.

    Raises `ValueError` for a level that means nothing and `RuntimeError` when called twice.
    """

def cpu_api(isa: str | None = None) -> int:
    """The address of the table of functions of the CPU kernels, `tg_api` in `csrc/cpu/include/textgen_cpu.h`.

    isa: "portable", "avx2", "avx512vnni", "avx512", "amx", "neon"; `None` takes the best that this machine has.
    Raises `ValueError` for one that it has not.
    """

def reserve_weights(bytes: int) -> None:
    """Makes about so much memory in the background, for weights that the CPU kernels will be given; 0 gives back what
    these and rooms did not take. To touch memory for the first time takes longer than to copy a weight into it.
    """

@final
class Room:
    """Zeros for as long as it lives: out of what was reserved, if so much is left of it, and in huge pages where the
    system gives them.
    """

    def __new__(cls, bytes: int) -> Room:
        """Raises `MemoryError` where there is none, and for no bytes."""

    @property
    def address(self) -> int:
        """A multiple of 64."""

@final
class Follower:
    """Answers steps that are as the one before, a token further, on a shard's socket."""

    def __new__(cls, link: int, bell: int) -> Follower:
        """link: a socket that does not block. bell: a descriptor that is readable when `answer` shall return. Both are
        duplicated."""

    @property
    def busy_since(self) -> float | None:
        """When the step that runs was begun, as `time.monotonic` tells it; None while none does."""

    def answer(
        self, pending: bytes, addresses: tuple[int, int, int, int], segments: bytes, most: int, pages: tuple[int, int]
    ) -> tuple[bytes, int, bool, list[tuple[int, int]]]:
        """Read steps, run and answer them, up to `most`, until something else comes, the bell rings or the stream ends.

        pending: what was read before. addresses: of `plan_follow`, of the `tg_following` of the step that comes, of the
        tokens and of the log-probabilities that it finds. Nobody may use what is there meanwhile. segments: of the step
        before, as they travel. pages: tokens that one has, and how many there are. Gives what was read and not
        answered, how many steps were answered, whether the first frame of what is left was run and has to be worked out
        instead, since its numbers are not finite, and of the steps that were answered which sequences began which page.
        """

    def take_times(self) -> list[tuple[int, int, int, int]]:
        """Sequences and `Times` of each step that was answered, or is about to be, since this was asked last."""

@final
class Router:
    """A server in this process: it listens from its construction on, if it is told where, and answers 503 until a shard
    is attached.
    """

    def __new__(cls, settings: str) -> Router:
        """Takes `Settings` of `router/src/settings.rs` as JSON.

        Raises `ValueError` for settings or model files that cannot be used and `OSError` (with `errno`) when the
        address cannot be listened on; each says in one sentence what to change.
        """

    @property
    def address(self) -> str | None:
        """Host and port that it listens on; `None` when the settings name no host."""

    def calls(self) -> Calls:
        """A new caller in this process, which needs no socket. Raises `RuntimeError` when the server has ended."""

    def attach_shard(self, socket_fd: int, memory_fd: int, ops_socket: str | os.PathLike[str]) -> None:
        """Uses this shard from now on. Both descriptors are duplicated; the caller closes its own."""

    def wait_ready(self, timeout: float) -> str | None:
        """Waits up to `timeout` seconds for the attached shard's Hello: its facts as JSON, `None` when time is up.

        Raises `RuntimeError` when the link closed before, and `ValueError` when the router cannot work with this shard
        or any other of its kind.
        """

    def wait_lost(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds until the router has no more use for the attached shard: its link closed, it
        broke the protocol, or a step took longer than `shard_step_timeout`. False when time is up.
        """

    def status(self) -> str:
        """`starting`, `ready`, `recovering`, `draining` or `stopped`."""

    def in_flight(self) -> int:
        """Sequences accepted and not yet answered to the last byte."""

    def ready(self, total: float, parts: list[tuple[str, float]]) -> None:
        """Says in the metrics how many seconds the start took in all, and each of its parts."""

    def drain(self, timeout: float) -> bool:
        """Refuses new requests and waits for the running ones, up to `timeout` seconds. True when all have ended."""

    def stop(self) -> None:
        """Ends at once; calling it again does nothing."""

@final
class Calls:
    """Requests of one caller in this process. They wait where a client is refused for want of room. What is dropped is
    cancelled.

    A request has a number, `tag`, of the caller's choice, and a JSON body. What comes of it is `Reply` of
    `router/src/http/library/reply.rs` as msgpack, once or several times; the last one has `done`.
    """

    def complete(self, tag: int, body: bytes) -> None:
        """Continue one prompt; the body is that of `/v1/completions`."""

    def chat(self, tag: int, body: bytes) -> None:
        """Continue a conversation; the body is that of `/v1/chat/completions`."""

    def post(self, tag: int, path: str, body: bytes) -> None:
        """Have a route answer; refused as any client would be."""

    def take(self, timeout: float) -> list[tuple[int, bytes]]:
        """The replies that came, joined for each request; waits up to `timeout` seconds for the first. Ctrl-C
        interrupts it.
        """

    def fileno(self) -> int:
        """A descriptor that is readable while there are replies. Raises `OSError` when there may be no more of them."""

    def cancel(self) -> None:
        """Cancel what runs; nothing is told of it any more."""
