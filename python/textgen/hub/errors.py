"""Why a model cannot be had from the hub. No sentence ever holds a token or a signed address."""

from __future__ import annotations


class HubError(Exception):
    """One sentence that says what to change."""


class Unreachable(HubError):
    """The hub does not answer, or not now: what is in the cache may still serve."""
