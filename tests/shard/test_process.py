"""The shard as the launcher starts it: a process, a socket pair, a memfd, and every way it can end."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedModel

from textgen.shard.masks import MaskSize
from textgen.shard.protocol import HEADER, MAX_PAYLOAD, VERSION, Failed, Kind, Step, Stop, encode

from ..models.tiny import reference_greedy, reference_logits
from .router import RunningShard, Segment, admit, running_shard, step, tokens_of

PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module")
def shard(
    model_folder: Path, reference: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningShard]:
    """One process for the tests that leave it running; its Hello is taken already."""
    with running_shard(model_folder, tmp_path_factory.mktemp("run")) as running:
        running.first = running.hello()
        yield running


def test_hello_says_what_runs(shard: RunningShard) -> None:
    hello = shard.first
    assert (hello.version, hello.rank, hello.world_size) == (VERSION, 0, 1)
    assert (hello.model.vocab_size, hello.model.max_positions, hello.model.dtype) == (101, 256, "float32")
    assert (hello.kv.num_pages, hello.kv.block_size, hello.kv.groups) == (64, 4, [None])
    assert hello.kv.bytes_per_page == 2 * 3 * 4 * 2 * 16 * 4  # K and V, layers, block, kv heads, head size, float32
    assert (hello.limits.max_slots, hello.limits.max_batch_tokens, hello.limits.max_top_n) == (8, 64, 20)
    assert [phase.name for phase in hello.phases] == ["import", "read", "place", "warm-up"]
    region, masks = hello.regions
    assert (region.name, region.offset) == ("logprobs", 0)
    assert region.length >= 4 * (4 * 64 + 8 * 8 * 20)
    assert (masks.name, masks.offset, masks.length) == ("masks", region.length, MaskSize(8, 101).region)


def test_the_memory_is_sized_and_sealed(shard: RunningShard) -> None:
    size = os.fstat(shard.memory_fd).st_size
    assert size >= shard.first.regions[0].length
    assert fcntl.fcntl(shard.memory_fd, fcntl.F_GET_SEALS) & (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    with pytest.raises(OSError):
        os.ftruncate(shard.memory_fd, size + 1)


def test_what_linking_read_has_left_its_memory(shard: RunningShard) -> None:
    """Pages of files beside those of a process that has imported torch and nothing else."""
    program = "import torch; print(open('/proc/self/status').read())"
    alone = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    here = Path(f"/proc/{shard.process.pid}/status").read_text()
    pages, others = (int(told.partition("RssFile:")[2].split()[0]) for told in (here, alone.stdout))
    assert pages < 0.7 * others


def test_two_steps_in_flight_continue_from_the_device(shard: RunningShard, reference: PreTrainedModel) -> None:
    """Everything is sent at once: each step goes on from what the one before it sampled."""
    expected = reference_greedy(reference, PROMPT, 4)
    shard.send(
        admit(0, 5),
        admit(1, 5),
        step(1, [Segment(0, 0, PROMPT, blocks=[3, 1])]),
        step(2, [Segment(0, 5, last=True), Segment(1, 0, PROMPT, blocks=[6, 0])]),
    )
    assert tokens_of(shard.done()) == {0: expected[0]}
    shard.send(step(3, [Segment(1, 5, last=True), Segment(0, 6, last=True)]))
    assert tokens_of(shard.done()) == {0: expected[1], 1: expected[0]}
    shard.send(step(4, [Segment(0, 7, last=True)], freed=[1]))
    assert tokens_of(shard.done()) == {1: expected[1], 0: expected[2]}
    assert tokens_of(shard.done()) == {0: expected[3]}


def test_wide_results_lie_in_the_shared_memory(shard: RunningShard, reference: PreTrainedModel) -> None:
    shard.send(admit(2, 5, top_n=3), step(9, [Segment(2, 0, PROMPT, blocks=[20, 21])]))
    wide = shard.done().wide
    assert wide is not None and wide.length == 24
    region = shard.first.regions[0]
    assert wide.offset == region.offset + region.length // 4
    with mmap.mmap(shard.memory_fd, 0, prot=mmap.PROT_READ) as memory:
        data = memory[wide.offset : wide.offset + wide.length]
    best = reference_logits(reference, PROMPT)[-1].log_softmax(-1).topk(3)
    assert np.frombuffer(data[:12], "<u4").tolist() == best.indices.tolist()
    np.testing.assert_allclose(np.frombuffer(data[12:], "<f4"), best.values, rtol=1e-4)


def frame_of(kind: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload), kind) + payload


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (frame_of(99, b"\x90"), "unknown frame kind 99"),
        (frame_of(Kind.STEP, b"\xc1"), "the step frame cannot be read"),
        (frame_of(Kind.ADMIT, b"\x91\x00"), "the admit frame cannot be read"),
        (encode(Failed(None, b"", "internal", "")), "a router may not send a Failed frame"),
        (encode(Step(5, b"123", b"", b"", b"", b"", b"")), "4-byte numbers"),
        (encode(admit(8)), "slot 8 is not below 8"),
    ],
)
def test_wrong_frames_are_answered_and_the_shard_goes_on(data: bytes, sentence: str, shard: RunningShard) -> None:
    shard.link.sendall(data)
    failed = shard.failed()
    assert failed.kind == "protocol"
    assert sentence in failed.message
    shard.send(admit(3, 1), step(11, [Segment(3, 0, [4], blocks=[30])]))
    assert list(tokens_of(shard.done())) == [3]


def test_ops_app(shard: RunningShard) -> None:
    assert shard.ask("/health") == (200, '{"status":"ok"}')
    assert stat.S_IMODE(os.stat(shard.ops_path).st_mode) == 0o600
    status, stacks = shard.ask("/stacks")
    assert status == 200 and "thread MainThread" in stacks and "executor.py" in stacks
    assert shard.ask("/nothing")[0] == 404


def metric(text: str, name: str) -> float:
    """A sample's value; 0 where there is none yet, as of a kind of failure that was not seen."""
    values = [line.split()[-1] for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(values[0]) if values else 0.0


def test_metrics_count_what_happened(shard: RunningShard) -> None:
    shard.send(step(20, [], freed=range(8)))
    shard.done()
    before = shard.ask("/metrics")[1]
    assert metric(before, "textgen_shard_kv_blocks_in_use") == 0
    shard.send(admit(0, 5), admit(1, 5), step(21, [Segment(0, 0, PROMPT, blocks=[5, 6]), Segment(1, 0, [1])]))
    assert shard.failed().kind == "protocol"  # slot 1 has no blocks
    shard.done()
    shard.send(step(22, [Segment(0, 5, last=True)]))
    shard.done()
    shard.send(step(23, []))  # the metrics of a step are written after its Done: this one's Done means 22 is counted
    shard.done()
    after = shard.ask("/metrics")[1]
    grown = {
        name: metric(after, f"textgen_shard_{name}") - metric(before, f"textgen_shard_{name}")
        for name in ("segments_total", "tokens_total", "sampled_tokens_total", 'failures_total{kind="protocol"}')
    }
    assert grown == {
        "segments_total": 2,
        "tokens_total": 6,
        "sampled_tokens_total": 2,
        'failures_total{kind="protocol"}': 1,
    }
    assert metric(after, "textgen_shard_steps_total") - metric(before, "textgen_shard_steps_total") >= 2
    assert metric(after, "textgen_shard_kv_blocks_in_use") == 2
    assert metric(after, "textgen_shard_kv_blocks") == 64
    assert metric(after, 'textgen_shard_step_seconds_count{phase="forward"}') > 0


def test_ctrl_c_is_the_launchers_business(shard: RunningShard) -> None:
    shard.process.send_signal(signal.SIGINT)
    shard.send(step(30, []))
    assert shard.done().step == 30


@pytest.mark.parametrize("way", ["stop", "end of stream", "SIGTERM"])
def test_the_shard_ends_in_order(way: str, model_folder: Path, reference: PreTrainedModel, tmp_path: Path) -> None:
    with running_shard(model_folder, tmp_path) as shard:
        shard.hello()
        shard.send(admit(0, 5), step(1, [Segment(0, 0, PROMPT, blocks=[0, 1])]))
        if way == "stop":
            shard.send(Stop())
            assert list(tokens_of(shard.done())) == [0]  # what came before the Stop is finished
        elif way == "end of stream":
            shard.done()
            shard.link.close()
        else:
            shard.done()
            shard.process.send_signal(signal.SIGTERM)
        assert shard.exit_code() == 0
        assert shard.process.stderr is not None and shard.process.stderr.read() == ""


def test_a_stream_that_cannot_be_read_ends_the_shard(
    model_folder: Path, reference: PreTrainedModel, tmp_path: Path
) -> None:
    with running_shard(model_folder, tmp_path) as shard:
        shard.hello()
        shard.link.sendall(HEADER.pack(MAX_PAYLOAD + 1, Kind.STEP))
        assert "over the limit" in shard.failed().message
        assert shard.exit_code() == 1
        assert error_of(shard).startswith("error: the router's stream cannot be read")


def error_of(shard: RunningShard) -> str:
    """All of stderr, which must be a single line."""
    assert shard.process.stderr is not None
    (line,) = shard.process.stderr.read().splitlines()
    return line


def test_a_damaged_model_is_refused_in_one_sentence(
    model_folder: Path, reference: PreTrainedModel, tmp_path: Path
) -> None:
    damaged = tmp_path / "model"
    damaged.mkdir()
    for path in model_folder.iterdir():
        (damaged / path.name).write_bytes(
            path.read_bytes()[:-7] if path.suffix == ".safetensors" else path.read_bytes()
        )
    with running_shard(damaged, tmp_path) as shard:
        assert shard.exit_code() == 3
        assert error_of(shard).startswith(f"error: {damaged}/model.safetensors is damaged")
        with pytest.raises(EOFError):
            shard.receive()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"world_size": 2}, "world_size"),
        ({"dtype": "int4"}, "dtype"),
        ({"num_blocks": 0}, "num_blocks"),
        ({"unheard_of": 1}, "unheard_of"),
    ],
)
def test_settings_that_cannot_be_used(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with running_shard(tmp_path, tmp_path, **changes) as shard:
        assert shard.exit_code() == 1
        line = error_of(shard)
        assert line.startswith("error: --settings cannot be used") and words in line


def test_a_cache_that_does_not_fit_is_told_with_its_own_exit_code(
    model_folder: Path, reference: PreTrainedModel, tmp_path: Path
) -> None:
    with running_shard(model_folder, tmp_path, num_blocks=2**44) as shard:
        assert shard.exit_code() == 4
        assert "do not fit the memory of cpu" in error_of(shard)


def test_an_ops_socket_that_cannot_be_made_ends_the_shard(
    model_folder: Path, reference: PreTrainedModel, tmp_path: Path
) -> None:
    with running_shard(model_folder, tmp_path / "nowhere") as shard:
        assert shard.exit_code() == 1
        assert error_of(shard).startswith(f"error: --ops-socket {tmp_path}/nowhere/ops cannot be served")
