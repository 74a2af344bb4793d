"""``make bench-startup``: from nothing to the first token, phase by phase.

We, llama-server, vLLM and Transformers start in turns, with the built-in model and with a random one of a billion
numbers, each start with everything that it reads out of the system's cache (cold) and then once more (warm). Loading is
held against reading the file into memory at full speed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmark.report import Report, Row
from benchmark.servers import LlamaServer, Models, NotStarted, Program, Started, Textgen, Vllm, with_peers
from benchmark.startup.cache import forget, read_at_full_speed, resident
from benchmark.startup.model import BUILT_IN, write, write_gguf
from benchmark.startup.programs import Transformers
from textgen import __version__

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "build" / "bench-cpu"  # where the environments of peers are for all benchmarks
WARM, COLD = "warm cache", "cold cache"
SMALL, LARGE = "built-in model", "a billion numbers"
FIRST, OURS = "first token, from the start", "of which all but importing torch"
# The programs that serve Python's libraries as we do; llama-server has none to import.
BARRED = ("transformers", "vllm")


@dataclass
class Results:
    """Starts by model, cache and program; seconds of reading by model and cache; what could not be measured."""

    starts: dict[tuple[str, str], dict[str, list[Started]]] = field(default_factory=dict)
    reading: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    left: list[float] = field(default_factory=list)  # parts of models that were in the cache when it should be cold
    missing: dict[str, str] = field(default_factory=dict)


def measure(
    results: Results, name: str, models: Models, programs: Sequence[Program], threads: int, rounds: int, log: Path
) -> None:
    """All programs in turns. Each starts once before, so that what it keeps from start to start is there."""
    weights = models.folder / "model.safetensors"
    results.sizes[name] = weights.stat().st_size
    for number in range(rounds + 1):
        for program in programs:
            if f"{program.name}, {name}" in results.missing:
                continue
            for cache in (COLD, WARM) if number else (WARM,):
                if cache == COLD:
                    forget([*program.roots, program.weights(models)])
                    results.left.append(resident(program.weights(models)))
                try:
                    started = program.start(models, threads, log)
                except NotStarted as error:
                    results.missing[f"{program.name}, {name}"] = str(error)
                    break
                if number:
                    results.starts.setdefault((name, cache), {}).setdefault(program.name, []).append(started)
                told = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in started.phases.items())
                print(
                    f"{name}, {cache}, {program.name}: ready {started.ready:.2f} s, first token {started.first:.2f} s"
                    f"{'' if number else ' (not counted)'} {told}",
                    flush=True,
                )
        if number:
            for cache in (COLD, WARM):
                if cache == COLD:
                    forget([weights])
                results.reading.setdefault((name, cache), []).append(read_at_full_speed(weights))


def rows(results: Results, versions: dict[str, str]) -> list[Row]:
    """What is told of the starts: medians."""
    found = []
    for (name, cache), programs in results.starts.items():
        ours = programs.get("textgen")
        if not ours:
            continue
        case = f"{name}, {cache}"
        bars = {FIRST: "ours < 4", OURS: "ours < 1"} if (name, cache) == (SMALL, WARM) else {}
        first = median(each.first for each in ours)
        found.append(Row(case, FIRST, "s", first, bar=bars.get(FIRST)))
        rest = median(each.first - each.phases.get("import", 0.0) for each in ours)
        found.append(Row(case, OURS, "s", rest, bar=bars.get(OURS)))
        found += _beside_peers(case, programs, versions)
        if name == LARGE:
            reading = median(results.reading[name, cache])
            placed = median(each.phases.get("read", 0.0) + each.phases.get("place", 0.0) for each in ours)
            # Weights: at no less than 80 % of the speed of reading, counted from when the libraries are there.
            for metric, seconds, bar in ((FIRST, first, "ratio < 2"), ("weights in place", placed, "ratio <= 1.25")):
                found.append(Row(case, metric, "s", seconds, "reading the file", None, reading, bar))
        for phase in ours[0].phases:
            found.append(Row(case, phase, "s", median(each.phases.get(phase, 0.0) for each in ours)))
    return found


def _beside_peers(case: str, programs: dict[str, list[Started]], versions: dict[str, str]) -> list[Row]:
    metrics = ((FIRST, "s", "first"), ("ready", "s", "ready"), ("memory at most, mapped files included", "MiB", "peak"))
    found = []
    for peer, starts in programs.items():
        if peer == "textgen":
            continue
        for metric, unit, value in metrics:
            ours, theirs = (median(getattr(each, value) for each in runs) for runs in (programs["textgen"], starts))
            bar = "ratio <= 1" if metric == FIRST and peer in BARRED else None
            found.append(Row(case, metric, unit, ours, peer, versions[peer], theirs, bar))
    return found


def notes(results: Results, threads: int, rounds: int, load: float) -> list[str]:
    told = [
        f"Load average {load:.1f} when it began. Medians of {rounds} rounds; {threads} threads each.",
        "Cold: the files that a start reads, libraries and model, are out of the system's cache. Of the models "
        f"{max(results.left, default=0):.0%} was left at most.",
    ]
    for (name, cache), seconds in results.reading.items():
        size = results.sizes[name] / 1e9
        told.append(f"Reading the file of {name} ({size:.2f} GB), {cache}: {median(seconds):.2f} s.")
    return told + [f"Not measured: {what}: {why}" for what, why in results.missing.items()]


def _programs(wanted: Sequence[str], folder: Path, results: Results, versions: dict[str, str]) -> list[Program]:
    """Those that can be started, ours first; environments of peers are made first where they are not."""
    makers: dict[str, Callable[[Path], Program]] = {
        "llama.cpp": LlamaServer,
        "vllm": lambda python: Vllm(python, folder / "vllm" / "cache"),
        "transformers": lambda _: Transformers(),
    }
    ours: Program = Textgen()
    return with_peers(ours, makers, wanted, folder, results.missing, versions)


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--models", default=f"{SMALL},{LARGE}")
    parser.add_argument("--peers", default="llama.cpp,vllm,transformers", help="fewer, or none: ''")
    parser.add_argument("--layers", type=int, default=16, help="fewer make the large model smaller")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for the peers' environments and the models")
    parser.add_argument("--no-report", action="store_true", help="print only")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no server is left behind
    folder: Path = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    results, versions, load = Results(), {"textgen": __version__}, os.getloadavg()[0]
    programs = _programs(given.peers.split(","), folder, results, versions)
    # Not in /tmp, which may be memory: from there nothing can be let go.
    with tempfile.TemporaryDirectory(prefix="startup-", dir=folder) as scratch:
        for name in given.models.split(","):
            at = Path(scratch) / name.replace(" ", "-")
            source = BUILT_IN if name == SMALL else write(at / "model", num_hidden_layers=given.layers)
            at.mkdir(exist_ok=True)
            models = Models(source, write_gguf(source, at / "model.gguf"))
            measure(results, name, models, programs, given.threads, given.rounds, at / "log")
    found = rows(results, versions)
    for row in found:
        theirs = "" if row.theirs is None else f"  {row.peer} {row.theirs:.4g}  ratio {row.ratio:.2f}"
        print(f"{row.case:30} {row.metric:40} {row.ours:9.4g} {row.unit}{theirs}  {row.bar or ''} {row.holds}")
    told = notes(results, given.threads, given.rounds, load)
    print("\n".join(told))
    if given.no_report:
        return
    arguments = " ".join(sys.argv[1:])
    command = "make bench-startup" + (f' ARGS="{arguments}"' if arguments else "")
    Report("startup", command, versions, found, notes=told).save()


if __name__ == "__main__":
    main()
