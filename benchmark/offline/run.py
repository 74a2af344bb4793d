"""``make bench-offline``: a list of prompts through ``textgen.LLM``, beside Transformers' two ways to do the same.

All get the same token ids in float32 on the same cores, in turns, each in a process of its own, and write the same
number of tokens whatever they are. How many answers agree is told with the numbers.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median

from benchmark.offline.programs import PROGRAMS, Result, Task
from benchmark.report import Report, Row
from textgen import __version__
from textgen.launcher.model import BUILT_IN

SECONDS = 3600.0
SEED = 6
ROOT = Path(__file__).resolve().parent.parent.parent


def prompts(count: int, shortest: int, longest: int, vocabulary: int = 2000) -> list[list[int]]:
    """Random token ids of random lengths, the same in every run; the first 8 ids are special in the built-in model."""
    rng = random.Random(SEED)
    return [[rng.randrange(8, vocabulary) for _ in range(rng.randint(shortest, longest))] for _ in range(count)]


def run(name: str, task: Path) -> Result:
    """One program, from its start to its end."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "benchmark.offline.programs", name, str(task)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False, timeout=SECONDS)
    if done.returncode:
        sys.exit(f"error: {name} ended with exit code {done.returncode}:\n{done.stderr.decode(errors='replace')}")
    return Result(**json.loads(done.stdout.splitlines()[-1]))


def rows(runs: dict[str, list[Result]], version: str, case: str) -> list[Row]:
    """What is told of the runs: medians."""
    count = sum(map(len, runs["textgen"][0].tokens))

    def speed(name: str) -> float:
        return count / median(result.generate for result in runs[name])

    def whole(name: str) -> float:
        return median(result.load + result.generate for result in runs[name])

    found = []
    for name in runs:
        if name != "textgen":
            found += [
                Row(case, "throughput", "tokens/s", speed("textgen"), name, version, speed(name), "ratio >= 1"),
                Row(case, "with loading", "s", whole("textgen"), name, version, whole(name)),
            ]
    return found


def agreement(runs: dict[str, list[Result]]) -> list[str]:
    """How many answers are the same to the last token, as sentences."""
    ours = runs["textgen"][0].tokens
    found = []
    for name in runs:
        if name != "textgen":
            same = sum(a == b for a, b in zip(ours, runs[name][0].tokens, strict=True))
            found.append(
                f"{same} of {len(ours)} answers are those of {name} to the last token; ties are up to rounding."
            )
    return found


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--shortest", type=int, default=8, help="tokens of a prompt")
    parser.add_argument("--longest", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32, help="prompts that `generate` pads together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--model", default=str(BUILT_IN), help="folder (default: the built-in model)")
    parser.add_argument("--no-report", action="store_true", help="print only")
    given = parser.parse_args()
    asked = prompts(given.prompts, given.shortest, given.longest)
    task = Task(given.model, asked, given.new_tokens, given.threads, given.batch)
    versions = {"textgen": __version__, "transformers": importlib.metadata.version("transformers")}
    notes = [f"Load average {os.getloadavg()[0]:.1f} when it began."]
    runs: dict[str, list[Result]] = {name: [] for name in PROGRAMS}
    with tempfile.TemporaryDirectory(prefix="bench-offline-") as folder:
        file = Path(folder) / "task.json"
        file.write_text(json.dumps(asdict(task)))
        for _ in range(given.rounds):
            for name in PROGRAMS:
                runs[name].append(run(name, file))
    notes += [
        f"Medians of {given.rounds} rounds; {given.threads} threads each; float32; prompts of {given.shortest} to "
        f"{given.longest} tokens; `generate` in batches of {given.batch} sorted by length.",
        *agreement(runs),
    ]
    case = f"{given.prompts} prompts, {given.new_tokens} new tokens each"
    found = rows(runs, f"transformers {versions['transformers']}", case)
    for row in found:
        print(f"{row.metric:14} {row.ours:10.4g} {row.unit:9} {row.peer} {row.theirs:.4g}  ratio {row.ratio:.2f}")
    print(*notes, sep="\n")
    if not given.no_report:
        arguments = " ".join(sys.argv[1:])
        command = "make bench-offline" + (f' ARGS="{arguments}"' if arguments else "")
        Report("offline", command, versions, found, notes=notes).save()


if __name__ == "__main__":
    main()
