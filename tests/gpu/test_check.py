"""The GPU's check as far as it needs no GPU; the rest of it on the stand-in."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.seeds import fresh_seed
from textgen.gpu import __main__ as program
from textgen.gpu import check, server
from textgen.gpu.kernels import CHECKS, FLASH, Case, checks_here
from textgen.gpu.results import Results
from textgen.ops import reference
from textgen.ops.cuda import flash
from textgen.ops.cuda.ops import CudaOps
from textgen.shard import graphs
from textgen.shard.runner import Runner
from textgen.shard.settings import ShardSettings
from textgen.shard.start import build_runner

from ..models.tiny import make_model
from ..ops.cuda.conftest import BUILT
from ..ops.cuda.host_device import COMPILER, HostDevice
from ..ops.cuda.test_flash import install
from ..shard.stand_in import StandIn, StandInKernels

NO_GPU = 3
host = pytest.mark.skipif(COMPILER is None, reason="g++ is missing")
without = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@without
def test_without_a_gpu_they_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["check"]) == NO_GPU
    assert "no GPU: torch" in capsys.readouterr().err


@host
@pytest.mark.parametrize("version", [2, 3])
def test_flash_attn_is_checked_where_it_is_and_a_wrong_one_is_found(
    version: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, version)
    assert FLASH in checks_here()
    rng = random.Random(seed := fresh_seed())
    torch.manual_seed(seed)
    device = HostDevice(rng.getrandbits(64), BUILT)
    case = Case(rng, device, CudaOps(device), torch.device("cpu"), 96)
    results = Results()
    check.check_kernels(results, case, 3, [FLASH])
    assert results.good
    monkeypatch.setattr(flash, "_sides", lambda window: (0, 0))  # each token sees itself alone
    check.check_kernels(results, case, 3, [FLASH])
    assert "WRONG kernel flash_attn" in capsys.readouterr().out and not results.good


@host
def test_kernels_are_checked_and_a_wrong_one_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(seed := fresh_seed())
    torch.manual_seed(seed)
    device = HostDevice(rng.getrandbits(64), BUILT)
    case = Case(rng, device, CudaOps(device), torch.device("cpu"), 96)
    results = Results()
    names = checks_here()
    assert set(CHECKS) - set(names) == {FLASH}
    check.check_kernels(results, case, 1, names)
    assert results.good and len(results.lines) == len(names)
    assert capsys.readouterr().out.count("ok ") == len(names)
    monkeypatch.setattr(reference, "rms_norm", lambda x, weight, eps: x)
    check.check_kernels(results, case, 1, ["rms_norm"])
    assert "WRONG kernel rms_norm" in capsys.readouterr().out and not results.good


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

    results = Results()
    check.check_graphs(results, fresh_seed(), make)
    assert results.good and len(results.lines) == 2
    assert "30 as launches say" in capsys.readouterr().out
    check.check_graphs(results, fresh_seed(), lambda _: make(()))
    assert [line.good for line in results.lines[2:]] == [False, True]


def test_answers_that_differ_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    results = Results()
    server._hold(results, "a", ["x", "yes"], ["x", "yet"])
    server._hold(results, "b", ["a long answer", "x"], ["a long way", "x"], alike=0.5)
    server._hold(results, "c", ["abc", "def"], ["xbc", "yef"], alike=0.1)
    answers = ['{"name": "Tom", "age": 3, "kind": "cat"}', '{"name": "Tom", "age": 100, "kind": "cat"}', '{"name": "To']
    server._check_structured(results, "d", answers)
    assert [line.good for line in results.lines] == [False, True, False, False]
    assert "'yes', not 'yet'" in capsys.readouterr().out
    assert results.lines[3].said == "1 of 3 are of the schema"


def test_what_breaks_is_a_check_that_went_wrong_and_all_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole program, of which each part is replaced."""

    def broken(*_: object) -> None:
        raise RuntimeError("no driver\nand more")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Some GPU")
    monkeypatch.setattr(check, "check_on_gpu", broken)
    monkeypatch.setattr(check, "check_all_graphs", lambda results, *_: results.add("graphs", "a", True, "fine"))
    monkeypatch.setattr(check, "check_server", lambda results: results.add("server", "b", True, "fine"))
    path = tmp_path / "told.json"
    assert program.main(["check", "--seed", "5", "--json", str(path)]) == program.FAILED
    out = capsys.readouterr().out
    assert "WRONG kernels as a whole: RuntimeError: no driver\n" in out and "something is wrong; see above" in out
    rows = [line.split()[:3] for line in out.splitlines()[-5:-1]]
    assert rows == [["part", "checks", "wrong"], ["kernels", "1", "1"], ["graphs", "1", "0"], ["server", "1", "0"]]
    told = json.loads(path.read_text())
    assert (told["good"], told["seed"], told["device"]) == (False, 5, "Some GPU")
    assert [line["name"] for line in told["checks"]] == ["as a whole", "a", "b"]
    assert program.main(["check", "--skip", "kernels"]) == 0
    assert program.main(["check", "--skip", "kernels", "--json", str(tmp_path / "no" / "folder")]) == program.WRONG
    assert "--json: " in capsys.readouterr().err
