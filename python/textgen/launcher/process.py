"""One shard process: its socket pair, shared memory and log lines, from spawn to the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from textgen.launcher.log import Log

COMMAND = (sys.executable, "-m", "textgen.shard")
TARGET = "textgen_shard"
LONGEST_LINE = 64 * 1024
LONGEST_SOCKET_PATH = 100  # the kernel's limit is 107 bytes
READER_SECONDS = 2.0

ShardExited: TypeAlias = Callable[["ShardProcess", int], None]


class ShardProcess:
    """A running shard in its own session, so that a terminal's Ctrl-C reaches only the launcher.

    `exited` is called once, from a thread, with the process and its exit code (negative: the signal that killed it).
    If the launcher itself is killed, its end of the socket closes and the shard ends by that.
    """

    def __init__(
        self, settings: str, ops_socket: Path, log: Log, exited: ShardExited,
        command: Sequence[str] = COMMAND,
    ) -> None:  # fmt: skip
        self.ops_socket = str(ops_socket)
        self.error: str | None = None  # the sentence a shard leaves when it cannot start
        self._log = log
        self._exited = exited
        self.memory_fd = os.memfd_create("textgen", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self._process = subprocess.Popen(
                [
                    *command, "--socket-fd", str(theirs.fileno()), "--memory-fd", str(self.memory_fd),
                    "--ops-socket", self.ops_socket, "--settings", settings,
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(), self.memory_fd), start_new_session=True,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read_lines, name="shard-log", daemon=True)
        self._reader.start()
        self._waiter = threading.Thread(target=self._wait, name="shard-wait", daemon=True)
        self._waiter.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def handed_over(self) -> None:
        """Close our copies of both descriptors: the router has its own, and only they may keep the shard alive."""
        self.link.close()
        if self.memory_fd >= 0:
            os.close(self.memory_fd)
            self.memory_fd = -1

    def alive(self) -> bool:
        return self._process.poll() is None

    def finish(self, seconds: float) -> None:
        """Wait for the end and its last lines; ask for it by signal after half the time, and after all of it end it."""
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                self._signal(number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds / 2)
                break
        self._waiter.join(READER_SECONDS)

    def kill(self) -> None:
        """End it and everything it started, now."""
        self._signal(signal.SIGKILL)
        self._waiter.join()

    def _signal(self, number: signal.Signals) -> None:
        if self.alive():
            with suppress(ProcessLookupError):  # it ended by itself in between
                os.killpg(self.pid, number)

    def _wait(self) -> None:
        code = self._process.wait()
        self._reader.join(READER_SECONDS)  # the last sentence may still be in the pipe, or a grandchild keep it open
        self._exited(self, code)

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            while raw := stream.readline(LONGEST_LINE):
                line = raw.decode("utf-8", "replace").rstrip()
                if line.startswith("error: "):
                    self.error = line.removeprefix("error: ")
                elif line:
                    self._emit(line)

    def _emit(self, line: str) -> None:
        if self._log.as_json and not line.startswith("{"):
            self._log.info(line, target=TARGET)
        else:
            self._log.raw(line)


class SocketFolder:
    """A private folder for the shards' operations sockets; gone when the launcher ends."""

    def __enter__(self) -> Path:
        self._folder = tempfile.TemporaryDirectory(prefix="textgen-", ignore_cleanup_errors=True)
        if len(self._folder.name) + 16 > LONGEST_SOCKET_PATH:
            self._folder.cleanup()
            self._folder = tempfile.TemporaryDirectory(prefix="textgen-", dir="/tmp", ignore_cleanup_errors=True)
        return Path(self._folder.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()
