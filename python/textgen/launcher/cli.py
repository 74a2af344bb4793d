"""`textgen-launcher`: settings in, exit code out."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from textgen.launcher.arguments import current_environment, differing, parse_settings
from textgen.launcher.assembly import find_model, supervisor
from textgen.launcher.descriptors import make_room
from textgen.launcher.errors import LauncherError, SettingsError
from textgen.launcher.hardware import inspect
from textgen.launcher.log import Log
from textgen.launcher.notify import notify
from textgen.launcher.plan import make_plan
from textgen.launcher.process import SocketFolder
from textgen.launcher.report import Phases, report_plan, report_ready
from textgen.launcher.router import Router, start_router
from textgen.launcher.settings import Settings
from textgen.launcher.tgi import ignored_variables, superseded


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one server. Exit codes: `errors.ExitCode`; 128 + signal when stopped at once."""
    phases = Phases()
    try:
        settings = parse_settings(sys.argv[1:] if arguments is None else arguments, current_environment())
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    log = Log(sys.stdout, as_json=settings.json_output, level=settings.log_level)
    try:
        return _serve(settings, log, phases)
    except LauncherError as error:
        _report(log, error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    finally:
        log.close()
        _flush_quietly()


def _serve(settings: Settings, log: Log, phases: Phases) -> int:
    for warning in ignored_variables(current_environment()):
        log.warn(warning)
    if lack := make_room(settings.max_connections):
        log.warn(lack)
    if (notice := superseded(settings)) is not None:
        log.info(notice)
    changed = differing(settings)
    log.debug("settings that differ from their defaults", **changed)
    model = find_model(settings, log)
    phases.end("resolve")
    plan = make_plan(settings, model, inspect(device=settings.device))
    report_plan(log, plan)
    phases.end("plan")

    def router() -> Router:
        made = start_router(plan)
        phases.end("router")
        return made

    def ready(router: Router, hello: str) -> None:
        report_ready(log, plan, router, hello, phases)
        notify(current_environment(), READY="1", STATUS=f"serves {plan.model.name} on {router.address}")

    with SocketFolder() as folder:
        return supervisor(plan, log, folder, router, ready).run()


def _report(log: Log, error: LauncherError) -> None:
    """One sentence where the person looks: the log when it is JSON, else standard error."""
    if log.as_json:
        log.error(str(error), exit_code=int(error.exit_code))
        return
    log.close()
    print(f"error: {error}", file=sys.stderr)


def _flush_quietly() -> None:
    """A reader of standard output that left must not turn the exit code into a traceback at shutdown."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
