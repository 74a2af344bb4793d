"""What is made of times: shares, percentiles, gaps. No device is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so great a share, 0 to 1, of the values does not exceed, between neighbours in proportion."""
    if not values:
        raise ValueError("there are no values to take a percentile of")
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def idle_share(busy: Iterable[tuple[float, float]]) -> float:
    """The part of the time from the first begin to the last end in which none of the spans (begin, end) runs."""
    spans = sorted(busy)
    if not spans:
        raise ValueError("nothing ran on the device")
    first, covered, end = spans[0][0], 0.0, spans[0][0]
    for begin, stop in spans:
        covered += max(stop - max(begin, end), 0.0)
        end = max(end, stop)
    return 1 - covered / (end - first) if end > first else 0.0
