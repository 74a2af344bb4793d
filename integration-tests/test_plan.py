"""The decoder as a plan of kernels, and quantized weights, as a user starts them."""

from __future__ import annotations

import os
import random
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from support.api import Api
from support.compressed import write_compressed
from support.missed import missed
from support.models import SIZES, save, vocabulary_size
from support.prompts import words
from support.reference import Reference, must_match
from support.server import Launcher, Start
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from textgen import LLM, SamplingParams

pytestmark = pytest.mark.timeout(180)

NEW_TOKENS = 24


def test_greedy_tokens_of_the_plan_are_those_of_transformers(tiny_folder: Path, tiny_reference: Reference) -> None:
    """In float32, prompts in small chunks and answers side by side, and again from the prefix cache."""
    random_ = random.Random(20261122)
    prompts = [words(random_, random_.randint(1, 40)) for _ in range(6)]
    expected = [tiny_reference.greedy(tiny_reference.encode(text), NEW_TOKENS) for text in prompts]
    assert sum(truth.decided for truth in expected) > NEW_TOKENS, "ties decide everything"
    greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS)
    with LLM(
        str(tiny_folder), dtype="float32", plan="auto", threads=2, block_size=8, max_batch_size=8,
        max_batch_prefill_tokens=32,
    ) as llm:  # fmt: skip
        for _ in range(2):
            outputs = llm.generate(prompts, greedy, use_tqdm=False)
            for text, output, truth in zip(prompts, outputs, expected, strict=True):
                must_match(output.outputs[0].token_ids, truth, text)


def test_draws_of_the_plan_are_those_of_the_reference_path(tiny_folder: Path) -> None:
    """Of sequences that draw, are penalised, or do neither, side by side; some see their last tokens alone."""
    random_ = random.Random(20261126)
    prompts = [words(random_, random_.randint(1, 40)) for _ in range(6)]
    ways: list[dict[str, Any]] = [
        {"temperature": 0.8},
        {"temperature": 0},
        {"temperature": 1.2, "top_k": 30, "top_p": 0.9},
        {"temperature": 1.0, "min_p": 0.02, "frequency_penalty": 0.6},
        {"temperature": 0, "repetition_penalty": 1.4, "presence_penalty": 0.3},
        {"temperature": 1.0, "top_p": 0.5, "repetition_penalty": 0.8},
    ]
    params = [SamplingParams(**way, max_tokens=NEW_TOKENS, seed=seed) for seed, way in enumerate(ways)]
    said = []
    for plan in ("auto", "off"):
        with LLM(str(tiny_folder), dtype="float32", plan=plan, threads=2, block_size=8, max_batch_size=8) as llm:
            together = llm.generate(prompts, params, use_tqdm=False)
            alone = [llm.generate(*pair, use_tqdm=False)[0] for pair in zip(prompts, params, strict=True)]
            said += [[output.outputs[0].token_ids for output in outputs] for outputs in (together, alone)]
    assert said[0] == said[1] == said[2] == said[3]


def threads_of(pid: int) -> list[set[int]]:
    """The processors that each thread of a process may use."""
    return [os.sched_getaffinity(int(thread)) for thread in os.listdir(f"/proc/{pid}/task")]


@pytest.mark.parametrize("plan", ["auto", "off"])
def test_threads_are_bound_to_processors(start: Start, plan: str) -> None:
    """A plan's one each; those of torch all to the same ones."""
    allowed = os.sched_getaffinity(0)
    some = sorted(allowed)[-2:]
    launcher = start(cpu_bind=",".join(map(str, some)), threads=len(some), plan=plan).wait_ready()
    api = Api(launcher.url)
    assert api.generate("Once upon a time", max_new_tokens=5).text
    api.close()
    found = threads_of(launcher.shard())
    if plan == "auto":
        assert all({cpu} in found for cpu in some)
    else:
        assert set(some) in found
    assert set.union(*found) == set(some)
    assert threads_of(launcher.pid)[0] == allowed


TEXT = "Once upon a time there was a little girl who lived in a small house near the sea. One day she found a key."


def apart(launcher: Launcher, reference: Reference) -> list[float]:
    """What it missed, by a plan."""
    found = missed(launcher.url, reference, TEXT)
    assert "plan: " in launcher.log
    return found


@pytest.mark.parametrize(
    ("setting", "value", "bound"),
    [("quantize", "int8", 0.06), ("quantize", "int4", 0.5), ("kv_cache_dtype", "int8", 0.05)],
)
def test_a_quantized_model_says_nearly_the_same(
    start: Start, built_in_reference: Reference, setting: str, value: str, bound: float
) -> None:
    """By the log-probabilities of a prompt, against Transformers' with weights and cache as they are stored."""
    found = apart(start(**{setting: value}, dtype="float32", plan="auto").wait_ready(), built_in_reference)
    assert median(found) < bound, "tokens that nobody expects may be missed by more"
    assert max(found) > 1e-4, "nothing was quantized"


@pytest.mark.parametrize(("bits", "quantize", "bound"), [(4, "", 0.5), (8, "compressed-tensors", 0.06)])
def test_a_checkpoint_of_integers_says_nearly_the_same(
    start: Start, built_in_reference: Reference, bits: int, quantize: str, bound: float, tmp_path: Path
) -> None:
    """Whether or not the flag names what it is stored in."""
    given = {"quantize": quantize} if quantize else {}
    launcher = start(model=write_compressed(tmp_path, bits), dtype="float32", plan="auto", **given).wait_ready()
    found = apart(launcher, built_in_reference)
    assert median(found) < bound and max(found) > 1e-4


def test_a_mixture_of_experts_in_few_bits_says_nearly_the_same(start: Start, tmp_path: Path) -> None:
    """And as it is stored the same; as the median of tokens, since some choose other experts."""
    torch.manual_seed(7)
    mixture = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
    config = Qwen3MoeConfig(**(SIZES | mixture), vocab_size=vocabulary_size(), initializer_range=0.1)
    save(Qwen3MoeForCausalLM(config), tmp_path)
    reference, found = Reference(tmp_path), list[float]()
    for quantize in ("", "int8", "int4"):
        given = {"quantize": quantize} if quantize else {}
        launcher = start(model=tmp_path, dtype="float32", plan="auto", **given).wait_ready()
        found.append(median(apart(launcher, reference)))
        launcher.stop()
    assert found[0] < 1e-4 < found[1] < found[2] < 0.3, found


def test_blocks_of_integers_are_shared_and_copied(tiny_folder: Path) -> None:
    """Answers of one prompt fork its last block, later ones find it cached; little memory throws sequences out."""
    random_ = random.Random(20261123)
    prompts = [words(random_, random_.randint(20, 40)) for _ in range(4)]
    greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, n=2)
    with LLM(
        str(tiny_folder), dtype="float32", kv_cache_dtype="int8", threads=2, block_size=8, max_batch_size=8,
        max_batch_prefill_tokens=32, max_total_tokens=192, max_batch_total_tokens=384,
    ) as llm:  # fmt: skip
        alone = [llm.generate([prompt], greedy, use_tqdm=False)[0].outputs for prompt in prompts]
        crowded = [each.outputs for each in llm.generate(prompts, greedy, use_tqdm=False)]
    for one, other in zip(alone, crowded, strict=True):
        tokens = [output.token_ids for output in (*one, *other)]
        assert tokens == tokens[:1] * 4
