"""The router's half of the region `masks`, written in plain Python."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from textgen.shard.masks import HEADER, KIND_ANY, KIND_BITS, KIND_PART, MaskSize
from textgen.shard.runner import Runner


def mask_slot(size: MaskSize, step: int, allowed: Iterable[int] | None, part: bool = False) -> bytes:
    """A whole mask slot; without `allowed` one that has no bits. `part`: others may be allowed too."""
    bits = bytearray(size.stride - HEADER)
    for token in allowed or ():
        bits[token // 8] |= 1 << token % 8
    kind = KIND_ANY if allowed is None else KIND_PART if part else KIND_BITS
    return struct.pack("<QQ", step + 1, kind).ljust(HEADER, b"\0") + bytes(bits)


def write_mask(runner: Runner, step: int, slot: int, allowed: Iterable[int] | None, part: bool = False) -> None:
    """Put a mask where the runner looks for it."""
    size = MaskSize(runner.bounds.max_slots, runner.bounds.vocab_size)
    region = next(region for region in runner.memory.regions if region.name == "masks")
    assert region.length == size.region
    start = region.offset + slot * size.stride
    runner.memory._map[start : start + size.stride] = mask_slot(size, step, allowed, part)
