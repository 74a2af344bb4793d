"""Beam search through the official client, held against Transformers' `generate`: alone, beside requests that draw,
and in a pool too small for all of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from support.api import together
from support.models import END, GROUPED
from support.processes import frozen
from support.prompts import PLAIN
from support.reference import Beam, Reference
from support.server import Launcher, Start
from support.waiting import until

pytestmark = pytest.mark.timeout(240)

PROMPTS = PLAIN[:10]
NEW_TOKENS = 14
BLOCK_SIZE = 8
MAX_TOTAL_TOKENS = 256
POOL_BLOCKS = 44  # the longest request alone fills 32, five beams of these prompts some 12
CLOSE = 2e-3  # sums of float32 in another order
# What these draw with lies 1e-5 or more from where another token begins: no other order of a sum turns one over.
SEEDS = (3, 6, 9, 10, 12, 16, 17, 19, 21, 22)


@dataclass(frozen=True)
class Search:
    width: int
    returned: int
    length_penalty: float
    early_stopping: bool | str

    def body(self) -> dict[str, Any]:
        return {
            "use_beam_search": True, "best_of": self.width, "length_penalty": self.length_penalty,
            "early_stopping": self.early_stopping,
        }  # fmt: skip


SEARCHES = (
    Search(4, 4, 1.0, False),
    Search(5, 3, 0.0, True),
    Search(3, 2, 2.0, "never"),
    Search(2, 1, -0.5, False),
)


@pytest.fixture(scope="module")
def server(start_for_module: Start, tiny_folder: Path) -> Iterator[Launcher]:
    """Room for a few searches at once."""
    launcher = start_for_module(
        model=tiny_folder, block_size=BLOCK_SIZE, max_total_tokens=MAX_TOTAL_TOKENS, max_batch_size=32,
        kv_memory=GROUPED.pool_bytes(POOL_BLOCKS, BLOCK_SIZE),
    ).wait_ready()  # fmt: skip
    yield launcher
    assert launcher.faults() == []


@pytest.fixture(scope="module")
def gpt(server: Launcher) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def stop_tokens(tiny_reference: Reference) -> list[int]:
    """The model's own, and what its answers often hold: a random model seldom ends by itself."""
    said: list[int] = []
    for prompt in PROMPTS:
        said += tiny_reference.greedy(tiny_reference.encode(prompt), NEW_TOKENS).tokens[3:]
    common = sorted(set(said) - {END}, key=lambda token: (-said.count(token), token))
    return [END, *common[:2]]


def search(gpt: openai.OpenAI, prompt: str, wanted: Search, stop_tokens: list[int]) -> Any:
    return gpt.completions.create(
        model="m", prompt=prompt, max_tokens=NEW_TOKENS, n=wanted.returned, logprobs=0,
        extra_body=wanted.body() | {"stop_token_ids": stop_tokens[1:]},
    )  # fmt: skip


def expected(reference: Reference, prompt: str, wanted: Search, stop_tokens: list[int]) -> list[Beam]:
    return reference.beams(
        reference.encode(prompt), NEW_TOKENS, width=wanted.width, returned=wanted.returned,
        length_penalty=wanted.length_penalty, early_stopping=wanted.early_stopping, stop_tokens=stop_tokens,
    )  # fmt: skip


def must_be(said: Any, beams: list[Beam], wanted: Search, stop_tokens: list[int], what: str) -> None:
    assert [choice.text for choice in said.choices] == [beam.text for beam in beams], what
    for choice, beam in zip(said.choices, beams, strict=True):
        ended = beam.tokens[-1] in stop_tokens
        assert choice.finish_reason == ("stop" if ended else "length"), what
        logprobs = choice.logprobs.token_logprobs
        assert len(logprobs) == len(beam.tokens), what
        score = sum(logprobs) / len(logprobs) ** wanted.length_penalty
        assert score == pytest.approx(beam.score, rel=CLOSE, abs=CLOSE), what
    assert said.usage.completion_tokens == sum(len(beam.tokens) for beam in beams)


@pytest.mark.parametrize("wanted", SEARCHES, ids=str)
def test_searches_find_what_transformers_finds(
    gpt: openai.OpenAI, tiny_reference: Reference, stop_tokens: list[int], wanted: Search
) -> None:
    ends: set[str] = set()
    for prompt in PROMPTS:
        said = search(gpt, prompt, wanted, stop_tokens)
        must_be(said, expected(tiny_reference, prompt, wanted, stop_tokens), wanted, stop_tokens, prompt)
        ends |= {choice.finish_reason for choice in said.choices}
    if wanted.returned == wanted.width:
        assert ends == {"stop", "length"}, "no search had to choose between an end and a way on"


def test_searches_beside_drawn_answers_in_a_pool_too_small(
    server: Launcher, gpt: openai.OpenAI, tiny_reference: Reference, stop_tokens: list[int]
) -> None:
    def draw(seed: int) -> Any:
        body: dict[str, Any] = {
            "model": "m",
            "prompt": PROMPTS[seed % len(PROMPTS)],
            "max_tokens": 60,
            "temperature": 1.2,
            "seed": seed,
        }
        return gpt.completions.create(**body, extra_body={"ignore_eos": True}).choices[0].text

    drawn = [draw(seed) for seed in SEEDS]
    pairs = [(prompt, SEARCHES[place % len(SEARCHES)]) for place, prompt in enumerate(PROMPTS)]
    calls: list[Any] = [functools.partial(search, gpt, prompt, wanted, stop_tokens) for prompt, wanted in pairs]
    calls += [functools.partial(draw, seed) for seed in SEEDS]
    before = server.metrics()

    with ExitStack() as held:
        # A machine that is quick, or busy, would otherwise be done with each before the next one comes.
        held.enter_context(frozen(server.shard()))

        def let_go() -> None:
            asked = before.value("tgi_request_count") + len(calls)
            with held:  # the shard goes on even when they do not come
                until(lambda: server.metrics().value("tgi_request_count") == asked, "all of them are there")

        _, *said = together([let_go, *calls])
    assert said[len(pairs) :] == drawn
    for (prompt, wanted), found in zip(pairs, said, strict=False):
        must_be(found, expected(tiny_reference, prompt, wanted, stop_tokens), wanted, stop_tokens, prompt)
    after = server.metrics()
    preempted = after.value("textgen_preemptions_total") - before.value("textgen_preemptions_total")
    assert preempted > 0, "every request found room: the test tests nothing"
    for name in ("textgen_sequences_running", "textgen_sequences_waiting", "textgen_kv_blocks_used"):
        assert after.has(name) and after.value(name) == 0, name


def test_a_stream_says_each_answer_at_the_end(
    gpt: openai.OpenAI, tiny_reference: Reference, stop_tokens: list[int]
) -> None:
    wanted = SEARCHES[1]
    texts = [""] * wanted.returned
    reasons: dict[int, Any] = {}
    for chunk in gpt.completions.create(
        model="m", prompt=PROMPTS[0], max_tokens=NEW_TOKENS, n=wanted.returned, stream=True,
        extra_body=wanted.body() | {"stop_token_ids": stop_tokens[1:]},
    ):  # fmt: skip
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.finish_reason is not None:
                reasons[choice.index] = choice.finish_reason
    beams = expected(tiny_reference, PROMPTS[0], wanted, stop_tokens)
    assert texts == [beam.text for beam in beams]
    assert sorted(reasons) == list(range(wanted.returned))


def test_a_conversation(gpt: openai.OpenAI, tiny_reference: Reference, stop_tokens: list[int]) -> None:
    messages: list[Any] = [{"role": "user", "content": "Tell me a story."}]
    wanted = Search(3, 3, 1.0, False)
    said = gpt.chat.completions.create(
        model="m", messages=messages, n=3, max_tokens=NEW_TOKENS,
        extra_body=wanted.body() | {"stop_token_ids": stop_tokens[1:]},
    )  # fmt: skip
    beams = tiny_reference.beams(
        tiny_reference.chat(messages), NEW_TOKENS, width=3, returned=3, length_penalty=1.0, early_stopping=False,
        stop_tokens=stop_tokens,
    )  # fmt: skip
    assert [choice.message.content for choice in said.choices] == [beam.text for beam in beams]


def test_more_beams_than_the_shard_reports_tokens_for(gpt: openai.OpenAI, stop_tokens: list[int]) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="max_top_n"):
        gpt.completions.create(
            model="m", prompt="a", max_tokens=4, n=16,
            extra_body={"use_beam_search": True, "stop_token_ids": list(range(3, 9))},
        )  # fmt: skip
