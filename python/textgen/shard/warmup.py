"""The first steps, run before anybody waits for one: they make the libraries set up their threads and buffers."""

from __future__ import annotations

import time

import numpy as np

from textgen.ops.cpu.model import PlannedModel
from textgen.shard.errors import ShardError
from textgen.shard.protocol import Admit, Done, Flag, Source, Step, pack_u32
from textgen.shard.runner import Runner

TOKENS = 32
FEW = 2  # of a plan: its memory is there, and the step, which takes as long as to read the weights, only has to be seen


def warm_up(runner: Runner) -> None:
    """Run a short prompt, and where there is room in its blocks a token after it, in slot 0, then empty the slot.

    Raises `ShardError`.
    """
    bounds, size = runner.bounds, runner.slots.block_size
    groups = runner.slots.groups
    planned = isinstance(runner.model, PlannedModel)
    most = FEW if planned else TOKENS
    tokens = min(most, bounds.max_batch_tokens, bounds.max_context, bounds.num_pages // groups * size)
    if bounds.encoder:  # the whole input and a token of the decoder are in one step, in blocks of their own
        tokens = min(tokens, (bounds.max_batch_tokens - 1) // size * size, (bounds.num_pages - 1) * size)
    blocks = -(-tokens // size)
    source, start, prompt = None, tokens, tokens
    if bounds.encoder:
        start, prompt = blocks * size, 1
        source, blocks = Source(min(tokens, start), start), blocks + 1
    greedy = Admit(0, 0.0, 0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0, 0, prompt, 0, 0, None, b"", None, source)
    runner.admit(greedy)
    first, pages = tokens if source is None else start + 1, blocks * groups
    _run(runner, [0, 0, first, 0, int(Flag.SAMPLE), pages], np.zeros(first), np.arange(pages))
    if not planned and first < min(blocks * size, bounds.max_context if source is None else start + bounds.max_context):
        _run(runner, [0, first, 1, 0, int(Flag.SAMPLE | Flag.LAST), 0], np.zeros(0), np.zeros(0))
    runner.slots.free(np.array([0]))


def _run(runner: Runner, segment: list[int], tokens: object, blocks: object) -> None:
    step = Step(0, pack_u32(segment), pack_u32(tokens), pack_u32(blocks), b"", b"", b"")
    for frame in runner.step(step, time.monotonic_ns()).frames:
        if not isinstance(frame, Done):
            raise ShardError(f"the warm-up step failed: {frame.message}")
