"""`python -m textgen.shard`: what the launcher starts, once per device.

Exit codes: 0 stopped, 1 internal error, 2 wrong arguments, 3 the model cannot be loaded, 4 out of memory.
"""

from __future__ import annotations

import argparse
import gc
import signal
import socket
import sys
import time
import traceback

from textgen._router import reserve_weights
from textgen.models.errors import ModelError
from textgen.shard.errors import ShardError
from textgen.shard.log import set_up_log
from textgen.shard.settings import ShardSettings, parse_settings

MODEL_CANNOT_BE_LOADED = 3


def main() -> int:
    """Run the shard; the result is the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher owns the terminal's signals
    arguments = _parser().parse_args()
    debug = False
    try:
        settings = parse_settings(arguments.settings)
        debug = settings.log_level in ("debug", "trace")
        _serve(settings, arguments)
    except ModelError as error:
        return _refuse(str(error), MODEL_CANNOT_BE_LOADED, debug)
    except ShardError as error:
        return _refuse(str(error), error.exit_code, debug)
    except Exception as error:  # the last boundary: the launcher gets a sentence and a code, never silence
        return _refuse(f"internal error: {type(error).__name__}: {error}", ShardError.exit_code, debug)
    return 0


def _serve(settings: ShardSettings, arguments: argparse.Namespace) -> None:
    set_up_log(settings.log_level, settings.log_json)
    link = _link(arguments.socket_fd)
    if settings.weight_bytes:
        reserve_weights(settings.weight_bytes)
    started = time.perf_counter()
    gc.disable()  # what libraries make when they are imported stays: a seventh of the time went into looking through it
    from textgen.shard.start import run  # torch takes a second to import: only now, and measured

    gc.freeze()  # and nobody looks through it again
    gc.enable()
    run(settings, link, arguments.memory_fd, arguments.ops_socket, time.perf_counter() - started)


def _link(descriptor: int) -> socket.socket:
    try:
        link = socket.socket(fileno=descriptor)
    except OSError as error:
        raise ShardError(f"--socket-fd {descriptor} is not an inherited socket ({error.strerror})") from None
    link.setblocking(False)
    return link


def _refuse(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"error: {message}", file=sys.stderr, flush=True)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m textgen.shard", description=__doc__.splitlines()[0])
    parser.add_argument("--socket-fd", type=int, required=True, help="inherited Unix stream socket to the router")
    parser.add_argument("--memory-fd", type=int, required=True, help="inherited, empty memfd that allows sealing")
    parser.add_argument("--ops-socket", required=True, metavar="PATH", help="where to serve health, metrics and stacks")
    parser.add_argument("--settings", required=True, metavar="JSON", help="the shard's settings")
    return parser


if __name__ == "__main__":
    sys.exit(main())
