"""Steps that follow one another on a GPU say what steps say that are each worked out anew, captured or not, and with
the host a step ahead."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from textgen.shard import graphs
from textgen.shard.graphs import Graphs
from textgen.shard.protocol import Done, Failed
from textgen.shard.runner import Runner

from ..models.tiny import make_model
from ..ops.cuda.conftest import BUILT
from ..ops.cuda.host_device import COMPILER
from .conftest import RunnerMaker
from .mask_writer import write_mask
from .router import Segment, admit, step
from .stand_in import StandIn, StandInKernels
from .test_steady import BLOCKS, Sequences, answers

pytestmark = pytest.mark.skipif(COMPILER is None, reason="g++ is missing")

SAMPLINGS: list[dict[str, Any]] = [
    {},
    {},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.7, "top_k": 5, "min_p": 0.01},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.2},
    {"temperature": 1.2, "presence_penalty": 0.5},
]


def on_gpu(make_runner: RunnerMaker, **changes: Any) -> Runner:
    runner = make_runner(device="cuda", num_blocks=4 * BLOCKS, max_slots=6, **changes)
    assert runner.pipeline is not None
    return runner


def script_of(rng: random.Random) -> list[tuple[str, int, list[int], dict[str, Any]]]:
    seated, script = set[int](), list[tuple[str, int, list[int], dict[str, Any]]]()
    for _ in range(5):
        slot = rng.randrange(4)
        if slot in seated:
            seated.remove(slot)
            script.append(("free", slot, [], {}))
        else:
            seated.add(slot)
            prompt = [rng.randrange(100) for _ in range(rng.randint(1, 9))]
            script.append(("seat", slot, prompt, rng.choice(SAMPLINGS)))
        script += [("step", 0, [], {})] * rng.randint(0, 7) if seated else []
    return script


def play(runner: Runner, script: list[tuple[str, int, list[int], dict[str, Any]]]) -> list[Done | Failed]:
    sequences, said = Sequences(runner), list[Done | Failed]()
    for what, slot, prompt, sampling in script:
        if what == "seat":
            history = np.array(prompt, "<u4").tobytes()
            said += sequences.seat(slot, prompt, seed=slot, history=history, **sampling)
        elif what == "free":
            sequences.at.pop(slot)
            said += sequences.step(freed=[slot])
        else:
            said += sequences.step()
    return said


def equal(ours: list[Done | Failed], theirs: list[Done | Failed]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert isinstance(one, Done) and isinstance(other, Done), (one, other)
        assert (one.step, one.slots, one.tokens) == (other.step, other.slots, other.tokens)
        ones, others = (np.frombuffer(frame.logprobs, "<f4") for frame in (one, other))
        np.testing.assert_allclose(ones, others, rtol=1e-4, atol=1e-4)


def test_they_say_what_other_steps_say(
    make_runner: RunnerMaker, gpu: StandIn, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences come and go, some draw, some have penalties, and blocks are filled."""
    script = script_of(rng) + [("step", 0, [], {})] * 3
    ours = play(on_gpu(make_runner), script)
    print(f"{gpu.captured} graphs, {gpu.replayed} replays")
    monkeypatch.setattr("textgen.shard.runner.continuation", lambda *_: None)
    equal(ours, play(on_gpu(make_runner), script))
    equal(ours, play(make_runner(num_blocks=4 * BLOCKS, max_slots=6, plan="off"), script))


def test_graphs_are_replayed_and_equal_launches(make_runner: RunnerMaker, gpu: StandIn, rng: random.Random) -> None:
    script = [("seat", slot, [5 + slot, 6, 7], rng.choice(SAMPLINGS)) for slot in range(3)]
    script += [("step", 0, [], {})] * 8
    ours = play(on_gpu(make_runner), script)
    assert gpu.captured == 2 and gpu.replayed >= 8, "one for the model, one for the draw"
    gpu.refuses = "not today"
    refused = on_gpu(make_runner)
    assert answers(ours) == answers(play(refused, script))
    assert gpu.captured == 2 and refused.pipeline is not None and not refused.pipeline.steps.graphs.enabled
    other = on_gpu(make_runner, graphs=(1, 2))  # and three sequences
    gpu.refuses = None
    play(other, script[:7])
    assert gpu.captured == 2 and other.pipeline is not None and other.pipeline.steps.sizes == (1, 2, 4, 8)


@pytest.mark.parametrize("architecture", ["MixtralForCausalLM", "Qwen2MoeForCausalLM"])
def test_a_mixture_of_experts_is_captured(
    make_runner: RunnerMaker, gpu: StandIn, rng: random.Random, architecture: str, tmp_path: Path
) -> None:
    """Which expert has which token, nobody asks the host."""
    make_model(tmp_path, architecture, rng.getrandbits(30))
    script: list[tuple[str, int, list[int], dict[str, Any]]]
    script = [("seat", slot, [rng.randrange(100) for _ in range(rng.randint(1, 9))], {}) for slot in range(3)]
    script += [("step", 0, [], {})] * 6
    ours = play(on_gpu(make_runner, model_dir=str(tmp_path)), script)
    assert gpu.captured == 2 and gpu.replayed >= 6
    assert {"route", "group_rows", "grouped_linear", "weighted_sum"} <= set(gpu.kernels.launches)
    equal(ours, play(make_runner(num_blocks=4 * BLOCKS, max_slots=6, plan="off", model_dir=str(tmp_path)), script))


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_experts_of_few_bits_are_captured(
    make_runner: RunnerMaker, gpu: StandIn, rng: random.Random, quantize: str, tmp_path: Path
) -> None:
    make_model(tmp_path, "MixtralForCausalLM", rng.getrandbits(30))
    settings = {"model_dir": str(tmp_path), "quantize": quantize, "dtype": "bfloat16"}
    script: list[tuple[str, int, list[int], dict[str, Any]]]
    script = [("seat", slot, [rng.randrange(100) for _ in range(9)], {}) for slot in range(3)]
    script += [("step", 0, [], {})] * 6
    ours = play(on_gpu(make_runner, **settings), script)
    assert gpu.captured == 2 and gpu.replayed >= 4
    assert "group_rows" in gpu.kernels.launches and "grouped_linear" not in gpu.kernels.launches
    gpu.refuses = "not today"
    assert answers(ours) == answers(play(on_gpu(make_runner, **settings), script))


@pytest.mark.parametrize(("stored", "dtype"), [("int8", "float32"), ("fp8", "bfloat16")])
def test_a_cache_of_8_bits_is_followed(
    make_runner: RunnerMaker, gpu: StandIn, rng: random.Random, stored: str, dtype: str
) -> None:
    """Captured or launched, on tensor cores or not; and a processor's likeliest tokens are as likely."""
    settings: dict[str, Any] = {"kv_cache_dtype": stored, "dtype": dtype}
    script: list[tuple[str, int, list[int], dict[str, Any]]]
    script = [("seat", slot, [rng.randrange(100) for _ in range(9)], {}) for slot in range(2)]
    script += [("step", 0, [], {})] * 6
    ours = play(on_gpu(make_runner, **settings), script)
    assert gpu.captured == 2 and gpu.replayed >= 4
    assert ("attention_tiles" in gpu.kernels.launches) == (dtype == "bfloat16")
    gpu.refuses = "not today"
    assert answers(ours) == answers(play(on_gpu(make_runner, **settings), script))
    theirs = play(make_runner(num_blocks=4 * BLOCKS, max_slots=6, plan="off", **settings), script)
    for one, other in list(zip(ours, theirs, strict=True))[: 3 if dtype == "float32" else 1]:
        assert isinstance(one, Done) and isinstance(other, Done)
        ones, others = (np.frombuffer(frame.logprobs, "<f4") for frame in (one, other))
        # fp8 has steps of an eighth, and what is rounded to it differs in its last bit: up to 0.16 in 15 random models.
        np.testing.assert_allclose(ones, others, atol=0.1 if stored == "int8" else 0.3)


def test_latent_attention_is_followed(
    make_runner: RunnerMaker, gpu: StandIn, rng: random.Random, tmp_path: Path
) -> None:
    stored = rng.choice(["auto", "int8", "fp8"])
    sizes = {"kv_lora_rank": 64, "qk_rope_head_dim": 32, "num_hidden_layers": 2, "first_k_dense_replace": 2}
    make_model(tmp_path, "DeepseekV2ForCausalLM", rng.getrandbits(32), vocab_size=101, **sizes)
    settings: dict[str, Any] = {"model_dir": str(tmp_path), "kv_cache_dtype": stored, "dtype": "bfloat16"}
    script: list[tuple[str, int, list[int], dict[str, Any]]]
    script = [("seat", slot, [rng.randrange(100) for _ in range(9)], {}) for slot in range(2)]
    script += [("step", 0, [], {})] * 6
    ours = play(on_gpu(make_runner, **settings), script)
    assert gpu.captured == 2 and gpu.replayed >= 4 and "attention_latent" in gpu.kernels.launches
    gpu.refuses = "not today"
    assert answers(ours) == answers(play(on_gpu(make_runner, **settings), script))
    # Random models differ in how much what is stored moves their answers: as far apart may the two ways be in bfloat16.
    first = [ours[0]]
    for dtype in ("bfloat16", "float32"):
        reference = settings | {"dtype": dtype, "plan": "off"}
        first.append(play(make_runner(num_blocks=4 * BLOCKS, max_slots=6, **reference), script)[0])
    ones, others, exact = (np.frombuffer(frame.logprobs, "<f4") for frame in first if isinstance(frame, Done))
    assert (np.abs(ones - others) <= 0.1 + np.abs(others - exact)).all(), (stored, ones, others, exact)


def launched(runner: Runner, number: int, *segments: Segment, **rest: Any) -> list[Done | Failed]:
    frame = step(number, segments, **rest)
    return [frame for outcome in runner.take(frame, time.monotonic_ns()) for frame in outcome.frames]


def token(slot: int, at: int) -> Segment:
    """The one after the token sampled last; with a page where a block begins."""
    return Segment(slot, at, last=True, blocks=[8 * slot + at // 4] if at % 4 == 0 else [])


def seat(runner: Runner, *slots: int) -> list[Done | Failed]:
    for slot in slots:
        assert runner.admit(admit(slot, 3)) == []
    segments = [Segment(slot, 0, [5, 6, 7 + slot], blocks=[8 * slot]) for slot in slots]
    return launched(runner, 0, *segments) + launched(runner, 1, *(token(slot, 3) for slot in slots))


def test_the_host_is_a_step_ahead(make_runner: RunnerMaker, gpu: StandIn) -> None:
    runner = on_gpu(make_runner)
    said = seat(runner, 0, 1)
    for number in range(2, 8):
        said += launched(runner, number, *(token(slot, 2 + number) for slot in (0, 1)))
        assert runner.under_way()
        if number % 2:
            said += [frame for outcome in runner.drain() for frame in outcome.frames]
    assert [frame.step for frame in said] == list(range(8)), "in order, each once"
    other = on_gpu(make_runner)
    again = seat(other, 0, 1)
    for number in range(2, 8):
        again += other.step(step(number, [token(slot, 2 + number) for slot in (0, 1)]), 0).frames
    assert answers(said) == answers(again)


def test_more_steps_than_there_is_pinned_memory_wait(make_runner: RunnerMaker, gpu: StandIn) -> None:
    runner = on_gpu(make_runner)
    said = seat(runner, 0)
    for number in range(2, 12):
        said += launched(runner, number, token(0, 2 + number))
        assert runner.pipeline is not None and len(runner.pipeline) <= 3
    said += [frame for outcome in runner.drain() for frame in outcome.frames]
    assert [frame.step for frame in said] == list(range(12))


def test_a_step_of_another_kind_waits_for_those_under_way(make_runner: RunnerMaker, gpu: StandIn) -> None:
    runner = on_gpu(make_runner)
    seat(runner, 0)
    assert launched(runner, 2, token(0, 4)) == []
    assert runner.admit(admit(1, 2)) == []
    said = launched(runner, 3, token(0, 5), Segment(1, 0, [8, 9], blocks=[30]))
    assert [frame.step for frame in said] == [2, 3]
    assert not runner.under_way()


def test_broken_logits_fail_alone_and_so_does_what_follows(
    make_runner: RunnerMaker, gpu: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = on_gpu(make_runner)
    seat(runner, 0, 1)
    assert runner.pipeline is not None
    steps, logits = runner.pipeline.steps, type(runner.model).logits

    def broken(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        rows = logits(self, hidden)
        rows[1] = torch.nan
        return rows

    following = [token(slot, 4) for slot in (0, 1)]
    with monkeypatch.context() as patch:
        patch.setattr(type(runner.model), "logits", broken)
        assert launched(runner, 2, *following) == []
    assert launched(runner, 3, *(token(slot, 5) for slot in (0, 1))) == []
    said = [frame for outcome in runner.drain() for frame in outcome.frames]
    kinds = [(frame.step, frame.kind) if isinstance(frame, Failed) else frame.step for frame in said]
    assert kinds == [(2, "numerics"), 2, (3, "numerics"), 3]
    assert all(np.frombuffer(frame.slots, "<u4").tolist() == [isinstance(frame, Failed)] for frame in said)
    assert steps.graphs.enabled
    answer = launched(runner, 4, token(0, 6), token(1, 6))
    assert isinstance(answer[0], Failed) and "earlier step" in answer[0].message
    assert isinstance(answer[1], Done), "the other goes on"


def test_masks_wait_for_the_tokens_before(make_runner: RunnerMaker, gpu: StandIn, rng: random.Random) -> None:
    runner = on_gpu(make_runner)
    seat(runner, 0, 1)
    assert launched(runner, 2, *(token(slot, 4) for slot in (0, 1))) == []
    frame = step(3, [token(slot, 5) for slot in (0, 1)], masks=[(1, 7)])
    coming = runner.take(frame, time.monotonic_ns())
    assert [each.step for each in next(coming).frames] == [2], "whoever makes masks needs the token before"
    only = rng.randrange(101)
    write_mask(runner, 3, 7, [only])
    said = [each for outcome in [*coming, *runner.drain()] for each in outcome.frames]
    (done,) = said
    assert isinstance(done, Done) and np.frombuffer(done.tokens, "<u4")[1] == only


def test_a_mask_that_allows_nothing_or_is_late_fails_its_sequence(make_runner: RunnerMaker, gpu: StandIn) -> None:
    runner = on_gpu(make_runner, mask_timeout=0.02)
    seat(runner, 0, 1, 2)
    write_mask(runner, 2, 3, [])
    said = launched(runner, 2, *(token(slot, 4) for slot in (0, 1, 2)), masks=[(0, 3), (2, 4)])
    said += [frame for outcome in runner.drain() for frame in outcome.frames]
    late, dead, done = said
    assert isinstance(late, Failed) and "did not come" in late.message
    assert isinstance(dead, Failed) and "allows no token" in dead.message
    assert isinstance(done, Done) and np.frombuffer(done.slots, "<u4").tolist() == [1]


def test_graphs_keep_to_their_number_and_memory(rng: random.Random) -> None:
    gpu = StandIn(StandInKernels(1, BUILT), rng)
    counts = dict.fromkeys("abc", 0)

    def work(kind: str) -> None:
        counts[kind] += 1

    kept = Graphs(gpu, budget=1, most=2)
    for kind in "aaabbbccc":
        for _ in range(graphs.SPACING):
            kept.run(kind, lambda kind=kind: work(kind))  # type: ignore[misc]
    assert len(kept) == 2
    assert not Graphs(gpu, budget=0).enabled
    room = iter([100, 40, 40, 40])
    gpu.available = lambda: next(room)  # type: ignore[method-assign]
    small = Graphs(gpu, budget=50)
    for _ in range(graphs.SPACING + graphs.OFTEN + 1):
        small.run("a", lambda: None)
    assert len(small) == 1 and not small.enabled, "the memory for graphs is taken"


def test_a_device_that_is_lost_ends_the_shard(
    make_runner: RunnerMaker, gpu: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    from textgen.shard.errors import ShardError

    runner = on_gpu(make_runner)
    seat(runner, 0)

    def lost(*_: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    assert runner.pipeline is not None
    monkeypatch.setattr(runner.pipeline.steps, "forward", lost)
    with pytest.raises(ShardError, match="does not answer any more: CUDA error"):
        launched(runner, 2, token(0, 4))


def test_what_no_kernel_takes_is_worked_out_step_by_step(
    make_runner: RunnerMaker, gpu: StandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script: list[tuple[str, int, list[int], dict[str, Any]]] = [("seat", 0, [5, 6, 7], {}), ("seat", 1, [8], {})]
    script += [("step", 0, [], {})] * 6
    theirs = play(make_runner(num_blocks=4 * BLOCKS, max_slots=6, plan="off"), script)
    runner = on_gpu(make_runner)
    monkeypatch.setattr("textgen.ops.cuda.fixed.FixedAttention._kernel", lambda *_: None)
    equal(play(runner, script), theirs)
    assert "each step is worked out" in caplog.text and not gpu.captured


def test_quantized_weights_are_captured_too(make_runner: RunnerMaker, gpu: StandIn, rng: random.Random) -> None:
    script = [("seat", slot, [5 + slot, 6, 7], rng.choice(SAMPLINGS)) for slot in range(3)]
    script += [("step", 0, [], {})] * 6
    ours = play(on_gpu(make_runner, quantize="int4", dtype="bfloat16"), script)
    assert gpu.captured == 2 and gpu.replayed >= 4
    assert {"linear_few", "linear_tiles"} <= set(gpu.kernels.launches)
    gpu.refuses = "not today"
    assert answers(ours) == answers(play(on_gpu(make_runner, quantize="int4", dtype="bfloat16"), script))
