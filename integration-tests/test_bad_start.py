"""Wrong starts: one clear sentence, the right exit code, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.processes import running
from support.raw import send_json
from support.refusals import CHAT, MESSAGES, refused
from support.server import Launcher, Start


@pytest.fixture
def damaged(tiny_folder: Path, tmp_path: Path) -> Callable[[], Path]:
    """A copy of the tiny model to break."""

    def copy() -> Path:
        return Path(shutil.copytree(tiny_folder, tmp_path / "broken-model"))

    return copy


def fails(launcher: Launcher, code: int, *words: str) -> str:
    """The launcher ends with this code and one `error:` line; no shard stays."""
    assert launcher.wait(90) == code, launcher.log
    assert launcher.faults() == []
    errors = [line for line in launcher.log.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, launcher.log
    sentence = errors[0].removeprefix("error: ")
    assert not re.search(r"\w+Error\b|Errno", sentence), sentence
    for word in words:
        assert word in sentence, sentence
    assert not any(running(pid) for pid in launcher.known_shards)
    return sentence


SETTINGS, MODEL, MEMORY, ADDRESS = 2, 3, 4, 6


def test_unknown_model_folder(start: Start, tmp_path: Path) -> None:
    fails(start(model=tmp_path / "nothing"), MODEL, "nothing", "no such folder")


def test_a_hub_name_without_a_network(start: Start) -> None:
    offline = {"HF_HUB_OFFLINE": "1"}
    fails(start(model="some-org/some-model", environ=offline), MODEL, "some-org/some-model", "HF_HUB_OFFLINE")


def test_a_file_instead_of_a_folder(start: Start, tiny_folder: Path) -> None:
    fails(start(model=tiny_folder / "config.json"), MODEL, "config.json", "folder")


def test_an_empty_folder(start: Start, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    fails(start(model=empty), MODEL, "config.json")


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "model.safetensors"])
def test_a_missing_file(start: Start, damaged: Callable[[], Path], name: str) -> None:
    folder = damaged()
    (folder / name).unlink()
    fails(start(model=folder), MODEL, name)


def test_weights_cut_off(start: Start, damaged: Callable[[], Path]) -> None:
    folder = damaged()
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1000)
    fails(start(model=folder), MODEL, "model.safetensors", "damaged")


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 7, b"\xff" * 8 + b"{}", struct.pack("<Q", 10) + b"{nonsense}", b"<html>404</html>" * 100,
     struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 60) + b'{"a":{"dtype":"F32","shape":[2],"data_offs' + b" " * 24],
    ids=["empty", "short", "huge header", "no JSON", "web page", "no tensors", "cut header"],
)  # fmt: skip
def test_weights_that_are_garbage(start: Start, damaged: Callable[[], Path], content: bytes) -> None:
    folder = damaged()
    (folder / "model.safetensors").write_bytes(content)
    fails(start(model=folder), MODEL, str(folder))


@pytest.mark.parametrize("change", ["one tensor less", "another shape"])
def test_weights_of_another_model(start: Start, damaged: Callable[[], Path], change: str) -> None:
    """The headers are sound, so only the shard can see it."""
    folder = damaged()
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.q_proj.weight"
    if change == "one tensor less":
        del weights[name]
    else:
        weights[name] = torch.zeros(3, 5)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    fails(start(model=folder), MODEL, name)


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", "{"), ("tokenizer.json", '{"model": 5}'), ("config.json", "{"), ("config.json", "[]"),
     ("tokenizer_config.json", "{")],
)  # fmt: skip
def test_damaged_text_files(start: Start, damaged: Callable[[], Path], name: str, content: str) -> None:
    folder = damaged()
    (folder / name).write_text(content)
    fails(start(model=folder), MODEL, name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["MambaForCausalLM"]}, ("MambaForCausalLM", "not supported")),
        ({"architectures": None}, ("architecture",)),
        ({"num_hidden_layers": None}, ("num_hidden_layers",)),
        ({"hidden_size": "many"}, ("hidden_size",)),
        ({"num_key_value_heads": 3}, ("num_key_value_heads",)),
        ({"hidden_act": "xielu"}, ("hidden_act",)),
        ({"rope_parameters": {"rope_type": "spiral", "factor": 2.0}}, ("spiral",)),
        ({"logit_scale": 0.5}, ("logit_scale", "does not know")),
        ({"quantization_config": {"quant_method": "gptq"}}, ("quantized",)),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_unsupported_configs(
    start: Start, damaged: Callable[[], Path], change: dict[str, Any], words: tuple[str, ...]
) -> None:
    folder = damaged()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    fails(start(model=folder), MODEL, *words)


def test_a_port_in_use(start: Start, tiny_folder: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        fails(start(model=tiny_folder, port=port), ADDRESS, f"127.0.0.1:{port}", "in use", "--port")


def test_an_address_of_another_machine(start: Start, tiny_folder: Path) -> None:
    launcher = start(model=tiny_folder, hostname="192.0.2.1", api_key="sesame")
    fails(launcher, ADDRESS, "192.0.2.1", "--hostname")


def test_a_network_without_a_key(start: Start, tiny_folder: Path) -> None:
    fails(start(model=tiny_folder, hostname="0.0.0.0"), SETTINGS, "--api-key", "--allow-unauthenticated")


def test_a_model_that_does_not_fit(start: Start, tiny_folder: Path) -> None:
    launcher = start(model=tiny_folder, kv_memory="200KiB")
    fails(launcher, MEMORY, "does not fit", "--max-total-tokens")
    for row in ("available", "weights", "KV cache"):
        assert row in launcher.log, "the arithmetic is missing"


def test_kv_memory_too_small(start: Start, tiny_folder: Path) -> None:
    fails(start(model=tiny_folder, kv_memory="1KiB"), MEMORY, "does not fit", "--kv-memory")


def test_weights_larger_than_the_machine(start: Start, damaged: Callable[[], Path]) -> None:
    """Weights of 8 TiB, as far as headers and file size tell: the file is a hole."""
    folder = damaged()
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**41], "data_offsets": [0, 2**43]}}).encode()
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + 2**43)
    launcher = start(model=folder)
    fails(launcher, MEMORY, "does not fit", "missing")
    assert "weights" in launcher.log


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": "many"}, ("--port", "many")),
        ({"port": 70_000}, ("--port", "70000")),
        ({"dtype": "int3"}, ("--dtype", "int3")),
        ({"max_total_tokens": -1}, ("--max-total-tokens",)),
        ({"max_input_tokens": 100, "max_total_tokens": 100}, ("--max-input-tokens", "--max-total-tokens")),
        ({"max_total_tokens": 10**6}, ("--max-total-tokens", "2048")),
        ({"max_batch_size": 64, "max_batch_prefill_tokens": 32}, ("--max-batch-size", "--max-batch-prefill-tokens")),
        ({"kv_memory": "lots"}, ("--kv-memory", "lots")),
        ({"num_shard": 2}, ("--num-shard",)),
        ({"quantize": "awq"}, ("--quantize",)),
        ({"max_total_token": 5}, ("--max-total-token", "--max-total-tokens")),
        ({"graceful_termination_timeout": "soon"}, ("--graceful-termination-timeout", "soon")),
        ({"device": "cuda"}, ("--device cuda",)),
        ({"model_id": ""}, ("--model-id",)),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_bad_flags(start: Start, tiny_folder: Path, flags: dict[str, Any], words: tuple[str, ...]) -> None:
    fails(start(**({"model_id": tiny_folder} | flags)), SETTINGS, *words)


@pytest.mark.parametrize(
    ("environ", "words"),
    [({"MAX_TOTAL_TOKENS": "x"}, ("MAX_TOTAL_TOKENS", "'x'")), ({"DTYPE": "float8"}, ("DTYPE", "float8"))],
    ids=["number", "choice"],
)  # fmt: skip
def test_bad_variables(start: Start, tiny_folder: Path, environ: dict[str, str], words: tuple[str, ...]) -> None:
    fails(start(model=tiny_folder, environ=environ), SETTINGS, *words)


def test_a_bad_start_in_json_logs(start: Start, tmp_path: Path) -> None:
    """Whoever asked for JSON gets the reason as JSON too, and nothing else."""
    launcher = start(model=tmp_path / "nothing", json_output=True)
    assert launcher.wait() == MODEL
    lines = [json.loads(line) for line in launcher.log.splitlines()]
    assert lines[-1]["level"] == "ERROR"
    assert "no such folder" in lines[-1]["message"]


def test_a_broken_chat_template_leaves_the_rest_working(start: Start, damaged: Callable[[], Path]) -> None:
    folder = damaged()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": "{% for x in"}))
    launcher = start(model=folder, max_total_tokens=64).wait_ready()
    assert send_json(launcher.url, "/generate", {"inputs": "a", "parameters": {"max_new_tokens": 2}}).status == 200
    answer = send_json(launcher.url, CHAT, {"messages": MESSAGES})
    refused(answer, CHAT, 422, "template_error", "emplate")
    assert launcher.faults() == []
