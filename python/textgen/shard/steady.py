"""Steps that are as the one before, a token further: nothing of them is worked out again.

Sequences that go on from the likeliest token, within the blocks they have, send the same segments step after step but
for where these start. What was checked and packed for the first of such steps holds for those that follow it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from textgen.models.decoder import Repeat, Repeats
from textgen.ops.sampling import Floats
from textgen.shard.batch import Segments
from textgen.shard.protocol import Ints, Step, pack_u32
from textgen.shard.slots import Slots


@dataclass(slots=True)
class Steady:
    """The segments of the last step, and what they need."""

    slot: Ints
    packed_slots: bytes
    last: Ints  # by slot, the token sampled last
    batch: Repeat
    expected: NDArray[np.uint32]  # the segments of the next step as they travel
    starts: NDArray[np.uint32]  # of these
    left: int  # steps in which no sequence comes to the end of a block

    def continues(self, step: Step) -> bool:
        """Whether the step is the next one. If it is, it has to be run; if it is not, this is of no use any more."""
        rest = step.tokens or step.blocks or step.copies or step.freed or step.masks
        if rest or self.left == 0 or len(step.segments) != self.expected.nbytes:
            return False
        self.left -= 1
        self.starts += 1
        return step.segments == self.expected.tobytes()

    def run(self, slots: Slots) -> tuple[Ints, Floats] | None:
        """[n] tokens and their log-probabilities; None where some are not finite: then nothing was sampled."""
        if slots.span is not None:
            slots.start[self.slot] += 1
        self.last.take(self.slot, out=self.batch.ids, mode="clip")
        tokens, chosen, normalisers = self.batch.run()
        if not isfinite(np.add.reduce(normalisers)):
            return None
        self.last[self.slot] = tokens
        return tokens, chosen - normalisers


def steady(step: Step, segments: Segments, slots: Slots, model: Repeats | None) -> Steady | None:
    """What the step, which has run well, tells of the next one; None where that has more to it."""
    slot, count = segments.slot, len(segments.slot)
    if model is None or 24 * count != len(step.segments) or not segments.last.all():
        return None
    if (segments.length > 1).any() or not segments.sample.all() or segments.prompt_logprobs.any():
        return None
    plain = slots.temperature[slot].max() == 0 and slots.top_n[slot].max() == 0
    if not plain or slots.remembers[slot].any() or slots.ruled[slot].any():
        return None
    left = slots.block_size - 1 - int((segments.start % slots.block_size).max())
    left = min(left, slots.max_context - int(segments.end.max()))
    batch = model.repeat() if left > 0 else None
    if batch is None:
        return None
    expected = np.frombuffer(step.segments, "<u4").copy()
    expected[5 * count :] = 0  # no new pages
    starts = expected[count : 2 * count]
    return Steady(slot, pack_u32(slot), slots.last_token.numpy(), batch, expected, starts, left)
