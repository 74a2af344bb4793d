"""What a step answers: faults stay with their slots, wide results, and the slots' life."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from textgen.models.decoder import PackedBatch
from textgen.shard.protocol import Done, Failed, Step, Watermark, pack_u32
from textgen.shard.runner import Runner

from ..models.tiny import reference_greedy, reference_logits
from .conftest import RunnerMaker
from .router import Segment, admit, step, token_rules, tokens_of

PROMPT = [5, 6, 7, 8, 9]


def run(runner: Runner, number: int, *segments: Segment, **rest: Any) -> list[Done | Failed]:
    return list(runner.step(step(number, segments, **rest), time.monotonic_ns()).frames)


def run_done(runner: Runner, number: int, *segments: Segment, **rest: Any) -> Done:
    (done,) = run(runner, number, *segments, **rest)
    assert isinstance(done, Done), done
    return done


def seat(runner: Runner, *slots: int, **changes: Any) -> None:
    for slot in slots:
        assert runner.admit(admit(slot, len(PROMPT), **changes)) == []


def slots_of(failed: Failed) -> list[int]:
    return list(np.frombuffer(failed.slots, "<u4").tolist())


FAULTS = [
    (Segment(1, 0, [1, 2]), "behind the blocks of its slot"),
    (Segment(1, 95, [1, 2], blocks=list(range(24))), "behind the last position of 96"),
    (Segment(1, 0, [1], blocks=list(range(25))), "more blocks than a sequence can fill"),
    (Segment(1, 0, [101], blocks=[4]), "not below the vocabulary's size of 101"),
    (Segment(1, 0, [2**32 - 1], blocks=[4]), "not below the vocabulary's size of 101"),
    (Segment(1, 0, [1], blocks=[64]), "not below the number of pages of 64"),
    (Segment(1, 0, last=True, blocks=[4]), "none was sampled"),
    (Segment(1, 0, [1], blocks=[4], draft=1), "draft"),
    (Segment(5, 0, [1], blocks=[4]), "the slot has no sequence"),
]


@pytest.mark.parametrize(("wrong", "sentence"), FAULTS)
def test_a_faulty_segment_fails_alone(
    wrong: Segment, sentence: str, make_runner: RunnerMaker, reference: PreTrainedModel
) -> None:
    runner = make_runner()
    seat(runner, 0, 1, 2)
    good = [Segment(0, 0, PROMPT, blocks=[10, 11]), Segment(2, 0, PROMPT, blocks=[12, 13])]
    failed, done = run(runner, 1, good[0], wrong, good[1])
    assert isinstance(failed, Failed) and isinstance(done, Done)
    assert (failed.kind, failed.step, slots_of(failed)) == ("protocol", 1, [wrong.slot])
    assert sentence in failed.message
    expected = reference_greedy(reference, PROMPT, 2)
    assert tokens_of(done) == {0: expected[0], 2: expected[0]}
    if wrong.slot == 1:  # what was already planned for the slot is answered, too
        failed, done = run(runner, 2, Segment(1, 1, last=True), Segment(0, 5, last=True))
        assert isinstance(failed, Failed) and slots_of(failed) == [1]
        assert isinstance(done, Done) and tokens_of(done) == {0: expected[1]}
    seat(runner, 1)
    assert tokens_of(run_done(runner, 3, Segment(1, 0, PROMPT, blocks=[14, 15]))) == {1: expected[0]}


@pytest.mark.parametrize("plan", ["auto", "off"])
def test_the_last_layer_goes_on_with_what_is_sampled_alone(
    plan: str, make_runner: RunnerMaker, reference: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, rows = make_runner(plan=plan), []
    own = type(runner.model).hidden

    def hidden(model: Any, batch: PackedBatch, caches: Any) -> torch.Tensor:
        states = own(model, batch, caches)
        rows.append(len(states))
        return states

    monkeypatch.setattr(type(runner.model), "hidden", hidden)
    seat(runner, 0, 1, 2, 3)
    expected = reference_greedy(reference, PROMPT, 3)
    first = run_done(runner, 1, Segment(0, 0, PROMPT[:4], sample=False, blocks=[10, 11]))
    assert tokens_of(first) == {}
    both = Segment(0, 4, PROMPT[4:]), Segment(1, 0, PROMPT, blocks=[12, 13])
    assert tokens_of(run_done(runner, 2, *both)) == {0: expected[0], 1: expected[0]}
    of_two = Segment(0, 5, last=True), Segment(1, 5, last=True)
    mixed = run_done(runner, 3, of_two[0], Segment(2, 0, PROMPT[:3], sample=False, blocks=[14, 15]), of_two[1])
    assert tokens_of(mixed) == {0: expected[1], 1: expected[1]}
    few = run_done(runner, 4, Segment(0, 6, last=True), Segment(2, 3, PROMPT[3:4], sample=False))
    assert tokens_of(few) == {0: expected[2]}
    scored = run_done(runner, 5, Segment(3, 0, PROMPT, blocks=[16, 17], prompt_logprobs=True))
    assert tokens_of(scored) == {3: expected[0]}
    assert rows == [1, 2, 2, 1, 5]  # one of a step that samples nothing; all where a prompt is scored


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (step(1, [Segment(8, 0, [1], blocks=[0])]), "slot 8 is not below 8"),
        (step(1, [Segment(0, 0, [1], blocks=[0]), Segment(0, 1, [1])]), "two segments"),
        (step(1, [Segment(0, 0, [1] * 65, blocks=range(17))]), "65 tokens is over the limit of 64"),
        (step(1, [], freed=[8]), "freed slot 8"),
        (step(1, [], copies=[(0, 64)]), "copied page 64"),
        (Step(1, b"1234567", b"", b"", b"", b"", b""), "4-byte"),
        (Step(1, b"", b"", b"", b"", b"", pack_u32([0, 0])), "a mask names segment 0 of 0"),
    ],
)
def test_a_step_that_cannot_be_read_fails_whole(frame: Step, sentence: str, make_runner: RunnerMaker) -> None:
    runner = make_runner()
    seat(runner, 0)
    (failed,) = runner.step(frame, time.monotonic_ns()).frames
    assert isinstance(failed, Failed)
    assert (failed.step, failed.slots, failed.kind) == (1, b"", "protocol")
    assert sentence in failed.message
    seat(runner, 0)
    run_done(runner, 2, Segment(0, 0, PROMPT, blocks=[0, 1]))


@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        ({"slot": 8}, "protocol", "slot 8 is not below 8"),
        ({"top_n": 21}, "limit", "top_n 21 is over the limit of 20"),
        ({"prompt_top_n": 21}, "limit", "prompt_top_n 21 is over the limit of 20"),
        ({"prompt_len": 97}, "limit", "longer than the context of 96"),
        ({"adapter": 0}, "protocol", "adapter 0 is not loaded"),
        ({"history": pack_u32([101])}, "protocol", "vocabulary"),
        ({"temperature": -1.0}, "protocol", "temperature -1.0 is out of range"),
        ({"temperature": float("nan")}, "protocol", "temperature nan is out of range"),
        ({"temperature": float("inf")}, "protocol", "temperature inf is out of range"),
        ({"top_p": 1.5}, "protocol", "top_p 1.5"),
        ({"min_p": -0.1}, "protocol", "min_p -0.1"),
        ({"typical_p": 0.0}, "protocol", "typical_p 0.0"),
        ({"repetition_penalty": 0.0}, "protocol", "repetition_penalty 0.0"),
        ({"presence_penalty": float("-inf")}, "protocol", "presence_penalty -inf"),
        ({"rules": token_rules(101, bias={101: 1.0})}, "protocol", "not below the vocabulary's size of 101"),
        ({"rules": token_rules(101, bias={1: float("nan")})}, "protocol", "not a finite number"),
        ({"rules": token_rules(101, banned=[[1, 101]])}, "protocol", "not below the vocabulary's size of 101"),
        ({"rules": token_rules(101, banned=[[]])}, "protocol", "not whole"),
        ({"rules": token_rules(65, allowed=[1])}, "protocol", "12 bytes and the vocabulary needs 16"),
        ({"rules": token_rules(101, endings=[101])}, "protocol", "not below the vocabulary's size of 101"),
        ({"rules": token_rules(101, watermark=Watermark(1.0, 2.0))}, "protocol", "gamma 1.0"),
    ],
)
def test_a_sequence_that_cannot_be_seated(
    changes: dict[str, Any], kind: str, sentence: str, make_runner: RunnerMaker
) -> None:
    runner = make_runner()
    (failed,) = runner.admit(admit(**{"slot": 3, "prompt_len": 1, **changes}))
    assert (failed.step, failed.kind, slots_of(failed)) == (None, kind, [changes.get("slot", 3)])
    assert sentence in failed.message
    seat(runner, 0)
    answer, done = run(runner, 1, Segment(3, 0, [1], blocks=[0]), Segment(0, 0, PROMPT, blocks=[1, 2]))
    assert isinstance(answer, Failed) and slots_of(answer) == [3]
    assert isinstance(done, Done) and list(tokens_of(done)) == [0]


@pytest.mark.parametrize("plan", ["auto", "off"])
def test_broken_logits_fail_their_slot_and_leave_its_blocks_usable(
    plan: str, make_runner: RunnerMaker, model_folder: Path, reference: PreTrainedModel, tmp_path: Path
) -> None:
    tensors = load_file(model_folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][100] = torch.nan
    shutil.copytree(model_folder, tmp_path / "broken")
    save_file(tensors, tmp_path / "broken" / "model.safetensors", metadata={"format": "pt"})
    runner = make_runner(model_dir=str(tmp_path / "broken"), max_top_n=3, plan=plan)
    seat(runner, 0, 1, 2, top_n=3)
    failed, done = run(
        runner, 1,
        Segment(0, 0, PROMPT, blocks=[0, 1]), Segment(1, 0, [*PROMPT[:4], 100], blocks=[2, 3]),
        Segment(2, 0, PROMPT, blocks=[4, 5]),
    )  # fmt: skip
    assert isinstance(failed, Failed) and isinstance(done, Done)
    assert (failed.kind, slots_of(failed)) == ("numerics", [1])
    expected = reference_greedy(reference, PROMPT, 3)
    assert tokens_of(done) == {0: expected[0], 2: expected[0]}
    assert done.wide is not None and done.wide.length == 2 * 3 * 8
    # the next step was already on its way, and the one after it hands the same blocks to another sequence
    failed, done = run(runner, 2, Segment(1, 5, last=True), Segment(0, 5, last=True))
    assert isinstance(failed, Failed) and (failed.kind, slots_of(failed)) == ("numerics", [1])
    seat(runner, 1)
    done = run_done(runner, 3, Segment(1, 0, PROMPT, blocks=[2, 3]), Segment(0, 6, last=True))
    assert tokens_of(done) == {1: expected[0], 0: expected[2]}


def test_rules_that_leave_nothing_fail_their_slot_alone(make_runner: RunnerMaker, reference: PreTrainedModel) -> None:
    runner = make_runner()
    seat(runner, 0, 1)
    assert runner.admit(admit(2, len(PROMPT), rules=token_rules(101, allowed=[7], banned=[[7]]))) == []
    segments = [Segment(slot, 0, PROMPT, blocks=[2 * slot, 2 * slot + 1]) for slot in range(3)]
    failed, done = run(runner, 1, *segments)
    assert isinstance(failed, Failed) and isinstance(done, Done)
    assert (slots_of(failed), failed.kind) == ([2], "limit")
    assert "leave no token" in failed.message
    expected = reference_greedy(reference, PROMPT, 1)[0]
    assert tokens_of(done) == {0: expected, 1: expected}
    seat(runner, 2)  # the rules are gone with the sequence
    assert tokens_of(run_done(runner, 2, Segment(2, 0, PROMPT, blocks=[4, 5]))) == {2: expected}


def test_a_slot_that_failed_once_stays_failed(make_runner: RunnerMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when the next logits would be fine: the step on its way goes on from a token that nobody was told of."""
    runner = make_runner(plan="off")  # a plan finds the likeliest tokens beside the logits that are broken here
    seat(runner, 0, 1)
    logits = type(runner.model).logits
    first_broken = torch.tensor([[torch.nan], [0.0]])
    with monkeypatch.context() as patch:
        patch.setattr(type(runner.model), "logits", lambda *arguments: logits(*arguments) + first_broken)
        failed, _ = run(
            runner, 1, Segment(0, 0, PROMPT, blocks=[0, 1]), Segment(1, 0, PROMPT, blocks=[2, 3])
        )  # fmt: skip
    assert isinstance(failed, Failed) and slots_of(failed) == [0]
    failed, done = run(runner, 2, Segment(0, 5, last=True), Segment(1, 5, last=True))
    assert isinstance(failed, Failed) and (failed.kind, slots_of(failed)) == ("numerics", [0])
    assert isinstance(done, Done) and list(tokens_of(done)) == [1]


def test_an_internal_error_fails_its_step_and_no_other(
    make_runner: RunnerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_runner()
    seat(runner, 0)
    with monkeypatch.context() as patch:
        patch.setattr(type(runner.model), "logits", lambda *_: 1 / 0)
        (failed,) = run(runner, 1, Segment(0, 0, PROMPT, blocks=[0, 1]))
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.slots) == ("internal", b"")
    assert failed.message == "the step failed: ZeroDivisionError: division by zero"
    (failed, _) = run(runner, 2, Segment(0, 5, last=True))
    assert isinstance(failed, Failed) and failed.kind == "internal"
    seat(runner, 0)
    run_done(runner, 3, Segment(0, 0, PROMPT, blocks=[0, 1]))


def test_freed_blocks_and_slots_may_be_used_by_the_same_step(
    make_runner: RunnerMaker, reference: PreTrainedModel
) -> None:
    runner = make_runner()
    seat(runner, 0, 1)
    run_done(runner, 1, Segment(0, 0, [1] * 8, blocks=[0, 1]))
    done = run_done(runner, 2, Segment(1, 0, PROMPT, blocks=[1, 0]), freed=[0, 7])
    assert tokens_of(done)[1] == reference_greedy(reference, PROMPT, 1)[0]
    assert (runner.slots.in_use(), runner.slots.blocks_in_use()) == (1, 2)


def test_a_copied_block_goes_on_apart(make_runner: RunnerMaker, reference: PreTrainedModel) -> None:
    runner = make_runner()
    seat(runner, 0, 1)
    run_done(runner, 1, Segment(0, 0, [1, 2, 3, 4, 5, 6], blocks=[0, 1]))
    fork = Segment(1, 6, [50], blocks=[0, 9])
    done = run_done(runner, 2, Segment(0, 6, [60]), fork, copies=[(1, 9)])
    expected = {slot: reference_greedy(reference, [1, 2, 3, 4, 5, 6, t], 1)[0] for slot, t in ((0, 60), (1, 50))}
    assert tokens_of(done) == expected


def read_wide(runner: Runner, done: Done, dtype: list[tuple[str, int]]) -> list[np.ndarray]:
    assert done.wide is not None
    data = bytes(runner.memory._map[done.wide.offset : done.wide.offset + done.wide.length])
    arrays = []
    for code, count in dtype:
        arrays.append(np.frombuffer(data[: 4 * count], code))
        data = data[4 * count :]
    assert not data
    return arrays


def test_top_tokens_and_logprobs_are_those_of_the_raw_logits(
    make_runner: RunnerMaker, reference: PreTrainedModel
) -> None:
    runner = make_runner()
    assert not runner.admit(admit(0, 5, top_n=2))
    assert not runner.admit(admit(1, 5, temperature=3.0, seed=4, presence_penalty=1.0))
    assert not runner.admit(admit(2, 5, top_n=20))
    segments = [Segment(slot, 0, PROMPT, blocks=[2 * slot, 2 * slot + 1]) for slot in range(3)]
    done = run_done(runner, 6, *segments)
    logprobs = reference_logits(reference, PROMPT)[-1].log_softmax(-1)
    best = logprobs.topk(20)
    ids2, values2, ids20, values20 = read_wide(runner, done, [("<u4", 2), ("<f4", 2), ("<u4", 20), ("<f4", 20)])
    assert done.wide is not None and done.wide.offset == 2 * runner.memory.part
    assert ids2.tolist() == best.indices[:2].tolist()
    assert ids20.tolist() == best.indices.tolist()
    np.testing.assert_allclose(values2, best.values[:2], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(values20, best.values, rtol=1e-4, atol=1e-4)
    sampled = list(tokens_of(done).values())
    np.testing.assert_allclose(np.frombuffer(done.logprobs, "<f4"), logprobs[sampled], rtol=1e-4, atol=1e-4)


def test_prompt_logprobs_across_chunks(
    make_runner: RunnerMaker, reference: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("textgen.shard.wide.ROWS", 4)
    runner = make_runner()
    prompt = [(7 * n + 3) % 101 for n in range(23)]
    assert not runner.admit(admit(0, 23, prompt_top_n=3, top_n=1))
    seat(runner, 1)
    scores: list[float] = []
    ranks: list[int] = []
    top_ids: list[list[int]] = []
    tops: list[list[float]] = []
    for number, (start, end) in enumerate([(0, 1), (1, 14), (14, 15), (15, 23)]):
        blocks = list(range(-(-start // 4), -(-end // 4)))
        last = end == 23
        segment = Segment(0, start, prompt[start:end], sample=last, blocks=blocks, prompt_logprobs=True)
        other = Segment(1, number, [number], blocks=[20] if number == 0 else [])
        done = run_done(runner, number, other, segment)
        size = end - start
        own = [("<f4", size), ("<u4", size), ("<u4", 3 * size), ("<f4", 3 * size)]
        *_, own_scores, own_ranks, own_ids, own_tops = read_wide(runner, done, [("<u4", 1), ("<f4", 1)] * last + own)
        scores += own_scores.tolist()
        ranks += own_ranks.tolist()
        top_ids += own_ids.reshape(size, 3).tolist()
        tops += own_tops.reshape(size, 3).tolist()
    logprobs = reference_logits(reference, prompt).log_softmax(-1)
    assert np.isnan(scores[0])
    np.testing.assert_allclose(scores[1:], logprobs[range(22), prompt[1:]], rtol=1e-4, atol=1e-4)
    order = logprobs.argsort(dim=-1, descending=True)
    assert ranks == [0, *((order[n] == prompt[n + 1]).nonzero().item() + 1 for n in range(22))]
    assert top_ids[1:] == order[:22, :3].tolist()
    np.testing.assert_allclose(tops[1:], logprobs[:22].topk(3).values, rtol=1e-4, atol=1e-4)
    assert runner.slots.last_logits == {}


def test_a_step_without_segments_is_done(make_runner: RunnerMaker) -> None:
    done = run_done(make_runner(), 77)
    assert (done.step, done.slots, done.tokens, done.wide) == (77, b"", b"", None)


def test_chunks_that_sample_nothing(make_runner: RunnerMaker) -> None:
    runner = make_runner()
    seat(runner, 0)
    done = run_done(runner, 1, Segment(0, 0, PROMPT, sample=False, blocks=[0, 1]))
    assert done.slots == b""
    assert done.times.forward_ns > 0
