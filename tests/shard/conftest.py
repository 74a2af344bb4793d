"""Models and in-process runners for the shard's tests."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from tests.seeds import fresh_seed
from textgen.ops.cuda.ops import CudaOps
from textgen.ops.transfer import upload
from textgen.shard import graphs
from textgen.shard.assembly import chunk_of
from textgen.shard.runner import Runner
from textgen.shard.settings import ShardSettings
from textgen.shard.start import build_runner

from ..models.tiny import make_model
from ..ops.cuda.conftest import BUILT
from .router import shard_settings
from .stand_in import StandIn, StandInKernels

RunnerMaker = Callable[..., Runner]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="session")
def reference(model_folder: Path) -> PreTrainedModel:
    """Transformers' twin of the model in `model_folder`."""
    return make_model(model_folder)


@pytest.fixture
def rng() -> random.Random:
    return random.Random(fresh_seed())


@pytest.fixture
def gpu(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """What `--device cuda` opens."""
    kernels = StandInKernels(rng.getrandbits(64), BUILT)
    accelerator = StandIn(kernels, rng)

    def opened(settings: ShardSettings, _: object) -> tuple[StandIn, CudaOps]:
        return accelerator, CudaOps(kernels, chunk_of(settings))

    monkeypatch.setattr("textgen.shard.start.open_accelerator", opened)
    monkeypatch.setattr(graphs, "SPACING", 1)

    def checked(load: Callable[..., Any]) -> Callable[..., Any]:
        def uploads(*given: Any) -> Any:
            assert kernels.recorder is None, "what is captured asks the host for something"
            return load(*given)

        return uploads

    for module in ("textgen.ops.cuda.attention", "textgen.shard.decode", "textgen.ops.cuda.sampling"):
        monkeypatch.setattr(f"{module}.upload", checked(upload))
    return accelerator


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
