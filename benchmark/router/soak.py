"""``make soak``: a million requests of every kind through the real router, and what its memory does meanwhile.

Answers whole and streamed, short and long, on both dialects; clients that leave early or at once, that read slowly,
that ask wrongly; more of them than the server lets in. The second half of the run may not need more memory than the
first, but for a bound: what a request takes comes back.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmark.report import RESULTS, Report, Row
from benchmark.router.parts import CLIENT_CORE, Numbers, command, pinned, router
from textgen import __version__

# A pool that the prefix cache soon fills: what it remembers of a block is memory too, and is meant to stay.
BLOCKS = 8192
GROWTH = 2.0  # MiB that the second half may need beyond the first


def watch(requests: int, connections: int, permits: int) -> list[Numbers]:
    """Samples of the run, one a second."""
    samples = []
    with router(step_ms=1, blocks=BLOCKS, max_concurrent_requests=permits) as server:
        options = {"address": server.address, "pid": server.pid, "requests": requests, "connections": connections}
        line = pinned(CLIENT_CORE, command("soak", **options))
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            for text in process.stdout:
                samples.append(json.loads(text))
                if len(samples) % 30 == 0:
                    print(
                        f"{samples[-1]['done']:>9} requests, {samples[-1]['resident_kib'] / 1024:.1f} MiB", flush=True
                    )
        if process.returncode:
            sys.exit("error: the load failed; its last line says why")
    return samples


def halves(samples: list[Numbers]) -> tuple[float, float]:
    """The most memory, in MiB, in each half of the requests; the first twentieth, a warm-up, does not count."""
    total = samples[-1]["done"]
    first = [one["resident_kib"] for one in samples if total / 20 <= one["done"] < total / 2]
    second = [one["resident_kib"] for one in samples if one["done"] >= total / 2]
    if not first or not second:
        sys.exit("error: the run was too short to compare its halves; give more --requests")
    return max(first) / 1024, max(second) / 1024


def draw(samples: list[Numbers], path: Path) -> None:
    """Memory over requests."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([one["done"] for one in samples], [one["resident_kib"] / 1024 for one in samples], color="#4c78a8")
    axes.set_ylim(0, None)
    axes.set_xlabel("requests")
    axes.set_ylabel("router's memory [MiB]")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run, write the report, fail when memory grew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--connections", type=int, default=132)
    parser.add_argument("--permits", type=int, default=128, help="requests that the server lets in at once")
    parser.add_argument("--no-report", action="store_true", help="only check")
    arguments = parser.parse_args()
    before = os.getloadavg()[0]
    samples = watch(arguments.requests, arguments.connections, arguments.permits)
    first, second = halves(samples)
    last = samples[-1]
    case = f"{last['done']:,} requests, {arguments.connections} clients"
    rows = [
        Row(case, "memory at most, first half", "MiB", first),
        Row(case, "memory at most, second half", "MiB", second),
        Row(case, "growth", "MiB", second - first, bar=f"ours <= {GROWTH:g}"),
        Row(case, "throughput", "request/s", last["done"] / last["seconds"]),
        *(Row("requests and statuses", kind, "", count) for kind, count in sorted(last["kinds"].items())),
    ]
    for row in rows:
        print(f"{row.metric:32} {row.ours:12.6g} {row.unit} {row.bar or ''} {'' if row.holds is None else row.holds}")
    if not arguments.no_report:
        notes = [
            f"Load average {before:.1f} when it began.",
            "Every answer is checked: its status, the events of its stream, `Retry-After` of a refusal.",
        ]
        path = Report("soak", "make soak", {"textgen": __version__}, rows, notes=notes).save()
        draw(samples, RESULTS / f"{path.stem}-memory.png")
        print(path)
    if not all(row.holds is not False for row in rows):
        sys.exit(f"error: the second half needed {second - first:.1f} MiB more than the first")


if __name__ == "__main__":
    main()
