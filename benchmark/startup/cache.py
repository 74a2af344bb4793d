"""The system's cache of files, for starts that find it full and starts that find it empty."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterable
from pathlib import Path


def forget(roots: Iterable[Path]) -> None:
    """Have the system let go what it keeps of these files and folders, but for what a process maps. Anybody may."""
    os.sync()  # what is not written yet cannot be let go
    for root in roots:
        files = [root] if root.is_file() else (Path(at) / name for at, _, names in os.walk(root) for name in names)
        for path in files:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            except OSError:  # a link that leads nowhere, or what is not ours
                continue
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            except OSError:  # a pipe
                continue
            finally:
                os.close(descriptor)


def resident(path: Path) -> float:
    """The part of a file that the system's cache has, from 0 to 1."""
    size = path.stat().st_size
    pages = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        start = ctypes.c_char.from_buffer(mapped)
        found = ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), pages
        )
        del start  # the map cannot be closed before
    if found:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(page & 1 for page in pages) / len(pages)


def read_at_full_speed(path: Path) -> float:
    """Seconds to have the file's bytes in memory of our own: less cannot be asked of a loader."""
    began = time.perf_counter()
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        into, done = memoryview(bytearray(size)), 0
        while done < size:
            done += file.readinto(into[done:]) or size
    return time.perf_counter() - began
