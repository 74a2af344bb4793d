"""What is made of times: shares, percentiles, gaps, medians of turns. No device is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so great a share, 0 to 1, of the values does not exceed, between neighbours in proportion."""
    if not values:
        raise ValueError("there are no values to take a percentile of")
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def gaps(busy: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The spans (begin, end) between the first begin and the last end in which none of the given spans runs."""
    found: list[tuple[float, float]] = []
    end: float | None = None
    for begin, stop in sorted(busy):
        if end is not None and begin > end:
            found.append((end, begin))
        end = stop if end is None else max(end, stop)
    return found


def idle_share(busy: Sequence[tuple[float, float]]) -> float:
    """The part of the time from the first begin to the last end in which none of the spans (begin, end) runs."""
    if not busy:
        raise ValueError("nothing ran on the device")
    whole = max(stop for _, stop in busy) - min(begin for begin, _ in busy)
    return sum(stop - begin for begin, stop in gaps(busy)) / whole if whole else 0.0


def medians(
    programs: Mapping[str, Callable[[], object]], rounds: int, seconds: Callable[[Callable[[], object]], float]
) -> dict[str, float]:
    """The median seconds of each program. They take turns, and the first round is not counted."""
    found: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(rounds + 1):
        for name, program in programs.items():
            took = seconds(program)
            if number:
                found[name].append(took)
    return {name: median(times) for name, times in found.items()}


def pairs(start: int, length: int) -> int:
    """How many positions the tokens of a chunk see, all together, that begins behind `start` others."""
    return length * start + length * (length + 1) // 2
