"""``make bench-structured``: what a schema costs, and what it saves.

Through the launcher: tokens per second under a schema beside free text of as many tokens, in turns, for one request at
a time and for 32; on the built-in model, whose steps are shorter than any served one's, and on a random one of a usual
size. Below the launcher: the cost of a mask beside other libraries'.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmark.cpu.shapes import SHAPES, folder_of
from benchmark.report import Report, Row
from benchmark.router.parts import MODEL
from benchmark.structured import masks
from textgen import __version__

SECONDS = 600.0
TOKENS = 192
LARGE = 128_000
SHAPE = "S"
BATCHES = (1, 32)
_READY = re.compile(r"ready on (http://\S+)")
# A string that goes on as long as the answer may.
PROSE = {
    "type": "object",
    "properties": {"story": {"type": "string", "minLength": 8000, "maxLength": 9000}},
    "required": ["story"],
}
# What an interface of an enterprise looks like: much is said before anything is.
KEYS = [
    f"{part}_of_the_{thing}_as_reported_by_the_upstream_inventory_service"
    for thing in ("primary_warehouse", "secondary_warehouse", "regional_distribution_centre")
    for part in ("current_utilisation_percentage", "number_of_unprocessed_orders", "last_successful_synchronisation")
]
FIXED = {
    "type": "object",
    "properties": {key: {"type": "boolean"} for key in KEYS},
    "required": KEYS,
    "additionalProperties": False,
}


def random_model(folder: Path) -> Path:
    """A random model of a usual size in bfloat16, whose tokenizer knows a token for each of its logits."""
    model = folder_of(SHAPE, folder)
    (folder / "tokens").mkdir()
    words = masks.large(folder / "tokens", SHAPES[SHAPE]["vocab_size"])
    shutil.copy(words / "tokenizer.json", model / "tokenizer.json")
    return model


@contextmanager
def server(model: Path) -> Iterator[str]:
    """The launcher with a model, until the end of the block; its address."""
    line = [sys.executable, "-m", "textgen.launcher", "--port", "0", "--max-concurrent-requests", "64"]
    line += ["--model-id", str(model)]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield _address(process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(SECONDS)


def _address(process: subprocess.Popen[bytes], log: Any) -> str:
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        log.seek(0)
        if found := _READY.search(re.sub(r"\x1b\[[0-9;]*m", "", log.read())):
            return found[1]
        time.sleep(0.1)
    raise RuntimeError("the server did not start")


def ask(address: str, number: int, **fields: Any) -> int:
    """A completion; the number of its tokens."""
    body = {"prompt": f"Report {number}: ", "temperature": 0, "max_tokens": TOKENS} | fields
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return int(json.load(answer)["usage"]["completion_tokens"])


def speed(address: str, batch: int, **fields: Any) -> float:
    """Tokens per second of so many requests at once."""
    with ThreadPoolExecutor(batch) as pool:
        began = time.perf_counter()
        tokens = sum(pool.map(lambda number: ask(address, number, **fields), range(batch)))
        return tokens / (time.perf_counter() - began)


def speeds(name: str, address: str, rounds: int) -> Iterator[Row]:
    """Both schemas beside free text, in turns."""
    cases = [("a string under a schema", PROSE, "ratio >= 0.95"), ("long fixed keys", FIXED, "ratio > 1.5")]
    for batch in BATCHES:
        for case, schema, bar in cases:
            guided: dict[str, Any] = {"guided_json": schema, "max_tokens": TOKENS if schema is PROSE else 2000}
            # As many tokens as the answer under the schema has.
            free: dict[str, Any] = {"ignore_eos": True, "max_tokens": ask(address, 0, **guided)}
            ask(address, 0, **free)
            pairs = [(speed(address, batch, **guided), speed(address, batch, **free)) for _ in range(rounds)]
            # The middle pair by ratio: a machine whose speed drifts does so for both of a pair.
            ours, theirs = sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
            yield Row(
                f"{name}, {case}, batch {batch}", "throughput", "tokens/s", ours, "free text", __version__, theirs, bar
            )


def mask_costs(folder: Path) -> Iterator[Row]:
    """Ours beside each library's, with the built-in vocabulary and a large one."""
    for name, model in (("2k tokens", MODEL), (f"{LARGE // 1000}k tokens", masks.large(folder, LARGE))):
        cost, walks = masks.ours(model)
        words, mine = masks.token_bytes(model), cost.microseconds()
        for peer, release in masks.peers():
            theirs, allowed = masks.PEERS[peer](words, walks)
            print(f"{peer} allowed {allowed:.0%} of the tokens of the walks", file=sys.stderr)
            for metric, value in theirs.microseconds().items():
                yield Row(f"masks, {name}", metric, "us", mine[metric], peer, release, value)


def main() -> None:
    """Measure, show, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="pairs of which the middle one counts")
    parser.add_argument("--only", choices=["speed", "masks"], help="measure one part and write nothing")
    options = parser.parse_args()
    rows: list[Row] = []

    def keep(measured: Iterator[Row]) -> None:
        for row in measured:
            line = f"{row.case:55} {row.metric:24} {row.ours:10.4g} {row.peer} {row.theirs:10.4g} {row.ratio:.2f}"
            print(line, flush=True)
            rows.append(row)

    with tempfile.TemporaryDirectory() as folder:
        if options.only != "masks":
            for name, model in (("built-in", MODEL), (f"shape {SHAPE}", random_model(Path(folder)))):
                with server(model) as address:
                    keep(speeds(name, address, options.rounds))
        if options.only != "speed":
            keep(mask_costs(Path(folder)))
    if options.only is None:
        versions = {"textgen": __version__} | dict(masks.peers())
        notes = [
            f"Throughput: the middle of {options.rounds} pairs; a pair has as many tokens on both sides.",
            "Masks: one token's mask and the step past it, along random walks; the others through Python.",
        ]
        print(Report("structured", "make bench-structured", versions, rows, notes=notes).save())


if __name__ == "__main__":
    main()
