"""Draws depend on the seed and on nothing else that happens in the house."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
import torch
from support.api import Answer, Api, together
from support.prompts import words
from support.reference import Reference, must_match
from support.scripted import Script
from transformers import WatermarkDetector, WatermarkingConfig

PROMPT = "Once upon a time"
DRAWS: tuple[dict[str, Any], ...] = (
    {"do_sample": True},
    {"temperature": 1.7},
    {"temperature": 1.3, "top_k": 40},
    {"temperature": 1.3, "top_p": 0.9},
    {"do_sample": True, "min_p": 0.02},
    {"temperature": 1.2, "typical_p": 0.9},
    {"do_sample": True, "repetition_penalty": 1.3},
    {"do_sample": True, "frequency_penalty": 0.7, "presence_penalty": 0.4},
    {"do_sample": True, "bad_words": ["time", "the little"], "min_new_tokens": 5, "watermark": True},
)


def draw(api: Api, seed: int, parameters: dict[str, Any], prompt: str = PROMPT) -> Answer:
    return api.generate(prompt, seed=seed, max_new_tokens=32, **parameters)


def busy(api: Api, calls: list[functools.partial[Answer]]) -> list[Answer]:
    """Run the calls among three times as many others of all kinds."""
    random_ = random.Random(5)
    others = [
        functools.partial(
            api.stream, words(random_, random_.randint(1, 60)), max_new_tokens=random_.randint(5, 60),
            **random_.choice(DRAWS),
        )
        for _ in range(3 * len(calls))
    ]  # fmt: skip
    mixed = [*calls, *others]
    order = list(range(len(mixed)))
    random_.shuffle(order)
    answers = dict(zip(order, together([mixed[place] for place in order]), strict=True))
    return [answers[place] for place in range(len(calls))]


def test_a_seed_gives_the_same_text_alone_and_in_a_busy_batch(api: Api) -> None:
    calls = [functools.partial(draw, api, seed, parameters) for seed, parameters in enumerate(DRAWS, start=11)]
    alone = [call() for call in calls]
    again = [call() for call in calls]
    crowded = busy(api, calls)
    for one, two, three, parameters in zip(alone, again, crowded, DRAWS, strict=True):
        assert one.tokens == two.tokens, parameters
        assert one.tokens == three.tokens, parameters
        assert one.text == two.text == three.text, parameters


def test_seeds_differ(api: Api) -> None:
    texts = {draw(api, seed, {"temperature": 1.5}).text for seed in range(8)}
    assert len(texts) >= 7, texts


def test_without_a_seed_answers_differ_and_name_theirs(api: Api) -> None:
    drawn = [api.generate(PROMPT, max_new_tokens=32, temperature=1.5) for _ in range(4)]
    seeds = [answer.seed for answer in drawn]
    assert all(isinstance(seed, int) for seed in seeds)
    assert len(set(seeds)) == len(seeds)
    assert len({answer.text for answer in drawn}) > 1
    for answer in drawn:
        assert answer.seed is not None
        assert draw(api, answer.seed, {"temperature": 1.5}).text == answer.text


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_the_seed_is_reported(api: Api, seed: int) -> None:
    assert draw(api, seed, {"do_sample": True}).seed == seed
    assert api.stream(PROMPT, seed=seed, do_sample=True, max_new_tokens=3).seed == seed


def test_greedy_has_no_seed(api: Api) -> None:
    assert api.generate(PROMPT, max_new_tokens=4).seed is None


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_top_k_1_is_greedy(api: Api, seed: int) -> None:
    greedy = api.generate(PROMPT, max_new_tokens=32)
    assert draw(api, seed, {"top_k": 1, "temperature": 1.9}).tokens == greedy.tokens


def test_streamed_and_whole_draws_agree(api: Api) -> None:
    whole = draw(api, 77, {"temperature": 1.4})
    streamed = api.stream(PROMPT, seed=77, temperature=1.4, max_new_tokens=32)
    assert (streamed.tokens, streamed.text) == (whole.tokens, whole.text)


@pytest.mark.parametrize("penalty", [1.0, 1.2, 3.0])
def test_repetition_penalty_is_that_of_transformers(api: Api, built_in_reference: Reference, penalty: float) -> None:
    prompt = built_in_reference.encode(PROMPT)
    expected = built_in_reference.greedy(prompt, 40, repetition_penalty=penalty)
    must_match(api.generate(PROMPT, max_new_tokens=40, repetition_penalty=penalty).tokens, expected, f"{penalty}")


def test_bad_words_are_those_of_transformers(api: Api, built_in_reference: Reference) -> None:
    """As `generate` has it, from the words of the greedy answer itself, in one token and in several."""
    tokenizer = built_in_reference.tokenizer
    prompt = built_in_reference.encode(PROMPT)
    words = built_in_reference.greedy(prompt, 24).text.split()
    bad = [words[0], f"{words[1]} {words[2]}", words[4]]
    spelled = [tokenizer(text, add_special_tokens=False).input_ids for word in bad for text in (word, f" {word}")]
    expected = built_in_reference.greedy_with(prompt, 32, bad_words_ids=spelled)
    got = api.generate(PROMPT, max_new_tokens=32, bad_words=bad)
    must_match(got.tokens, expected, f"{bad}")
    assert got.text != built_in_reference.greedy(prompt, 32).text


def test_a_bias_is_that_of_transformers(api: Api, built_in_reference: Reference) -> None:
    prompt = built_in_reference.encode(PROMPT)
    plain = built_in_reference.greedy(prompt, 8).tokens
    bias = {plain[0]: -2.0, plain[3]: -100.0, plain[5]: 3.0}
    theirs = {(token,): value for token, value in bias.items()}
    expected = built_in_reference.greedy_with(prompt, 32, sequence_bias=theirs)
    body = {"prompt": PROMPT, "max_tokens": 32, "temperature": 0, "logit_bias": {str(t): b for t, b in bias.items()}}
    said = api.post("/v1/completions", body)["choices"][0]
    if expected.clear:
        assert said["text"] == expected.text
    assert said["text"] != built_in_reference.greedy(prompt, 32).text


def test_only_allowed_tokens_are_drawn(api: Api, built_in_reference: Reference) -> None:
    allowed = sorted(set(built_in_reference.encode("one two three four five six seven eight nine ten")))
    for parameters in ({}, {"temperature": 2.0}):
        got = api.generate(PROMPT, max_new_tokens=24, allowed_token_ids=allowed, **parameters)
        assert set(got.tokens) <= set(allowed)
        assert got.finish_reason == "length"


def test_an_answer_is_as_long_as_its_minimum(scripted_api: Api, script: Script) -> None:
    """The script ends by itself; with a minimum it goes on to it, and may end right after."""
    whole = scripted_api.generate("x", max_new_tokens=300)
    assert whole.finish_reason == "eos_token"
    count = len(whole.tokens)
    longer = scripted_api.generate("x", max_new_tokens=300, min_new_tokens=count + 5)
    assert len(longer.tokens) > count + 5 or longer.finish_reason == "length"
    assert whole.tokens[-1] not in longer.tokens[: count + 5]
    assert scripted_api.generate("x", max_new_tokens=300, min_new_tokens=count - 1).tokens == whole.tokens


def test_rules_that_leave_nothing_are_an_error_of_their_request_alone(api: Api, built_in_reference: Reference) -> None:
    (token, *_) = built_in_reference.encode(" the")
    only = {"prompt": PROMPT, "allowed_token_ids": [token], "stop_token_ids": [token], "min_tokens": 2, "max_tokens": 4}
    others = [functools.partial(draw, api, 3, {"temperature": 1.1}) for _ in range(3)]
    refused = functools.partial(api.http.post, "/v1/completions", json=only)
    first, answer, *rest = together([others[0], refused, *others[1:]])
    assert answer.status_code == 424 and "leave no token" in answer.text
    assert first.tokens == rest[0].tokens == draw(api, 3, {"temperature": 1.1}).tokens


def test_a_watermark_is_found_by_transformers_detector(api: Api, built_in_reference: Reference) -> None:
    config = WatermarkingConfig(greenlist_ratio=0.5, bias=2.0, seeding_scheme="lefthash", context_width=1)
    detector: Any = WatermarkDetector(built_in_reference.config, "cpu", config)

    def score(**parameters: Any) -> float:
        long: dict[str, Any] = {"temperature": 1.5, "max_new_tokens": 120, "ignore_eos": True, **parameters}
        calls = [functools.partial(api.generate, PROMPT, seed=seed, **long) for seed in range(8)]
        tokens = torch.tensor([answer.tokens for answer in together(calls)])
        scores: list[float] = detector(tokens, return_dict=True).z_score.tolist()
        return sum(scores) / len(scores)

    # Of a single text four deviations would be rare; of eight texts a mean of two is.
    assert score(watermark=True) > 2.5 > score()


def test_openai_seed(api: Api) -> None:
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 1.3, "seed": 4}
    first, second, other = (
        api.post("/v1/completions", body | change)["choices"][0]["text"] for change in ({}, {}, {"seed": 5})
    )
    assert first == second != other
