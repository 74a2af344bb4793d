"""Why the launcher ends: each reason has its own exit code and one sentence for the person who started it."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the exit code of `textgen-launcher` says. `MEANINGS` has the words."""

    STOPPED = 0
    INTERNAL = 1
    SETTINGS = 2
    MODEL = 3
    MEMORY = 4
    SHARD = 5
    ADDRESS = 6


MEANINGS: dict[ExitCode, str] = {
    ExitCode.STOPPED: "stopped as asked",
    ExitCode.INTERNAL: "internal error",
    ExitCode.SETTINGS: "a flag or an environment variable cannot be used",
    ExitCode.MODEL: "the model cannot be loaded",
    ExitCode.MEMORY: "the model does not fit the memory",
    ExitCode.SHARD: "the shard keeps dying",
    ExitCode.ADDRESS: "the address cannot be listened on",
}


class LauncherError(Exception):
    """Ends the launcher with one sentence that says what to change; never shown with a traceback."""

    exit_code = ExitCode.INTERNAL


class SettingsError(LauncherError):
    """A flag or an environment variable cannot be used."""

    exit_code = ExitCode.SETTINGS


class ModelError(LauncherError):
    """The model's folder cannot be served."""

    exit_code = ExitCode.MODEL


class MemoryPlanError(LauncherError):
    """The model, or one sequence of full length, does not fit."""

    exit_code = ExitCode.MEMORY


class ShardDied(LauncherError):
    """The shard died too often."""

    exit_code = ExitCode.SHARD


class AddressError(LauncherError):
    """The address cannot be listened on."""

    exit_code = ExitCode.ADDRESS
