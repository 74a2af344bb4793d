"""The examples of deploying, as the tools that read them read them. nginx's is in test_rolling_restart."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from textgen.launcher.arguments import variable
from textgen.launcher.errors import ExitCode
from textgen.launcher.settings import FIELDS, Settings

EXAMPLES = Path(__file__).parents[1] / "examples"
COMPOSE = next(
    (command for command in (["docker-compose"], ["docker", "compose"]) if shutil.which(command[0])
     and subprocess.run([*command, "version"], capture_output=True, check=False).returncode == 0), None,
)  # fmt: skip


@pytest.fixture
def unit() -> str:
    return (EXAMPLES / "systemd" / "textgen@.service").read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_takes_the_unit(unit: str, tmp_path: Path) -> None:
    text, replaced = re.subn(r"(?<=^ExecStart=)\S+", "/bin/true", unit, flags=re.MULTILINE)
    assert replaced == 1, "a program that is not there is all that may be wrong"
    path = tmp_path / "textgen@3001.service"
    path.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, timeout=60, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "textgen" in line]
    assert (done.returncode, ours) == (0, [])


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None
    or "--offline" not in subprocess.run(["systemd-analyze", "--help"], capture_output=True, text=True).stdout,
    reason="there is no systemd-analyze that judges a file",
)
def test_the_unit_gives_up_what_it_can(unit: str, tmp_path: Path) -> None:
    """On systemd's scale from 0 to 10, what is below 2 is well closed."""
    path = tmp_path / "textgen@3001.service"
    path.write_text(re.sub(r"(?<=^ExecStart=)\S+", "/bin/true", unit, flags=re.MULTILINE))
    done = subprocess.run(
        ["systemd-analyze", "security", "--no-pager", "--offline=yes", "--threshold=20", path],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


def test_the_unit_waits_for_a_drain_and_does_not_repeat_what_cannot_work(unit: str) -> None:
    found = dict(line.split("=", 1) for line in unit.splitlines() if re.match(r"[A-Z]\w+=", line))
    assert int(found["TimeoutStopSec"]) > Settings().graceful_termination_timeout + Settings().shard_termination_timeout
    useless = (ExitCode.SETTINGS, ExitCode.MODEL, ExitCode.MEMORY)
    assert found["RestartPreventExitStatus"].split() == [str(int(code)) for code in useless]
    assert (found["Type"], found["KillMode"]) == ("notify", "mixed")


def test_the_units_settings_are_settings() -> None:
    text = (EXAMPLES / "systemd" / "textgen.env").read_text()
    names = set(re.findall(r"^#?([A-Z_]+)=", text, re.MULTILINE))
    assert "MODEL_ID" in names
    assert names - {"HF_TOKEN"} <= {variable(field.name) for field in FIELDS}


@pytest.mark.skipif(COMPOSE is None, reason="there is no Compose")
def test_compose_takes_the_file(tmp_path: Path) -> None:
    assert COMPOSE is not None
    path = EXAMPLES / "compose" / "compose.yaml"
    done = subprocess.run(
        [*COMPOSE, "-f", path, "config"], capture_output=True, text=True, timeout=60, check=False,
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": str(tmp_path), "MODEL_ID": "a/b", "TEXTGEN_PORT": "8090"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--model-id a/b" in done.stdout
    for path in re.findall(r"^ +- (\S+):/\S+:ro$", done.stdout, re.MULTILINE):
        assert Path(path).exists(), path


def test_the_targets_of_compose_are_its_services() -> None:
    text = (EXAMPLES / "compose" / "compose.yaml").read_text()
    targets = re.findall(r"targets: \[(\w+):80\]", (EXAMPLES / "compose" / "targets.yml").read_text())
    assert targets == ["textgen"] and json.dumps("${TEXTGEN_PORT:-8080}:80") in text
