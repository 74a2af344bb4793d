"""`textgen batch`: a file of requests in, a file of answers out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from textgen.launcher.arguments import build_parser, current_environment, read_settings
from textgen.launcher.errors import LauncherError, SettingsError
from textgen.launcher.settings import NETWORK, Settings
from textgen.llm.batch import ROUTES, Batch, BatchError, Outcome, Output
from textgen.llm.engine import Engine
from textgen.llm.errors import TextgenError

FAILED, INTERRUPTED = 7, 130  # exit codes beside those of the launcher


def main(arguments: Sequence[str]) -> int:
    """Run a batch; the exit code. 0: every line has an answer; 7: some requests failed, and their lines say why."""
    try:
        parser = _parser()
        given, settings = read_settings(parser, arguments, current_environment())
        outcome = _run(given, settings)
    except (LauncherError, BatchError) as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code) if isinstance(error, LauncherError) else int(SettingsError.exit_code)
    except TextgenError as error:
        print(f"error: {error}; the same command goes on with what is left", file=sys.stderr)
        return int(LauncherError.exit_code)
    except KeyboardInterrupt:
        print("stopped; the same command goes on with what is left", file=sys.stderr)
        return INTERRUPTED
    done = f"{outcome.answered} answered, {outcome.failed} failed, {outcome.skipped} were done before"
    print(done, file=sys.stderr)
    return FAILED if outcome.failed else 0


def _run(given: argparse.Namespace, settings: Settings) -> Outcome:
    source, target = Path(given.input), Path(given.output)
    try:
        file = source.open("rb")
    except OSError as error:
        raise BatchError(f"{source} cannot be read: {error.strerror}") from None
    with file, Output(target) as output:
        if target.samefile(source):
            raise BatchError(f"{source} is both input and output; name another output")
        with _bar(source, shown=given.progress) as bar:
            engine = Engine(settings)
            try:
                return Batch(engine, output, bar.update).run(file)
            finally:
                engine.close()


def _bar(source: Path, *, shown: bool) -> tqdm[Any]:
    total = None
    if shown and source.is_file():
        with source.open("rb") as lines:
            total = sum(bool(line.strip()) for line in lines)
    return tqdm(total=total, disable=not shown, desc="Requests", unit="request", dynamic_ncols=True)


def _parser() -> argparse.ArgumentParser:
    parser = build_parser(
        "textgen batch",
        "Answer a file of requests, in the form of OpenAI's batch API: one JSON object a line, with custom_id, method, "
        f"url ({', '.join(ROUTES)}) and body. Answers are appended to the output as they come, in no order; lines that "
        "have one there already are passed over, so a run that was stopped goes on.",
        "Exit codes: 0 all answered, 7 some requests failed and their lines say why, 130 interrupted; others as "
        "textgen-launcher.",
        without=(NETWORK,),
    )
    parser.add_argument("input", metavar="INPUT", help="file of requests, JSON lines")
    parser.add_argument("output", metavar="OUTPUT", help="file of answers, JSON lines")
    parser.add_argument(
        "--progress", action=argparse.BooleanOptionalAction, default=sys.stderr.isatty(),
        help="draw a bar (default: where standard error is a terminal)",
    )  # fmt: skip
    return parser
