"""`textgen` as a person starts it: results on standard output, sentences on standard error, exit codes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.hub.mock_hub import MockHub, Repo
from tests.hub.repos import NEEDED, WEIGHTS, model_files
from textgen.hub import cli
from textgen.hub.connection import Hub, connect
from textgen.hub.errors import HubError
from textgen.hub.progress import Progress
from textgen.hub.pull import Wish, pull

Environment = Callable[..., dict[str, str]]
COMMAND = [sys.executable, "-m", "textgen.hub"]


def start(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*COMMAND, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, Any, str]]:
    """One command in this process: its exit code, its JSON, and what it said."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.endpoint)

    def call(*arguments: str) -> tuple[int, Any, str]:
        code = cli.main([*arguments, "--cache", str(hub.cache), "--json"])
        out, said = capsys.readouterr()
        return code, json.loads(out) if out else None, said

    return call


def test_pull_in_a_process_of_its_own(environment: Environment, mock: MockHub, cache: Path) -> None:
    done = start(environment(), "pull", "test/tiny")
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert {path.name for path in folder.iterdir()} == NEEDED
    assert folder.is_relative_to(cache)
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["downloading", "downloaded"]


def test_a_terminal_gets_a_bar(environment: Environment) -> None:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    with open(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(
            [*COMMAND, "pull", "test/tiny"], env=environment(), stdout=subprocess.DEVNULL, stderr=theirs
        )
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # how a terminal says that nobody is left on its other side
            while part := terminal.read(4096):
                shown += part
        assert process.wait(30) == 0
    assert b"downloading test/tiny:" in shown
    assert b"B/s" in shown
    assert b"downloading test/tiny at" not in shown
    assert shown.splitlines()[-1].startswith(b"downloaded test/tiny at") or b"\rdownloaded test/tiny at" in shown


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_a_download_it_goes_on_later(
    how: signal.Signals, environment: Environment, mock: MockHub, cache: Path
) -> None:
    held = 200_000
    mock.fault(WEIGHTS).hold_after = held
    process = subprocess.Popen(
        [*COMMAND, "pull", "test/tiny"], env=environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        assert mock.sent.wait(30)
        _until_written(process, cache, held)
        process.send_signal(how)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == (130 if how == signal.SIGINT else -how)
    assert b"Traceback" not in said
    assert (b"the same command goes on from there" in said) == (how == signal.SIGINT)
    mock.fault(WEIGHTS).hold_after = None
    mock.go_on.set()
    mock.content.clear()
    done = start(environment(), "pull", "test/tiny")
    assert done.returncode == 0, done.stderr
    assert [each.range for each in mock.content] == [f"bytes={held}-299999"]
    assert (Path(done.stdout.strip()) / WEIGHTS).read_bytes() == mock.repos["test/tiny"].files[WEIGHTS]


def _until_written(process: subprocess.Popen[bytes], cache: Path, size: int) -> None:
    """The hub has sent them; now they must be on the disk."""
    while True:
        parts = list(cache.rglob("*.incomplete"))
        if any(path.stat().st_size == size for path in parts):
            return
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.02)


def test_errors(environment: Environment, mock: MockHub) -> None:
    done = start(environment(), "pull", "test/none")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    done = start(environment(HF_TOKEN="hf_secret"), "pull", "test/tiny", "--json")
    assert done.returncode == 3
    assert "does not accept the token" in json.loads(done.stderr)["error"]
    assert "hf_secret" not in done.stderr + done.stdout
    assert start(environment(), "pul").returncode == 2
    assert start(environment(HF_HUB_OFFLINE="1"), "pull", "test/tiny").returncode == 3


def test_variables_that_mean_nothing(environment: Environment) -> None:
    done = start(environment(HF_HUB_DOWNLOAD_TIMEOUT="soon"), "list")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: a variable that begins with HF_")
    done = start(environment(HF_HUB_ENABLE_HF_TRANSFER="1"), "list")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("variable", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_tokens_of_the_environment(variable: str, environment: Environment, mock: MockHub) -> None:
    mock.repos["test/tiny"].private = True
    assert start(environment(**{variable: "hf_good"}), "pull", "test/tiny").returncode == 0


def test_the_stored_token_and_home(environment: Environment, mock: MockHub, tmp_path: Path) -> None:
    mock.repos["test/tiny"].private = True
    home = tmp_path / "home"
    home.mkdir()
    (home / "token").write_text("hf_good\n")
    settings = environment(HF_HOME=str(home))
    del settings["HF_HUB_CACHE"]
    done = start(settings, "pull", "test/tiny")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(home / "hub")


def test_a_cache_that_is_named(tmp_path: Path) -> None:
    assert connect(str(tmp_path / "x")).cache == tmp_path / "x"


@pytest.mark.parametrize("name", ["a/b/c", "../x", "a b", "a--b", ""])
def test_names_that_no_model_has(name: str, run: Callable[..., tuple[int, Any, str]], mock: MockHub) -> None:
    code, found, said = run("show", name)
    assert (code, found) == (3, None)
    assert "is no name of a model" in said
    assert mock.requests == []


@pytest.mark.parametrize("name", ["test/tiny:Q4_K_M", "test/tiny/sub/tiny-Q4_K_M.gguf"])
def test_pull_a_gguf_file(name: str, run: Callable[..., tuple[int, Any, str]], mock: MockHub) -> None:
    mock.repos["test/tiny"] = Repo({"sub/tiny-Q4_K_M.gguf": b"weights", "tiny-Q8_0.gguf": b"other"})
    code, found, _ = run("pull", name)
    assert code == 0
    assert Path(found["file"]).read_bytes() == b"weights"
    assert found["file"] == found["folder"] + "/sub/tiny-Q4_K_M.gguf"
    assert run("list")[1][0]["servable"]
    assert run("pull", "test/tiny:Q5_K")[0] == 3


def test_list_and_show(run: Callable[..., tuple[int, Any, str]], hub: Hub, mock: MockHub, progress: Progress) -> None:
    assert run("list") == (0, [], "")
    old = pull(hub, Wish("test/tiny"), progress)
    (hub.cache / "datasets--a--b" / "snapshots").mkdir(parents=True)
    mock.repos["test/tiny"].commit(model_files(seed=1))
    new = pull(hub, Wish("test/tiny"), progress)
    _, every, _ = run("list")
    assert {each["commit"]: each["branches"] for each in every} == {old.commit: [], new.commit: ["main"]}
    assert {each["servable"] for each in every} == {True}
    assert min(each["size"] for each in every) > 300_000
    code, shown, _ = run("show", "test/tiny", "--revision", "main")
    assert code == 0
    assert (shown["folder"], shown["architecture"]) == (str(new.folder), "LlamaForCausalLM")
    assert set(shown["files"]) == NEEDED
    assert shown["files"][WEIGHTS] == 300_000
    (new.folder / WEIGHTS).unlink()
    assert [each["servable"] for each in run("list")[1] if each["commit"] == new.commit] == [False]


def test_remove(run: Callable[..., tuple[int, Any, str]], hub: Hub, mock: MockHub, progress: Progress) -> None:
    old = pull(hub, Wish("test/tiny"), progress)
    mock.repos["test/tiny"].commit(model_files() | {"generation_config.json": b"{}"})
    new = pull(hub, Wish("test/tiny"), progress)
    code, told, _ = run("rm", "test/tiny", "--revision", old.commit)
    assert (code, told["freed"]) == (0, len(b'{"eos_token_id": 2}')), "what the other commit needs stays"
    assert (new.folder / WEIGHTS).stat().st_size == 300_000
    assert not old.folder.exists()
    assert run("rm", "test/tiny", "--revision", "v9")[0] == 3
    code, told, _ = run("rm", "test/tiny")
    assert code == 0
    assert told["freed"] >= 300_000
    assert list(hub.cache.glob("models--*")) == []
    code, _, said = run("rm", "test/tiny")
    assert (code, "is not in" in said) == (3, True)


def test_remove_what_was_never_finished(
    run: Callable[..., tuple[int, Any, str]], hub: Hub, mock: MockHub, progress: Progress
) -> None:
    mock.fault(WEIGHTS).drop_after = [100_000, 0]
    with pytest.raises(HubError):
        pull(hub, Wish("test/tiny", pauses=()), progress)
    code, told, _ = run("rm", "test/tiny")
    assert code == 0
    assert told["freed"] >= 100_000
    assert list(hub.cache.glob("models--*")) == []


def test_tables_for_people(hub: Hub, progress: Progress, capsys: pytest.CaptureFixture[str]) -> None:
    found = pull(hub, Wish("test/tiny"), progress)
    assert cli.main(["list", "--cache", str(hub.cache)]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["model", "revision", "commit", "size", "downloaded"]
    assert row.split()[:4] == ["test/tiny", "main", found.commit[:12], "300.2"]
    assert cli.main(["show", "test/tiny", "--cache", str(hub.cache)]) == 0
    shown = capsys.readouterr().out
    assert "LlamaForCausalLM" in shown
    assert WEIGHTS in shown


def test_the_command_imports_no_torch() -> None:
    heavy = "{'torch', 'numpy', 'safetensors'}"
    code = (
        "import sys, textgen.hub.cli, textgen.hub.pull, textgen.hub.shelf, textgen.hub.convert; "
        f"sys.exit(sorted({heavy} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
