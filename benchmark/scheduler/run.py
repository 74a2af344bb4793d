"""Run the simulator, and make the report and the plots of what it wrote: ``make bench-scheduler``.

Bars are where the scheduler has promised something. All other rows are for reading.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmark.report import RESULTS, ROOT, Report, Row, table

from .plot import plots

COMMAND = "make bench-scheduler"
TARGET = "target 20 ms"
BUDGETS = ("fixed 2048", "fixed 8192")
LONG = "long prompts among chats"
Experiment = dict[str, Any]
Summary = dict[str, Any]

# What is told of each trace under each policy: key of a summary, name, unit.
METRICS = [
    ("tokens_per_second", "throughput", "tokens/s"),
    ("goodput", "goodput", "requests/s"),
    ("ttft_p50", "TTFT p50", "ms"),
    ("ttft_p99", "TTFT p99", "ms"),
    ("ttft_long_p99", "TTFT p99 of long prompts", "ms"),
    ("itl_p50", "ITL p50", "ms"),
    ("itl_p99", "ITL p99", "ms"),
]


def summaries(experiment: Experiment) -> dict[str, Summary]:
    """What came of a trace, by policy."""
    return {run["policy"]: run["summary"] for run in experiment["runs"]}


def bar(experiment: Experiment, metric: str, peer: str) -> str | None:
    """What was promised: 20 ms between tokens beside long prompts, for no more than 5 % of the throughput."""
    if not experiment["trace"].startswith(LONG) or peer not in BUDGETS:
        return None
    return {"itl_p99": "ours < 20", "tokens_per_second": "ratio >= 0.95"}.get(metric)


def compared(experiment: Experiment) -> list[Row]:
    """The scheduler with its target beside everybody else."""
    by_policy = summaries(experiment)
    ours = by_policy.pop(TARGET)
    case = experiment["trace"]
    rows = [
        Row(case, name, unit, ours[key], peer, "simulated", theirs[key], bar(experiment, key, peer))
        for key, name, unit in METRICS
        for peer, theirs in by_policy.items()
        # Without long prompts there is nothing to tell of them.
        if theirs[key]
    ]
    if "tenants" in case or "tenant" in case:
        fair = [(peer, theirs["fairness"]) for peer, theirs in by_policy.items()]
        rows += [Row(case, "fairness (Jain)", "", ours["fairness"], peer, "simulated", value) for peer, value in fair]
    shared = case in ("shared prefixes", "multi-turn chats")
    if shared:
        least, limit = experiment["least_prompt_tokens"], "ratio <= 1.02" if case == "shared prefixes" else None
        computed = ours["prompt_computed"]
        rows.append(Row(case, "prompt tokens computed", "tokens", computed, "unbounded cache", "exact", least, limit))
        rows += [
            Row(case, "prompt tokens computed", "tokens", computed, peer, "simulated", theirs["prompt_computed"])
            for peer, theirs in by_policy.items()
        ]
    return rows


def routed(experiment: Experiment) -> list[Row]:
    """Replicas chosen by prefix, beside the other ways."""
    by_way = summaries(experiment)
    ours = by_way.pop("prefix affinity")
    case = f"{experiment['replicas']} replicas, {experiment['trace']}"
    metrics = [*METRICS, ("hit_rate", "hit rate", "")]
    return [
        Row(case, name, unit, ours[key], way, "simulated", theirs[key])
        for key, name, unit in metrics
        for way, theirs in by_way.items()
        if theirs[key]
    ]


def priced(experiment: Experiment) -> list[Row]:
    """What each target costs a server that is never idle."""
    by_target = summaries(experiment)
    free = by_target.pop("no target")
    return [
        Row(f"{experiment['trace']}, {target}", name, unit, ours[key], "no target", "simulated", free[key])
        for target, ours in by_target.items()
        for key, name, unit in METRICS
        if key in ("tokens_per_second", "itl_p99")
    ]


def windowed(experiment: Experiment) -> list[Row]:
    """What layers with windows leave to the prefix cache, beside layers that keep every position in the same memory."""
    by_layout = summaries(experiment)
    whole, case = by_layout.pop("no windows")["hit_rate"], experiment["trace"]
    most = 1 - experiment["least_prompt_tokens"] / experiment["prompt_tokens"]
    rows = [Row(f"{case}, no windows", "hit rate", "", whole, "unbounded cache", "exact", most)]
    for layout, summary in by_layout.items():
        peers = (("no windows", "simulated", whole), ("unbounded cache", "exact", most))
        rows += [Row(f"{case}, {layout}", "hit rate", "", summary["hit_rate"], *peer) for peer in peers]
    return rows


def measured(data: dict[str, Any]) -> list[Row]:
    """Real time and memory of planning."""
    rows = []
    for planning, limit in zip(data["planning"], ("ours < 50", "ours < 1000"), strict=True):
        rows.append(Row(planning["case"], "planning a step, median", "us", planning["median"], bar=limit))
        rows.append(Row(planning["case"], "planning a step, p99", "us", planning["p99"]))
    for queued in data["queued"]:
        tenants = queued["tenants"]
        case = f"a million queued, 256 running, {tenants} tenant{'s' if tenants > 1 else ''}"
        rows.append(Row(case, "planning a step, median", "us", queued["plan"], bar="ours < 50"))
        rows.append(Row(case, "planning a step that seats, median", "us", queued["plan_admitting"]))
        rows.append(Row(case, "enqueueing", "us", queued["enqueue"]))
        # The second queue is built in memory that the first has left.
        if queued is data["queued"][0]:
            rows.append(Row(case, "memory per waiting sequence", "bytes", queued["bytes"]))
    return rows


def notes(data: dict[str, Any]) -> list[str]:
    """What a reader has to know to judge the numbers."""
    profile = data["profile"]
    seeds = sorted(
        {experiment["seed"] for experiment in [*data["single"], *data["sweep"], *data["windows"], data["cluster"]]}
    )
    return [
        f"Everything but planning time and memory is simulated: {profile['model']} on {profile['device']}, by the "
        "formulae in `benchmark/scheduler/README.md`. Peers are models of their published rules, not their programs.",
        f"Seeds {', '.join(map(str, seeds))}; simulated numbers are the same in every run.",
        "Planning times and memory are measured on the machine that ran the simulator, which other work shared.",
    ]


def report(data: dict[str, Any], version: str) -> Report:
    """All rows of a run."""
    rows = [row for experiment in data["single"] for row in compared(experiment)]
    rows += priced(data["targets"]) + routed(data["cluster"])
    rows += [row for experiment in data["windows"] for row in windowed(experiment)] + measured(data)
    return Report("scheduler", COMMAND, {"textgen": version}, rows, device="simulated", notes=notes(data))


def version() -> str:
    """The workspace's version."""
    lines = (ROOT / "Cargo.toml").read_text(encoding="utf-8").splitlines()
    return next(line.split('"')[1] for line in lines if line.startswith("version"))


def main() -> None:
    """Run, or show a run that was kept with ``--data``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="numbers of an earlier run, instead of a new one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.data or Path(folder) / "scheduler.json"
        if options.data is None:
            command = ["cargo", "run", "--release", "--quiet", "-p", "scheduler-bench", "--", str(path)]
            subprocess.run(command, cwd=ROOT, check=True)
        data = json.loads(path.read_text(encoding="utf-8"))
    result = report(data, version())
    print(table(result))
    stem = result.save().with_suffix("")
    plots(data, RESULTS, stem.name)
    if missed := [row for row in result.rows if row.holds is False]:
        print(f"{len(missed)} bars do not hold", file=sys.stderr)


if __name__ == "__main__":
    main()
