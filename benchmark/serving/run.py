"""``make bench-serving``: chats over HTTP beside vLLM's server, and first tokens beside that and llama-server.

The servers run side by side, idle but for their own turn, and take turns within each case. Every request asks for
random tokens and an answer of a set length, and what a server says it sent must be of that length.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmark.cpu.shapes import SHAPES, folder_of, gguf_of, q8_of, w8a8_of
from benchmark.processes import busy, family, peak
from benchmark.report import Report, Row
from benchmark.servers import LlamaServer, Models, NotStarted, Room, Running, Server, Textgen, Vllm, with_peers
from benchmark.serving.load import Request, Turn, Unanswered, chats, requests
from benchmark.structured.masks import large
from textgen import __version__

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "build" / "bench-cpu"  # where the environments of peers are for all benchmarks
FORMATS = ("bf16", "int8")
CONTEXT = 512
WATCHED, PATIENCE = 0.2, 10.0  # seconds for which servers are to be idle before a turn, and of waiting for that
IDLE = 0.1  # of a processor


@dataclass(frozen=True)
class Case:
    """at_once: clients. each: requests of a client. prompt, new: tokens of each request, at least and at most.
    beside: peers."""

    at_once: int
    each: int
    prompt: tuple[int, int]
    new: tuple[int, int]
    beside: tuple[str, ...] = ("vllm", "llama-server")


# llama-server takes several times as long for them: its turns would be most of the time.
CHATS = {
    "32 chats": Case(32, 2, (32, 256), (32, 128), beside=("vllm",)),
    "64 chats": Case(64, 2, (32, 256), (32, 128), beside=("vllm",)),
}
FIRST = {
    "a prompt of 128": Case(1, 1, (128, 128), (2, 2)),
    "8 prompts of 128": Case(8, 1, (128, 128), (2, 2)),
}
CASES = {**CHATS, **FIRST}


@dataclass(frozen=True)
class Metric:
    """What is told of a turn. bars: what it must hold beside a peer."""

    name: str
    unit: str
    of: Callable[[Turn], float]
    bars: dict[str, str] = field(default_factory=dict)


AT_MOST, AT_LEAST = {"vllm": "ratio <= 1"}, {"vllm": "ratio >= 1"}
OF_CHATS = (
    Metric("requests", "1/s", lambda turn: turn.rate, AT_LEAST),
    Metric("first token, median", "ms", lambda turn: 1e3 * turn.first(0.5), AT_MOST),
    Metric("first token, 95 of 100", "ms", lambda turn: 1e3 * turn.first(0.95), AT_MOST),
    Metric("between tokens, median", "ms", lambda turn: 1e3 * turn.gap(0.5), AT_MOST),
    Metric("between tokens, 99 of 100", "ms", lambda turn: 1e3 * turn.gap(0.99), AT_MOST),
)
OF_FIRST = (Metric("last first token", "ms", lambda turn: 1e3 * turn.first(1.0), {"llama-server": "ratio <= 0.33"}),)
OF_SERVERS = (
    ("ready", "s", AT_MOST),
    ("memory at most, mapped files included", "MiB", AT_MOST | {"llama-server": "ratio <= 1.1"}),
)


@dataclass
class Results:
    """Turns by case and server; seconds to ready and MiB by model and server; what could not be measured."""

    turns: dict[tuple[str, str], dict[str, list[Turn]]] = field(default_factory=dict)  # by model and case
    servers: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def measure(
    results: Results, model: str, models: Models, running: dict[Server, Running], cases: Sequence[str], rounds: int,
    vocabulary: int,
) -> None:  # fmt: skip
    """All servers in turns, case after case; the first round is not counted."""
    for name in cases:
        case, found = CASES[name], results.turns.setdefault((model, name), {})
        for number in range(rounds + 1):
            asked: list[Request] = requests(case.at_once * case.each, case.prompt, case.new, vocabulary, number)
            for server, where in running.items():
                if server.name not in (Textgen.name, *case.beside):
                    continue
                if f"{server.name}, {model}, {name}" in results.missing:
                    continue
                _settle(running.values())
                try:
                    turn = asyncio.run(chats(server, where, models, asked, case.at_once))
                except (Unanswered, OSError) as error:
                    results.missing[f"{server.name}, {model}, {name}"] = str(error)
                    print(f"{model}, {name}, {server.name}: {error}", flush=True)
                    found.pop(server.name, None)
                    continue
                if number:
                    found.setdefault(server.name, []).append(turn)
                    print(
                        f"{model}, {name}, {server.name}: {turn.rate:.2f} requests/s, first token "
                        f"{1e3 * turn.first(0.5):.0f} ms, between tokens {1e3 * turn.gap(0.5):.1f} ms",
                        flush=True,
                    )


def _settle(servers: Collection[Running]) -> None:
    """Wait until all are idle: what threads spin for after their server's turn is not to be at the next one's cost."""
    for _ in range(int(PATIENCE / WATCHED)):
        before = [busy(server.process) for server in servers]
        time.sleep(WATCHED)
        if sum(busy(server.process) for server in servers) - sum(before) <= IDLE * WATCHED:
            return


def rows(results: Results, versions: dict[str, str]) -> list[Row]:
    """Medians over the rounds, beside each peer's."""
    found = []
    for (model, name), turns in results.turns.items():
        metrics = OF_CHATS if name in CHATS else OF_FIRST
        for metric in metrics:
            values = {server: median(map(metric.of, each)) for server, each in turns.items()}
            found += _beside(f"{model}, {name}", metric.name, metric.unit, values, metric.bars, versions)
    for model, servers in results.servers.items():
        for at, (metric_name, unit, bars) in enumerate(OF_SERVERS):
            values = {server: value[at] for server, value in servers.items()}
            found += _beside(model, metric_name, unit, values, bars, versions)
    return found


def _beside(
    case: str, metric: str, unit: str, values: dict[str, float], bars: dict[str, str], versions: dict[str, str]
) -> list[Row]:
    if "textgen" not in values:
        return []
    ours = values["textgen"]
    peers = {peer: value for peer, value in values.items() if peer != "textgen"}
    if not peers:
        return [Row(case, metric, unit, ours)]
    return [
        Row(case, metric, unit, ours, peer, versions[peer], theirs, bars.get(peer)) for peer, theirs in peers.items()
    ]


def start(
    results: Results, model: str, models: Models, servers: Sequence[Server], room: Room, logs: Path, stack: ExitStack
) -> dict[Server, Running]:
    """Those that started; they end with the stack."""
    found = {}
    for server in servers:
        try:
            log = logs / f"{server.name} {model}.log"
            found[server] = stack.enter_context(server.running(models, room, log))
        except NotStarted as error:
            results.missing[f"{server.name}, {model}"] = str(error)
    return found


def models_of(shape: str, form: str, folder: Path) -> Models:
    """The random model with a tokenizer that has a token for each of its logits."""
    source = folder_of(shape, folder)
    words = folder / f"tokens-{SHAPES[shape]['vocab_size']}"
    if not words.exists():
        part = words.with_suffix(".part")
        part.mkdir(exist_ok=True)
        large(part, SHAPES[shape]["vocab_size"]).rename(words)
    quantized = w8a8_of(shape, folder)
    for each in (source, quantized):
        (each / "tokenizer.json").write_bytes((words / "tokenizer.json").read_bytes())
    if form == "bf16":
        return Models(source, gguf_of(shape, folder))
    return Models(source, q8_of(shape, folder), quantized)


def _servers(wanted: Sequence[str], folder: Path, results: Results, versions: dict[str, str]) -> list[Server]:
    makers: dict[str, Callable[[Path], Server]] = {
        "llama.cpp": LlamaServer,
        "vllm": lambda python: Vllm(python, folder / "vllm" / "cache"),
    }
    ours: Server = Textgen()
    return with_peers(ours, makers, wanted, folder, results.missing, versions)


def notes(results: Results, threads: int, rounds: int, load: float) -> list[str]:
    told = [f"Random weights, {threads} threads each; medians of {rounds} rounds; load average {load:.1f} at first."]
    told.append("Servers and clients share the cores; chats ask with 32 to 256 tokens and get 32 to 128 back.")
    return told + [f"Not measured: {what}: {why}" for what, why in results.missing.items()]


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default="S")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--peers", default="llama.cpp,vllm", help="fewer, or none: ''")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for the peers' environments and the models")
    parser.add_argument("--no-report", action="store_true", help="print only")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no server is left behind
    folder: Path = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    shapes = given.shapes.split(",")
    results, versions, load = Results(), {"textgen": __version__}, os.getloadavg()[0]
    servers = _servers(given.peers.split(","), folder, results, versions)
    cases = given.cases.split(",")
    room = Room(given.threads, CONTEXT, max(CASES[name].at_once for name in cases))
    with tempfile.TemporaryDirectory(prefix="serving-") as scratch:
        for shape in shapes:
            for form in given.formats.split(","):
                model, models = f"{shape}, {form}", models_of(shape, form, folder)
                with ExitStack() as stack:
                    running = start(results, model, models, servers, room, Path(scratch), stack)
                    measure(results, model, models, running, cases, given.rounds, SHAPES[shape]["vocab_size"])
                    results.servers[model] = {
                        server.name: (where.ready, sum(map(peak, family(where.process))))
                        for server, where in running.items()
                    }
    found = rows(results, versions)
    for row in found:
        theirs = "" if row.theirs is None else f"  {row.peer} {row.theirs:.4g}  ratio {row.ratio:.2f}"
        print(f"{row.case:30} {row.metric:40} {row.ours:9.4g} {row.unit}{theirs}  {row.bar or ''} {row.holds}")
    told = notes(results, given.threads, given.rounds, load)
    print("\n".join(told))
    if given.no_report:
        return
    arguments = " ".join(f'"{word}"' if " " in word else word for word in sys.argv[1:])
    command = "make bench-serving" + (f" ARGS='{arguments}'" if arguments else "")
    # As in `make bench-cpu`: each shape may have a run, and a report, of its own.
    name = "serving" if len(shapes) > 1 else f"serving-{shapes[0]}"
    Report(name, command, versions, found, notes=told).save()


if __name__ == "__main__":
    main()
