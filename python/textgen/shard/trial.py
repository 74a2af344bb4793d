"""How much memory a GPU has for the KV cache: what is left beside weights, the largest steps, and graphs.

The largest steps are run before the cache is made, over pages that all sequences share: each allocation that a request
can cause has happened once, and no request asks for memory that is not there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from textgen.shard.accelerator import Accelerator
from textgen.shard.errors import OutOfMemory
from textgen.shard.protocol import Admit, Failed, Flag, Ints, Source, Step, pack_u32
from textgen.shard.runner import Runner
from textgen.shard.settings import ShardSettings

log = logging.getLogger(__name__)

MARGIN = 0.02  # of the memory: what libraries take later, and what a pool cannot give out again in one piece
GRAPH_SHARE = 0.25  # of the memory of decode steps, beyond it: graphs keep a pool of their own


@dataclass(frozen=True, slots=True)
class Fit:
    """What the memory is divided into, in bytes."""

    available: int
    steps: int
    graphs: int
    margin: int
    page: int
    pages: int

    @property
    def lines(self) -> list[str]:
        """The arithmetic for people."""
        rows = [
            ("free beside the weights", self.available),
            ("largest step", -self.steps),
            ("CUDA graphs", -self.graphs),
            ("margin", -self.margin),
            (f"KV cache: {self.pages} pages", -self.pages * self.page),
        ]
        return [f"  {name:<32}{value / 2**20:>12.1f} MiB" for name, value in rows]


def fit_pages(accelerator: Accelerator, settings: ShardSettings, graphs: int, make: Callable[[int], Runner]) -> Fit:
    """Measure. make: a runner with so many pages; graphs: how many may be captured. Raises `OutOfMemory`."""
    accelerator.settle()
    runner = make(1)
    groups, page = runner.slots.groups, runner.cache.bytes_per_page
    try:
        _run_largest(runner, settings)
        steps = accelerator.peak()
    finally:
        del runner
    accelerator.settle()
    available = accelerator.available()
    of_graphs = int(steps * GRAPH_SHARE) + graphs * accelerator.graph_bytes if graphs else 0
    margin = int(accelerator.total() * MARGIN)
    left = int(max(available - steps - of_graphs - margin, 0) * settings.kv_share)
    pages = min(left // page - 1, settings.num_blocks)  # one is nobody's
    pages -= pages % groups
    fit = Fit(available, steps, of_graphs, margin, page, max(pages, 0))
    for line in ("memory of the GPU:", *fit.lines):
        log.info(line)
    if pages < settings.least_blocks:
        missing = (settings.least_blocks + 1) * page - left
        raise OutOfMemory(
            f"one sequence of {settings.max_context} tokens does not fit the GPU: {missing / 2**20:.1f} MiB are "
            f"missing beside weights, the largest step ({steps / 2**20:.1f} MiB) and graphs; lower --max-total-tokens, "
            "--max-batch-prefill-tokens or --max-batch-size, or raise --cuda-memory-fraction"
        )
    return fit


def _run_largest(runner: Runner, settings: ShardSettings) -> None:
    """Steps than which none takes more, of each kind."""
    for stored in (stored for place in runner.cache.places for stored in place.stored):
        stored.zero_()
    bounds = runner.bounds
    if bounds.encoder:
        _run_encoder(runner)
        return
    longest, most = bounds.max_context, bounds.max_slots
    room = bounds.max_batch_tokens
    prompts = min(-(-room // longest), most)
    lengths = [min(longest, room - index * longest) for index in range(prompts)]
    _run(runner, settings, [length for length in lengths if length > 0], scored=True)
    streams = min(most - 1, room - 1)
    if streams > 0:
        _run(runner, settings, [1] * streams + [min(longest, room - streams)], scored=True)
    _run(runner, settings, [1] * min(most, room), scored=False)
    _follow(runner, min(most, room))


def _run(runner: Runner, settings: ShardSettings, lengths: Sequence[int], scored: bool) -> None:
    """A step of such segments at the end of the longest contexts, drawn with all that a request may ask for."""
    longest = runner.bounds.max_context
    slots, length = np.arange(len(lengths)), np.array(lengths)
    history = pack_u32(np.zeros(longest - 1))
    for slot in slots.tolist():
        top = settings.max_top_n
        wished = Admit(
            slot, 1.0, 50, 0.9, 0.01, 0.9, 1.1, 0.1, 0.1, 0, 0, longest - int(length[slot]), top, top, None, history,
            None, None,
        )  # fmt: skip
        runner.admit(wished)
    flags = np.full_like(slots, int(Flag.SAMPLE))
    if scored:
        flags[length > 1] |= int(Flag.PROMPT_LOGPROBS)
    _step(runner, slots, longest - length, length, flags, _blocks(runner), int(length.sum()))
    runner.slots.free(slots)


def _follow(runner: Runner, count: int) -> None:
    """Two tokens for each of so many sequences, the second from what lies on the device."""
    start = max(runner.bounds.max_context - 3, 0)
    slots, ones = np.arange(count), np.ones(count, np.int64)
    if runner.pipeline is None or start + 3 > runner.bounds.max_context:
        return
    history = pack_u32(np.zeros(start))
    for slot in slots.tolist():
        penalised = Admit(slot, 1.0, 50, 0.9, 0.01, 1.0, 1.1, 0.1, 0.1, 0, 0, start, 0, 0, None, history, None, None)
        runner.admit(penalised)
    sample, last = int(Flag.SAMPLE), int(Flag.SAMPLE | Flag.LAST)
    _step(runner, slots, ones * start, ones, ones * sample, _blocks(runner), count)
    for step in (1, 2):
        _step(runner, slots, ones * (start + step), ones, ones * last, 0, 0)
    runner.slots.free(slots)


def _run_encoder(runner: Runner) -> None:
    bounds, size = runner.bounds, runner.slots.block_size
    tokens = min(bounds.max_context, (bounds.max_batch_tokens - 1) // size * size)
    start = -(-tokens // size) * size
    admit = Admit(0, 1.0, 50, 0.9, 0.01, 0.9, 1.1, 0.1, 0.1, 0, 0, 1, 0, 0, None, b"", None, Source(tokens, start))
    runner.admit(admit)
    slot, blocks = np.zeros(1, np.int64), start // size + 1
    _step(runner, slot, slot, slot + start + 1, slot + int(Flag.SAMPLE), blocks, start + 1)
    runner.slots.free(slot)


def _blocks(runner: Runner) -> int:
    return -(-runner.bounds.max_context // runner.slots.block_size)


def _step(runner: Runner, slots: Ints, starts: Ints, lengths: Ints, flags: Ints, blocks: int, tokens: int) -> None:
    """blocks: of each sequence, all of them the first page."""
    pages = np.full_like(slots, blocks * runner.slots.groups)
    columns = [slots, starts, lengths, 0 * slots, flags, pages]
    zeros = pack_u32(np.zeros(int(pages.sum())))
    step = Step(0, pack_u32(columns), pack_u32(np.zeros(tokens)), zeros, b"", b"", b"")
    for frame in runner.step(step, time.monotonic_ns()).frames:
        if isinstance(frame, Failed) and frame.kind != "numerics":
            raise OutOfMemory(
                f"the largest step does not run on this GPU: {frame.message}; lower --max-batch-prefill-tokens, "
                "--max-batch-size or --max-total-tokens"
            )
