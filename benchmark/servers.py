"""Servers that benchmarks start, ours and others: each in processes of its own, on a free port of this machine."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from benchmark.cpu.peers import PEERS, PeerMissing, prepare, version_of
from benchmark.processes import family, peak

SECONDS = 600.0  # after which a start has failed
POLL = 0.01
ENDING = 60.0
_READY = re.compile(r"ready on http://\S+ after [\d.]+ s \((.+?)\)")
_PHASE = re.compile(r"([a-z][a-z -]*?) (\d+\.\d+) s")


class NotStarted(Exception):
    """A program did not come to its first token; the message says why."""


@dataclass(frozen=True)
class Started:
    """One start. ready, first: seconds from the start of the process until it could be asked, and until its first token
    had come. peak: MiB of all its processes at most, mapped files included. phases: seconds, by its own account.
    """

    ready: float
    first: float
    peak: float
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Models:
    """One model: its folder in bfloat16, the same as a file of llama.cpp's, and with 8 bits (compressed-tensors)."""

    folder: Path
    gguf: Path
    w8a8: Path | None = None  # the other two are of 8 bits too where it is given: ours is quantized while it loads


@dataclass(frozen=True)
class Room:
    """What a server is started for: threads, positions of a sequence, sequences at once."""

    threads: int
    context: int = 512
    streams: int = 1

    @property
    def sequences(self) -> int:
        """For those who keep a pool that all share: no fewer than so many, and the same of each."""
        return max(self.streams, 8)


@dataclass(frozen=True)
class Running:
    """A server that answers. process: the first of its processes. ready: seconds since it was started."""

    port: int
    process: int
    ready: float


class Program:
    """One that can be started. roots: what of its own it reads when it starts."""

    name: str
    roots: Sequence[Path]

    def start(self, models: Models, threads: int, log: Path) -> Started:
        """From nothing to the first token. Raises `NotStarted`."""
        raise NotImplementedError

    def weights(self, models: Models) -> Path:
        """The file that it loads."""
        return models.folder / "model.safetensors"


P = TypeVar("P", bound=Program)


class Server(Program):
    """A server of HTTP: it is ready when `asked` answers 200. path: where it is asked for text."""

    asked = "/health"
    path = "/v1/completions"

    def command(self, models: Models, room: Room, port: int) -> list[str]:
        raise NotImplementedError

    def environment(self, room: Room) -> dict[str, str]:
        return {"HF_HUB_OFFLINE": "1"}

    def body(self, models: Models, prompt: Sequence[int], new_tokens: int) -> dict[str, object]:
        """Asks for a stream of exactly so many tokens."""
        model = models.w8a8 or models.folder
        return {"model": str(model), "prompt": prompt, "max_tokens": new_tokens, "temperature": 0, "ignore_eos": True,
                "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip

    def tokens(self, event: dict[str, Any]) -> int | None:
        """How many the answer had, where a stream's event says so."""
        return event["usage"]["completion_tokens"] if event.get("usage") else None

    def phases(self, log: str) -> dict[str, float]:
        return {}

    def start(self, models: Models, threads: int, log: Path) -> Started:
        began = time.perf_counter()
        with self.running(models, Room(threads), log) as server:
            answered = _ask(server.port, "POST", self.path, self.body(models, (1, 5, 6, 7), 1))
            first = time.perf_counter() - began
            if answered != 200:
                raise NotStarted(f"{self.path} answered {answered}: {last_line(log)}")
            memory = sum(map(peak, family(server.process)))
            return Started(server.ready, first, memory, self.phases(log.read_text(errors="replace")))

    @contextmanager
    def running(self, models: Models, room: Room, log: Path) -> Iterator[Running]:
        """Started, ready, and ended with all that it started. Raises `NotStarted`."""
        port = _free_port()
        command, environment = self.command(models, room, port), os.environ | self.environment(room)
        with log.open("wb") as out:
            began = time.perf_counter()
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=log.parent, start_new_session=True
            )
        try:
            while (status := _ask(port, "GET", self.asked)) != 200:
                if process.poll() is not None or time.perf_counter() - began > SECONDS:
                    raise NotStarted(f"{self.asked} was {status}: {last_line(log)}")
                time.sleep(POLL)
            yield Running(port, process.pid, time.perf_counter() - began)
        finally:
            _end(process)


class Textgen(Server):
    name = "textgen"
    asked = "/ready"

    def __init__(self) -> None:
        self.roots = python_of_ours()

    def command(self, models: Models, room: Room, port: int) -> list[str]:
        return [sys.executable, "-m", "textgen.launcher", "--model-id", str(models.folder), "--port", str(port),
                "--dtype", "bfloat16", "--threads", str(room.threads), "--max-total-tokens", str(room.context),
                "--max-batch-size", str(room.sequences),
                *(["--quantize", "int8"] if models.w8a8 else [])]  # fmt: skip

    def phases(self, log: str) -> dict[str, float]:
        found = _READY.search(log)
        return {name: float(seconds) for name, seconds in _PHASE.findall(found[1])} if found else {}


class LlamaServer(Server):
    name = "llama-server"
    path = "/completion"

    def __init__(self, python: Path) -> None:
        self._program = python.parent.parent / "llama.cpp" / "bin" / "llama-server"
        self.roots = [self._program]

    def command(self, models: Models, room: Room, port: int) -> list[str]:
        return [str(self._program), "-m", str(models.gguf), "--host", "127.0.0.1", "--port", str(port),
                "-c", str(room.context * room.streams), "-t", str(room.threads),
                "--parallel", str(room.streams)]  # fmt: skip

    def body(self, models: Models, prompt: Sequence[int], new_tokens: int) -> dict[str, object]:
        return {"prompt": prompt, "n_predict": new_tokens, "temperature": 0, "ignore_eos": True, "stream": True}

    def tokens(self, event: dict[str, Any]) -> int | None:
        return event["tokens_predicted"] if event.get("stop") else None

    def weights(self, models: Models) -> Path:
        return models.gguf


class Vllm(Server):
    name = "vllm"

    def __init__(self, python: Path, cache: Path) -> None:
        self._python, self._cache = python, cache
        self.roots = [python.parent.parent / "lib", _library(), cache]

    def command(self, models: Models, room: Room, port: int) -> list[str]:
        return [str(self._python), "-m", "vllm.entrypoints.openai.api_server", "--model",
                str(models.w8a8 or models.folder), "--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16",
                "--max-model-len", str(room.context), "--max-num-seqs", str(room.sequences)]  # fmt: skip

    def environment(self, room: Room) -> dict[str, str]:
        return {
            "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CACHE_ROOT": str(self._cache),
            "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": f"0-{room.threads - 1}",
            "OMP_NUM_THREADS": str(room.threads),
        }  # fmt: skip


def with_peers(
    ours: P, makers: Mapping[str, Callable[[Path], P]], wanted: Sequence[str], folder: Path, missing: dict[str, str],
    versions: dict[str, str],
) -> list[P]:  # fmt: skip
    """Ours first, then those wanted that can be made; their environments are made first where they are not. makers: by
    the name of the peer. missing, versions: what is learned on the way."""
    found = [ours]
    for peer in PEERS:
        if peer.name not in makers or peer.name not in wanted:
            continue
        print(f"{peer.name}: its environment", flush=True)
        try:
            python = prepare(peer, folder)
            program = makers[peer.name](python)
            versions[program.name] = version_of(peer, python)
            found.append(program)
        except PeerMissing as error:
            missing[peer.name] = str(error)
    return found


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def python_of_ours() -> list[Path]:
    import textgen

    return [_library(), Path(sysconfig.get_path("platlib")), Path(textgen.__file__).parent]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _ask(port: int, method: str, path: str, body: object = None) -> int | None:
    """The status of an answer that was read to its end; None without one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request(method, path, json.dumps(body) if body else None, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(ENDING)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
