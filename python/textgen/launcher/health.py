"""`python -m textgen.launcher.health`: whether this container's server is alive, as an image's `HEALTHCHECK` asks."""

from __future__ import annotations

import http.client
import ssl
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from textgen.launcher.arguments import current_environment, parse_settings
from textgen.launcher.endpoints import translate
from textgen.launcher.errors import SettingsError
from textgen.launcher.settings import Settings

SECONDS = 5.0
_MODULES = ("textgen.launcher.container", "textgen.launcher")


def main() -> int:
    """0 when it is alive; else 1 and a sentence. Its address is what its command line and our environment say."""
    arguments = next(_launchers(Path("/proc")), None)
    if arguments is None:
        print("no launcher runs here")
        return 1
    try:
        return _ask(settings_of(arguments, current_environment()))
    except (SettingsError, OSError, http.client.HTTPException) as error:
        print(error)
        return 1


def settings_of(arguments: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """What a container's launcher of this command line made of an environment. Raises `SettingsError`."""
    start = translate(arguments, environ)
    return parse_settings(start.arguments, {**environ, **start.environ})


def _ask(settings: Settings) -> int:
    host, port = _reachable(settings.hostname), settings.port
    connection = http.client.HTTPConnection(host, port, timeout=SECONDS)
    if settings.tls_cert is not None:
        # The certificate names the server as others call it; this asks its own machine, and tells nothing.
        connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=ssl._create_unverified_context())
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    finally:
        connection.close()
    print(f"/health is {status}")
    return 0 if status == http.client.OK else 1


def _reachable(hostname: str) -> str:
    """Where to find a server that listens there."""
    bare = hostname.strip("[]")
    try:
        address = ip_address(bare)
    except ValueError:
        return bare
    if not address.is_unspecified:
        return bare
    return "127.0.0.1" if address.version == 4 else "::1"


def _launchers(proc: Path) -> Iterator[list[str]]:
    """Arguments of the launchers that run, of the first process first."""
    for pid in sorted(int(folder.name) for folder in proc.iterdir() if folder.name.isdigit()):
        words: list[str] = []
        with suppress(OSError):  # it ended in between
            words = (proc / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
        for place, word in enumerate(words[:3]):
            if word in _MODULES and words[place - 1] == "-m":
                yield words[place + 1 :]


if __name__ == "__main__":
    sys.exit(main())
