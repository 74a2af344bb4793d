"""`make test` runs a test that failed once more, so that one unlucky meeting of processes on a machine that others use
too does not stop a change. What passed only then is listed with its traceback, as RERUN: each is a fault, of the test
or of the server, and wants to be mended. More than a few are not luck, and fail the run."""

from __future__ import annotations

import faulthandler

import pytest

RERUNS = 3  # tests of one run


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that may take longer than any that hangs (`faulthandler_timeout`) is ended by its own timeout alone."""
    marker = item.get_closest_marker("timeout")
    seconds = float(marker.args[0] if marker else item.config.getoption("timeout", None) or 0)
    if seconds > float(item.config.getini("faulthandler_timeout")):
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    again = reporter.stats.get("rerun", []) if reporter is not None else []
    if exitstatus == pytest.ExitCode.OK and len(again) > RERUNS:
        reporter.write_line(f"{len(again)} tests passed only when run again: more than {RERUNS} fail the run", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
