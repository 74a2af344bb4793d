"""Servers as `make gpu-check` asks them and as `make gpu-bench` starts them, on a processor: the first run on a GPU is
not the first of the code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch
from support.missed import missed
from support.models import SIZES, save, vocabulary_size
from support.reference import Reference
from support.server import Start, environment
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from textgen.gpu import server
from textgen.gpu.results import Results
from textgen.gpu.server import Variant, check_server

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.timeout(300)


def test_a_server_is_held_against_another(capfd: pytest.CaptureFixture[str]) -> None:
    results = Results()
    torch = Variant("torch", ("--plan", "off"))
    refused = Variant("for GPUs", ("--attention", "native"))
    check_server(results, "cpu", [torch, refused])
    told = {line.name: line for line in results.lines}
    assert [name for name, line in told.items() if not line.good] == ["for GPUs"]
    assert "--attention native is for GPUs" in told["for GPUs"].said
    assert told["torch: answers"].said == "4 of 4 the same" and len(told) == 3
    assert "WRONG server for GPUs" in capfd.readouterr().out


@pytest.mark.usefixtures("stand_in")
def test_a_server_on_the_stand_in_for_a_gpu_says_what_the_processor_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the launcher's plan for a GPU to steps that are captured; small, because every thread of a block is run."""
    for name, value in {"PROMPTS": server.PROMPTS[:2], "TOKENS": 10, "LONG": 40}.items():
        monkeypatch.setattr(server, name, value)
    small = ("--max-batch-prefill-tokens", "32", "--max-batch-size", "4", "--max-total-tokens", "96")
    results = Results()
    native, *_ = server.variants("cuda")
    server.check_server(results, "cuda", [replace(native, flags=(*native.flags, *small))])
    assert results.good, [line.said for line in results.lines]
    assert [line.name for line in results.lines if "at once" in line.name or "killed" in line.name] == [
        "native: streams at once", "native: a stream whose shard was killed",
    ]  # fmt: skip


@pytest.mark.usefixtures("stand_in")
def test_experts_of_few_bits_on_the_stand_in_say_nearly_what_transformers_says(start: Start, tmp_path: Path) -> None:
    torch.manual_seed(11)
    mixture = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
    config = Qwen3MoeConfig(**(SIZES | mixture), vocab_size=vocabulary_size(), initializer_range=0.1)
    save(Qwen3MoeForCausalLM(config), tmp_path)
    reference, small = (
        Reference(tmp_path),
        {"max_batch_prefill_tokens": 32, "max_total_tokens": 96, "max_batch_size": 2},
    )
    for quantize, bound in (("int8", 0.05), ("int4", 0.4)):
        launcher = start(model=tmp_path, device="cuda", dtype="bfloat16", quantize=quantize, **small).wait_ready()
        assert median(missed(launcher.url, reference, "Some words for experts")) < bound
        launcher.stop()


def test_servers_and_peers_are_measured_in_processes_of_their_own(tmp_path: Path) -> None:
    sizes = "--context 16 --batches 2 --prompts 24 --clients 1 2 --rounds 1 --shapes tiny --forms bf16".split()
    folders = ["--models", tmp_path / "models", "--pieces", tmp_path / "pieces.json", "--out", tmp_path]
    command = [sys.executable, "-m", "benchmark.gpu.run", "--device", "cpu", "--parts", "saturation,peers"]
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [*command, *sizes, *map(str, folders)], cwd=ROOT, env=environment({"PYTHONPATH": path}), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = tmp_path.glob("gpu-rehearsal-*.json")
    rows = json.loads(report.read_text())["rows"]
    metrics = {row["metric"] for row in rows if row["case"] == "tiny bf16, served, 2 clients"}
    assert {"tokens", "first token, 95 of 100", "between tokens, median"} <= metrics
    peers = {row["peer"] for row in rows if row["metric"] == "answers, prompts included"}
    assert peers == {"transformers, generate, static cache", "transformers, continuous batching"}
    assert all(row["ours"] > 0 for row in rows)
