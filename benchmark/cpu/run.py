"""``make bench-cpu``: tokens a second on this processor, beside those who are fast there.

All programs are started once for a shape and a format and stopped (SIGSTOP) but for their own turn, so that none spins
beside another. They take turns within each case, with a probe of the machine before and after each turn: a turn during
which the memory's speed changed much does not count, where enough others are left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from benchmark.cpu.peers import PEERS, PeerMissing, prepare, version_of
from benchmark.cpu.plot import beside, draw
from benchmark.cpu.probe import Limits, Probe
from benchmark.cpu.programs import Task, Times, Tokens
from benchmark.cpu.shapes import SHAPES, folder_of, gguf_of, w8a8_of
from benchmark.processes import family, peak
from benchmark.report import Report, Row
from textgen import __version__

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "build" / "bench-cpu"
FORMATS = ("bf16", "int8", "int4")
MOVED = 0.15  # of the memory's speed during a turn, from which on it does not count


@dataclass(frozen=True)
class Case:
    """prompt and new: tokens of each stream. metric: "decode" counts tokens after the first of each, "prompt" those of
    the prompt."""

    streams: int
    prompt: int
    new: int
    metric: str

    def speed(self, times: Times) -> float:
        """Tokens a second of all streams."""
        if self.metric == "prompt":
            return self.streams * self.prompt / times.first
        return self.streams * (self.new - 1) / max(times.last - times.first, 1e-9)


CASES = {
    "one stream": Case(1, 128, 65, "decode"),
    "8 streams": Case(8, 128, 49, "decode"),
    "32 streams": Case(32, 128, 33, "decode"),
    "64 streams": Case(64, 128, 33, "decode"),
    "prompt of 128": Case(1, 128, 1, "prompt"),
    "prompt of 512": Case(1, 512, 1, "prompt"),
    "prompt of 2048": Case(1, 2048, 1, "prompt"),
}
# Over the best peer, whichever it is.
BARS = {
    ("S", "one stream"): {"bf16": 1.5, "int8": 1.6, "int4": 1.6},
    ("M", "one stream"): {"bf16": 1.15, "int8": 1.25, "int4": 1.6},
    ("S", "8 streams"): {"bf16": 1.6, "int8": 2.2},
    ("S", "32 streams"): {"bf16": 1.5, "int8": 2.2},
    ("M", "8 streams"): {"bf16": 1.5, "int8": 2.0},
    ("M", "32 streams"): {"bf16": 1.8, "int8": 1.8},
    ("S", "prompt of 512"): {"bf16": 1.3, "int8": 1.3},
    ("S", "prompt of 2048"): {"bf16": 1.3, "int8": 1.3},
    ("M", "prompt of 512"): {"bf16": 1.15, "int8": 1.15},
    ("M", "prompt of 2048"): {"bf16": 1.15, "int8": 1.15},
}


class Stopped(Exception):
    """A program did not start or did not answer; the message says why."""


class Worker:
    """A program in a process of its own, stopped but for its turn."""

    def __init__(self, name: str, python: Path, task: Task, log: Path) -> None:
        self.name, self._log = name, log
        path = os.pathsep.join([str(ROOT), *([str(ROOT / "python")] if name == "textgen" else [])])
        command = [str(python), "-m", "benchmark.cpu.programs", name, json.dumps(asdict(task))]
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command, cwd=log.parent, env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(task.threads)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, text=True, start_new_session=True,
            )  # fmt: skip
        self.ready = float(self._answer()["ready"])
        self._signal(signal.SIGSTOP)

    def run(self, prompts: Tokens, new_tokens: int) -> Times:
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps({"prompts": prompts, "new_tokens": new_tokens}) + "\n")
            self._process.stdin.flush()
            return Times(**self._answer())
        except BrokenPipeError:
            raise Stopped(self._ending()) from None
        finally:
            self._signal(signal.SIGSTOP)

    def memory(self) -> float:
        """MiB that it had at most, its children's included."""
        return sum(map(peak, family(self._process.pid)))

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Stopped(self._ending())
        answer = json.loads(line)
        if "error" in answer:
            raise Stopped(answer["error"])
        found: dict[str, float] = answer
        return found

    def _ending(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"it ended with {self._process.wait()}: {lines[-1][:200] if lines else 'without a word'}"

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)


@dataclass(frozen=True)
class Turn:
    speed: float
    before: Limits
    after: Limits

    @property
    def steady(self) -> bool:
        return self.before.moved(self.after) <= MOVED


@dataclass
class Results:
    """What was measured: the turns of each program by shape, format and case, and what could not be."""

    turns: dict[tuple[str, str, str], dict[str, list[Turn]]] = field(default_factory=dict)
    ready: dict[tuple[str, str], dict[str, tuple[float, float]]] = field(default_factory=dict)  # seconds, MiB
    missing: dict[str, str] = field(default_factory=dict)

    def counted(self, turns: Sequence[Turn]) -> list[Turn]:
        """The steady turns, or all where most were not steady."""
        steady = [turn for turn in turns if turn.steady]
        return steady if 2 * len(steady) >= len(turns) else list(turns)

    def speed(self, turns: Sequence[Turn]) -> float:
        return median(turn.speed for turn in self.counted(turns))


def prompts(case: Case, vocabulary: int, seed: int) -> Tokens:
    """Random ids, others in each round."""
    rng = random.Random(seed)
    return [[rng.randrange(8, vocabulary) for _ in range(case.prompt)] for _ in range(case.streams)]


def measure(
    results: Results, shape: str, form: str, cases: Sequence[str], workers: Sequence[Worker], rounds: int, probe: Probe
) -> None:
    """All programs in turns, case after case. One that fails in a case is left out of the rest of it."""
    for name in cases:
        case, found = CASES[name], results.turns.setdefault((shape, form, name), {})
        for number in range(rounds + 1):
            for worker in workers:
                if f"{worker.name}, {shape} {form}, {name}" in results.missing:
                    continue
                given = prompts(case, SHAPES[shape]["vocab_size"], number)
                before = probe()
                try:
                    times = worker.run(given, case.new)
                except Stopped as error:
                    results.missing[f"{worker.name}, {shape} {form}, {name}"] = str(error)
                    found.pop(worker.name, None)
                    continue
                turn = Turn(case.speed(times), before, probe())
                if number > 0:  # the first round warms up
                    found.setdefault(worker.name, []).append(turn)
                    print(
                        f"{shape} {form}, {name}, {worker.name}: {turn.speed:.1f} tokens/s at {turn.after}", flush=True
                    )


def rows(results: Results, versions: dict[str, str]) -> list[Row]:
    """Our medians beside each peer's; the best peer's row has the bar."""
    found = []
    for (shape, form, name), turns in results.turns.items():
        speeds = {program: results.speed(each) for program, each in turns.items() if each}
        ours = speeds.pop("textgen", None)
        if ours is None:
            continue
        case, metric = f"{shape}, {form}, {name}", CASES[name].metric
        if not speeds:
            found.append(Row(case, metric, "tokens/s", ours))
        bar = BARS.get((shape, name), {}).get(form)
        best = max(speeds, key=lambda program: speeds[program], default=None)
        for program, speed in sorted(speeds.items(), key=lambda item: -item[1]):
            asked = f"ratio >= {bar}" if program == best and bar is not None else None
            found.append(Row(case, metric, "tokens/s", ours, program, versions[program], speed, asked))
    for (shape, form), programs in results.ready.items():
        for at, (metric, unit) in enumerate((("ready, from the process's first line", "s"), ("memory at most", "MiB"))):
            if "textgen" not in programs:
                continue
            ours = programs["textgen"][at]
            for program, values in programs.items():
                if program not in ("textgen", "llama.cpp"):  # llama.cpp's program starts anew for each run
                    found.append(Row(f"{shape}, {form}", metric, unit, ours, program, versions[program], values[at]))
    return found


def notes(results: Results, threads: int, rounds: int, load: float) -> list[str]:
    limits = [turn.after for programs in results.turns.values() for turns in programs.values() for turn in turns]
    every = [turn for programs in results.turns.values() for turns in programs.values() for turn in turns]
    told = [f"Random weights, {threads} threads, medians of {rounds} rounds; load average {load:.1f} when it began."]
    if limits:
        for name, unit in (("one", "GB/s by one stream of reads a thread"), ("eight", "GB/s by eight"),
                           ("products", "GFLOP/s in products of matrices")):  # fmt: skip
            values = [getattr(each, name) for each in limits]
            told.append(f"Probes: {min(values):.1f} to {max(values):.1f} {unit}, median {median(values):.1f}.")
        moved = sum(not turn.steady for turn in every)
        told.append(f"In {moved} of {len(every)} turns the memory's speed changed by more than {MOVED:.0%}.")
    return told + [f"Not measured: {what}: {why}" for what, why in results.missing.items()]


def _chosen(words: str, known: Iterable[str], what: str) -> list[str]:
    names = [name.strip() for name in words.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        sys.exit(f"error: {what} must be of {', '.join(known)}; not {', '.join(unknown) or 'nothing'}")
    return names


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default="S,M")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--peers", default=",".join(peer.name for peer in PEERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for the peers' environments and the models")
    parser.add_argument("--no-report", action="store_true", help="print only")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no stopped program is left behind
    shapes = _chosen(given.shapes, SHAPES, "--shapes")
    formats = _chosen(given.formats, FORMATS, "--formats")
    cases = _chosen(given.cases, CASES, "--cases")
    wanted = _chosen(given.peers, [peer.name for peer in PEERS], "--peers")
    folder: Path = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)

    results, versions, pythons = Results(), {"textgen": __version__}, {"textgen": Path(sys.executable)}
    for peer in PEERS:
        if peer.name not in wanted:
            continue
        print(
            f"{peer.name}: making its environment" if peer.install else f"{peer.name}: in this environment", flush=True
        )
        try:
            pythons[peer.name] = prepare(peer, folder)
            versions[peer.name] = version_of(peer, pythons[peer.name])
        except PeerMissing as error:
            results.missing[peer.name] = str(error)
            pythons.pop(peer.name, None)

    load, probe = os.getloadavg()[0], Probe(folder, given.threads)
    by_format = {peer.name: peer.formats for peer in PEERS} | {"textgen": FORMATS}
    most = max(CASES[name].streams for name in cases)
    tokens = max(CASES[name].prompt + CASES[name].new for name in cases) + 16
    with tempfile.TemporaryDirectory(prefix="bench-cpu-") as scratch:
        for shape in shapes:
            models = {"hf": folder_of(shape, folder), "gguf": gguf_of(shape, folder), "w8a8": w8a8_of(shape, folder)}
            for form in formats:
                workers: list[Worker] = []
                try:
                    for name, python in pythons.items():
                        if form not in by_format[name]:
                            continue
                        task = Task({kind: str(path) for kind, path in models.items()}, form, given.threads,
                                    str(_cache(folder, name)), most, tokens)  # fmt: skip
                        try:
                            workers.append(Worker(name, python, task, Path(scratch) / f"{name} {shape} {form}.log"))
                        except Stopped as error:
                            results.missing[f"{name}, {shape} {form}"] = str(error)
                    measure(results, shape, form, cases, workers, given.rounds, probe)
                    results.ready[shape, form] = {worker.name: (worker.ready, worker.memory()) for worker in workers}
                finally:
                    for worker in workers:
                        worker.close()
    found = rows(results, versions)
    for row in found:
        theirs = "" if row.theirs is None else f"  {row.peer} {row.theirs:.4g}  ratio {row.ratio:.2f}"
        print(f"{row.case:28} {row.metric:38} {row.ours:9.4g} {row.unit}{theirs}  {row.bar or ''} {row.holds}")
    told = notes(results, given.threads, given.rounds, load)
    print("\n".join(told))
    if given.no_report:
        return
    arguments = " ".join(f'"{word}"' if " " in word else word for word in sys.argv[1:])
    command = "make bench-cpu" + (f" ARGS='{arguments}'" if arguments else "")
    # Both shapes take hours: each may have a run, and a report, of its own.
    name = "cpu" if len(shapes) > 1 else f"cpu-{shapes[0]}"
    report = Report(name, command, versions, found, notes=told)
    draw(report, beside(report.save()))


def _cache(folder: Path, name: str) -> Path:
    """Where a program keeps what it made of a model."""
    made = folder / "models" / name.replace(" ", "-")
    made.mkdir(parents=True, exist_ok=True)
    return made


if __name__ == "__main__":
    main()
