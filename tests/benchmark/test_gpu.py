"""The GPU's benchmark and check as far as they need no GPU; the rest of the check on the stand-in."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from benchmark.gpu import run
from benchmark.gpu.numbers import idle_share, percentile
from benchmark.gpu.shapes import SHAPES, kv_bytes, prompt_flops, read_bytes
from benchmark.gpu.shapes import make_model as make_random
from tests.seeds import fresh_seed
from textgen.gpu import __main__ as program
from textgen.gpu import check
from textgen.gpu.kernels import CHECKS, Case
from textgen.ops import reference, select_ops
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
    assert run.main([]) == NO_GPU
    assert capsys.readouterr().err.count("no GPU: torch") == 2


@pytest.mark.parametrize("arguments", [["--batches", "0"], ["--shapes", "none"], ["--context", "x"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.parse(arguments)
    assert ended.value.code == 2


def test_percentiles_and_gaps() -> None:
    assert [percentile([4, 1, 3, 2], share) for share in (0, 0.5, 1)] == [1, 2.5, 4]
    assert idle_share([(0, 2), (1, 3), (5, 10)]) == pytest.approx(0.2)
    assert idle_share([(0, 10), (2, 3)]) == 0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)
    with pytest.raises(ValueError, match="nothing ran"):
        idle_share([])


def test_shapes_count_what_a_model_of_them_has() -> None:
    """A small one of the same form, number by number; the named ones by what is known of them."""
    config = SHAPES["llama-1b"] | {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 50,
    }  # fmt: skip
    model = make_random(config, torch.float32, torch.device("cpu"), 32, select_ops())
    tensors, seen = [model.embedding.table], set[int]()

    def collect(part: object) -> None:
        if isinstance(part, torch.Tensor):
            tensors.append(part)
        elif hasattr(part, "__dataclass_fields__") and id(part) not in seen:
            seen.add(id(part))
            for name in part.__dataclass_fields__:
                collect(getattr(part, name))

    for layer in model.layers:
        collect(layer.block)
    collect(model.norm)
    held = {tensor.data_ptr(): tensor.numel() for tensor in tensors if tensor.is_floating_point()}
    assert sum(held.values()) == read_bytes(config, 1)
    assert kv_bytes(config, 2) == 2 * 2 * 2 * 2 * 16
    assert read_bytes(SHAPES["llama-8b"], 1) + 128256 * 4096 == 8030261248  # the model's parameters
    assert read_bytes(SHAPES["llama-1b"], 1) == 1235814400
    assert prompt_flops(SHAPES["llama-8b"], 1000) == pytest.approx(2 * 6.98e9 * 1000, rel=0.03)


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
