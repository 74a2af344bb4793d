"""What a step costs to cross into Python and back: the protocol's columns against a struct for each sequence."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import numpy as np

from textgen.shard.protocol import (
    Done,
    Flag,
    Kind,
    Step,
    Times,
    decode,
    encode,
    pack_f32,
    pack_ones,
    pack_u32,
    step_columns,
)

ROUNDS, REPEATS = 40, 50


class Segment(msgspec.Struct, array_like=True):
    """The same segment as an object of its own."""

    slot: int
    start: int
    length: int
    draft: int
    flags: int
    new_blocks: int


class Sampled(msgspec.Struct, array_like=True):
    """The same result as an object of its own."""

    slot: int
    token: int
    logprob: float


def micros(work: Callable[[], object]) -> float:
    """Microseconds of one call: the median over rounds."""
    rounds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        for _ in range(REPEATS):
            work()
        rounds.append((time.perf_counter_ns() - begin) / REPEATS / 1e3)
    return float(np.median(rounds))


def columns(sequences: int) -> float:
    """A decode step of so many sequences, read, and its answer written, as the protocol has it.

    One in sixteen gets a new block, as with blocks of sixteen positions.
    """
    ones = np.ones(sequences, dtype=np.uint32)
    slots = np.arange(sequences, dtype=np.uint32)
    new = (slots % 16 == 0).astype(np.uint32)
    segments = np.concatenate([slots, slots + 100, ones, 0 * ones, ones * int(Flag.SAMPLE | Flag.LAST), new])
    payload = encode(Step(7, pack_u32(segments), b"", pack_u32(slots[::16]), b"", b"", b""))[5:]
    tokens, logprobs = slots.astype(np.int64), np.full(sequences, -1.25, dtype=np.float32)

    def cross() -> bytes:
        step = decode(Kind.STEP, payload)
        assert isinstance(step, Step)
        slot = step_columns(step).slot
        counts = pack_ones(len(slot))
        done = Done(step.step, pack_u32(slot), counts, pack_u32(tokens), pack_f32(logprobs), None, Times(1, 2, 3))
        return encode(done)

    return micros(cross)


def objects(sequences: int) -> float:
    """The same with one msgpack array for each sequence."""
    encoder = msgspec.msgpack.Encoder()
    decoder = msgspec.msgpack.Decoder(list[Segment])
    payload = encoder.encode([Segment(slot, slot + 100, 1, 0, 3, 0) for slot in range(sequences)])
    tokens, logprobs = list(range(sequences)), [-1.25] * sequences

    def cross() -> bytes:
        rows = zip(decoder.decode(payload), tokens, logprobs, strict=True)
        return encoder.encode([Sampled(segment.slot, token, logprob) for segment, token, logprob in rows])

    return micros(cross)
