"""A device for kernels of `csrc/cuda` that every machine with g++ has, and random inputs with a printed seed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from textgen.ops.cuda.nvrtc import ARCHITECTURES, Nvrtc, NvrtcMissing
from textgen.ops.cuda.ops import CudaOps

from ...seeds import fresh_seed
from .host_device import COMPILER, HostDevice

BUILT = Path(__file__).parents[3] / "build" / "cuda-host"


@pytest.fixture
def rng() -> random.Random:
    seed = fresh_seed()
    torch.manual_seed(seed)
    return random.Random(seed)


@pytest.fixture
def device(rng: random.Random) -> HostDevice:
    if COMPILER is None:
        pytest.skip("g++ is missing: kernels for GPUs are not run on this processor")
    return HostDevice(rng.getrandbits(64), BUILT)


@pytest.fixture
def ops(device: HostDevice) -> CudaOps:
    return CudaOps(device)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def nvrtc(request: pytest.FixtureRequest) -> Nvrtc:
    return compiler_for(request.param)


@pytest.fixture(scope="module")
def any_nvrtc() -> Nvrtc:
    return compiler_for("sm_90")


def compiler_for(arch: str) -> Nvrtc:
    try:
        return Nvrtc(arch)
    except NvrtcMissing as error:
        pytest.skip(str(error))
    except ValueError as error:
        pytest.skip(f"an older NVRTC: {error}")
