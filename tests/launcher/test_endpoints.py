"""Starts by clouds: which contract holds, what beats what, and sentences that name what the cloud said."""

from __future__ import annotations

from pathlib import Path

import pytest

from textgen.launcher.container import main
from textgen.launcher.endpoints import translate
from textgen.launcher.errors import ModelError, SettingsError
from textgen.launcher.health import _launchers, _reachable, settings_of
from textgen.launcher.model import resolve

NOWHERE = Path("/nonexistent")


def given(arguments: list[str], **environ: str) -> dict[str, str]:
    return translate(arguments, environ, NOWHERE).environ


def test_a_plain_start_only_opens_the_address() -> None:
    start = translate(["--model-id", "a/b"], {"SM_NUM_GPUS": "4", "HF_MODEL_ID": "c/d"}, NOWHERE)
    assert (start.arguments, start.environ) == (["--model-id", "a/b"], {"HOSTNAME": "0.0.0.0"})


@pytest.mark.parametrize(("hostname", "opened"), [("", True), ("c0ffee", True), ("10.0.0.7", False), ("::", False)])
def test_only_an_address_in_hostname_means_something(hostname: str, opened: bool) -> None:
    assert ("HOSTNAME" in given([], HOSTNAME=hostname)) == opened


def test_a_flag_beats_the_cloud_and_the_cloud_beats_us() -> None:
    environ = {"AIP_HTTP_PORT": "8081", "PORT": "80", "HOSTNAME": "127.0.0.1"}
    assert settings_of([], environ).port == 8081
    assert settings_of(["--port", "9"], environ).port == 9
    assert settings_of(["serve"], {"PORT": "80", "HOSTNAME": "127.0.0.1"}).port == 8080


def test_two_clouds_at_once_are_as_the_later_one_says() -> None:
    assert given(["serve"], AIP_HTTP_PORT="8081")["PORT"] == "8081"
    assert translate(["serve", "--json-output"], {"AIP_HTTP_PORT": "8081"}, NOWHERE).arguments == ["--json-output"]


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"SM_NUM_GPUS": "many"}, "SM_NUM_GPUS='many' must be a whole number"),
        ({"AIP_HTTP_PORT": "x"}, "AIP_HTTP_PORT='x' must be a whole number"),
        ({"AIP_HTTP_PORT": "1", "AIP_HEALTH_ROUTE": "health"}, "AIP_HEALTH_ROUTE='health' must be a path"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_as_the_cloud_does(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        translate(["serve"], environ, NOWHERE)


def test_a_sentence_and_a_code_end_such_a_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SM_NUM_GPUS", "many")
    monkeypatch.setattr("sys.argv", ["container", "serve"])
    assert main() == 2
    assert capsys.readouterr().err.startswith("error: SM_NUM_GPUS=")


def test_a_clouds_folder_is_served_when_nothing_names_a_model(tmp_path: Path) -> None:
    for folder in ("repository", "opt/ml/model"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text("{}")
    assert translate([], {}, tmp_path).environ["MODEL_ID"] == f"{tmp_path}/repository"
    assert translate(["serve"], {}, tmp_path).environ["MODEL_ID"] == f"{tmp_path}/opt/ml/model"
    assert translate(["serve"], {"HF_MODEL_ID": "a/b"}, tmp_path).environ["MODEL_ID"] == "a/b"
    assert "MODEL_ID" not in translate([], {"MODEL_ID": "a/b"}, tmp_path).environ


def test_a_clouds_folder_that_cannot_be_looked_into_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "repository").symlink_to("repository")  # a loop: what root may not look into either
    model = translate([], {}, tmp_path).environ["MODEL_ID"]
    with pytest.raises(ModelError, match="repository"):
        resolve(model)


@pytest.mark.parametrize(
    ("hostname", "found"),
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("[::]", "::1"), ("10.0.0.7", "10.0.0.7"), ("localhost", "localhost")],
)
def test_health_asks_where_the_server_listens(hostname: str, found: str) -> None:
    assert _reachable(hostname) == found


def test_health_finds_the_launcher_among_the_processes(tmp_path: Path) -> None:
    lines = {
        "1": ["docker-init", "--", "textgen-entrypoint", "--port", "9"],
        "9": ["python3", "-m", "textgen.launcher.health"],
        "8": ["python3", "-m", "textgen.shard", "--socket-fd", "7"],
        "7": ["python3", "-m", "textgen.launcher.container", "--port", "9", "--json-output"],
    }
    for pid, words in lines.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes("".join(f"{word}\0" for word in words).encode())
    (tmp_path / "self").mkdir()
    (tmp_path / "10").mkdir()  # it has ended
    assert list(_launchers(tmp_path)) == [["--port", "9", "--json-output"]]
