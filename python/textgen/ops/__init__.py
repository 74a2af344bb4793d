"""The operations, in one or more implementations behind `Ops`."""

from __future__ import annotations

from textgen.ops import reference
from textgen.ops.interface import Attention, AttentionForm, CrossLayout, KvScales, Ops, RowGroups, SegmentLayout


def select_ops() -> Ops:
    """The fastest implementation for this machine. So far every device runs the reference."""
    return reference


__all__ = ["Attention", "AttentionForm", "CrossLayout", "KvScales", "Ops", "RowGroups", "SegmentLayout", "select_ops"]
