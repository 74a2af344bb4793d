"""From the command line and the environment to `Settings`: a flag beats its variable, a variable beats the default."""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from textgen import __version__
from textgen.launcher.errors import MEANINGS, SettingsError
from textgen.launcher.flags import Flag, dashed, flag_of
from textgen.launcher.settings import FIELD_OF, FIELDS, Settings
from textgen.launcher.tgi import UNAVAILABLE


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """argparse ends the process here; we want its sentence and our own way out."""
        raise SettingsError(message.removeprefix("argument ").replace(": expected", " expected", 1) + "; see --help")


def parse_settings(arguments: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """The settings of this start. Raises `SettingsError`; `--help` and `--version` print and raise `SystemExit(0)`."""
    return read_settings(build_parser(), arguments, environ)[1]


def read_settings(
    parser: argparse.ArgumentParser, arguments: Sequence[str], environ: Mapping[str, str]
) -> tuple[argparse.Namespace, Settings]:
    """All that a parser of `build_parser` found, and the settings among it. Raises `SettingsError`."""
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise SettingsError(_unknown(unknown[0]))
    values: dict[str, Any] = {}
    for field in FIELDS:
        source = _given(field.name, flag_of(field), vars(given), environ)
        if source is not None:
            values[field.name] = _read(flag_of(field), *source)
    return given, Settings(**values)


def settings_from(given: Mapping[str, Any]) -> Settings:
    """Settings of a program that gives them by their names in Python, as values or as text; None is not given.

    Raises `SettingsError`.
    """
    values: dict[str, Any] = {}
    for name, value in given.items():
        field = FIELD_OF.get(name)
        if field is None:
            close = difflib.get_close_matches(name, FIELD_OF, n=1)
            raise SettingsError(f"{name} is not a setting" + (f"; did you mean {close[0]}?" if close else ""))
        if value is not None:
            flag = flag_of(field)
            parts = isinstance(value, list | tuple)
            if parts and not flag.repeatable:  # several numbers are one text
                value, parts = ",".join(map(str, value)) or "0", False
            values[name] = _read(flag, name, list(map(str, value)) if parts else value if flag.switch else str(value))
    return Settings(**values)


def build_parser(
    prog: str = "textgen-launcher",
    description: str = "Serve a large language model: one command, any client.",
    epilog: str | None = None,
    without: Collection[str] = (),
) -> argparse.ArgumentParser:
    """All flags of the table, in its order and groups; every value stays text here. without: groups that are left
    out.
    """
    parser = _Parser(
        prog=prog,
        description=description,
        epilog=_epilog() if epilog is None else epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", "-V", action="version", version=f"{prog} {__version__}")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for field in FIELDS:
        flag = flag_of(field)
        if flag.group in without:
            continue
        if flag.group not in groups:
            groups[flag.group] = parser.add_argument_group(flag.group)
        _add(groups[flag.group], field.name, flag)
    return parser


def variable(name: str) -> str:
    """The environment name of a field or flag."""
    return name.replace("-", "_").upper()


def _add(group: argparse._ArgumentGroup, name: str, flag: Flag) -> None:
    described = f"{flag.help} [{variable(name)}; default: {flag.default}]".replace("%", "%%")
    if flag.switch:
        group.add_argument(dashed(name), action=argparse.BooleanOptionalAction, default=None, help=described)
        return
    names = [dashed(name), *([flag.short] if flag.short else [])]
    metavar = flag.metavar or "N"
    action = "append" if flag.repeatable else "store"
    group.add_argument(*names, dest=name, metavar=metavar, action=action, help=described)
    if flag.alias:
        group.add_argument(f"--{flag.alias}", metavar=metavar, help=argparse.SUPPRESS)


def _given(
    name: str, flag: Flag, given: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[str, str | bool | list[str]] | None:
    """Where a setting was given and what was said: flags first. An empty variable counts as not set."""
    names = [name, *([flag.alias.replace("-", "_")] if flag.alias else [])]
    on_line: list[tuple[str, Any]] = [(dashed(n), given[n]) for n in names if given.get(n) is not None]
    in_environment = [
        (variable(n), environ[variable(n)])
        for n in names
        if environ.get(variable(n)) and flag.from_environment(environ[variable(n)])
    ]
    for found in (on_line, in_environment):
        if len(found) > 1:
            raise SettingsError(f"{found[0][0]} and {found[1][0]} are two names of one setting; give only one of them")
        if found:
            return found[0]
    return None


def _read(flag: Flag, where: str, value: str | bool | list[str]) -> Any:
    if isinstance(value, bool):
        return value
    if not flag.repeatable:
        assert isinstance(value, str)
        return _parse(flag, where, value)
    parts = value if isinstance(value, list) else [part.strip() for part in value.split(",") if part.strip()]
    return tuple(_parse(flag, where, part) for part in parts)


def _parse(flag: Flag, where: str, value: str) -> Any:
    try:
        return flag.parse(value)
    except ValueError as error:
        shown = "(not shown)" if flag.hidden else repr(value if len(value) <= 80 else value[:77] + "...")
        sign = " " if where.startswith("-") else "="
        raise SettingsError(f"{where}{sign}{shown} {error}") from None


def _unknown(argument: str) -> str:
    name = argument.split("=", 1)[0]
    if not name.startswith("-"):
        return f"{argument!r} is not a flag; settings are given as --name value, see --help"
    if name == "-e":
        name = "--env"
    reason = UNAVAILABLE.get(name.removeprefix("--"))
    if reason is not None:
        return f"{name} is not available: {reason}"
    close = difflib.get_close_matches(name, [dashed(field.name) for field in FIELDS], n=1)
    return f"{name} is not a flag of textgen-launcher; " + (f"did you mean {close[0]}?" if close else "see --help")


def _epilog() -> str:
    codes = "\n".join(f"  {code:d}  {meaning}" for code, meaning in MEANINGS.items())
    return (
        "Each flag can also be given as the environment variable named in brackets; the flag wins.\n\n"
        "SIGTERM or Ctrl-C: no new requests, running ones finish; a second one stops at once (128 + signal).\n\n"
        f"exit codes:\n{codes}"
    )


def differing(settings: Settings) -> dict[str, Any]:
    """Settings that are not at their default, for the log."""
    plain = Settings()
    found = {field.name: getattr(settings, field.name) for field in FIELDS}
    hidden = {field.name for field in FIELDS if flag_of(field).hidden}
    return {
        name: "(not shown)" if name in hidden else value
        for name, value in found.items()
        if value != getattr(plain, name)
    }


def current_environment() -> Mapping[str, str]:
    """The process's environment: the only place it is read."""
    return os.environ
