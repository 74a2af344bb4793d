"""``make bench-router``: what a token costs in the router, beside a bare echo in the same run.

The server under test has one core for itself; the shard that computes nothing and the load share the other. Each round
runs us and the yardstick one after the other; a number is the median over rounds.

- *saturated*: the shard answers at once: the server is never idle, and several tokens of a stream may leave together;
- *paced*: a step takes its time, so every token is a write of its own, as behind a real device.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from benchmark.report import ROOT, Report, Row
from benchmark.router import codec
from benchmark.router.parts import MODEL, SERVER_CORE, Numbers, Server, echo, measure, measure_on, router
from textgen import __version__

TOKENS = 128
CONNECTIONS = (32, 256, 1000)
PACED = {32: 1.0, 256: 5.0, 1000: 20.0}  # milliseconds of a step
WORDS = (
    "the router decides and the shard executes every step of a plan that names slots and blocks for running sequences "
    "while prompts wait in a queue and tokens leave as soon as they are whole characters of some text"
).split()


class Run:
    """Rows as they are measured."""

    def __init__(self, rounds: int, window: float) -> None:
        self.rounds, self.window = rounds, window
        self.rows: list[Row] = []
        locked = re.findall(r'name = "(.+)"\nversion = "(.+)"', (ROOT / "Cargo.lock").read_text())
        versions = dict(locked)
        self.echo_version = f"axum {versions['axum']}"
        self.tokenizers_version = versions["tokenizers"]

    def row(self, *values: object, **more: object) -> None:
        """Keep a row and show it."""
        row = Row(*values, **more)  # type: ignore[arg-type]
        self.rows.append(row)
        theirs = "" if row.theirs is None else f"  {row.peer} {row.theirs:.4g}  ratio {row.ratio:.2f}"
        print(
            f"{row.case:28} {row.metric:34} {row.ours:10.4g} {row.unit}{theirs}  {row.bar or ''} {row.holds}",
            flush=True,
        )

    def load(self, server: Server, **options: object) -> Numbers:
        """One load against a server."""
        return measure("load", address=server.address, pid=server.pid, **{"window": self.window} | options)

    def pair(self, ours: Server, theirs: Server, **options: object) -> tuple[list[Numbers], list[Numbers]]:
        """The same load against both, in turns."""
        rounds = [(self.load(ours, **options), self.load(theirs, **options)) for _ in range(self.rounds)]
        return [one for one, _ in rounds], [other for _, other in rounds]


def middle(numbers: list[Numbers], *path: str) -> float:
    """The median of one number over rounds."""

    def pick(of: Numbers) -> float:
        for name in path:
            of = of[name]
        return float(of)  # type: ignore[arg-type]

    return median(pick(one) for one in numbers)


def tokens(run: Run) -> None:
    """CPU per token against the echo."""
    with router() as ours, echo() as theirs:
        for connections in CONNECTIONS:
            mine, other = run.pair(ours, theirs, connections=connections, tokens=TOKENS)
            compare(run, f"saturated, {connections} streams", mine, other)
        mine, other = run.pair(ours, theirs, connections=32, tokens=1)
        cost, floor = middle(mine, "cpu_us_per_request"), middle(other, "cpu_us_per_request")
        run.row(
            "one-token requests, 32 at once",
            "CPU per request",
            "µs",
            cost,
            "echo",
            run.echo_version,
            floor,
            "ours <= 60",
        )
    for connections, step in PACED.items():
        with router(step_ms=step) as ours, echo(step_ms=step) as theirs:
            mine, other = run.pair(
                ours, theirs, connections=connections, tokens=TOKENS, warm_up=1 + TOKENS * step / 1000
            )
            compare(run, f"paced {step:g} ms, {connections} streams", mine, other)


def compare(run: Run, case: str, ours: list[Numbers], theirs: list[Numbers]) -> None:
    """CPU per token. Tokens per second follow from it, and are worth a row only on a machine that nobody else uses."""
    mine, floor = middle(ours, "cpu_us_per_token"), middle(theirs, "cpu_us_per_token")
    run.row(case, "CPU per token", "µs", mine, "echo", run.echo_version, floor, "ratio <= 1.3")


def step_tax(run: Run) -> None:
    """What is added to each step of 20 ms."""
    step = 20.0
    for connections, bar in ((1, "ours < 0.2"), (1000, "ours < 1")):
        with router(step_ms=step) as ours, echo(step_ms=step) as theirs:
            mine, other = run.pair(ours, theirs, connections=connections, tokens=64, warm_up=2, window=4)
            added, floor = (middle(numbers, "mean_gap_ms") - step for numbers in (mine, other))
            case = f"steps of {step:g} ms, {connections} stream{'s' if connections > 1 else ''}"
            run.row(case, "added between tokens, mean", "ms", added, "echo", run.echo_version, floor, bar)
            if connections > 1:
                idle = router_idle()
                used = (middle(mine, "resident_kib") - idle) / connections
                run.row(case, "memory per live stream", "KiB", used, bar="ours <= 60")


def router_idle() -> float:
    """Resident KiB of a router that has served nothing."""
    with router() as server:
        return resident_kib(server.pid)


def resident_kib(pid: int) -> float:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("VmRSS:")).split()[1])


def long_prompts(run: Run) -> None:
    """A prompt of 4,000 tokens against the tokenizer library alone, on the same core: those of a host may differ."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as prompt:
        prompt.write(" ".join(WORDS[(7 * place) % len(WORDS)] for place in range(2500)))
        prompt.flush()
        alone = {"tokenizer": MODEL / "tokenizer.json", "prompt_file": prompt.name, "window": run.window}
        probe = measure("encode", **alone | {"window": 0.1})
        with router() as ours:
            rounds = [
                (
                    run.load(ours, connections=8, tokens=1, prompt_file=prompt.name)["cpu_us_per_request"],
                    measure_on(SERVER_CORE, "encode", **alone)["cpu_us_per_request"],
                )
                for _ in range(run.rounds)
            ]
        # The middle pair by ratio: a core whose speed drifts does so for both of a pair.
        mine, floor = sorted(rounds, key=lambda pair: pair[0] / pair[1])[len(rounds) // 2]
        case = f"prompt of {probe['tokens']} tokens"
        run.row(case, "CPU per request", "µs", mine, "tokenizers", run.tokenizers_version, floor, "ratio <= 1.15")


def burst(run: Run) -> None:
    """Many connections at once against the launcher's own limit of 128 requests."""
    with router(step_ms=1, max_concurrent_requests=128) as server:
        seen = measure("burst", address=server.address, pid=server.pid, connections=2000, tokens=64)
    refused = sum(count for status, count in seen["statuses"].items() if status not in ("200", "429"))
    case = "2,000 connections at once"
    run.row(case, "neither served nor a true 429", "answers", refused, bar="ours == 0")
    run.row(
        case,
        "429 without Retry-After",
        "answers",
        seen["statuses"].get("429", 0) - seen["with_retry_after"],
        bar="ours == 0",
    )
    run.row(case, "memory", "MiB", seen["resident_kib"] / 1024, bar="ours <= 200")


def launcher(run: Run) -> None:
    """Start and idle memory of the real thing: launcher and router are one process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # An installed package has its bytecode: it is written before the clock runs, whatever the environment says of it.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", "import textgen.launcher.cli"], check=True, env=environment)
    begun = time.monotonic()
    line = [
        sys.executable,
        "-c",
        "from textgen.launcher.cli import main; raise SystemExit(main())",
        "--port",
        str(port),
    ]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, env=environment) as process:
        try:
            answers(port, "/info", 60)
            listening = time.monotonic() - begun
            answers(port, "/ready", 300)
            resident = resident_kib(process.pid) / 1024
        finally:
            process.terminate()
            process.wait(60)
    run.row("launcher and router", "from start to first answer", "s", listening, bar="ours < 0.5")
    run.row("launcher and router", "memory, idle", "MiB", resident, bar="ours < 80")


def answers(port: int, path: str, seconds: float) -> None:
    """Wait until a path answers 200."""
    until = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5).close()
            return
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def crossing(run: Run) -> None:
    """A step into Python and back."""
    for sequences, bar in ((32, None), (256, "ours < 10"), (1000, None)):
        mine, floor = codec.columns(sequences), codec.objects(sequences)
        case = f"a step of {sequences} sequences"
        run.row(case, "into Python and back", "µs", mine, "msgspec structs", None, floor, bar)


def peer(run: Run) -> None:
    """The same load on another server that speaks TGI's route, which runs already and is pinned already."""
    url, pid = urlsplit(os.environ.get("PEER_URL", "")), os.environ.get("PEER_PID", "")
    if url.scheme != "http" or not url.netloc or url.path.strip("/") or not pid.isdigit():
        sys.exit("error: a peer needs PEER_URL=http://HOST:PORT and PEER_PID, the number of its process here")
    address = url.netloc if url.port else f"{url.netloc}:80"
    theirs = Server(address, int(pid), {})
    with router() as ours:
        for connections in CONNECTIONS:
            mine, other = run.pair(ours, theirs, connections=connections, tokens=TOKENS)
            numbers = (middle(mine, "cpu_us_per_token"), "peer", address, middle(other, "cpu_us_per_token"))
            run.row(f"peer, {connections} streams", "CPU per token", "µs", *numbers)


CASES = {
    "tokens": tokens, "step-tax": step_tax, "long-prompts": long_prompts, "burst": burst, "launcher": launcher,
    "crossing": crossing, "peer": peer,
}  # fmt: skip


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=3.0, help="seconds of one measurement")
    parser.add_argument("--only", choices=CASES, action="append", help="some cases, without a report")
    arguments = parser.parse_args()
    run = Run(arguments.rounds, arguments.window)
    before = os.getloadavg()[0]
    for name in arguments.only or (name for name in CASES if name != "peer" or "PEER_URL" in os.environ):
        CASES[name](run)
    if arguments.only:
        return
    line = f'make bench-router ARGS="--rounds {run.rounds} --window {run.window:g}"'
    versions = {"textgen": __version__, "echo": run.echo_version, "tokenizers": run.tokenizers_version}
    notes = [
        "The server under test is alone on one core; shard and load share the other. Medians of "
        f"{run.rounds} rounds of {run.window:g} s.",
        f"Load average {before:.1f} when it began: the machine was {'quiet' if before < 2 else 'shared'}.",
        "The shard computes nothing. Saturated, it answers at once, and tokens that are ready together leave in one "
        "write; paced, it takes the time of a step, and each token is a write.",
    ]
    print(Report("router", line, versions, run.rows, notes=notes).save())


if __name__ == "__main__":
    main()
