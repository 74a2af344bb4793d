"""Grammar masks: which tokens may be sampled. The router writes them during the forward pass, they are read after."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from textgen.ops.sampling import Mask
from textgen.shard.protocol import Ints, ProtocolError

PARTS = 4  # steps' worth of slots: two steps are in flight, so a slot is read before its next turn
HEADER = 64  # bytes before a mask's bits: u64 stamp, u64 kind, the rest unused; keeps slots on cache lines of their own
PAUSE = 20e-6  # seconds between two looks at a stamp that is not there yet

KIND_BITS = 0  # the bits say which tokens are allowed
KIND_ANY = 1  # no bits: sample freely, the router does not use the result
KIND_PART = 2  # the bits are tokens that are allowed, others may be too; the whole mask comes when it is asked for


@dataclass(frozen=True, slots=True)
class MaskSize:
    """How the region `masks` is laid out."""

    max_slots: int
    vocab_size: int

    @property
    def count(self) -> int:
        """Mask slots."""
        return PARTS * self.max_slots

    @property
    def row(self) -> int:
        """Bytes of one mask's bits, in whole u32 words."""
        return 4 * -(-self.vocab_size // 32)

    @property
    def stride(self) -> int:
        """Bytes from one slot to the next."""
        return HEADER + -(-self.row // 64) * 64

    @property
    def region(self) -> int:
        """Bytes of the region."""
        return self.count * self.stride


@dataclass(frozen=True, slots=True)
class Arrived:
    """The masks of a step, in the order asked for."""

    late: Mask  # [n] not there in time
    free: Mask  # [n] there, and without bits
    part: Mask  # [n] there in part
    bits: NDArray[np.uint8]  # [n, row] little-endian bits by token id; of late and free ones meaningless
    waited: float  # seconds


class MaskBoard:
    """The region as the shard sees it: it reads, the router writes. `timeout`: seconds, for all masks of a step.

    `ask`: has the router write whole masks of a step to these slots, where it has written parts.
    """

    ask: Callable[[int, Ints], None] | None = None

    def __init__(self, region: memoryview, size: MaskSize, timeout: float) -> None:
        self._size, self.timeout = size, timeout
        rows = np.frombuffer(region, np.uint8).reshape(size.count, size.stride)
        self._bits = rows[:, HEADER : HEADER + size.row]
        self._stamps, self._kinds = rows[:, :8].view("<u8")[:, 0], rows[:, 8:16].view("<u8")[:, 0]
        self._barrier = threading.Lock()
        self._awaited: tuple[int, float] | None = None  # the step that was waited for last, and since when

    def forget(self) -> None:
        """Void every stamp: of a memory that an earlier shard has used."""
        self._stamps[:] = 0

    def check(self, masks: Ints, samples: Mask) -> None:
        """Refuse pairs [k, 2] of segment and mask slot that name no sampled segment or no mask slot. `samples`: which
        segments sample. Raises `ProtocolError`."""
        segments, slots = masks.T
        if int(segments.max()) >= len(samples):
            raise ProtocolError(f"a mask names segment {segments.max()} of {len(samples)}")
        if int(slots.max()) >= self._size.count:
            raise ProtocolError(f"mask slot {slots.max()} is not below {self._size.count}")
        if len(set(segments.tolist())) != len(segments) or len(set(slots.tolist())) != len(slots):
            raise ProtocolError("a segment or a mask slot is named twice by the masks of a step")
        if not samples[segments].all():
            raise ProtocolError("a mask names a segment that samples nothing")

    def read(self, step: int, slots: Ints, parts: bool = False) -> Arrived:
        """Wait until the masks of the step are there, at most until the timeout; `slots` [n] are checked. A step
        that is read again goes on waiting from when it was read first. Unless `parts` will do, masks are whole."""
        if self._awaited is None or self._awaited[0] != step:
            self._awaited = step, time.monotonic()
        started = self._awaited[1]
        stamp = np.uint64(step + 1)
        late: Mask = self._stamps[slots] != stamp
        while late.any() and time.monotonic() - started < self.timeout:
            time.sleep(PAUSE)
            late = self._stamps[slots] != stamp
        kinds = self._kinds[slots]
        if not parts and (part := ~late & (kinds == KIND_PART)).any():
            if self.ask is not None:
                self.ask(step, slots[part])
            while (kinds[part] == KIND_PART).any() and time.monotonic() - started < self.timeout:
                time.sleep(PAUSE)
                kinds = self._kinds[slots]
            late |= part & (kinds == KIND_PART)
        # The router writes the bits, then the stamp. A processor that reorders reads must not take older bits: taking
        # and giving back a lock, twice, orders what comes after behind what came before.
        for _ in range(2):
            with self._barrier:
                pass
        free: Mask = ~late & (kinds == KIND_ANY)
        part = ~late & (kinds == KIND_PART)
        return Arrived(late, free, part, self._bits[slots], time.monotonic() - started)
