"""A hub, a cache, and nothing of the machine's own settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from tests.hub.mock_hub import MockHub, Repo
from tests.hub.repos import model_files
from textgen.hub.connection import Hub
from textgen.hub.progress import Progress


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("HF_") or name.upper().endswith("_PROXY") or "HUGGING" in name:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def mock() -> Iterator[MockHub]:
    with MockHub(test__tiny=Repo(model_files())) as hub:
        yield hub
    close_session()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def hub(mock: MockHub, cache: Path) -> Hub:
    return Hub(endpoint=mock.endpoint, cache=cache)


@pytest.fixture
def said() -> list[str]:
    """What was said in the course of a download."""
    return []


@pytest.fixture
def progress(said: list[str]) -> Progress:
    return Progress(said.append, bar=False)


@pytest.fixture
def environment(mock: MockHub, cache: Path) -> Callable[..., dict[str, str]]:
    """For processes: this hub and this cache."""

    def make(**extra: str) -> dict[str, str]:
        return {**os.environ, "HF_ENDPOINT": mock.endpoint, "HF_HUB_CACHE": str(cache), **extra}

    return make
