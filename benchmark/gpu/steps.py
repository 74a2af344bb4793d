"""The shard's own runner, asked as the router asks it: sequences that decode side by side, and whole prompts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from benchmark.gpu.places import Kind
from benchmark.gpu.tasks import Task
from textgen.shard.protocol import Admit, Done, Flag, Step, pack_u32
from textgen.shard.runner import Outcome, Runner
from textgen.shard.settings import ShardSettings, parse_settings
from textgen.shard.start import build_runner

BLOCK = 16  # positions
QUANTIZED = ("int8", "int4")  # as they are loaded


def make_runner(task: Task, slots: int, longest: int, chunk: int) -> Runner:
    """With a cache for so many sequences as the memory allows, full of random numbers. chunk: tokens of the largest
    step. Raises `NoRoom`, `ModelError` and `ShardError`."""
    settings = _settings(task, task.device, slots, longest, chunk)
    descriptor = os.memfd_create("textgen-bench", os.MFD_ALLOW_SEALING)
    try:
        runner = build_runner(settings, descriptor)
    finally:
        os.close(descriptor)
    with torch.inference_mode():
        for place in runner.cache.places:
            for stored in place.stored:
                _fill(stored)
    return runner


def _settings(task: Task, device: Kind, slots: int, longest: int, chunk: int) -> ShardSettings:
    import json

    quantize = task.form if task.form in QUANTIZED else None
    told = {
        "model_dir": str(task.folder), "dtype": "bfloat16", "device": device, "quantize": quantize,
        "num_blocks": slots * -(-longest // BLOCK), "block_size": BLOCK, "max_slots": slots, "max_batch_tokens": chunk,
        "max_context": longest, "max_top_n": 0, "attention": "native", "kv_cache_dtype": task.kv_cache_dtype,
        "plan": "off",
    }  # fmt: skip
    return parse_settings(json.dumps(told))  # which refuses what it does not know in a sentence


def _fill(stored: Tensor) -> None:
    """With numbers of a cache's size, or scales."""
    if stored.dtype == torch.int8:
        stored.random_(-127, 128)
    elif stored.dim() == 3:
        stored.fill_(0.01)
    else:
        for page in stored.split(max((1 << 24) // max(stored[0].numel(), 1), 1)):
            page.copy_(torch.randn(page.shape, device=page.device))


def pages_of(positions: int) -> int:
    return -(-positions // BLOCK)


class Streams:
    """Greedy sequences that decode side by side from a context of random keys and values, the host a step ahead."""

    def __init__(self, runner: Runner, batch: int, context: int) -> None:
        self._runner, self._number = runner, 0
        self._slots, self._at = np.arange(batch), np.full(batch, context)
        self._most = runner.bounds.num_pages // batch  # pages of each
        for slot in range(batch):
            assert not runner.admit(_greedy(slot, context))
        pages = pages_of(context + 1)
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


def run_prompt(runner: Runner, tokens: int) -> float:
    """Seconds of one step that runs a prompt and samples its first token."""
    assert not runner.admit(_greedy(0, tokens))
    pages = np.arange(pages_of(tokens))
    row = [0, 0, tokens, 0, int(Flag.SAMPLE), len(pages)]
    ids = np.arange(tokens) % 1000
    begun = time.perf_counter()
    step = Step(0, pack_u32(row), pack_u32(ids), pack_u32(pages), b"", b"", b"")
    (frame,) = runner.step(step, time.monotonic_ns()).frames
    took = time.perf_counter() - begun
    assert isinstance(frame, Done), frame
    runner.slots.free(np.array([0]))
    return took


def warmed(task: Task, warm: int, steps: int, notes: list[str]) -> Iterator[tuple[int, Runner, Streams]]:
    """Each batch of the task with its streams, after `warm` steps and before `steps` more. notes: says which find no
    room."""
    longest = task.context + warm + steps + BLOCK
    runner = make_runner(task, max(task.batches), longest, max(task.batches))
    for batch in task.batches:
        if batch * pages_of(longest) > runner.bounds.num_pages:
            notes.append(f"{task.model}: {batch} x {task.context} tokens find no room in the cache.")
            continue
        streams = Streams(runner, batch, task.context)
        for _ in range(warm):
            streams.step()
        streams.end()
        yield batch, runner, streams
        streams.close()


def _greedy(slot: int, prompt: int) -> Admit:
    return Admit(slot, 0.0, 0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0, 0, prompt, 0, 0, None, b"", None, None)
