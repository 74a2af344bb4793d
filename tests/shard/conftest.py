"""Models and in-process runners for the shard's tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from textgen.shard.runner import Runner
from textgen.shard.settings import ShardSettings
from textgen.shard.start import build_runner

from ..models.tiny import make_model
from .router import shard_settings

RunnerMaker = Callable[..., Runner]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="session")
def reference(model_folder: Path) -> PreTrainedModel:
    """Transformers' twin of the model in `model_folder`."""
    return make_model(model_folder)


@pytest.fixture
def make_runner(model_folder: Path, reference: PreTrainedModel) -> Iterator[RunnerMaker]:
    """Runners in this process, with changed settings."""
    descriptors: list[int] = []

    def make(**changes: object) -> Runner:
        settings = ShardSettings(**shard_settings(model_folder, **changes))
        descriptors.append(os.memfd_create("textgen-test", os.MFD_ALLOW_SEALING))
        return build_runner(settings, descriptors[-1])

    yield make
    for descriptor in descriptors:
        os.close(descriptor)
