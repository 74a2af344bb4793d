"""Exit codes: 0 all is well, 1 something is wrong, 2 wrong arguments, 3 there is no GPU that torch can use."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

FAILED, WRONG, NO_GPU = 1, 2, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the result is the exit code."""
    given = _parser().parse_args(arguments)
    import torch

    if not torch.cuda.is_available():
        print(f"no GPU: torch {torch.__version__} finds none that it can use; see nvidia-smi", file=sys.stderr)
        return NO_GPU
    from textgen.gpu.check import check

    try:
        return 0 if check(given.seed, given.rounds, set(given.skip), given.json) else FAILED
    except OSError as error:
        print(f"--json: {error}", file=sys.stderr)
        return WRONG


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m textgen.gpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="kernels against the reference, graphs against launches, the server")
    check.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32), help="of random inputs")
    check.add_argument("--rounds", type=_positive, default=20, help="random shapes of each kernel")
    check.add_argument("--skip", nargs="*", choices=("kernels", "graphs", "server"), default=[])
    check.add_argument("--json", type=Path, metavar="FILE", help="for the results, with device and versions")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
