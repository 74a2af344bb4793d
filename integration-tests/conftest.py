"""Servers and references that tests share: a start costs seconds, so each is started once per module or run."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
import transformers
from support.api import Api
from support.models import BUILT_IN, GROUPED, write_tiny
from support.raw import send_json
from support.reference import Reference
from support.refusals import LIMIT, MOST
from support.scripted import Script, write_script
from support.server import Launcher, Start, launch

HERE = Path(__file__).parent
torch.set_num_threads(1)
# What a script starts in the background ignores Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
transformers.utils.logging.disable_progress_bar()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "wheel: needs a built wheel in dist/")


@pytest.fixture(scope="session")
def start_shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts servers that live as long as the run."""
    yield from _starter(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def start_for_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts servers that live as long as the module's tests."""
    yield from _starter(tmp_path_factory.mktemp("module"))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers that live as long as one test."""
    yield from _starter(tmp_path)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers and shards that are started find a GPU."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is missing")
    path = [HERE / "support" / "gpu_stand_in", HERE.parent, os.environ.get("PYTHONPATH")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(folder) for folder in path if folder))


def _starter(folder: Path) -> Iterator[Start]:
    started: list[Launcher] = []

    def start(**given: object) -> Launcher:
        launcher = launch(folder, **given)  # type: ignore[arg-type]
        started.append(launcher)
        return launcher

    yield start
    for launcher in started:
        launcher.stop()
    assert [fault for launcher in started for fault in launcher.faults()] == []


@pytest.fixture(scope="session")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def tiny_folder(models_folder: Path) -> Path:
    """A random model with grouped heads."""
    return write_tiny(GROUPED, models_folder)


@pytest.fixture(scope="session")
def tiny_reference(tiny_folder: Path) -> Reference:
    return Reference(tiny_folder)


@pytest.fixture(scope="session")
def script(models_folder: Path) -> Script:
    """A model that says one text and ends."""
    return write_script(models_folder / "script", ends=True)


@pytest.fixture(scope="session")
def endless(models_folder: Path) -> Script:
    """A model that says one text again and again."""
    return write_script(models_folder / "endless", ends=False)


@pytest.fixture(scope="session")
def built_in(start_shared: Start) -> Launcher:
    """The built-in model, served as a user gets it but for the data type."""
    return start_shared(dtype="float32").wait_ready()


@pytest.fixture(scope="session")
def built_in_reference() -> Reference:
    return Reference(BUILT_IN)


@pytest.fixture(scope="session")
def api(built_in: Launcher) -> Iterator[Api]:
    """A client of the built-in model's server."""
    yield from _client(built_in)


@pytest.fixture(scope="session")
def wild(start_shared: Start, tiny_folder: Path) -> Iterator[Api]:
    """A client of random weights."""
    yield from _client(start_shared(model=tiny_folder).wait_ready())


@pytest.fixture(params=["built-in", "random"])
def model(request: pytest.FixtureRequest) -> Api:
    """The built-in model, and random weights."""
    client: Api = request.getfixturevalue("api" if request.param == "built-in" else "wild")
    return client


@pytest.fixture(scope="session")
def strict(start_shared: Start, tiny_folder: Path) -> Launcher:
    return start_shared(model=tiny_folder, payload_limit=LIMIT, max_total_tokens=MOST).wait_ready()


@pytest.fixture
def strict_server(strict: Launcher) -> Iterator[Launcher]:
    """A server with little room, for what it refuses: after each refusal it answers as if nothing had been."""
    yield strict
    answer = send_json(strict.url, "/generate", {"inputs": "Hello", "parameters": {"max_new_tokens": 2}})
    assert answer.status == 200
    assert strict.faults() == []


@pytest.fixture(scope="session")
def scripted_server(start_shared: Start, script: Script) -> Launcher:
    return start_shared(model=script.folder).wait_ready()


@pytest.fixture(scope="session")
def scripted_api(scripted_server: Launcher) -> Iterator[Api]:
    """A client of a server whose every answer is the script."""
    yield from _client(scripted_server)


def _client(launcher: Launcher) -> Iterator[Api]:
    client = Api(launcher.url)
    yield client
    client.close()
