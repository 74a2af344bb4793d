"""The benchmark of processors: its models are what they say, and its rows and notes say what the turns said."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmark.cpu import shapes
from benchmark.cpu.peers import PEERS, Peer, PeerMissing, prepare
from benchmark.cpu.plot import PROGRAMS as DRAWN
from benchmark.cpu.plot import beside, draw, speeds
from benchmark.cpu.probe import Limits, Probe
from benchmark.cpu.programs import PROGRAMS, Task, Times
from benchmark.cpu.run import BARS, CASES, Case, Results, Turn, notes, prompts, rows
from benchmark.report import Report, Row

STEADY, SLOWER = Limits(20.0, 30.0, 300.0), Limits(10.0, 15.0, 300.0)


def test_speed_counts_tokens_behind_the_first_of_each_stream() -> None:
    assert Case(8, 128, 33, "decode").speed(Times(1.0, 3.0)) == 8 * 32 / 2
    assert Case(2, 128, 1, "prompt").speed(Times(0.5, 0.5)) == 512


def test_prompts_are_others_in_each_round_and_the_same_in_each_run() -> None:
    case = CASES["8 streams"]
    assert prompts(case, 1000, 1) == prompts(case, 1000, 1) != prompts(case, 1000, 2)
    assert [len(prompt) for prompt in prompts(case, 1000, 1)] == [128] * 8


def test_the_best_peer_has_the_bar_and_unsteady_turns_do_not_count() -> None:
    results = Results()
    results.turns["S", "int8", "one stream"] = {
        "textgen": [Turn(speed, STEADY, STEADY) for speed in (100.0, 110.0)] + [Turn(1.0, STEADY, SLOWER)],
        "llama.cpp": [Turn(50.0, STEADY, STEADY)],
        "vllm": [Turn(40.0, STEADY, SLOWER)],
    }
    results.ready["S", "int8"] = {"textgen": (2.0, 500.0), "vllm": (60.0, 4000.0)}
    results.missing["ctranslate2"] = "no such wheel"
    best, other, ready, memory = rows(results, {"llama.cpp": "1", "vllm": "2"})
    assert (best.peer, best.ours, best.theirs, best.bar, best.holds) == ("llama.cpp", 105.0, 50.0, "ratio >= 1.6", True)
    assert (other.peer, other.theirs, other.bar) == ("vllm", 40.0, None)
    assert (ready.ours, ready.theirs, memory.ours, memory.theirs) == (2.0, 60.0, 500.0, 4000.0)
    told = notes(results, 2, 3, 0.5)
    assert "In 2 of 5 turns" in told[4]
    assert told[-1] == "Not measured: ctranslate2: no such wheel"


def test_every_peer_is_a_program_and_every_bar_a_case() -> None:
    assert {peer.name for peer in PEERS} | {"textgen"} == set(PROGRAMS)
    assert {shape for shape, _ in BARS} == set(shapes.SHAPES)
    assert {case for _, case in BARS} <= set(CASES)


COMPARED = [
    Row("S, int8, one stream", "decode", "tokens/s", 300.0, "vllm", "1", 100.0, "ratio >= 1.6"),
    Row("S, int8, one stream", "decode", "tokens/s", 300.0, "openvino", "1", 200.0),
    Row("S, bf16, prompt of 512", "prompt", "tokens/s", 4000.0),
    Row("S, int8", "memory at most", "MiB", 1000.0, "vllm", "1", 3000.0),
]


def test_a_picture_has_the_speeds_of_all_programs() -> None:
    assert speeds(COMPARED) == {
        "int8": {"one stream": {"textgen": 300.0, "vllm": 100.0, "openvino": 200.0}},
        "bf16": {"prompt of 512": {"textgen": 4000.0}},
    }
    assert set(DRAWN) == set(PROGRAMS)


def test_the_picture_is_an_image(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need the bench extra")
    path = beside(tmp_path / "cpu-S-some-cpu-2-cores.json")
    draw(Report("cpu-S", "make bench-cpu", {}, COMPARED, "Some CPU, 2 cores", "2026-11-28"), path)
    assert path.name == "cpu-S-some-cpu-2-cores-tokens.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_peer_that_cannot_be_installed_says_why(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        raise PeerMissing(f"nothing for {folder.name}")

    with pytest.raises(PeerMissing, match="nothing for other-one"):
        prepare(Peer("other one", "package", ("bf16",), fail), tmp_path)
    assert not (tmp_path / "other-one" / "done").exists()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    """A shape's name."""
    shape = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
             "intermediate_size": 96, "vocab_size": 2100}  # fmt: skip
    monkeypatch.setattr(shapes, "SHAPES", {"T": shape})
    return "T"


def test_a_program_answers_each_run_with_its_times(tmp_path: Path, tiny: str) -> None:
    """That of Transformers' continuous batching, with more and longer prompts than its first call had."""
    task = Task({"hf": str(shapes.folder_of(tiny, tmp_path))}, "bf16", 1, str(tmp_path), 3, 600)
    runs = [{"prompts": [[5] * 300] * 3, "new_tokens": 4}, {"prompts": [[6]], "new_tokens": 1}]
    command = [sys.executable, "-m", "benchmark.cpu.programs", "transformers continuous", json.dumps(asdict(task))]
    done = subprocess.run(
        command, input="".join(json.dumps(run) + "\n" for run in runs), capture_output=True, text=True, timeout=100
    )
    ready, many, one = map(json.loads, done.stdout.splitlines())
    assert ready["ready"] > 0
    assert 0 < many["first"] < many["last"]
    assert 0 < one["first"] == one["last"]


def test_models_in_every_form(tmp_path: Path, tiny: str) -> None:
    plain = load_file(shapes.folder_of(tiny, tmp_path) / "model.safetensors")
    assert "lm_head.weight" not in plain
    folder = shapes.w8a8_of(tiny, tmp_path)
    packed = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    assert packed[name].dtype == torch.int8
    apart = (packed[name].float() * packed[f"{name}_scale"].float() - plain[name].float()).abs()
    assert (apart <= packed[f"{name}_scale"].float()).all()
    assert json.loads((folder / "config.json").read_text())["quantization_config"]["format"] == "int-quantized"
    assert shapes.gguf_of(tiny, tmp_path).read_bytes()[:4] == b"GGUF"


@pytest.mark.skipif(shutil.which("cc") is None, reason="the probe is compiled")
def test_the_probe_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmark.cpu.probe.MEGABYTES", 8)
    monkeypatch.setattr("benchmark.cpu.probe.SIDE", 64)
    found = Probe(tmp_path, 1)()
    assert min(found.one, found.eight, found.products) > 0
    assert found.moved(found) == 0 and STEADY.moved(SLOWER) == 0.5
