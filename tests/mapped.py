"""What the system says of mapped files."""

from __future__ import annotations

import re
from pathlib import Path


def resident(folder: Path) -> int:
    """Bytes of the folder's files that are in this process's memory."""
    found, counted = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            counted = str(folder) in line
        elif counted and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found
