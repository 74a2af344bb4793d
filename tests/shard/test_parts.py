"""Small parts of the shard on their own: health, shared memory, settings, log lines."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from textgen.shard import worker
from textgen.shard.errors import ShardError
from textgen.shard.executor import Executor
from textgen.shard.link import Link, RouterGone
from textgen.shard.log import JsonFormatter, PlainFormatter
from textgen.shard.masks import MaskSize
from textgen.shard.memory import SharedMemory, WideLimit, WideSize
from textgen.shard.metrics import Metrics
from textgen.shard.ops_app import OpsApp
from textgen.shard.protocol import HEADER, Failed, Frame, FrameReader, Hello, Range, Step, Stop, decode, encode
from textgen.shard.runner import Outcome
from textgen.shard.settings import parse_settings

from .conftest import RunnerMaker
from .router import shard_settings

SIZE = WideSize(max_batch_tokens=2, max_slots=2, max_top_n=1)  # 48 bytes a part, rounded up to 64


def make_memory(descriptor: int, wide: WideSize = SIZE) -> SharedMemory:
    return SharedMemory(descriptor, wide, MaskSize(max_slots=2, vocab_size=101), mask_timeout=1.0)


@pytest.fixture
def memory_fd() -> Any:
    descriptor = os.memfd_create("textgen-test", os.MFD_ALLOW_SEALING)
    yield descriptor
    os.close(descriptor)


def test_each_step_writes_into_its_own_part(memory_fd: int) -> None:
    memory = make_memory(memory_fd)
    assert memory.part == 64
    assert memory.write(6, [b"abcd", b"efgh"]) == Range(128, 8)
    assert memory.write(7, [b"x" * 64]) == Range(192, 64)
    assert os.pread(memory_fd, 9, 128) == b"abcdefgh\0"
    with pytest.raises(WideLimit, match="do not fit the 64 bytes"):
        memory.write(0, [b"y" * 60, b"z" * 8])
    assert os.pread(memory_fd, 4, 0) == bytes(4)


def test_a_restarted_shard_takes_the_memory_as_it_is(memory_fd: int) -> None:
    first = make_memory(memory_fd)
    assert make_memory(memory_fd).regions == first.regions
    with pytest.raises(ShardError, match=f"--memory-fd {memory_fd} cannot be sized"):
        make_memory(memory_fd, WideSize(max_batch_tokens=10_000, max_slots=2, max_top_n=1))


def test_memory_that_cannot_be_sealed_is_refused() -> None:
    descriptor = os.memfd_create("textgen-test")
    try:
        with pytest.raises(ShardError, match="MFD_ALLOW_SEALING"):
            make_memory(descriptor)
    finally:
        os.close(descriptor)


HELLO = cast(Hello, Failed(None, b"", "internal", "stands for a Hello: the writer sends any frame"))


STEP = Step(1, b"", b"", b"", b"", b"", b"")


def make_link(link: socket.socket) -> Link:
    link.setblocking(False)
    return Link(link)


def make_executor(make_runner: RunnerMaker, link: socket.socket, stuck_after: float = 60.0) -> Executor:
    runner = make_runner()
    metrics = Metrics(runner.slots, runner.bounds.num_pages)
    return Executor(runner, make_link(link), metrics, stuck_after)


def test_a_step_that_takes_too_long_is_told(make_runner: RunnerMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        executor = make_executor(make_runner, theirs, stuck_after=1e-9)
        seen: list[str | None] = []

        def slow_step(*_: object) -> list[Outcome]:
            seen.append(executor.check_integrity())
            return [Outcome([])]

        monkeypatch.setattr(executor._runner, "take", slow_step)
        assert executor.check_integrity() is None
        ours.send(encode(STEP) + encode(Stop()))
        executor.run(HELLO)
        assert seen[0] is not None and "a step has been running for" in seen[0]
        assert executor.check_integrity() == "the executor has ended"


def test_a_stream_that_cannot_be_read_ends_the_executor(make_runner: RunnerMaker) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        executor = make_executor(make_runner, theirs)
        ours.send(HEADER.pack(0, 99) + HEADER.pack(1 << 30, 3) + b"and more")
        with pytest.raises(ShardError, match="the router's stream cannot be read: a frame of"):
            executor.run(HELLO)
        frames = [decode(kind, payload) for kind, payload in FrameReader().feed(ours.recv(1 << 16))]
        told = [frame.message for frame in frames[1:] if isinstance(frame, Failed)]
        assert [message.partition(" of")[0] for message in told] == ["unknown frame kind 99", "a frame"]


def test_a_router_that_is_gone_ends_the_executor_quietly(make_runner: RunnerMaker) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        executor = make_executor(make_runner, theirs)
        ours.close()
        executor.run(HELLO)
        with pytest.raises(RouterGone):
            make_link(theirs).send([HELLO])


def test_the_writer_waits_for_a_slow_reader() -> None:
    """A frame larger than the socket's buffer arrives whole, although it takes many writes."""
    ours, theirs = socket.socketpair()
    frame = Failed(None, bytes(4 << 20), "internal", "")
    received: list[Frame] = []

    def read() -> None:
        reader = FrameReader()
        while not received:
            received.extend(decode(kind, payload) for kind, payload in reader.feed(theirs.recv(1 << 16)))

    with ours, theirs:
        thread = threading.Thread(target=read)
        thread.start()
        make_link(ours).send([frame])
        thread.join()
    assert received == [frame]


def test_frames_come_in_order_whatever_their_pieces() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = make_link(theirs)
        assert link.poll(0.001) is None
        data = b"".join(encode(frame) for frame in (STEP, replace(STEP, step=2)))
        ours.send(data[:40])
        first = link.get()
        assert first.message == STEP and link.pending
        ours.send(data[40:])
        assert link.get().message == replace(STEP, step=2) and not link.pending


def test_who_asks_for_the_end_gets_it_after_what_has_come() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = make_link(theirs)
        ours.send(encode(STEP))
        link.stop()
        assert [link.get().message, link.get().message, link.get().message] == [STEP, Stop(), Stop()]


def test_who_waits_for_a_frame_is_woken_by_the_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = make_link(theirs)
        waiting = threading.Timer(0.05, link.stop)
        waiting.start()
        assert link.get().message == Stop()
        waiting.join()


def test_a_step_that_hangs_does_not_keep_a_shard_alive_whose_router_is_gone(
    make_runner: RunnerMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    codes, ended = list[int](), threading.Event()

    def leave(code: int) -> None:
        codes.append(code)
        ended.set()

    def hang(_: Hello) -> None:
        ours.sendall(encode(STEP))  # nobody reads it
        ours.close()
        ended.wait(30)

    monkeypatch.setattr(worker, "END_GRACE", 0.01)
    monkeypatch.setattr(os, "_exit", leave)
    with ours, theirs:
        runner, link = make_runner(), make_link(theirs)
        metrics = Metrics(runner.slots, 1)
        executor = Executor(runner, link, metrics, 60.0)
        monkeypatch.setattr(executor, "run", hang)
        worker.Worker(link, executor, OpsApp(executor, metrics), str(tmp_path / "ops")).run(lambda: HELLO)
    assert codes == [1]


def test_settings_from_json(tmp_path: Path) -> None:
    values = shard_settings(tmp_path)
    settings = parse_settings(json.dumps(values))
    assert (settings.num_blocks, settings.threads, settings.max_top_n) == (64, 1, 20)
    assert parse_settings(json.dumps({**values, "threads": None})).threads is None
    with pytest.raises(ShardError, match="missing required field `num_blocks`"):
        parse_settings(json.dumps({name: value for name, value in values.items() if name != "num_blocks"}))
    with pytest.raises(ShardError, match="cannot be used"):
        parse_settings("{")


def record(message: str, *arguments: object, error: bool = False) -> logging.LogRecord:
    info = None
    if error:
        try:
            raise ValueError("wrong")
        except ValueError:
            info = sys.exc_info()
    return logging.LogRecord("textgen.shard", logging.WARNING, "file", 1, message, arguments, info)


def test_json_log_lines() -> None:
    line = json.loads(JsonFormatter().format(record("%d steps\nand more", 3)))
    assert line["message"] == "3 steps\nand more"
    assert (line["level"], line["target"]) == ("WARNING", "textgen.shard")
    assert "ValueError: wrong" in json.loads(JsonFormatter().format(record("x", error=True)))["traceback"]


def test_plain_log_lines_have_no_traceback_unless_asked() -> None:
    assert "Traceback" not in PlainFormatter(tracebacks=False).format(record("x", error=True))
    assert "ValueError: wrong" in PlainFormatter(tracebacks=True).format(record("x", error=True))
