"""A small, careless scheduler for tests: random chunks, mixed batches, few blocks, sequences thrown out and resumed."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from textgen.shard.protocol import Done, pack_u32
from textgen.shard.runner import Runner

from .router import Segment, admit, step, tokens_of


@dataclass
class Request:
    """A prompt and what has come of it; `sampling` are fields of Admit."""

    prompt: list[int]
    new: int
    sampling: dict[str, Any] = field(default_factory=dict)
    output: list[int] = field(default_factory=list)
    slot: int | None = None
    blocks: list[list[int]] = field(default_factory=list)  # pages, as far as they are its own still
    ran: int = 0  # tokens whose keys and values are in the cache
    evictions: int = 0

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output

    @property
    def finished(self) -> bool:
        return len(self.output) == self.new


class CarelessScheduler:
    """Runs requests to their end on a runner, deciding by chance all that a router may decide."""

    def __init__(self, runner: Runner, rng: random.Random) -> None:
        self._runner, self._rng = runner, rng
        self._free_pages = list(range(runner.bounds.num_pages))
        self._free_slots = list(range(runner.bounds.max_slots))
        self._freed: list[int] = []
        self._steps = 0

    def run(self, requests: Sequence[Request]) -> None:
        while waiting := [request for request in requests if not request.finished]:
            self._rng.shuffle(waiting)
            self._rng.shuffle(self._free_pages)
            planned, room = [], self._runner.bounds.max_batch_tokens
            for request in waiting:
                segment = self._plan(request, waiting, room) if room else None
                if segment is not None:
                    planned.append((request, segment))
                    room -= max(len(segment.tokens), 1)
            planned = [(r, s) for r, s in planned if r.slot is not None]  # a later one may have thrown it out
            self._run_step(planned)

    def _plan(self, request: Request, others: list[Request], room: int) -> Segment | None:
        if request.slot is None:
            if not self._free_slots or self._rng.random() < 0.3:
                return None
            self._seat(request)
        assert request.slot is not None
        pending = len(request.tokens) - request.ran
        length = min(pending, self._rng.choice([1, 2, 5, 9]), room)
        needed = -(-(request.ran + length) // self._runner.slots.block_size) - len(request.blocks)
        self._leave_behind(request)
        groups = self._runner.slots.groups
        while len(self._free_pages) < needed * groups:
            victims = [r for r in others if r.slot is not None and r is not request and r.ran]
            if not victims:
                return None
            self._throw_out(self._rng.choice(victims))
        blocks = [[self._free_pages.pop() for _ in range(groups)] for _ in range(needed)]
        request.blocks += [list(pages) for pages in blocks]
        last = pending == 1 and bool(request.output) and bool(self._runner.slots.has_last[request.slot])
        tokens = [] if last else request.tokens[request.ran : request.ran + length]
        return Segment(request.slot, request.ran, tokens, last=last, sample=length == pending, blocks=sum(blocks, []))

    def _leave_behind(self, request: Request) -> None:
        """Pages that no window of the next token reaches are anybody's, and what is in them is of no use to anyone."""
        slots, cache = self._runner.slots, self._runner.cache
        if slots.span is None:
            return
        for pages in request.blocks[: max(request.ran - slots.span + 1, 0) // slots.block_size]:
            for page in pages[slots.full :]:
                for place in cache.places:
                    place.keys[page] = place.values[page] = torch.nan
                self._free_pages.append(page)
            del pages[slots.full :]

    def _seat(self, request: Request) -> None:
        slot = self._free_slots.pop(self._rng.randrange(len(self._free_slots)))
        request.slot, request.ran = slot, 0
        self._freed = [freed for freed in self._freed if freed != slot]  # Admit empties it
        history = pack_u32(request.tokens)
        assert not self._runner.admit(admit(slot, len(request.prompt), history=history, **request.sampling))

    def _throw_out(self, request: Request) -> None:
        assert request.slot is not None
        self._free_pages += [page for pages in request.blocks for page in pages]
        self._free_slots.append(request.slot)
        self._freed.append(request.slot)
        request.slot, request.blocks, request.ran = None, [], 0
        request.evictions += not request.finished

    def _run_step(self, planned: list[tuple[Request, Segment]]) -> None:
        self._steps += 1
        frame = step(self._steps, [segment for _, segment in planned], freed=self._freed)
        self._freed = []
        frames = self._runner.step(frame, time.monotonic_ns()).frames
        assert len(frames) == 1 and isinstance(frames[0], Done), frames
        sampled = tokens_of(frames[0])
        assert set(sampled) == {segment.slot for _, segment in planned if segment.sample}
        for request, segment in planned:
            request.ran += segment.row[2]
            if segment.sample:
                request.output.append(sampled[segment.slot])
            if request.finished:
                self._throw_out(request)


def blocks_left(runner: Runner) -> int:
    """Pages in the tables of seated sequences of a model without windows, counted plainly."""
    seated = np.flatnonzero(runner.slots.state)
    return len({int(b) for slot in seated for b in runner.slots.tables[0, slot, : runner.slots.table_len[slot]]})
