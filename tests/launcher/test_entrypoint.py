"""The image's entrypoint: whom it makes of root. A stand-in for the server says who it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ENTRYPOINT = Path(__file__).parents[2] / "docker" / "entrypoint.sh"
OWNER = 4321
POWERLESS = ("--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="only root can give up root, with setpriv of util-linux",
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """That everybody may look into, with a volume of somebody's and a server that writes to it."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        folder.chmod(0o755)
        (folder / "data").mkdir()
        os.chown(folder / "data", OWNER, OWNER)
        (folder / "bin").mkdir()
        programs = {
            "python3": 'id -u; touch "$HF_HOME/written" && echo wrote; echo "$@"',
            "id": f'[ "$2" = textgen ] && echo {OWNER} || exec {shutil.which("id")} "$@"',  # the image has such a user
        }
        for name, line in programs.items():
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
            (folder / "bin" / name).chmod(0o755)
        shutil.copy(ENTRYPOINT, folder / "entrypoint")
        yield folder


def begin(folder: Path, *become: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "HF_HOME": str(folder / "data"), "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    line = ["setpriv", *become, "sh", str(folder / "entrypoint"), "--port", "80"]
    return subprocess.run(line, env=environ, capture_output=True, text=True, timeout=60, check=True)


SERVER = "-m textgen.launcher.container --port 80"


def test_root_becomes_the_volumes_owner(folder: Path) -> None:
    left = folder / "data" / "left by TGI"
    left.touch()
    begun = begin(folder)
    assert begun.stdout.splitlines() == [str(OWNER), "wrote", SERVER]
    assert left.stat().st_uid == OWNER


def test_root_without_powers_stays_and_says_what_it_may_not(folder: Path) -> None:
    begun = begin(folder, *POWERLESS)
    assert begun.stdout.splitlines() == ["0", SERVER]
    assert f"start it with --user {OWNER}" in begun.stderr
    assert f"may not write to {folder}/data" in begun.stderr


def test_root_without_powers_writes_to_what_is_its_groups(folder: Path) -> None:
    """As the image's own folder of models is."""
    os.chown(folder / "data", OWNER, 0)
    (folder / "data").chmod(0o775)
    begun = begin(folder, *POWERLESS)
    assert begun.stdout.splitlines() == ["0", "wrote", SERVER]
    assert "may not write" not in begun.stderr


def test_who_is_not_root_stays_who_it_is(folder: Path) -> None:
    (folder / "data").chmod(0o777)
    begun = begin(folder, "--reuid=12345", "--regid=12345", "--clear-groups")
    assert (begun.stdout.splitlines(), begun.stderr) == (["12345", "wrote", SERVER], "")
