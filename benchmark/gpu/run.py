"""``make gpu-bench``: decoding, attention, prompts, the device's idle time, Transformers beside us and a server under
load, on random weights of named shapes, with the ceilings measured in the same run.

Each part runs on its own: `--parts`. What one call has measured is kept (`--pieces`) and the next adds to it, so that
few minutes at a time are enough: `--minutes 9`, then again with `--resume`. `--device cpu --shapes tiny` rehearses all
of it without a GPU.

Exit codes: 0 measured, 1 something could not be, 2 wrong arguments, 3 there is no GPU that torch can use.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmark.gpu.parts import CEILINGS, PARTS, Launch, Result, row_of
from benchmark.gpu.pieces import Call, Pieces, Unreadable
from benchmark.gpu.shapes import FORMS, FULL_SIZE, SHAPES, is_mixture
from benchmark.gpu.tasks import Task
from benchmark.report import RESULTS, ROOT, ReportError, table

FAILED, WRONG, NO_GPU = 1, 2, 3
BUILD = ROOT / "build" / "bench-gpu"
ENDING = 60.0  # seconds that a part has to end its servers
# Of each part, where --batches does not say: decoding and the trace as they are to be told, attention up to the most.
BATCHES = {
    "decode": (1, 8, 64, 256), "attention": (8, 32, 128, 512), "products": (1, 8, 16, 32, 64, 256), "trace": (1, 64),
    "peers": (1, 32),
}  # fmt: skip
PROMPTS = (2048, 8192)
CLIENTS = (1, 8, 32, 128, 256)


def main(arguments: Sequence[str] | None = None, launch: Launch | None = None) -> int:
    """launch: how a part is run; None: in a process of its own."""
    given = parse(arguments)
    if given.device == "cuda" and not torch.cuda.is_available() and launch is None:
        print(f"no GPU: torch {torch.__version__} finds none that it can use; see nvidia-smi", file=sys.stderr)
        return NO_GPU
    if not tasks(given):
        mixtures = ", ".join(name for name, part in PARTS.items() if part.mixtures)
        print(f"error: of mixtures alone {mixtures} are measured; give another of --parts or --shapes", file=sys.stderr)
        return WRONG
    deadline = time.monotonic() + 60 * given.minutes
    words = sys.argv[1:] if arguments is None else list(arguments)
    call = Call(_command(words), _commit(), given.device == "cpu")
    try:
        pieces = Pieces(given.pieces)
    except Unreadable as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG
    return _measure(given, pieces, call, deadline, launch)


def _measure(given: argparse.Namespace, pieces: Pieces, call: Call, deadline: float, launch: Launch | None) -> int:
    def run(task: Task) -> Result:
        return in_process(task, deadline - time.monotonic()) if launch is None else launch(task)

    there = run(task_of(given, CEILINGS, given.shapes[0], given.forms[0]))
    if there.missing is not None:
        print(f"error: {there.missing}", file=sys.stderr)
        return FAILED
    print(f"{there.device}: {' '.join(there.notes)}", flush=True)
    if dropped := pieces.drop_others(there.device, there.versions):
        print(f"{dropped} pieces of other versions are left out", flush=True)
    left, failed = list[str](), False
    for task in tasks(given):
        name = f"{task.part} of {task.shape} {task.form}"
        if given.resume and pieces.done(task, there.device):
            print(f"{name}: measured before", flush=True)
            continue
        if time.monotonic() >= deadline:
            left.append(name)
            continue
        begun = time.monotonic()
        result = run(task)
        if result.missing is not None and time.monotonic() >= deadline:
            left.append(name)
            continue
        failed |= result.missing is not None
        said = f"not measured: {result.missing}" if result.missing else f"{len(result.rows)} rows"
        print(f"{name}: {said}, {time.monotonic() - begun:.0f} s", flush=True)
        pieces.add(task, result if result.device else _there(result, there), call)
        pieces.save()
    report = pieces.report(there.device, there.versions, call, there.notes)
    print(table(report))
    print("\n".join(f"- {note}" for note in report.notes))
    if left:
        print(f"left for another call with --resume: {', '.join(left)}")
    if given.device == "cuda" or given.out != RESULTS:
        try:
            print(report.save(given.out))
        except ReportError as error:  # the JSON is there
            print(f"no plot: {error}", file=sys.stderr)
    return FAILED if failed else 0


def _there(result: Result, there: Result) -> Result:
    """Of a process that ended before it said where it ran."""
    return Result(there.device, there.versions, result.rows, result.notes, result.missing)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.gpu.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", type=_parts, default=list(PARTS), help=f"with commas between: {', '.join(PARTS)}")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(FULL_SIZE))
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), help="of the weights")
    parser.add_argument("--batches", nargs="+", type=_positive, help=f"instead of {BATCHES}")
    parser.add_argument("--context", type=_positive, default=1024, help="tokens before those that are decoded")
    parser.add_argument("--prompts", nargs="+", type=_positive, default=list(PROMPTS), help="tokens of each")
    parser.add_argument("--clients", nargs="+", type=_positive, default=list(CLIENTS), help="of the server under load")
    parser.add_argument("--kv-cache-dtype", default="auto", help="of the shard: auto, int8, …")
    parser.add_argument("--rounds", type=_positive, default=5, help="of programs that take turns")
    parser.add_argument(
        "--minutes", type=float, default=24 * 60.0, help="after which no part is begun, and one is ended"
    )
    parser.add_argument("--resume", action="store_true", help="leave out what was measured before")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal")
    parser.add_argument("--models", type=Path, default=BUILD / "models", help="folder of the random models")
    parser.add_argument("--pieces", type=Path, default=BUILD / "pieces.json", help="what calls have measured so far")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the report")
    return parser.parse_args(arguments)


def _parts(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    wrong = [name for name in names if name not in PARTS]
    if wrong or not names:
        raise argparse.ArgumentTypeError(f"{text!r} must name some of {', '.join(PARTS)}, with commas between")
    return names


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} must be at least 1")
    return number


def tasks(given: argparse.Namespace) -> list[Task]:
    """In an order in which the most telling come first."""
    found = []
    for part in given.parts:
        shapes = [shape for shape in given.shapes if PARTS[part].mixtures or not is_mixture(SHAPES[shape])]
        for form in given.forms if PARTS[part].per_form else given.forms[:1]:
            found += [task_of(given, part, shape, form) for shape in shapes]
    return found


def task_of(given: argparse.Namespace, part: str, shape: str, form: str) -> Task:
    return Task(
        part=part, shape=shape, form=form, device=given.device, models=str(given.models.resolve()),
        out=str(given.out.resolve() if given.device == "cuda" or given.out != RESULTS else BUILD / "rehearsed"),
        batches=tuple(given.batches or BATCHES.get(part, (1,))), prompts=tuple(given.prompts),
        clients=tuple(given.clients), context=given.context, rounds=given.rounds, kv_cache_dtype=given.kv_cache_dtype,
    )  # fmt: skip


def in_process(task: Task, seconds: float) -> Result:
    """A part in a process of its own, ended after so many seconds with all that it has started."""
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as scratch:
        path, result = Path(scratch) / "task.json", Path(scratch) / "result.json"
        path.write_text(json.dumps(asdict(task)), encoding="utf-8")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmark.gpu.parts", str(path), str(result)], cwd=ROOT, env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            _, errors = process.communicate(timeout=max(seconds, 1))
        except BaseException as error:
            _end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                return Result("", {}, [], [], f"it took longer than the {seconds:.0f} s that were left")
            raise
        if process.returncode or not result.exists():
            last = errors.strip().splitlines()[-1:] or ["it said nothing"]
            print(errors, file=sys.stderr)
            return Result("", {}, [], [], f"its process ended with exit code {process.returncode}: {last[0][:300]}")
        told = json.loads(result.read_text(encoding="utf-8"))
    return Result(**told | {"rows": [row_of(row) for row in told["rows"]]})


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(ENDING)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _command(words: Sequence[str]) -> str:
    arguments = " ".join(f'"{word}"' if " " in word else word for word in words)
    return "make gpu-bench" + (f" ARGS='{arguments}'" if arguments else "")


def _commit() -> str | None:
    """Of the sources, where git knows; with a mark where they were changed since."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude", "*"], cwd=ROOT, capture_output=True, text=True,
            check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


if __name__ == "__main__":
    sys.exit(main())
