"""Every part of the GPU's benchmark that needs no server, on a processor and on the stand-in for a GPU."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmark.gpu import attention, parts, products, run, trace, turns
from benchmark.gpu.ceilings import Ceilings
from benchmark.gpu.parts import PARTS, Result
from benchmark.gpu.places import Place, find_place
from benchmark.gpu.tasks import NotMeasured, Task
from benchmark.report import load
from tests.seeds import fresh_seed
from textgen.ops.cuda.ops import CudaOps
from textgen.quantization.kernels import KernelWeight
from textgen.shard import graphs

from ..ops.cuda.conftest import BUILT
from ..ops.cuda.host_device import COMPILER
from ..ops.cuda.test_flash import install
from ..shard.stand_in import StandIn, StandInKernels
from .test_gpu import result, task_of

CPU = find_place("cpu")
STAND_IN = Place("cuda", torch.device("cpu"), "a stand-in")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def in_this_process(place: Place, began: list[str]) -> parts.Launch:
    def launch(task: Task) -> Result:
        began.append(f"{task.part} {task.form}")
        return parts.run(task, place)

    return launch


def arguments(folder: Path, models: Path, *others: str, parts: str = "decode,attention,prompt,trace") -> list[str]:
    return [
        "--parts", parts, "--shapes", "tiny", "--forms", "bf16", "int4", "--context", "20", "--batches", "1", "2",
        "--prompts", "24", "--rounds", "1", "--models", str(models), "--pieces", str(folder / "pieces.json"), "--out",
        str(folder), *others,
    ]  # fmt: skip


def cases(folder: Path) -> Sequence[str]:
    (path,) = (path for path in folder.glob("gpu*.json"))
    found = load(path).rows
    assert not any(row.bar for row in found)
    assert all(row.ours > 0 or row.unit == "%" for row in found)
    return [f"{row.case}: {row.metric}" for row in found]


EXPECTED = [
    "tiny bf16, 1 x 20 tokens: weights and cache read", "tiny int4, 2 x 20 tokens: tokens",
    "tiny, attention of 2 tokens over 20: cache read", "tiny, attention of a chunk of 24: products",
    "tiny int4, a prompt of 24 tokens: products", "tiny bf16, 2 x 20 tokens: device idle at all, profiled",
]  # fmt: skip


def test_a_processor_rehearses_in_several_calls(
    tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[str] = []
    launch = in_this_process(CPU, began)
    on_cpu = ("--device", "cpu")
    assert run.main(arguments(tmp_path, models, *on_cpu, parts="decode"), launch) == 0
    assert began == ["ceilings bf16", "decode bf16", "decode int4"]
    began.clear()
    assert run.main(arguments(tmp_path, models, *on_cpu, "--minutes", "0"), launch) == 0
    assert began == ["ceilings bf16"]
    assert "left for another call with --resume: decode of tiny bf16" in capsys.readouterr().out
    began.clear()
    monkeypatch.setattr(trace, "draw", lambda spans, ends, title, path: path.write_text(title))
    assert run.main(arguments(tmp_path, models, *on_cpu, "--resume"), launch) == 0
    assert began == ["ceilings bf16", "attention bf16", "prompt bf16", "prompt int4", "trace bf16"]
    assert set(EXPECTED) <= set(cases(tmp_path))
    assert len(list(tmp_path.glob("*-trace-tiny-bf16-?.png"))) == 2


def test_products_that_err_are_not_timed(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelWeight, "multiply", lambda self, x, bias: x.new_zeros(len(x), self.outputs))
    with pytest.raises(NotMeasured, match="a product of textgen is .* from torch's"):
        products.measure(task_of("products", models, batches=(1,), prompts=(24,)), CPU, Ceilings(1, None, 1))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[StandIn]:
    """What parts open as their GPU: the stand-in."""
    if COMPILER is None:
        pytest.skip("g++ is missing")
    rng = random.Random(seed := fresh_seed())
    torch.manual_seed(seed)
    kernels, found = StandInKernels(rng.getrandbits(64), BUILT), list[StandIn]()

    def open_stand_in(*_: object) -> tuple[StandIn, CudaOps]:
        found.append(StandIn(kernels, rng))
        return found[-1], CudaOps(kernels)

    for module in ("benchmark.gpu.turns", "textgen.shard.start"):
        monkeypatch.setattr(f"{module}.open_accelerator", open_stand_in)
    monkeypatch.setattr(graphs, "SPACING", 1)
    monkeypatch.setattr(turns, "REPEATS", 2)
    return found


def test_all_parts_without_a_server_run_on_the_stand_in(
    tmp_path: Path, models: Path, opened: list[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "draw", lambda *_: None)
    began: list[str] = []
    assert run.main(arguments(tmp_path, models), in_this_process(STAND_IN, began)) == 0
    assert set(EXPECTED) <= set(cases(tmp_path))
    assert began[1:] == ["decode bf16", "decode int4", "attention bf16", "prompt bf16", "prompt int4", "trace bf16"]
    by_graphs = ["decode" in name or "attention" in name or "trace" in name for name in began[1:]]
    assert [each.captured > 0 and each.replayed > 0 for each in opened] == by_graphs


@pytest.mark.parametrize("version", [2, 3])
def test_flash_attn_attends_to_the_same_memory(
    version: int, models: Path, opened: list[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In larger pages; were they others, it would say something else, and nothing would be told."""
    install(monkeypatch, version)
    task = task_of("attention", models, device="cuda", batches=(2,), context=270, prompts=(9,))
    found = attention.measure(task, STAND_IN, Ceilings(1e9, None, 1e9))
    assert {row.peer for row in found.rows if row.metric == "time"} == {"torch", "flash-attn"}
    assert not found.notes and opened[0].captured == 6


def test_products_of_every_kind(models: Path) -> None:
    task = task_of("products", models, batches=(1,), prompts=(24,))
    found = products.measure(task, CPU, Ceilings(1e9, None, 1e9))
    assert not found.notes and all(row.ours > 0 for row in found.rows)
    cases = {row.case for row in found.rows}
    assert len(cases) == 4 * len(products.KINDS)
    assert "tiny, Q4_K, 1 x 64 x 256" in cases and "tiny, fp8, 24 x 128 x 64" in cases


@pytest.mark.parametrize("name", ["Q4_K", "fp8"])
def test_products_on_the_stand_in(
    name: str, models: Path, opened: list[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "KINDS", {name: products.KINDS[name]})
    task = task_of("products", models, device="cuda", batches=(2,), prompts=(24,))
    found = products.measure(task, STAND_IN, Ceilings(1e9, None, 1e9))
    assert {row.metric for row in found.rows} == {"read", "products", "time"} and not found.notes
    assert opened[0].captured == 8


def test_what_was_begun_is_ended_when_the_minutes_are_over(
    tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process of its own that would go on for long, and one that breaks."""
    task = task_of("decode", models)
    begun = time.monotonic()
    told = run.in_process(task, 0.5)
    assert told.missing == "it took longer than the 0 s that were left" and time.monotonic() - begun < 30
    broken = run.in_process(replace(task, shape="none"), 100)
    assert broken.missing is not None and "exit code 1: KeyError: 'none'" in broken.missing
    assert "Traceback" in capsys.readouterr().err

    def launch(asked: Task) -> Result:
        return result(missing=None if asked.part == "ceilings" else broken.missing)

    assert run.main(arguments(tmp_path, models, "--device", "cpu", parts="decode"), launch) == run.FAILED
    assert "Not measured: decode of tiny bf16: its process ended" in capsys.readouterr().out


def test_attention_that_errs_is_not_timed(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "scaled_dot_product_attention", lambda query, *_, **__: query + 1)
    with pytest.raises(NotMeasured, match="attention of textgen is .* from torch's"):
        attention.measure(task_of("attention", models), CPU, Ceilings(1, None, 1))
    told = parts.run(task_of("attention", models), CPU)
    assert told.missing is not None and not told.rows


def test_every_part_is_there() -> None:
    assert all(callable(part.load()) for part in PARTS.values())
