"""Kernels of each instruction set that the machine has, on one thread and on two."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from ...seeds import fresh_seed
from .native import Native, isas


@pytest.fixture(scope="module", params=[(isa, workers) for isa in isas() for workers in (1, 2)], ids=str)
def native(request: pytest.FixtureRequest) -> Iterator[Native]:
    kernels = Native(*request.param)
    yield kernels
    kernels.close()


@pytest.fixture
def rng() -> random.Random:
    seed = fresh_seed()
    torch.manual_seed(seed)
    return random.Random(seed)
