"""What can go wrong in a shard, as types: each maps to one frame or one exit code."""

from __future__ import annotations


class ShardError(Exception):
    """A reason to stop the shard, in one sentence that says what to change."""

    exit_code = 1


class OutOfMemory(ShardError):
    """The weights or the KV cache do not fit the device."""

    exit_code = 4
