"""Several answers to one prompt, through the official clients: `n`, `best_of`, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import openai
import pytest
from huggingface_hub import InferenceClient
from support.api import Api
from support.reference import Reference
from support.server import Launcher, Start

pytestmark = pytest.mark.timeout(180)

PROMPT = "Once upon a time a cat"
MESSAGES: list[Any] = [{"role": "user", "content": "Tell me a story."}]
DRAWN: dict[str, Any] = {"model": "m", "max_tokens": 12, "temperature": 1.5, "seed": 11}


@pytest.fixture(scope="module")
def server(start_for_module: Start, tiny_folder: Path) -> Iterator[Launcher]:
    launcher = start_for_module(model=tiny_folder, max_best_of=8, block_size=8).wait_ready()
    yield launcher
    assert launcher.faults() == []


@pytest.fixture(scope="module")
def gpt(server: Launcher) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def api(server: Launcher) -> Iterator[Api]:
    client = Api(server.url)
    yield client
    client.close()


def test_n_greedy_answers_are_alike_and_right(gpt: openai.OpenAI, tiny_reference: Reference) -> None:
    expected = tiny_reference.greedy(tiny_reference.chat(MESSAGES), 12)
    said = gpt.chat.completions.create(model="m", messages=MESSAGES, n=3, max_tokens=12, temperature=0)
    assert [choice.index for choice in said.choices] == [0, 1, 2]
    assert expected.clear
    assert {choice.message.content for choice in said.choices} == {expected.text}


def test_choices_draw_apart_and_the_first_as_if_alone(gpt: openai.OpenAI) -> None:
    alone = gpt.chat.completions.create(messages=MESSAGES, **DRAWN)
    several = gpt.chat.completions.create(messages=MESSAGES, n=4, **DRAWN)
    again = gpt.chat.completions.create(messages=MESSAGES, n=4, **DRAWN)
    texts = [choice.message.content for choice in several.choices]
    assert texts[0] == alone.choices[0].message.content
    assert len(set(texts)) == 4
    assert texts == [choice.message.content for choice in again.choices]


def test_usage_counts_the_prompt_once(gpt: openai.OpenAI, tiny_reference: Reference) -> None:
    said = gpt.chat.completions.create(messages=MESSAGES, n=4, **DRAWN)
    assert said.usage is not None
    assert said.usage.prompt_tokens == len(tiny_reference.chat(MESSAGES))
    assert 4 < said.usage.completion_tokens <= 48
    assert said.usage.total_tokens == said.usage.prompt_tokens + said.usage.completion_tokens


def test_streamed_choices_are_those_of_a_whole_answer(gpt: openai.OpenAI) -> None:
    whole = gpt.chat.completions.create(messages=MESSAGES, n=3, **DRAWN)
    texts = {choice.index: "" for choice in whole.choices}
    reasons: dict[int, Any] = {}
    for chunk in gpt.chat.completions.create(messages=MESSAGES, n=3, stream=True, **DRAWN):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason is not None:
                reasons[choice.index] = choice.finish_reason
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}


def test_completions_of_several_prompts(gpt: openai.OpenAI) -> None:
    prompts = [PROMPT, "Two and two"]
    said = gpt.completions.create(prompt=prompts, n=2, **DRAWN)
    assert [choice.index for choice in said.choices] == [0, 1, 2, 3]
    for place, prompt in enumerate(prompts):
        alone = gpt.completions.create(prompt=prompt, n=2, **DRAWN)
        own = said.choices[2 * place : 2 * place + 2]
        assert [choice.text for choice in own] == [choice.text for choice in alone.choices]


def test_the_best_completions_by_mean_logprob(gpt: openai.OpenAI) -> None:
    everyone = gpt.completions.create(prompt=PROMPT, n=6, logprobs=0, **DRAWN)

    def mean(choice: Any) -> float:
        return fmean(choice.logprobs.token_logprobs)

    ranked = sorted(everyone.choices, key=mean, reverse=True)
    best = gpt.completions.create(prompt=PROMPT, n=2, best_of=6, **DRAWN)
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]
    assert best.usage == everyone.usage or best.usage is None


def test_the_best_native_sequence(server: Launcher, api: Api, tiny_reference: Reference) -> None:
    parameters = {"best_of": 4, "do_sample": True, "temperature": 1.5, "max_new_tokens": 12, "details": True}
    said = api.post("/generate", {"inputs": PROMPT, "parameters": parameters})
    details = said["details"]
    others = details["best_of_sequences"]
    assert len(others) == 3
    means = [fmean(token["logprob"] for token in one["tokens"]) for one in (details, *others)]
    assert means[0] == max(means)
    assert len({one["seed"] for one in (details, *others)}) == 4
    for one in (details, *others):
        # The seeds are the server's choice: one of them may draw where rounding decides.
        tokens = tuple(token["id"] for token in one["tokens"])
        decided = tiny_reference.decided_draws(tiny_reference.encode(PROMPT), tokens, 1.5, one["seed"])
        repeated = api.generate(PROMPT, do_sample=True, temperature=1.5, max_new_tokens=12, seed=one["seed"])
        assert repeated.tokens[:decided] == tokens[:decided]
    hub = InferenceClient(base_url=server.url)
    shown = hub.text_generation(PROMPT, best_of=2, do_sample=True, max_new_tokens=6, details=True)
    assert shown.details is not None
    assert shown.details.best_of_sequences is not None
    assert len(shown.details.best_of_sequences) == 1


def test_one_prompt_is_computed_once(server: Launcher, gpt: openai.OpenAI, tiny_reference: Reference) -> None:
    """Steps with prompt tokens: one for the prompt, and for each other choice the token that it begins with."""
    text = "The ship and the moon and the river. " * 20
    length = len(tiny_reference.encode(text))
    before = server.metrics()
    said = gpt.completions.create(prompt=text, n=8, **DRAWN)
    after = server.metrics()
    assert len(said.choices) == 8
    name = "textgen_prefix_cache_hit_tokens_total"
    queried = "textgen_prefix_cache_queried_tokens_total"
    computed = (after.value(queried) - before.value(queried)) - (after.value(name) - before.value(name))
    assert computed <= length + 7 * 8


def test_cached_tokens_are_in_the_usage(gpt: openai.OpenAI) -> None:
    text = "A prompt that is asked twice, and long enough for a few blocks of the cache. " * 2
    cached: list[int] = []
    for _ in range(2):
        said = gpt.completions.create(prompt=text, **DRAWN)
        assert said.usage is not None
        assert said.usage.prompt_tokens_details is not None
        assert said.usage.prompt_tokens_details.cached_tokens is not None
        cached.append(said.usage.prompt_tokens_details.cached_tokens)
        assert cached[-1] < said.usage.prompt_tokens
    assert cached[0] == 0
    assert cached[1] >= 24
    *_, last = gpt.completions.create(prompt=text, stream=True, stream_options={"include_usage": True}, **DRAWN)
    assert last.usage is not None
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens == cached[1]
