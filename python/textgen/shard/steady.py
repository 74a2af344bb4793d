"""Steps that are as the one before, a token further: nothing of them is worked out again.

Sequences that go on from the likeliest token send the same segments step after step but for where these start, and for
the block that each begins now and then. What was checked and packed for the first of such steps holds for those that
follow it. Where layers have windows, or are of several groups, they hold as long as no block begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from textgen._router import Follower
from textgen.models.decoder import Begun, Repeat, Repeats
from textgen.ops.sampling import Allowed, Floats, Mask
from textgen.shard.batch import Segments
from textgen.shard.masks import MaskBoard
from textgen.shard.protocol import Done, Failed, Ints, ProtocolError, Step, pack_u32, unpack_pairs, unpack_u32
from textgen.shard.slots import Slots


class Ran(NamedTuple):
    """What came of a step."""

    tokens: Ints
    logprobs: Floats
    mask_wait: float | None  # seconds; None without masks


class Series(NamedTuple):
    """Steps that were answered one after the other, without the interpreter."""

    rest: bytes  # what came and was not answered
    steps: int = 0
    unsound: bool = False  # the first of the rest has to be worked out
    begun: Sequence[tuple[int, int]] = ()  # a sequence and the page that it begins, in order


@dataclass(slots=True, kw_only=True)
class Continuation:
    """The segments of the last step, and what the next one may be if it is as that one."""

    slot: Ints
    packed_slots: bytes
    expected: NDArray[np.uint32]  # the segments of the next step as they travel
    starts: NDArray[np.uint32]  # of these
    new_pages: NDArray[np.uint32]  # of these
    within: int  # steps in which no sequence comes to the end of a block
    left: int  # steps that may be as the one before
    block_size: int
    num_pages: int
    board: MaskBoard
    samples: Mask  # all do
    masks: Ints | None = None  # [k, 2] segment and mask slot, of the step that comes
    begun: Begun | None = None  # the blocks of the step that comes

    def continues(self, step: Step) -> bool:
        """Whether the step is the next one. If it is, it has to be run; if it is not, this is of no use any more."""
        rest = step.tokens or step.copies or step.freed
        if rest or self.left == 0 or len(step.segments) != self.expected.nbytes:
            return False
        self.left -= 1
        self.starts += 1
        if not self._begins(step.blocks):
            return False
        return step.segments == self.expected.tobytes() and self._takes(step.masks)

    def _begins(self, blocks: bytes) -> bool:
        """Whether the blocks are those that the sequences need now: a page for each that has filled its last one."""
        self._settle()
        if self.within > 0:
            self.within -= 1
            return not blocks
        offsets = self.starts % self.block_size
        self.new_pages[:] = offsets == 0
        self.within = self.block_size - 1 - int(offsets.max())
        which = np.flatnonzero(self.new_pages)
        if len(blocks) != 4 * len(which):
            return False
        if blocks:
            self.begun = Begun(which, unpack_u32(blocks, "blocks"))
        return self.begun is None or int(self.begun.pages.max()) < self.num_pages

    def _settle(self) -> None:
        """The blocks of the step before have begun."""
        if self.begun is not None:
            self.begun = None
            self.new_pages[:] = 0

    def _takes(self, masks: bytes) -> bool:
        """Whether there is nothing wrong with the masks."""
        try:
            self.masks = unpack_pairs(masks, "masks") if masks else None
            if self.masks is not None:
                self.board.check(self.masks, self.samples)
        except ProtocolError:
            return False
        return True


@dataclass(slots=True, kw_only=True)
class Steady(Continuation):
    """A continuation that a recorded plan runs again."""

    last: Ints  # by slot, the token sampled last
    batch: Repeat
    draws: bool  # some tokens are not the likeliest as they are

    def run(self, number: int, slots: Slots) -> Ran | None:
        """[n] tokens; None, and nothing was sampled, where there is more to it: numbers that are not finite, or a mask
        that has not come or leaves nothing to draw."""
        masks = self.masks
        if masks is not None and self.draws:
            return None
        if slots.span is not None:
            slots.start[self.slot] += 1
        found = self.batch.run(self.begun, masks is None)
        if found is None:
            return None
        tokens, logprobs = found
        waited = None
        if masks is not None:
            waited = self._keep_to_masks(number, masks, tokens)
            if waited is None:
                return None
            self.last[self.slot] = tokens
        if self.begun is not None:  # a step that is worked out after all has them yet to come
            which, pages = self.begun
            slots.append_blocks(self.slot[which], np.ones_like(which), pages)
        return Ran(tokens, logprobs, waited)

    def run_on(self, follower: Follower, pending: bytes, slots: Slots) -> Series:
        """Answer the steps that come now, up to one that is not as the one before. pending: what was read before."""
        self._settle()
        most, pages = min(self.left, self.batch.room()), (self.block_size, self.num_pages)
        series = Series(*follower.answer(pending, self.batch.addresses, self.expected.tobytes(), most, pages))
        self.starts += series.steps
        self.left -= series.steps
        if series.steps:
            self.within = self.block_size - 1 - int((self.starts % self.block_size).max())
        if series.begun:
            which, begun = np.array(series.begun).T
            owners, counts = np.unique(which, return_counts=True)
            slots.append_blocks(self.slot[owners], counts, begun[which.argsort(kind="stable")])
        if slots.span is not None:
            slots.start[self.slot] += series.steps
        return series

    def _keep_to_masks(self, number: int, masks: Ints, tokens: Ints) -> float | None:
        """Put the likeliest allowed token where another one stands. Seconds that were waited; None where there is no
        such token, or no mask.

        The likeliest token of all is the likeliest allowed one if a part of a mask allows it. Else the whole mask says.
        """
        rows, places = masks.T
        arrived = self.board.read(number, places, parts=True)
        waited = arrived.waited
        if arrived.late.any() or arrived.free.any():
            return None
        forbidden = ~Allowed(rows, arrived.bits).permits(tokens)
        if not forbidden.any():
            return waited
        rows, bits = rows[forbidden], arrived.bits[forbidden]
        if arrived.part[forbidden].any():
            whole = self.board.read(number, places[forbidden])
            if whole.late.any() or whole.free.any():
                return None
            bits, waited = whole.bits, whole.waited
            forbidden = ~Allowed(rows, bits).permits(tokens)
            if not forbidden.any():
                return waited
            rows, bits = rows[forbidden], bits[forbidden]
        return waited if self.batch.choose_again(rows, bits) else None


class NotFollowed(Exception):
    """Steps of this model cannot be run from what lies on the device; each is worked out."""


@dataclass(slots=True, kw_only=True)
class Following(Continuation):
    """A continuation that a GPU runs from what lies there (`pipeline.py`)."""

    loaded: bool = False
    sound: bool = True  # none of its sequences has failed


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of a step on a GPU."""

    frames: list[Done | Failed]
    count: int
    mask_wait: float | None


def continuation(step: Step, segments: Segments, slots: Slots, board: MaskBoard, num_pages: int) -> Continuation | None:
    """What the step, which has run well, tells of the next one; None where that has more to it."""
    slot, count = segments.slot, len(segments.slot)
    if 24 * count != len(step.segments) or not segments.last.all():
        return None
    if (segments.length > 1).any() or not segments.sample.all() or segments.prompt_logprobs.any():
        return None
    if slots.top_n[slot].max() > 0 or slots.ruled[slot].any():
        return None
    within = slots.block_size - 1 - int((segments.start % slots.block_size).max())
    left = slots.max_context - int(segments.end.max())
    ahead = slots.table_len[slot] > -(-segments.end // slots.block_size)
    if slots.groups > 1 or slots.span is not None or ahead.any():  # what comes is not what the next position is in
        left = min(left, within)
    if left <= 0:
        return None
    expected = np.frombuffer(step.segments, "<u4").copy()
    expected[5 * count :] = 0  # no new pages
    return Continuation(
        slot=slot,
        packed_slots=pack_u32(slot),
        expected=expected,
        starts=expected[count : 2 * count],
        new_pages=expected[5 * count :],
        within=within,
        left=left,
        block_size=slots.block_size,
        num_pages=num_pages,
        board=board,
        samples=np.ones(count, np.bool_),
    )


def steady(
    step: Step, segments: Segments, slots: Slots, model: Repeats | None, board: MaskBoard, num_pages: int
) -> Steady | None:
    """The continuation by a plan, of sequences without masks where some are drawn or penalised."""
    remembers = slots.remembers[segments.slot].any()
    draws = bool(remembers or (slots.temperature[segments.slot] > 0).any())
    if model is None or (step.masks and draws):
        return None
    found = continuation(step, segments, slots, board, num_pages)
    if found is None:
        return None
    rows = slots.sampling_rows(found.slot, segments.end + 1) if draws else None
    last = slots.last_token.numpy()
    batch = model.repeat(found.slot, last, rows, slots.history if remembers else None)
    if batch is None:
        return None
    of_step = {field.name: getattr(found, field.name) for field in fields(found)}
    return Steady(**of_step, last=last, batch=batch, draws=draws)
