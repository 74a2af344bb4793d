"""The command as a person starts it: exit codes, one sentence, no traceback, no torch."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launcher.folders import make_folder
from textgen import __version__
from textgen.launcher import cli
from textgen.launcher.docs import page
from textgen.launcher.errors import AddressError
from textgen.launcher.report import Phases, curl, process_age
from textgen.launcher.router import _bind_sentence

ROOT = Path(__file__).parents[2]


def start(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "textgen.launcher", *arguments],
        capture_output=True, text=True, timeout=60, env={**os.environ, "HF_HUB_OFFLINE": "1", **environ}, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["--port", "x"], 2, "error: --port 'x' must be a whole number"),
        (["--speculate", "3"], 2, "error: --speculate is not available"),
        (["--model-id", "org/model"], 3, "error: --model-id org/model: org/model at main is not in"),
        (["--model-id", "MODEL", "--max-total-tokens", "100000"], 2, "error: --max-total-tokens 100000"),
        (["--model-id", "MODEL", "--kv-memory", "1KiB"], 4, "error: one sequence of 512 tokens does not fit"),
        (["--model-id", "MODEL", "--kv-memory", "900000GiB"], 4, "error: --kv-memory asks for"),
    ],
)
def test_mistakes_end_with_their_code_and_a_sentence(
    arguments: list[str], code: int, part: str, tmp_path: Path
) -> None:
    model = str(make_folder(tmp_path / "m"))
    done = start(*[model if each == "MODEL" else each for each in arguments])
    assert done.returncode == code
    assert part in done.stderr
    assert "Traceback" not in done.stderr


def test_mistakes_in_json() -> None:
    done = start("--model-id", "org/model", JSON_OUTPUT="true")
    assert (done.returncode, done.stderr) == (3, "")
    entry = json.loads(done.stdout.splitlines()[-1])
    assert entry["level"] == "ERROR"
    assert "org/model" in entry["message"]


def test_version_and_help() -> None:
    assert start("--version").stdout == f"textgen-launcher {__version__}\n"
    done = start("--help")
    assert done.returncode == 0
    assert "--model-id MODEL" in done.stdout


def test_the_launcher_imports_no_torch_and_no_hub() -> None:
    heavy = "{'torch', 'numpy', 'safetensors', 'huggingface_hub', 'tqdm'}"
    code = f"import sys, textgen.launcher.cli; sys.exit(sorted({heavy} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_left_is_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "textgen.launcher", "--model-id", "org/model"],
        stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    os.close(write)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.parametrize(
    ("act", "part"),
    [
        (lambda taken: taken.getsockname()[1], "is in use"),
        (lambda taken: 0, None),
    ],
    ids=["taken", "free"],
)
def test_bind_sentences_fit_the_kernels_answers(act: object, part: str | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = act(taken)  # type: ignore[operator]
        try:
            with socket.create_server(("127.0.0.1", port)):
                assert part is None
        except OSError as error:
            assert part is not None
            assert part in _bind_sentence(error, "127.0.0.1", port)
    try:
        socket.create_server(("192.0.2.1", 0)).close()
    except OSError as error:
        assert "192.0.2.1 is not an address of this machine" in _bind_sentence(error, "192.0.2.1", 0)
    assert AddressError.exit_code == 6


def test_an_interrupt_while_planning_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "make_plan", interrupt)
    monkeypatch.setattr(cli, "find_model", lambda *_: None)
    assert cli.main([]) == 130


def test_phases_add_up() -> None:
    phases = Phases()
    phases.end("plan")
    phases.end("router")
    assert [name for name, _ in phases.done] == ["launcher", "plan", "router"]
    assert all(seconds >= 0 for _, seconds in phases.done)
    assert phases.total >= sum(seconds for _, seconds in phases.done)
    assert process_age() > 0


@pytest.mark.parametrize(
    ("address", "url"),
    [("0.0.0.0:80", "http://127.0.0.1:80/"), ("[::]:80", "http://[::1]:80/"), ("10.0.0.1:9", "http://10.0.0.1:9/")],
)
def test_the_line_to_paste_can_be_pasted(address: str, url: str) -> None:
    text = "\n".join(curl("it's a model", address))
    assert url in text
    assert url.replace("http", "https") in "\n".join(curl("m", address, "https"))
    shell = text.replace("curl", "printf '%s\\n'", 1)
    said = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout.splitlines()
    body = json.loads(said[said.index("-d") + 1])
    assert (body["model"], body["stream"]) == ("it's a model", True)


def test_the_settings_page_is_that_of_the_table() -> None:
    written = (ROOT / "docs" / "settings.md").read_text()
    assert written == page(), "docs/settings.md is out of date; run `make docs-settings`"
