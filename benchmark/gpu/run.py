"""``make gpu-bench``: decoding against the memory's bandwidth, prompts against the matrix rate, and how long the device
idles between steps; random weights of named shapes, ceilings measured in the same run.

Exit codes: 0 measured, 2 wrong arguments, 3 there is no GPU that torch can use.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmark.gpu.numbers import idle_share, percentile
from benchmark.gpu.shapes import SHAPES, kv_bytes, make_model, prompt_flops, read_bytes
from benchmark.report import RESULTS, Report, ReportError, Row, table
from textgen import __version__
from textgen.shard.assembly import assemble, open_accelerator
from textgen.shard.masks import MaskSize
from textgen.shard.memory import SharedMemory, WideSize
from textgen.shard.protocol import Admit, Done, Flag, Step, pack_u32
from textgen.shard.runner import Outcome, Runner
from textgen.shard.settings import ShardSettings

NO_GPU = 3
WARM, STEPS, PROFILED = 40, 100, 32
BLOCK, HALF = 16, 2  # bytes of a bfloat16
CHUNK = 8192  # tokens of the prompt


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    if not torch.cuda.is_available():
        print(f"no GPU: torch {torch.__version__} finds none that it can use; see nvidia-smi", file=sys.stderr)
        return NO_GPU
    bandwidth, rate = measure_copy(), measure_products()
    rows = []
    for shape in given.shapes:
        runner = make_runner(shape, max(given.batches), given.context)
        for batch in given.batches:
            rows += decode_rows(shape, runner, batch, given.context, bandwidth)
        rows.append(prompt_row(shape, runner, rate))
        del runner
        torch.cuda.empty_cache()
    notes = [f"Copies reach {bandwidth / 1e9:.0f} GB/s, products of bfloat16 {rate / 1e12:.0f} TFLOP/s in this run."]
    versions = {"textgen": __version__, "torch": torch.__version__, "CUDA": str(torch.version.cuda)}
    report = Report("gpu", "make gpu-bench", versions, rows, device=torch.cuda.get_device_name(0), notes=notes)
    print(table(report))
    try:
        print(report.save(given.out))
    except ReportError as error:  # the JSON is there
        print(f"no plot: {error}", file=sys.stderr)
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmark.gpu.run", description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=sorted(SHAPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--context", type=int, default=1024, help="tokens before those that are decoded")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    if min([*given.batches, given.context]) < 1:
        parser.error("--batches and --context must be at least 1")
    return given


def make_runner(shape: str, slots: int, context: int) -> Runner:
    """The shard's own, with a cache as large as the GPU allows."""
    longest = max(context + WARM + 2 * STEPS + PROFILED, CHUNK)
    settings = ShardSettings(
        model_dir="", dtype="bfloat16", device="cuda", num_blocks=slots * -(-longest // BLOCK), block_size=BLOCK,
        max_slots=slots, max_batch_tokens=CHUNK, max_context=longest, max_top_n=0, attention="native",
    )  # fmt: skip
    accelerator, ops = open_accelerator(settings, torch.bfloat16)
    with torch.inference_mode():
        model = make_model(SHAPES[shape], torch.bfloat16, accelerator.device, longest, ops)
    wide = WideSize(settings.max_batch_tokens, slots, 0)
    descriptor = os.memfd_create("textgen-bench", os.MFD_ALLOW_SEALING)
    memory = SharedMemory(descriptor, wide, MaskSize(slots, model.spec.vocab_size), 1.0)
    os.close(descriptor)
    runner = assemble(settings, model, ops, memory, torch.bfloat16, accelerator)
    with torch.inference_mode():
        for place in runner.cache.places:
            place.keys.normal_(), place.values.normal_()
    return runner


class Streams:
    """Greedy sequences that decode side by side from a context of random keys and values, the host a step ahead."""

    def __init__(self, runner: Runner, batch: int, context: int) -> None:
        self._runner, self._number = runner, 0
        self._slots, self._at = np.arange(batch), np.full(batch, context)
        self._most = runner.bounds.num_pages // batch  # pages of each
        for slot in range(batch):
            wanted = Admit(slot, 0.0, 0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0, 0, context, 0, 0, None, b"", None, None)
            assert not runner.admit(wanted)
        pages = -(-(context + 1) // BLOCK)
        self._begin(np.full(batch, pages), np.zeros(batch), int(Flag.SAMPLE), np.arange(pages)[None])

    def step(self) -> None:
        begins = self._at % BLOCK == 0
        pages = (self._at // BLOCK)[begins][:, None]
        self._begin(begins, np.zeros(0), int(Flag.SAMPLE | Flag.LAST), pages, self._slots[begins])

    def _begin(self, counts: object, tokens: object, flags: int, pages: object, slots: object = None) -> None:
        of = self._slots if slots is None else np.asarray(slots)
        blocks = (of[:, None] * self._most + np.asarray(pages)).reshape(-1)
        columns = [self._slots, self._at, 0 * self._at + 1, 0 * self._at, 0 * self._at + flags, counts]
        step = Step(self._number, pack_u32(columns), pack_u32(tokens), pack_u32(blocks), b"", b"", b"")
        self._check(self._runner.take(step, time.monotonic_ns()))
        self._number += 1
        self._at = self._at + 1

    def _check(self, outcomes: object) -> None:
        for outcome in outcomes:  # type: ignore[attr-defined]
            assert isinstance(outcome, Outcome)
            assert all(isinstance(frame, Done) for frame in outcome.frames), outcome.frames

    def end(self) -> None:
        self._check(self._runner.drain())

    def close(self) -> None:
        self.end()
        self._runner.slots.free(self._slots)


def decode_rows(shape: str, runner: Runner, batch: int, context: int, bandwidth: float) -> list[Row]:
    """Bandwidth, time between tokens and idle time of a batch; nothing where its contexts find no room."""
    if batch * -(-(context + WARM + 2 * STEPS + PROFILED) // BLOCK) > runner.bounds.num_pages:
        return []
    streams, case = Streams(runner, batch, context), f"{shape} bfloat16, {batch} x {context} tokens"
    for _ in range(WARM):
        streams.step()
    streams.end()
    times, begun = [], time.perf_counter()
    for _ in range(STEPS):
        before = time.perf_counter()
        streams.step()
        times.append(time.perf_counter() - before)
    streams.end()
    seconds = (time.perf_counter() - begun) / STEPS
    config = SHAPES[shape]
    moved = read_bytes(config, HALF) + batch * (context + WARM + STEPS // 2) * kv_bytes(config, HALF)
    bar = {"llama-8b": "ratio >= 0.88", "llama-1b": "ratio >= 0.7"}[shape] if batch == 1 else None
    idle = profiled_idle(streams)
    streams.close()
    return [
        Row(case, "weights and cache read", "GB/s", moved / seconds / 1e9, "copy", None, bandwidth / 1e9, bar),
        Row(case, "tokens", "1/s", batch / seconds),
        Row(case, "time between tokens", "ms", seconds * 1e3),
        Row(case, "95th percentile between launches", "ms", percentile(times, 0.95) * 1e3),
        Row(case, "device idle", "%", idle * 100, bar="ours < 3" if batch in (1, 64) else None),
    ]


def profiled_idle(streams: Streams) -> float:
    """The part of the time in which no kernel runs, while steps follow one another."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(PROFILED):
            streams.step()
        streams.end()
    spans = [(event.time_range.start, event.time_range.end) for event in trace.events() or ()]
    return idle_share(spans)


def prompt_row(shape: str, runner: Runner, rate: float) -> Row:
    """The fastest of three prompts of a whole step."""
    pages, tokens = np.arange(-(-CHUNK // BLOCK)), np.arange(CHUNK) % 1000
    fastest = float("inf")
    for _ in range(3):
        wanted = Admit(0, 0.0, 0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0, 0, CHUNK, 0, 0, None, b"", None, None)
        assert not runner.admit(wanted)
        row = [0, 0, CHUNK, 0, int(Flag.SAMPLE), len(pages)]
        begun = time.perf_counter()
        step = Step(0, pack_u32(row), pack_u32(tokens), pack_u32(pages), b"", b"", b"")
        assert isinstance(runner.step(step, time.monotonic_ns()).frames[0], Done)
        fastest = min(fastest, time.perf_counter() - begun)
        runner.slots.free(np.array([0]))
    ours = prompt_flops(SHAPES[shape], CHUNK) / fastest
    case = f"{shape} bfloat16, a prompt of {CHUNK} tokens"
    return Row(case, "products", "TFLOP/s", ours / 1e12, "matrices", None, rate / 1e12, "ratio >= 0.6")


def measure_copy() -> float:
    """Bytes a second that a large copy reads and writes."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / _fastest(lambda: target.copy_(source))


def measure_products() -> float:
    """Operations a second of a product of large matrices in bfloat16."""
    size = 8192
    a, b = (torch.randn(size, size, device="cuda").to(torch.bfloat16) for _ in range(2))
    return float(2 * size**3) / _fastest(lambda: a @ b)


def _fastest(work: Callable[[], object]) -> float:
    """Seconds of the fastest of ten runs, by the device's clock."""
    seconds: list[float] = []
    for _ in range(12):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return min(seconds[2:])


if __name__ == "__main__":
    sys.exit(main())
