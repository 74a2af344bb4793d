"""The programs that start: each from nothing to its first token, in processes of its own."""

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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmark.processes import family, peak

SECONDS = 600.0  # after which a start has failed
POLL = 0.01
ENDING = 60.0
_READY = re.compile(r"ready on http://\S+ after [\d.]+ s \((.+?)\)")
_PHASE = re.compile(r"([a-z][a-z -]*?) (\d+\.\d+) s")
# Its process says when each phase ended, in seconds since it was asked to start.
_TRANSFORMERS = """
import json, sys, time
last = float(sys.argv[2])
def end(name):
    global last
    now = time.time()
    phases[name], last = now - last, now
phases = {}
import torch
from transformers import AutoModelForCausalLM
end("import")
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
end("load")
with torch.inference_mode():
    model.generate(torch.tensor([[1, 5, 6, 7]]), max_new_tokens=1, do_sample=False)
end("first")
phases["peak"] = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
print(json.dumps(phases))
"""


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
    """One model: its folder, and the same as a file of llama.cpp's."""

    folder: Path
    gguf: Path


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


class _Server(Program):
    """A server of HTTP: it is ready when a path answers 200."""

    asked = "/health"
    path = "/v1/completions"

    def command(self, models: Models, threads: int, port: int) -> list[str]:
        raise NotImplementedError

    def environment(self, threads: int) -> dict[str, str]:
        return {"HF_HUB_OFFLINE": "1"}

    def body(self, models: Models) -> dict[str, object]:
        return {"model": str(models.folder), "prompt": "a b c", "max_tokens": 1}

    def phases(self, log: str) -> dict[str, float]:
        return {}

    def start(self, models: Models, threads: int, log: Path) -> Started:
        port = _free_port()
        command, environment = self.command(models, threads, port), os.environ | self.environment(threads)
        with log.open("wb") as out:
            began = time.perf_counter()
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=log.parent, start_new_session=True
            )
        try:
            while (status := _ask(port, "GET", self.asked)) != 200:
                if process.poll() is not None or time.perf_counter() - began > SECONDS:
                    raise NotStarted(f"{self.asked} was {status}: {_last_line(log)}")
                time.sleep(POLL)
            ready = time.perf_counter() - began
            answered = _ask(port, "POST", self.path, self.body(models))
            first = time.perf_counter() - began
            if answered != 200:
                raise NotStarted(f"{self.path} answered {answered}: {_last_line(log)}")
            memory = sum(map(peak, family(process.pid)))
            return Started(ready, first, memory, self.phases(log.read_text(errors="replace")))
        finally:
            _end(process)


class Textgen(_Server):
    name = "textgen"
    asked, path = "/ready", "/generate"

    def __init__(self) -> None:
        self.roots = _python_of_ours()

    def command(self, models: Models, threads: int, port: int) -> list[str]:
        return [sys.executable, "-m", "textgen.launcher", "--model-id", str(models.folder), "--port", str(port),
                "--dtype", "bfloat16", "--threads", str(threads), "--max-total-tokens", "512"]  # fmt: skip

    def body(self, models: Models) -> dict[str, object]:
        return {"inputs": "a b c", "parameters": {"max_new_tokens": 1}}

    def phases(self, log: str) -> dict[str, float]:
        found = _READY.search(log)
        return {name: float(seconds) for name, seconds in _PHASE.findall(found[1])} if found else {}


class LlamaServer(_Server):
    name = "llama-server"
    path = "/completion"

    def __init__(self, python: Path) -> None:
        self._program = python.parent.parent / "llama.cpp" / "bin" / "llama-server"
        self.roots = [self._program]

    def command(self, models: Models, threads: int, port: int) -> list[str]:
        return [str(self._program), "-m", str(models.gguf), "--host", "127.0.0.1", "--port", str(port),
                "-c", "512", "-t", str(threads), "--parallel", "1"]  # fmt: skip

    def body(self, models: Models) -> dict[str, object]:
        return {"prompt": [1, 5, 6, 7], "n_predict": 1}

    def weights(self, models: Models) -> Path:
        return models.gguf


class Vllm(_Server):
    name = "vllm"

    def __init__(self, python: Path, cache: Path) -> None:
        self._python, self._cache = python, cache
        self.roots = [python.parent.parent / "lib", _library(), cache]

    def command(self, models: Models, threads: int, port: int) -> list[str]:
        return [str(self._python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(models.folder),
                "--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--max-model-len", "512",
                "--max-num-seqs", "8"]  # fmt: skip

    def environment(self, threads: int) -> dict[str, str]:
        return {
            "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CACHE_ROOT": str(self._cache),
            "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
            "OMP_NUM_THREADS": str(threads),
        }  # fmt: skip


class Transformers(Program):
    """No server: its process loads the model and generates."""

    name = "transformers"

    def __init__(self) -> None:
        self.roots = _python_of_ours()

    def start(self, models: Models, threads: int, log: Path) -> Started:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-c", _TRANSFORMERS, str(models.folder), str(time.time())]
        done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=SECONDS, text=True)
        log.write_text(done.stderr)
        if done.returncode:
            raise NotStarted(_last_line(log))
        told = json.loads(done.stdout.splitlines()[-1])
        ready = told["import"] + told["load"]
        return Started(ready, ready + told["first"], told["peak"])


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _python_of_ours() -> list[Path]:
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


def _last_line(log: Path) -> str:
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
