"""Sequences of an encoder-decoder model: the input that the encoder reads stands before the decoder's tokens.

For the router both are one sequence, and one table of blocks. Here they are taken apart: the first segment of a new
sequence brings the whole input, whose keys and values for the decoder go to the first blocks; everything behind counts
positions from the decoder's first token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from torch import Tensor

from textgen.models.decoder import EncoderBatch
from textgen.ops import CrossLayout, Ops
from textgen.ops.sampling import Mask
from textgen.ops.transfer import upload
from textgen.shard.protocol import Flag, Ints, StepColumns
from textgen.shard.slots import Slots, State

_LAST = int(Flag.LAST)
UNLIKE = "the segment and the encoder's input do not fit together"


@dataclass(frozen=True, slots=True)
class Taken:
    """A step without the inputs of its new sequences. `columns` count from each decoder's first token."""

    columns: StepColumns
    inputs: dict[int, Ints]  # by slot: the ids of an input that is new
    unlike: Ints  # slots whose segment does not fit its input; they are not in `columns`


def take_sources(columns: StepColumns, slots: Slots, vocab_size: int, num_pages: int) -> Taken:
    """Take the inputs out of a step, checked, and note their blocks."""
    shift = np.where(slots.state[columns.slot] == State.SEATED, slots.decoder_start[columns.slot], 0)
    if not shift.any():
        return Taken(columns, {}, columns.slot[:0])
    fresh = (shift > 0) & ~slots.sourced[columns.slot]
    reads = (shift > 0) & (columns.start == 0)
    if not (fresh | reads | (shift > columns.start)).any():  # a steady step
        return Taken(msgspec.structs.replace(columns, start=columns.start - shift), {}, columns.slot[:0])
    needed = np.where(fresh, shift // slots.block_size, 0)
    unlike = (shift > columns.start) & ~reads | reads & ((columns.length <= shift) | ~fresh)
    unlike |= (columns.new_pages < needed) | reads & ((columns.flags & _LAST) != 0)
    unlike |= fresh & any_of(columns.blocks >= num_pages, columns.new_pages)
    unlike |= reads & any_of(columns.tokens >= vocab_size, columns.explicit)
    good = ~unlike
    of_input = _leading(columns.explicit, np.where(reads & good, shift, 0))
    of_source = _leading(columns.new_pages, np.where(good, needed, 0))
    tokens, blocks = columns.tokens, columns.blocks
    inputs = {}
    for index in np.flatnonzero(fresh & good).tolist():
        slot = int(columns.slot[index])
        own = blocks[_span(columns.new_pages, index)][: needed[index]]
        slots.source_tables[slot, : len(own)] = own
        slots.sourced[slot] = True
        if reads[index]:
            inputs[slot] = tokens[_span(columns.explicit, index)][: slots.source_len[slot]]
    moved = msgspec.structs.replace(
        columns,
        start=np.where(reads, 0, columns.start - shift),
        length=columns.length - np.where(reads, shift, 0),
        new_pages=columns.new_pages - needed,
    )
    return Taken(_without(moved, columns, good, ~of_input, ~of_source), inputs, columns.slot[unlike])


def encoder_batch(
    inputs: dict[int, Ints], slots: Slots, slot: Ints, layout: tuple[Ints, Ints], ops: Ops, like: Tensor
) -> EncoderBatch:
    """The encoder's part of a step. slot [n] of its segments, layout: the offset and the length of each."""
    size, width = slots.block_size, -(-int(slots.source_len[slot].max()) // slots.block_size)
    new = [each for each in slot.tolist() if each in inputs]
    cross = CrossLayout(*layout, slots.source_len[slot], slots.source_tables[slot, :width], size)
    return EncoderBatch(
        inputs=[upload(inputs[each], like.device) for each in new],
        rows=upload(_rows([(slots.source_tables[each], len(inputs[each])) for each in new], size), like.device),
        attention=ops.cross_attention(cross, like),
    )


def _rows(sources: Sequence[tuple[np.ndarray[tuple[int], np.dtype[np.int32]], int]], size: int) -> Ints:
    """[tokens of all] rows of the cache."""
    rows = [np.zeros(0, np.int64)]
    for table, length in sources:
        blocks, within = np.divmod(np.arange(length), size)
        rows.append(table[blocks].astype(np.int64) * size + within)
    return np.concatenate(rows)


def _leading(counts: Ints, leading: Ints) -> Mask:
    """[sum of counts] whether an item is among the first `leading` of its owner."""
    owners = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    first: Mask = within < leading[owners]
    return first


def any_of(wrong: Mask, counts: Ints) -> Mask:
    """[n] whether any of each segment's `counts` items is wrong."""
    owners = np.repeat(np.arange(len(counts)), counts)
    return np.bincount(owners[wrong], minlength=len(counts)) > 0


def _span(counts: Ints, index: int) -> slice:
    end = int(counts[: index + 1].sum())
    return slice(end - int(counts[index]), end)


def _without(moved: StepColumns, before: StepColumns, good: Mask, tokens: Mask, blocks: Mask) -> StepColumns:
    """The good segments, with the tokens and blocks that are left of them."""
    return msgspec.structs.replace(
        moved,
        slot=moved.slot[good],
        start=moved.start[good],
        length=moved.length[good],
        draft=moved.draft[good],
        flags=moved.flags[good],
        new_pages=moved.new_pages[good],
        tokens=moved.tokens[tokens & np.repeat(good, before.explicit)],
        blocks=moved.blocks[blocks & np.repeat(good, before.new_pages)],
    )
