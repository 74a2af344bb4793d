"""Groups of layers that share the pages of the KV cache, so that a layer with a sliding window keeps only its window.

A page holds a block of positions for one group. Groups have as many layers each, hence all pages have one size and come
from one pool. Layers of a group have the same window; what does not divide leaves places empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_GROUPS = 8  # each takes a page and a table for every block of every sequence


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """`windows` of the groups, those without one first; for each layer its group and its place in a page."""

    windows: tuple[int | None, ...]
    group: tuple[int, ...]
    place: tuple[int, ...]

    @property
    def page_layers(self) -> int:
        """Layers that a page has room for."""
        return max(self.place) + 1

    @property
    def full(self) -> int:
        """Groups without a window."""
        return self.windows.count(None)

    @property
    def windowed(self) -> int:
        """Groups with a window."""
        return len(self.windows) - self.full

    @property
    def span(self) -> int | None:
        """The widest window of a group; None without windows."""
        return max((window for window in self.windows if window is not None), default=None)

    def sequence_pages(self, tokens: int, block_size: int, chunk: int = 1) -> int:
        """The most pages that a sequence of so many tokens holds, run in chunks of `chunk`."""
        blocks = -(-tokens // block_size)
        kept = blocks if self.span is None else min(blocks, -(-(self.span + chunk - 2) // block_size) + 1)
        return blocks * self.full + kept * self.windowed


def group_layers(windows: Sequence[int | None], max_context: int) -> LayerGroups:
    """Share out layers with these windows. One that no sequence of `max_context` tokens outgrows is none."""
    cut = [window if window is not None and window < max_context else None for window in windows]
    kinds = sorted(set(cut), key=lambda window: (window is not None, window or 0))
    counts = [cut.count(kind) for kind in kinds]
    size = _page_layers(counts)
    of_groups: list[int | None] = []
    group, place = [0] * len(cut), [0] * len(cut)
    for kind in kinds:
        for number, layer in enumerate(index for index, window in enumerate(cut) if window == kind):
            if number % size == 0:
                of_groups.append(kind)
            group[layer], place[layer] = len(of_groups) - 1, number % size
    return LayerGroups(tuple(of_groups), tuple(group), tuple(place))


def _page_layers(counts: Sequence[int]) -> int:
    """Layers of a page: as few places as can be stay empty, and then as few groups."""

    def groups(size: int) -> int:
        return sum(-(-count // size) for count in counts)

    sizes = [size for size in range(1, max(counts) + 1) if groups(size) <= max(MOST_GROUPS, len(counts))]
    return min(sizes, key=lambda size: (groups(size) * size, groups(size)))
