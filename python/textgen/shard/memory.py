"""Shared memory with the router: an unnamed memfd, sized and sealed here. Each side writes only its own regions."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass

from textgen.shard.errors import ShardError
from textgen.shard.masks import MaskBoard, MaskSize
from textgen.shard.protocol import Range, Region

LOGPROBS = "logprobs"
MASKS = "masks"
PARTS = 4  # step s writes into part s % 4; two steps are in flight, so a part is read before its next turn

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class WideLimit(Exception):
    """The wide results of a step do not fit its part of the region."""


@dataclass(frozen=True, slots=True)
class WideSize:
    """How large the wide results of one step can get."""

    max_batch_tokens: int
    max_slots: int
    max_top_n: int

    @property
    def part(self) -> int:
        """Bytes: a log-probability and a rank per prompt token, an id and a log-probability per top token, of prompts
        and of slots; 64-byte aligned."""
        needed = 8 * self.max_batch_tokens * (1 + self.max_top_n) + 8 * self.max_slots * self.max_top_n
        return -(-needed // 64) * 64


class SharedMemory:
    """The mapped memfd. The launcher makes it empty and allows sealing; the descriptor is inherited."""

    def __init__(self, descriptor: int, wide: WideSize, masks: MaskSize, mask_timeout: float) -> None:
        self.part = wide.part
        logprobs = self.part * PARTS
        total = -(-(logprobs + masks.region) // mmap.PAGESIZE) * mmap.PAGESIZE
        used_before = _size_and_seal(descriptor, total)
        self._map = mmap.mmap(descriptor, total)
        self.regions = [Region(LOGPROBS, 0, logprobs), Region(MASKS, logprobs, masks.region)]
        self.masks = MaskBoard(memoryview(self._map)[logprobs : logprobs + masks.region], masks, mask_timeout)
        if used_before:
            self.masks.forget()

    def write(self, step: int, pieces: Sequence[bytes]) -> Range:
        """Write the pieces one after the other into the step's part; the range is absolute.

        Raises `WideLimit` when they do not fit; nothing is written then.
        """
        length = sum(map(len, pieces))
        if length > self.part:
            raise WideLimit(f"{length} bytes of log-probabilities do not fit the {self.part} bytes kept for one step")
        start = offset = (step % PARTS) * self.part
        for piece in pieces:
            self._map[offset : offset + len(piece)] = piece
            offset += len(piece)
        return Range(start, length)


def _size_and_seal(descriptor: int, total: int) -> bool:
    """Give the memfd its size for good. True for one that an earlier shard sized alike: it is taken as it is."""
    try:
        used_before = os.fstat(descriptor).st_size == total
        if not used_before:
            os.ftruncate(descriptor, total)
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        raise ShardError(
            f"--memory-fd {descriptor} cannot be sized to {total} bytes and sealed ({error.strerror}); "
            "pass an empty memfd made with MFD_ALLOW_SEALING"
        ) from None
    return used_before
