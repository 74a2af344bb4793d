"""The GPU's check as far as it needs no GPU; the rest of it on the stand-in."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.seeds import fresh_seed
from textgen.gpu import __main__ as program
from textgen.gpu import check
from textgen.gpu.kernels import CHECKS, Case
from textgen.ops import reference
from textgen.ops.cuda.ops import CudaOps
from textgen.shard import graphs
from textgen.shard.runner import Runner
from textgen.shard.settings import ShardSettings
from textgen.shard.start import build_runner

from ..models.tiny import make_model
from ..ops.cuda.conftest import BUILT
from ..ops.cuda.host_device import COMPILER, HostDevice
from ..shard.stand_in import StandIn, StandInKernels

NO_GPU = 3
host = pytest.mark.skipif(COMPILER is None, reason="g++ is missing")
without = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@without
def test_without_a_gpu_they_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["check"]) == NO_GPU
    assert "no GPU: torch" in capsys.readouterr().err


@host
def test_kernels_are_checked_and_a_wrong_one_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(seed := fresh_seed())
    torch.manual_seed(seed)
    device = HostDevice(rng.getrandbits(64), BUILT)
    case = Case(rng, device, CudaOps(device), torch.device("cpu"), 96)
    assert check.check_kernels(case, 1, list(CHECKS))
    assert capsys.readouterr().out.count("ok ") == len(CHECKS)
    monkeypatch.setattr(reference, "rms_norm", lambda x, weight, eps: x)
    assert not check.check_kernels(case, 1, ["rms_norm"])
    assert "WRONG kernel rms_norm" in capsys.readouterr().out


@host
def test_graphs_are_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rng = random.Random(fresh_seed())
    kernels = StandInKernels(rng.getrandbits(64), BUILT)
    monkeypatch.setattr("textgen.shard.start.open_accelerator", lambda *_: (StandIn(kernels, rng), CudaOps(kernels)))
    monkeypatch.setattr(graphs, "SPACING", 1)
    monkeypatch.setattr(check, "TOKENS", 5)
    make_model(tmp_path)

    @contextmanager
    def make(sizes: tuple[int, ...] | None) -> Iterator[Runner]:
        settings = ShardSettings(
            model_dir=str(tmp_path), dtype="float32", device="cuda", num_blocks=64, block_size=16, max_slots=5,
            max_batch_tokens=32, max_context=64, graphs=sizes,
        )  # fmt: skip
        descriptor = os.memfd_create("textgen-test", os.MFD_ALLOW_SEALING)
        yield build_runner(settings, descriptor)
        os.close(descriptor)

    assert check.check_graphs(fresh_seed(), make)
    assert "30 tokens, captured as launched" in capsys.readouterr().out
