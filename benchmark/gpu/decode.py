"""Decoding: bytes of weights and cache that a step reads, as they are held, over its time from end to end."""

from __future__ import annotations

import time

from benchmark.gpu.ceilings import Ceilings
from benchmark.gpu.numbers import percentile
from benchmark.gpu.places import Place
from benchmark.gpu.shapes import read_bytes
from benchmark.gpu.steps import BLOCK, Streams, warmed
from benchmark.gpu.tasks import Collected, Found, Task
from benchmark.report import Row
from textgen.models.decoder import Decoder
from textgen.shard.runner import Runner

WARM, STEPS = 40, 100  # graphs are captured in the first
REHEARSED = (8, 4)
OF_SHEET = {"llama-8b": 0.8}  # of the data sheet's bandwidth in bfloat16; of all else:
OF_OTHERS = 0.7


def measure(task: Task, place: Place, ceilings: Ceilings) -> Found:
    warm, steps = REHEARSED if place.rehearsal else (WARM, STEPS)
    found = Collected()
    for batch, runner, streams in warmed(task, warm, steps, found.notes):
        found.rows += _rows(task, runner, streams, batch, ceilings, warm, steps)
    return found.found()


def _rows(
    task: Task, runner: Runner, streams: Streams, batch: int, ceilings: Ceilings, warm: int, steps: int
) -> list[Row]:
    case = f"{task.model}, {batch} x {task.context} tokens"
    times, begun = [], time.perf_counter()
    for _ in range(steps):
        before = time.perf_counter()
        streams.step()
        times.append(time.perf_counter() - before)
    streams.end()
    seconds = (time.perf_counter() - begun) / steps
    assert isinstance(runner.model, Decoder)
    positions = task.context + 1 + warm + steps / 2
    weights = read_bytes(runner.model, batch)
    cache = batch * positions * runner.cache.bytes_per_page / BLOCK
    wanted = None
    if batch == 1:
        wanted = OF_SHEET.get(task.shape, OF_OTHERS) if task.form == "bf16" else OF_OTHERS
    return [
        *ceilings.bandwidth_rows(case, "weights and cache read", (weights + cache) / seconds, wanted),
        Row(case, "weights and cache of a step", "GB", (weights + cache) / 1e9),
        Row(case, "tokens", "1/s", batch / seconds),
        Row(case, "time between tokens", "ms", seconds * 1e3),
        Row(case, "95th percentile between launches", "ms", percentile(times, 0.95) * 1e3),
    ]
