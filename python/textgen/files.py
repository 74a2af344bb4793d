"""What files have in common, whoever reads them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PIECE = 128 * 1024  # bytes: of one call Linux heeds no more than its read-ahead window, whatever was asked for
# What is under way at most: as fast as more of it, and whoever reads something small meanwhile, as who loads libraries
# does, waits for a tenth of the time.
WINDOW = 4 * PIECE


def read_ahead(path: Path) -> None:
    """Ask the system for a whole file: it then comes at the disk's full speed, not a page fault at a time. Returns when
    the most of it is there."""
    with suppress(OSError), path.open("rb") as file:
        for begin in range(0, os.fstat(file.fileno()).st_size, PIECE):
            os.posix_fadvise(file.fileno(), begin, PIECE, os.POSIX_FADV_WILLNEED)
            if begin >= WINDOW and begin % WINDOW == 0:
                os.pread(file.fileno(), 1, begin - WINDOW)  # waits for it
