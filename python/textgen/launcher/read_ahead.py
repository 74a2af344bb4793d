"""Weights begin their way from the disk while the shard still loads its libraries, which takes a second or two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Thread

from textgen import files
from textgen.launcher.checkpoint import weight_files


def read_ahead(folder: Path, available: int) -> Sequence[Path]:
    """Ask the system for a model's files, which the shard will map; returns those asked for.

    None of them where they would take more than half of the available memory, in bytes: the first ones would be pushed
    out again before they are used.
    """
    paths = weight_files(folder)
    try:
        if 2 * sum(path.stat().st_size for path in paths) > available:
            return ()
    except OSError:  # the shard says what is wrong with a file
        return ()
    Thread(target=_ask, args=(paths,), name="read-ahead", daemon=True).start()
    return paths


def _ask(paths: Sequence[Path]) -> None:
    for path in paths:
        files.read_ahead(path)
