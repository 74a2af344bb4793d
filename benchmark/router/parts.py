"""The processes of the router benchmark: servers pinned to one core, shard and load on the other."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.report import ROOT
from textgen.launcher.arguments import parse_settings
from textgen.launcher.hardware import inspect
from textgen.launcher.model import resolve
from textgen.launcher.plan import make_plan

BINARY = ROOT / "target" / "dist" / "router-bench"
MODEL = ROOT / "python" / "textgen" / "demo" / "model"
SERVER_CORE, CLIENT_CORE = 0, 1

Numbers = dict[str, Any]


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    address: str
    pid: int
    facts: Numbers


def router_settings(model: Path, **changed: object) -> str:
    """The launcher's settings of a router for one core, as JSON, with limits wide enough for every case."""
    plan = make_plan(parse_settings(["--port", "0", "--model-id", str(MODEL)], {}), resolve(str(MODEL)), inspect())
    wide = {
        "model_dir": str(model),
        "http_threads": 1,
        "validation_workers": 1,
        "max_concurrent_requests": 8192,
        "max_input_tokens": 8000,
        "max_total_tokens": 16_000,
        "max_batch_prefill_tokens": 16_384,
        "max_batch_size": 1024,
    }
    return json.dumps(json.loads(plan.router_settings()) | wide | changed)


def command(name: str, **options: object) -> list[str]:
    """A command line of the binary."""
    pairs = ((f"--{key.replace('_', '-')}", str(value)) for key, value in options.items())
    return [str(BINARY), name, *(word for pair in pairs for word in pair)]


def pinned(core: int, line: list[str]) -> list[str]:
    """The same command on one core. A machine with a single core has nothing to choose."""
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cores[min(core, len(cores) - 1)]), *line]


def measure(name: str, **options: object) -> Numbers:
    """Run a command on the client's core and give what it printed last."""
    return measure_on(CLIENT_CORE, name, **options)


def measure_on(core: int, name: str, **options: object) -> Numbers:
    """The same on another core."""
    line = pinned(core, command(name, **options))
    done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True, timeout=600)
    numbers: Numbers = json.loads(done.stdout.splitlines()[-1])
    return numbers


@contextmanager
def running(line: list[str]) -> Iterator[Server]:
    """A server from its first line of output until the end of the block, which closes its standard input."""
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        try:
            facts = json.loads(process.stdout.readline())
            yield Server(facts["address"], facts["pid"], facts)
        finally:
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


@contextmanager
def router(
    model: Path = MODEL, step_ms: float = 0, vocabulary: int = 2048, blocks: int = 1 << 18, **changed: object
) -> Iterator[Server]:
    """Our server with a shard that computes nothing and has so many KV blocks."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as settings:
        settings.write(router_settings(model, **changed))
        settings.flush()
        shard = {"shard_core": sorted(os.sched_getaffinity(0))[-1], "step_ms": step_ms, "vocabulary": vocabulary}
        line = command("serve", settings=settings.name, blocks=blocks, **shard)
        with running(pinned(SERVER_CORE, line)) as server:
            yield server


@contextmanager
def echo(step_ms: float = 0) -> Iterator[Server]:
    """The yardstick."""
    with running(pinned(SERVER_CORE, command("echo", step_ms=step_ms))) as server:
        yield server
