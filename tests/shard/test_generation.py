"""Whole generations on a runner, scheduled at random: the tokens are those of Transformers, whatever the batch."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, WatermarkDetector, WatermarkingConfig

from textgen.shard.protocol import Watermark

from ..models.tiny import random_prompt, reference_greedy
from ..seeds import fresh_rng
from .conftest import RunnerMaker
from .router import token_rules
from .scheduling import CarelessScheduler, Request, blocks_left


def test_greedy_tokens_under_a_tiny_block_pool(make_runner: RunnerMaker, reference: PreTrainedModel) -> None:
    rng = fresh_rng()
    runner = make_runner(num_blocks=20, max_slots=6)
    requests = [Request(random_prompt(rng, rng.choice([1, 2, 7, 30])), rng.randint(1, 25)) for _ in range(24)]
    CarelessScheduler(runner, rng).run(requests)
    for request in requests:
        assert request.output == reference_greedy(reference, request.prompt, request.new)
    assert sum(request.evictions for request in requests) > 0
    assert runner.slots.blocks_in_use() == blocks_left(runner)


@pytest.mark.parametrize("penalty", [1.3, 0.8])
def test_greedy_tokens_with_repetition_penalty(
    penalty: float, make_runner: RunnerMaker, reference: PreTrainedModel
) -> None:
    """The history survives chunks, LAST segments and recomputation."""
    rng = fresh_rng()
    runner = make_runner(num_blocks=24, max_slots=4)
    requests = [
        Request(random_prompt(rng, rng.choice([1, 5, 20])), 16, {"repetition_penalty": penalty} if n % 3 else {})
        for n in range(9)
    ]
    CarelessScheduler(runner, rng).run(requests)
    for request in requests:
        penalties = {"repetition_penalty": request.sampling.get("repetition_penalty", 1.0)}
        assert request.output == reference_greedy(reference, request.prompt, request.new, **penalties)


def test_greedy_tokens_under_rules(make_runner: RunnerMaker, reference: PreTrainedModel) -> None:
    """Against Transformers' own `generate`; sequences without rules run among them."""
    rng = fresh_rng()
    runner = make_runner(num_blocks=24, max_slots=4)
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for n in range(12):
        prompt = random_prompt(rng, rng.choice([1, 5, 20]))
        plain = reference_greedy(reference, prompt, 16)
        banned = [plain[1:2], plain[3:5], plain[6:9], [*prompt[-1:], plain[0]]]
        bias = {plain[0]: -3.5, rng.randrange(101): 4.0}
        theirs = {"bad_words_ids": banned, "sequence_bias": [[[token], value] for token, value in bias.items()]}
        rules = {"rules": token_rules(101, bias=bias, banned=banned)}
        cases.append(({"prompt": prompt}, {}) if n % 3 == 0 else ({"prompt": prompt, "sampling": rules}, theirs))
    requests = [Request(new=16, **mine) for mine, _ in cases]
    CarelessScheduler(runner, rng).run(requests)
    for request, (_, theirs) in zip(requests, cases, strict=True):
        assert request.output == reference_greedy(reference, request.prompt, request.new, **theirs)


def test_a_watermark_is_found_by_transformers_detector(make_runner: RunnerMaker, reference: PreTrainedModel) -> None:
    """And not where there is none."""
    rng = fresh_rng()
    config = WatermarkingConfig(greenlist_ratio=0.5, bias=2.0, seeding_scheme="lefthash", context_width=1)
    detector: Any = WatermarkDetector(reference.config, "cpu", config)
    rules = {"temperature": 1.0, "rules": token_rules(101, watermark=Watermark(0.5, 4.0))}
    marked = [Request(random_prompt(rng, 8), 80, {**rules, "seed": seed}) for seed in range(6)]
    plain = [Request(random_prompt(rng, 8), 80, {"temperature": 1.0, "seed": seed}) for seed in range(6)]
    CarelessScheduler(make_runner(), rng).run([*marked, *plain])
    # One by one: it takes no batch in which only some begin with the start token, and chance may draw that one first.
    scores = [
        detector(torch.tensor([request.output]), return_dict=True).z_score.item() for request in [*marked, *plain]
    ]
    assert min(scores[:6]) > 4, scores
    assert max(scores[6:]) < 4, scores


SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 12, "min_p": 0.02},
    {"temperature": 1.0, "typical_p": 0.8},
    {"temperature": 0.9, "frequency_penalty": 0.7, "presence_penalty": 0.3, "repetition_penalty": 1.1},
    {"temperature": 1.0, "rules": token_rules(101, banned=[[1, 2], [3]], watermark=Watermark(0.25, 2.0))},
    {},
]


def test_a_seed_draws_the_same_alone_in_a_batch_and_resumed(make_runner: RunnerMaker) -> None:
    rng = fresh_rng()

    def requests() -> list[Request]:
        of_seed = random.Random(7)
        return [
            Request(random_prompt(of_seed, of_seed.choice([1, 6, 17])), 20, {**sampling, "seed": 2**64 - 1 - n})
            for n, sampling in enumerate(SAMPLINGS * 2)
        ]

    busy = requests()
    CarelessScheduler(make_runner(num_blocks=24, max_slots=6), rng).run(busy)
    assert sum(request.evictions for request in busy) > 0
    alone = requests()
    runner = make_runner()
    for request in alone:
        CarelessScheduler(runner, rng).run([request])
    assert [request.output for request in busy] == [request.output for request in alone]
    assert len({tuple(request.output) for request in busy}) == len(busy)
