"""Captured steps: which are captured, when, and how many of them are kept.

A step is captured once it has occurred a few times, and never two shortly after another: whoever waits for tokens waits
for one capture at most now and then, and being ready waits for none.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable

from textgen.shard.accelerator import Accelerator, CaptureError, Replay

log = logging.getLogger(__name__)

OFTEN = 2  # runs of a kind before it is captured; the first makes libraries and kernels ready
SPACING = 8  # runs of any kind between two captures
MOST = 128  # graphs that are kept; those that were replayed longest ago go


class Graphs:
    """Runs pieces of work by their kind: by its graph where there is one. `budget`: bytes that all graphs may take."""

    def __init__(self, accelerator: Accelerator, budget: int, most: int = MOST) -> None:
        self._accelerator, self._most = accelerator, most
        self._room = budget
        self._replays: OrderedDict[Hashable, Replay] = OrderedDict()
        self._seen: Counter[Hashable] = Counter()
        self._since = SPACING
        self.enabled = budget > 0 and most > 0 and accelerator.kernels is not None

    def __len__(self) -> int:
        return len(self._replays)

    def run(self, kind: Hashable, work: Callable[[], None]) -> None:
        """Queue the work. All that it reads and writes lies in the same place each time."""
        replay = self._replays.get(kind)
        self._since += 1
        if replay is None and self._is_due(kind):
            replay = self._capture(kind, work)
        if replay is None:
            work()
        else:
            self._replays.move_to_end(kind)
            replay()

    def _is_due(self, kind: Hashable) -> bool:
        if not self.enabled:
            return False
        self._seen[kind] += 1
        return self._seen[kind] > OFTEN and self._since >= SPACING

    def _capture(self, kind: Hashable, work: Callable[[], None]) -> Replay | None:
        before, self._since = self._accelerator.available(), 0
        try:
            replay = self._accelerator.capture(work)
        except CaptureError as error:
            log.warning("steps are not captured as graphs, each operation is launched on its own: %s", error)
            self.enabled = False
            return None
        self._replays[kind] = replay
        self._room -= max(before - self._accelerator.available(), 0)
        if len(self._replays) > self._most:
            self._replays.popitem(last=False)
        if self._room <= 0:
            log.info("the memory for graphs is taken: %d are kept, no more are captured", len(self._replays))
            self.enabled = False
        log.debug("captured %s", kind)
        return replay
