"""`textgen`: models on this machine, and batches of requests to them."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["batch"]:
        from textgen.llm.batch_cli import main as batch  # here: the other commands need nothing of it

        return batch(given[1:])
    from textgen.hub.cli import main as hub

    return hub(given)


if __name__ == "__main__":
    sys.exit(main())
