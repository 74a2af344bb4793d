"""Steps that follow one another on a GPU, the host a step ahead: launched as they come, answered as they end."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from textgen.ops.cuda.fixed import NotFixed
from textgen.ops.sampling import Mask
from textgen.shard.batch import Fault
from textgen.shard.decode import RING, DecodeSteps, Launched, Results
from textgen.shard.masks import Arrived
from textgen.shard.protocol import Done, Failed, Ints, Times, pack_f32, pack_ones, pack_u32
from textgen.shard.slots import FAILURES, Slots
from textgen.shard.steady import Answered, Continuation, Following, NotFollowed

log = logging.getLogger(__name__)

AT_MOST = RING - 1  # steps under way


@dataclass(slots=True, kw_only=True)
class UnderWay:
    """A step that was launched, and what its answer needs."""

    number: int
    following: Following
    launched: Launched
    rows: int  # padded
    received_ns: int
    started_ns: int
    masks: tuple[Ints, Arrived] | None = None  # rows, and what came


class Pipeline:
    """The steps under way. A step may follow while others run; whatever else comes waits until they are answered."""

    def __init__(self, steps: DecodeSteps, slots: Slots, mask_timeout: float) -> None:
        self.steps, self._slots, self._mask_timeout = steps, slots, mask_timeout
        self._under_way: deque[UnderWay] = deque()
        self._enabled = True

    def __len__(self) -> int:
        return len(self._under_way)

    def follow(self, found: Continuation | None) -> Following | None:
        """The continuation on the device, where its sequences can be run so."""
        if found is None or not self._enabled or not self.steps.takes(found.slot):
            return None
        return Following(**{field.name: getattr(found, field.name) for field in fields(found)})

    def launch(self, number: int, following: Following, received_ns: int) -> Iterator[Answered]:
        """Queue the step that `following` expects. On the way come the answers that its masks, or room, wait for.

        Raises `NotFollowed`, before anything is changed that the step needs.
        """
        while len(self._under_way) >= AT_MOST:
            yield self.finish()
        started, slots = time.monotonic_ns(), self._slots
        if not following.loaded:
            self.steps.load(following.slot, following.starts.astype(np.int64) - 1)
            following.loaded = True
        begun = following.begun
        try:
            launched = self.steps.forward(begun)
        except NotFixed as error:
            log.warning("each step is worked out, none is captured: %s", error)
            self._enabled = False
            raise NotFollowed from error
        if slots.span is not None:
            slots.start[following.slot] += 1
        if begun is not None:
            slots.append_blocks(following.slot[begun.sequences], np.ones_like(begun.sequences), begun.pages)
        step = UnderWay(
            number=number, following=following, launched=launched, rows=self.steps.padded,
            received_ns=received_ns, started_ns=started,
        )  # fmt: skip
        if following.masks is not None:
            which, places = following.masks.T
            yield from self.drain()  # masks are made of the tokens before
            step.masks = which, following.board.read(number, places)
        self.steps.sample(launched, step.masks)
        self._under_way.append(step)

    def ready(self) -> bool:
        """Whether the oldest step has ended."""
        event = self._under_way[0].launched.event
        return event is not None and event.ready()

    def drain(self) -> Iterator[Answered]:
        while self._under_way:
            yield self.finish()

    def finish(self) -> Answered:
        """Wait for the oldest step, and answer it."""
        step = self._under_way.popleft()
        results = self.steps.results(step.launched, step.rows)
        slot = step.following.slot
        faults = self._faults(step, results)
        kept = np.ones(len(slot), np.bool_)
        for fault in faults:
            step.following.sound = False
            kept &= ~np.isin(slot, fault.slots)
            self._slots.fail(fault.slots, fault.kind)
        tokens, logprobs = results.tokens[kept], results.logprobs[kept]
        now = time.monotonic_ns()
        done = Done(
            step=step.number,
            slots=step.following.packed_slots if kept.all() else pack_u32(slot[kept]),
            counts=pack_ones(len(tokens)),
            tokens=pack_u32(tokens),
            logprobs=pack_f32(logprobs),
            wide=None,
            times=Times(max(step.started_ns - step.received_ns, 0), now - step.started_ns, 0),
        )
        failed = [Failed(step.number, pack_u32(fault.slots), fault.kind, fault.message) for fault in faults]
        return Answered([*failed, done], len(slot), None if step.masks is None else step.masks[1].waited)

    def _faults(self, step: UnderWay, results: Results) -> list[Fault]:
        """Why sequences of the step are of no use; each is named once, the first reason counts."""
        slots, slot = self._slots, step.following.slot
        failed = slots.failed[slot]
        of_earlier = [
            (failed & (slots.failed_as[slot] == code), kind, "the slot failed in an earlier step")
            for code, kind in enumerate(FAILURES)
        ]
        broken = ~np.isfinite(results.normalisers)
        reasons: list[tuple[Mask, str, str]] = [
            *(of_earlier if failed.any() else []),
            (broken, "numerics", "the model's logits are not finite"),
        ]
        if step.masks is not None:
            which, arrived = step.masks
            late, dead = np.zeros((2, len(slot)), np.bool_)
            late[which] = arrived.late
            drawn = results.tokens[which]
            permitted = (arrived.bits[np.arange(len(which)), drawn >> 3] >> (drawn & 7)) & 1 == 1
            dead[which] = ~(permitted | arrived.late | arrived.free)
            seconds = f"{self._mask_timeout:g} seconds"
            reasons.append((late, "internal", f"the mask of its grammar did not come within {seconds}"))
            reasons.append((dead, "limit", "its grammar allows no token here; use a looser grammar"))
        faults, left = [], np.ones(len(slot), np.bool_)
        for mask, kind, message in reasons:
            if (mask & left).any():
                faults.append(Fault(slot[mask & left], kind, message))
                left &= ~mask
        return faults
