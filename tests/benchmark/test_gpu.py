"""The GPU's benchmark: its arithmetic, its models, and what calls leave for the next."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity

from benchmark import report
from benchmark.gpu import checkpoints, peers, run, saturation, trace
from benchmark.gpu.ceilings import Ceilings
from benchmark.gpu.checkpoints import NoRoom, folder_of
from benchmark.gpu.numbers import gaps, idle_share, medians, pairs, percentile
from benchmark.gpu.parts import Result
from benchmark.gpu.pieces import Call, Key, Pieces, Unreadable
from benchmark.gpu.places import data_sheet, driver_of, find_place
from benchmark.gpu.shapes import FORMS, SHAPES, layer_numbers, prompt_flops, read_bytes, tensors_of
from benchmark.gpu.steps import make_runner
from benchmark.gpu.tasks import Task
from benchmark.report import Row, load
from benchmark.serving.load import Answered, Turn
from tests.seeds import fresh_seed
from textgen.gpu import server
from textgen.launcher.arguments import parse_settings
from textgen.llm.base import library_settings
from textgen.models.decoder import Decoder

NO_GPU = 3
TINY = SHAPES["tiny"]
without = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def task_of(part: str, models: Path, form: str = "bf16", **changes: object) -> Task:
    task = Task(part, "tiny", form, "cpu", str(models), str(models), (1, 3), (32, 40), (1,), 40, 1)
    return replace(task, **changes)  # type: ignore[arg-type]


@without
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main([]) == NO_GPU
    assert "no GPU: torch" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--batches", "0"], ["--shapes", "none"], ["--context", "x"], ["--parts", "decode,none"], ["--parts", ""]],
)
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.parse(arguments)
    assert ended.value.code == 2


def test_percentiles_and_gaps() -> None:
    assert [percentile([4, 1, 3, 2], share) for share in (0, 0.5, 1)] == [1, 2.5, 4]
    assert gaps([(5, 10), (0, 2), (1, 3)]) == [(3, 5)]
    assert idle_share([(0, 2), (1, 3), (5, 10)]) == pytest.approx(0.2)
    assert idle_share([(0, 10), (2, 3)]) == 0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)
    with pytest.raises(ValueError, match="nothing ran"):
        idle_share([])


def test_programs_take_turns_and_the_first_round_is_not_counted() -> None:
    ran: list[str] = []
    took = {"a": iter([9.0, 1.0, 2.0, 4.0]), "b": iter([9.0, 5.0, 5.0, 6.0])}

    def seconds(work: Callable[[], object]) -> float:
        work()
        return next(took[ran[-1]])

    programs = {"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}
    assert medians(programs, 3, seconds) == {"a": 2.0, "b": 5.0}
    assert ran == ["a", "b"] * 4


def test_pairs_are_those_under_the_mask() -> None:
    rng = random.Random(fresh_seed())
    start, length = rng.randrange(50), rng.randint(1, 50)
    assert pairs(start, length) == int(torch.ones(length, start + length).tril(start).sum())


def test_shapes_compute_what_is_known_of_them() -> None:
    large, small = SHAPES["llama-8b"], SHAPES["llama-1b"]
    norms = {"llama-8b": 65 * 4096, "llama-1b": 33 * 2048}
    assert layer_numbers(large) + 2 * 128256 * 4096 + norms["llama-8b"] == 8030261248  # the models' parameters
    assert layer_numbers(small) + 128256 * 2048 + norms["llama-1b"] == 1235814400
    assert prompt_flops(large, 1000) == pytest.approx(2 * 6.98e9 * 1000, rel=0.03)
    whole = SHAPES["qwen-moe-8-layers"] | {"num_hidden_layers": 48}  # Qwen3-30B-A3B, of which a token meets 3.3 billion
    assert sum(torch.Size(shape).numel() for shape in tensors_of(whole).values()) == 30532122624
    assert layer_numbers(whole) + 2 * 151936 * 2048 == pytest.approx(3.35e9, rel=0.01)


@pytest.mark.parametrize("form", FORMS)
def test_bytes_are_those_that_are_held(form: str, models: Path) -> None:
    """Of each form as the shard loads it, and the table is counted once where it is the head too."""
    runner = make_runner(task_of("decode", models, form), 1, 64, 16)
    assert isinstance(runner.model, Decoder)
    matrices, norms, head = layer_numbers(TINY), 5 * 64 * 2, 2304 * 64
    outputs = 2 * (64 + 2 * 32 + 64 + 2 * 128 + 64)  # of the layers' matrices
    held = {
        "bf16": 2 * (matrices + head),
        "int8": matrices + head + 4 * (outputs + 2304),
        "int4": (matrices + head) // 2 + (matrices + head) // 32 * 2,
        "fp8": 2 * (matrices + head),
    }
    assert read_bytes(runner.model, 3) == held[form] + norms
    assert runner.cache.bytes_per_page == 2 * 2 * 2 * 16 * 16 * 2
    assert float(runner.cache.places[0].keys.float().std()) == pytest.approx(1, abs=0.1)


def test_mixtures_are_measured_where_experts_count() -> None:
    given = run.parse("--device cpu --shapes tiny tiny-moe --forms bf16 --parts decode,peers,prompt".split())
    found = [(task.part, task.shape) for task in run.tasks(given)]
    both = ("tiny", "tiny-moe")
    assert found == [*(("decode", shape) for shape in both), ("peers", "tiny"), *(("prompt", shape) for shape in both)]


def test_mixtures_alone_have_few_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main("--device cpu --shapes tiny-moe --parts trace,peers".split()) == run.WRONG
    assert "of mixtures alone decode, prompt are measured" in capsys.readouterr().err


def test_of_experts_those_are_counted_that_are_chosen(models: Path) -> None:
    runner = make_runner(task_of("decode", models, shape="tiny-moe"), 1, 64, 16)
    assert isinstance(runner.model, Decoder)
    experts = 2 * 2 * 6 * 3 * 64 * 64  # bytes of all layers'
    rest = read_bytes(runner.model, 10**6) - experts
    assert [read_bytes(runner.model, tokens) - rest for tokens in (1, 2)] == [experts // 3, experts * 5 // 9]


def test_a_cache_of_few_bits_is_counted_as_it_is_held(models: Path) -> None:
    task = task_of("decode", models, kv_cache_dtype="int8")
    cache = make_runner(task, 1, 64, 16).cache
    assert cache.bytes_per_page == 2 * 2 * 2 * 16 * (16 + 4)  # a scale for each token and head
    assert cache.places[0].keys.unique().numel() > 200
    assert task.model == "tiny bf16, cache int8" and Key.of(task, "a").form == "bf16, cache int8"


def test_a_disk_without_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(NoRoom, match=r"takes 16\.1 GB; give --models"):
        folder_of("llama-8b", "bf16", tmp_path)
    assert not list(tmp_path.iterdir())


def test_half_a_model_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("full")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save_file", broken)
        with pytest.raises(OSError, match="full"):
            folder_of("tiny", "bf16", tmp_path)
    folder = folder_of("tiny", "bf16", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"tiny-bf16"}
    words = json.loads((folder / "tokenizer.json").read_text())
    assert max(words["model"]["vocab"].values()) == 2303  # a word for each token


def test_the_bar_is_on_the_ceiling_of_which_more_is_reached() -> None:
    ceilings = Ceilings(bandwidth=100e9, sheet=150e9, rate=1e12)
    copy, sheet = ceilings.bandwidth_rows("a", "b", 90e9, 0.8)
    assert (copy.bar, copy.holds, sheet.bar, sheet.ratio) == ("ratio >= 0.88", True, None, 0.6)
    copy, sheet = replace(ceilings, sheet=105e9).bandwidth_rows("a", "b", 85e9, 0.8)
    assert (copy.bar, sheet.bar, sheet.holds) == (None, "ratio >= 0.80", True)
    (copy,) = replace(ceilings, sheet=None).bandwidth_rows("a", "b", 80e9, 0.8)
    assert copy.holds is False
    assert all(row.bar is None for row in ceilings.bandwidth_rows("a", "b", 1e9, None))
    assert ceilings.told() == "Copies reach 100 GB/s of 150 by the data sheet, products of bfloat16 1 TFLOP/s."


def test_devices_are_found_in_the_data_sheets() -> None:
    known = {
        "NVIDIA H100 80GB HBM3": 3352, "NVIDIA H100 PCIe": 2039, "NVIDIA H200": 4800, "NVIDIA A100-SXM4-40GB": 1555,
        "NVIDIA A100 80GB PCIe": 1935, "NVIDIA L40S": 864, "NVIDIA L4": 300, "NVIDIA GeForce RTX 4090": 1008,
        "NVIDIA A10G": 600, "NVIDIA B200": 8000,
    }  # fmt: skip
    assert {name: data_sheet(name) for name in known} == {name: rate * 1e9 for name, rate in known.items()}
    others = ["Some other device", "NVIDIA RTX A4000", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "RTX 4090 Laptop GPU"]
    assert not any(map(data_sheet, others))


def test_lengths_are_as_people_chat() -> None:
    drawn = saturation.lengths(20_000)
    assert drawn == saturation.lengths(20_000) != saturation.lengths(20_000, seed=3)
    for column, mean, most in zip(zip(*drawn, strict=True), saturation.MEANS, saturation.MOST, strict=True):
        assert min(column) >= saturation.LEAST and max(column) == most
        assert 0.85 * mean < sum(column) / len(column) < mean  # what is cut off is missing


def test_what_clients_saw_is_held_against_the_targets(models: Path) -> None:
    turn = Turn(2.0, [Answered(0.1, (0.01, 0.03)), Answered(0.3, (0.01,))])
    asked = saturation.requests(2, 2304, (9, 9), seed=1)
    task = task_of("saturation", models)
    tokens = sum(request.new_tokens for request in asked)
    found = {row.metric: row for row in saturation.rows(replace(task, shape="llama-8b"), 32, turn, asked, True)}
    assert found["tokens"].ours == tokens / 2 and found["tokens"].holds is False
    assert found["first token, 95 of 100"].holds is False
    assert found["between tokens, median"].holds is True
    assert not any(row.bar for row in saturation.rows(task, 1, turn, asked, True))


@pytest.mark.parametrize("form", FORMS)
def test_launchers_take_what_they_are_told_for_a_gpu(form: str, models: Path) -> None:
    """No GPU is needed to read settings."""
    task = task_of("saturation", models, form, device="cuda", kv_cache_dtype="int8")
    settings = parse_settings(saturation.flags_of(task, models, 2048, 256, 3000), {})
    assert (settings.device, settings.max_batch_size, settings.kv_cache_dtype) == ("cuda", 256, "int8")
    assert settings.quantize == (form if form in ("int8", "int4") else None)
    ours = library_settings(str(models), peers.settings_of(task, 128))
    assert (ours.attention, ours.cuda_memory_fraction, ours.max_total_tokens) == ("native", peers.SHARE, 168)
    for variant in server.variants("cuda"):
        assert parse_settings(["--device", "cuda", "--dtype", variant.dtype, *variant.flags], {}).device == "cuda"


def result(*rows: Row, missing: str | None = None, **versions: str) -> Result:
    return Result("GPU", {"textgen": "1", "torch": "2"} | versions, list(rows), [], missing)


def test_calls_add_to_what_others_measured(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "plot", lambda *_: None)
    path, call = tmp_path / "in" / "pieces.json", Call("make gpu-bench", "abc", date="2026-01-02")
    decode, prompt = task_of("decode", models), task_of("prompt", models)
    pieces = Pieces(path)
    pieces.add(prompt, result(Row("p", "m", "", 5.0)), call)
    pieces.add(decode, result(Row("a", "m", "", 1.0), Row("b", "m", "", 2.0)), call)
    pieces.add(decode, result(Row("b", "m", "", 3.0), Row("c", "m", "", 4.0, "peer", "1", 2.0, "ratio >= 3")), call)
    pieces.add(decode, result(missing="broken"), call)  # takes nothing away
    pieces.add(task_of("peers", models), result(missing="no peer"), call)
    pieces.save()
    later = Call("make gpu-bench ARGS='--parts peers'", "def", date="2026-01-03")
    again = Pieces(path)
    assert again.done(decode, "GPU") and not again.done(decode, "other")
    assert not again.done(task_of("peers", models), "GPU")
    merged = again.report("GPU", {"textgen": "1"}, later, ["ceilings"])
    assert [(row.case, row.ours) for row in merged.rows] == [("a", 1), ("b", 3), ("c", 4), ("p", 5)]
    assert merged.rows[2].holds is False
    assert merged.notes[:2] == ["ceilings", "Not measured: peers of tiny bf16: no peer"]
    assert "`make gpu-bench`, 2026-01-02, commit abc: decode of tiny bf16, prompt of tiny bf16." in merged.notes[2]
    assert load(merged.save(tmp_path)) == merged
    assert again.drop_others("GPU", {"textgen": "1", "torch": "2"}) == 0
    assert again.drop_others("GPU", {"textgen": "1", "torch": "3"}) == 3
    assert not again.done(decode, "GPU")


@pytest.mark.parametrize("text", ["{", '{"a": 1}', '[{"key": {}}]', "[3]"])
def test_what_is_no_file_of_pieces_is_left_alone(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pieces.json"
    path.write_text(text)
    with pytest.raises(Unreadable, match="move it away"):
        Pieces(path)
    assert run.main(["--device", "cpu", "--pieces", str(path)]) == 2
    assert path.read_text() == text


def test_time_between_steps_is_found_by_their_answers() -> None:
    names = ["Memcpy HtoD", "a", "Memcpy DtoH", "Memcpy HtoD", "b", "c", "Memcpy DtoH", "Memcpy DtoH"]
    spans = [trace.Span(name, 10.0 * at, 10.0 * at + (8 if "DtoH" in name else 9)) for at, name in enumerate(names)]
    assert trace.step_ends(spans, 3) == [2, 6, 7]
    assert trace.step_ends(spans, 2) == [3, 7]
    assert trace.idle_between(spans, [2, 6, 7]) == pytest.approx(4 / 78)
    late = [*spans[:1], trace.Span("long", 1.0, 75.0), *spans[1:]]  # on another stream, through all of them
    assert trace.idle_between(late, [3, 7, 8]) == 0


def test_kinds_of_kernels_are_told_apart() -> None:
    names = ["void attention_decode_kernel", "nvjet_tst_64x8", "rms_norm", "sample_kernel", "Memcpy HtoD", "unknown"]
    told = trace.shares([trace.Span(name, 10.0 * at, 10.0 * at + 8) for at, name in enumerate(names)])
    assert list(told) == [*trace.KINDS, trace.OTHERS] and all(share == pytest.approx(1 / 6) for share in told.values())


def test_a_trace_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    spans = [trace.Span(name, 10.0 * at, 10.0 * at + 8) for at, name in enumerate(["attention", "gemm", "other"] * 3)]
    trace.draw(spans, trace.step_ends(spans, 3), "some steps", tmp_path / "in" / "trace.png")
    assert (tmp_path / "in" / "trace.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.129.03  Release Build  (dvs-builder@U16)",
    ],
)
def test_the_driver_is_found(line: str) -> None:
    assert driver_of(line) == "535.129.03"
    assert driver_of("") == "unknown"


def test_what_only_a_gpu_has_is_asked_as_torch_offers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock, name and cache, and of the profiler's events those of the device."""

    class Event:
        made: ClassVar[list[Event]] = []

        def __init__(self, enable_timing: bool = False) -> None:
            assert enable_timing
            self.at = 0
            self.made.append(self)

        def record(self) -> None:
            self.at = len(ran)

        def synchronize(self) -> None:
            ran.append("waited")

        def elapsed_time(self, end: Event) -> float:
            return 1e3 * (end.at - self.at)

    ran: list[str] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA L4")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=5))
    place = find_place("cuda")
    assert place.seconds(lambda: ran.append("work")) == 1.0 and ran == ["work", "waited"]
    assert (place.sheet, place.cache_bytes, place.rehearsal) == (300e9, 5, False)
    assert {"CUDA", "driver"} <= set(place.versions())

    def event(name: str, kind: str, start: int) -> SimpleNamespace:
        span = SimpleNamespace(start=start, end=start + 1)
        return SimpleNamespace(name=name, device_type=getattr(DeviceType, kind), time_range=span)

    events = [event("b", "CUDA", 3), event("launch", "CPU", 2), event("Event Sync", "CUDA", 2), event("a", "CUDA", 1)]
    asked: list[object] = []

    @contextmanager
    def profile(activities: list[object]) -> Iterator[SimpleNamespace]:
        asked.extend(activities)
        yield SimpleNamespace(events=lambda: events)

    monkeypatch.setattr("torch.profiler.profile", profile)
    streams = SimpleNamespace(step=lambda: None, end=lambda: None)
    found = trace.profiled(streams, 2, place)  # type: ignore[arg-type]
    assert found == [trace.Span("a", 1, 2), trace.Span("b", 3, 4)]
    assert asked == [ProfilerActivity.CUDA]
