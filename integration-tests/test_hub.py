"""A model of the hub through the launcher: downloaded once, served, and served again when the hub is gone."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.api import Api
from support.models import MAX_POSITIONS
from support.raw import send
from support.reference import Reference, must_match
from support.server import Launcher, Start
from support.waiting import until

from tests.hub.mock_hub import MockHub, Repo

PROMPT = "Once upon a time"
TOKENS = 12
WEIGHTS = "model.safetensors"
SERVED = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS}
USELESS = {"pytorch_model.bin": b"x", "README.md": b"x", "onnx/model.onnx": b"x"}
TOKEN = "hf_good"


@pytest.fixture
def mock(tiny_folder: Path) -> Iterator[MockHub]:
    files = {path.name: path.read_bytes() for path in tiny_folder.iterdir() if path.is_file()}
    with MockHub(test__tiny=Repo(files | USELESS, gated=True)) as hub:
        yield hub


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def environ(mock: MockHub, cache: Path, tmp_path: Path) -> dict[str, str]:
    quiet = {"HF_HUB_OFFLINE": "", "HF_TOKEN": TOKEN, "NO_PROXY": "127.0.0.1", "HF_HOME": str(tmp_path / "home")}
    return quiet | {"HF_ENDPOINT": mock.endpoint, "HF_HUB_CACHE": str(cache)}


def must_answer(launcher: Launcher, reference: Reference) -> None:
    """As Transformers does with the folder that was given to the hub."""
    api = Api(launcher.url)
    expected = reference.greedy(reference.encode(PROMPT), TOKENS)
    must_match(api.generate(PROMPT, max_new_tokens=TOKENS).tokens, expected, PROMPT)
    api.close()


def ends(launcher: Launcher, code: int) -> str:
    """The sentence a launcher ends with."""
    assert launcher.wait() == code
    assert "Traceback" not in launcher.log
    assert TOKEN not in launcher.log
    return launcher.log.splitlines()[-1]


def test_a_model_of_the_hub_and_again_without_it(
    start: Start, mock: MockHub, environ: dict[str, str], cache: Path, tiny_reference: Reference
) -> None:
    mock.fault(WEIGHTS).drop_after = [10_000]
    launcher = start(model="test/tiny", environ=environ).wait_ready()
    info = send(launcher.url, "GET", "/info").json()
    commit = mock.repos["test/tiny"].head
    assert (info["model_id"], info["model_sha"]) == ("test/tiny", commit)
    assert info["max_total_tokens"] == MAX_POSITIONS
    must_answer(launcher, tiny_reference)
    launcher.stop()
    assert set(mock.asked()) - SERVED <= {"chat_template.jinja", "special_tokens_map.json"}
    assert mock.asked().count(WEIGHTS) == 2
    assert f"downloaded test/tiny at {commit[:12]}" in launcher.log
    assert TOKEN not in launcher.log
    assert "signature" not in launcher.log

    mock.stop()
    launcher = start(model="test/tiny", environ=environ).wait_ready()
    must_answer(launcher, tiny_reference)
    (warning,) = [line for line in launcher.log.splitlines() if "cannot be reached" in line]
    assert "WARN" in warning
    assert "as it is in the cache" in warning


def test_a_model_that_cannot_be_served_is_refused_before_its_weights(
    start: Start, mock: MockHub, environ: dict[str, str]
) -> None:
    repo = mock.repos["test/tiny"]
    config = json.loads(repo.files["config.json"]) | {"architectures": ["BertModel"]}
    repo.commit(repo.files | {"config.json": json.dumps(config).encode()})
    sentence = ends(start(model="test/tiny", environ=environ), 3)
    assert "BertModel" in sentence
    assert WEIGHTS not in mock.asked()


@pytest.mark.parametrize(
    ("changes", "flags", "part"),
    [
        ({"HF_TOKEN": ""}, {}, "test/tiny is gated; ask for access at"),
        ({"HF_TOKEN": "hf_bad"}, {}, "does not accept the token"),
        ({"HF_HUB_OFFLINE": "1"}, {}, "HF_HUB_OFFLINE is set"),
        ({}, {"revision": "v9"}, "no revision 'v9'"),
        ({}, {"model": "test/none"}, "has no model test/none"),
    ],
    ids=["gated", "bad token", "offline", "revision", "missing"],
)
def test_refusals(
    changes: dict[str, str], flags: dict[str, str], part: str, start: Start, environ: dict[str, str]
) -> None:
    sentence = ends(start(**({"model": "test/tiny", "environ": environ | changes} | flags)), 3)
    assert sentence.startswith("error: --model-id test/")
    assert part in sentence
    assert "hf_bad" not in sentence


def test_ctrl_c_in_a_download_and_going_on(start: Start, mock: MockHub, environ: dict[str, str], cache: Path) -> None:
    held = 50_000
    mock.fault(WEIGHTS).hold_after = held
    launcher = start(model="test/tiny", environ=environ)
    assert mock.sent.wait(60)
    until(lambda: [each for each in cache.rglob("*.incomplete") if each.stat().st_size == held], "the bytes are kept")
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.wait() == 130
    assert "the same command goes on from there" in launcher.log
    mock.fault(WEIGHTS).hold_after = None
    mock.go_on.set()
    mock.content.clear()
    launcher = start(model="test/tiny", environ=environ | {"MAX_TOTAL_TOKENS": "999999"})
    assert "--max-total-tokens 999999" in ends(launcher, 2), "the plan comes after the download"
    (request,) = mock.content
    assert (request.range or "").startswith(f"bytes={held}-")
