"""A launcher with the built-in model in a process of its own, and its answers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_SECONDS = 300.0  # kernels are compiled for the first time
STOP_SECONDS = 60.0
_READY = re.compile(r"ready on (http://\S+) after")


class NotServed(Exception):
    """The server did not do what it was asked for; the message says what it did."""


@dataclass
class Served:
    """process: the launcher's. lines: what it has written so far."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    address: str = ""

    def generate(self, prompt: str, **parameters: Any) -> str:
        """The native answer to a prompt."""
        told = self._post("/generate", {"inputs": prompt, "parameters": parameters})
        with told as answer:
            text: str = json.load(answer)["generated_text"]
        return text

    def stream(self, prompt: str, **parameters: Any) -> Iterator[str]:
        """The same token by token; what the last event says is held against them. Raises `NotServed`."""
        pieces: list[str] = []
        with self._post("/generate_stream", {"inputs": prompt, "parameters": parameters}) as answer:
            for line in answer:
                if not line.startswith(b"data:"):
                    continue
                event = json.loads(line[5:])
                if "error" in event:
                    raise NotServed(f"the stream ended in an error: {event['error']}")
                pieces.append(event["token"]["text"] if not event["token"]["special"] else "")
                yield pieces[-1]
                if event["generated_text"] is not None:
                    if event["generated_text"].strip() != "".join(pieces).strip():
                        raise NotServed(f"{event['generated_text']!r} is not what was streamed: {''.join(pieces)!r}")
                    return
        raise NotServed("the stream ended before its last event")

    def completion(self, prompt: str, tokens: int) -> Iterator[str]:
        """So many greedy tokens, past every end, as they come."""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        with self._post("/v1/completions", body) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    event = json.loads(line[5:])
                    if "error" in event:
                        raise NotServed(f"the stream ended in an error: {event['error']}")
                    yield from (choice["text"] for choice in event["choices"])

    def shards(self) -> list[int]:
        """The shards that run now, as /proc shows them."""
        return [pid for pid in _children(self.process.pid) if b"textgen.shard" in _command(pid)]

    def _post(self, path: str, body: object) -> Any:
        content = json.dumps(body).encode()
        asked = urllib.request.Request(f"{self.address}{path}", content, {"Content-Type": "application/json"})
        # Whatever proxy the environment names, the server is here.
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=START_SECONDS)

    def words(self) -> str:
        """The last that it has written."""
        return "".join(self.lines[-20:])


@contextmanager
def served(device: str, *flags: str, dtype: str = "float32", model: str | None = None) -> Iterator[Served]:
    """A server that is ready, and ends with the block. Raises `NotServed`."""
    words = ["--device", device, "--dtype", dtype, "--port", "0", "--hostname", "127.0.0.1", *flags]
    given: Sequence[str] = () if model is None else ("--model-id", model)
    command = [sys.executable, "-m", "textgen.launcher", *given, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    server, ready = Served(process), threading.Event()

    def read() -> None:  # all of it: a server whose output nobody takes would stop
        assert process.stdout is not None
        for line in process.stdout:
            server.lines.append(line)
            if found := _READY.search(line):
                server.address = found[1]
                ready.set()
        ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        if not ready.wait(START_SECONDS):
            raise NotServed(f"the server was not ready within {START_SECONDS:.0f} s: {server.words()}")
        if not server.address:
            raise NotServed(f"the server ended before it was ready: {server.words()}")
        yield server
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(STOP_SECONDS)
        if process.stdout is not None:
            process.stdout.close()


def kill_shard(server: Served) -> int:
    """End its shard at once; which it was. Raises `NotServed`."""
    running = server.shards()
    if len(running) != 1:
        raise NotServed(f"there are {len(running)} shards instead of one")
    os.kill(running[0], signal.SIGKILL)
    return running[0]


def wait_for_another(server: Served, than: int) -> None:
    """Until another shard runs. Raises `NotServed`."""
    until = time.monotonic() + START_SECONDS
    while not [shard for shard in server.shards() if shard != than]:
        if time.monotonic() > until:
            raise NotServed(f"no shard was started again: {server.words()}")
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
