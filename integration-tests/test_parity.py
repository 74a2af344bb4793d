"""Greedy answers are Transformers' own, token for token, in float32."""

from __future__ import annotations

import functools
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from support.api import Answer, Api, together
from support.metrics import Metrics
from support.models import END, GROUPED, VARIANTS, Tiny, write_tiny
from support.processes import frozen
from support.prompts import CHATS, PLAIN, RICH_CHATS, Case, random_case, words
from support.reference import Reference, must_match
from support.server import Start
from support.waiting import until

from textgen import LLM, SamplingParams

pytestmark = pytest.mark.timeout(180)

NEW_TOKENS = 32
BLOCK_SIZE = 8
MAX_TOTAL_TOKENS = 160
POOL_BLOCKS = 30  # 32 requests of up to 20 blocks each
CHUNK = 48  # tokens a step may run
_RUN = "textgen_shard_tokens_total"  # tokens that the shard ran, prompt and output


def test_there_are_fifty_prompts() -> None:
    assert len(PLAIN) + len(CHATS) == 50
    assert len({*PLAIN, *map(str, CHATS)}) == 50


def test_built_in_model_on_plain_prompts(api: Api, built_in_reference: Reference) -> None:
    lengths = set()
    for text in PLAIN:
        expected = built_in_reference.greedy(built_in_reference.encode(text), NEW_TOKENS)
        answer = api.generate(text, max_new_tokens=NEW_TOKENS)
        must_match(answer.tokens, expected, f"prompt {text!r}")
        if expected.clear:
            assert answer.text == expected.text, text
        lengths.add(len(answer.tokens))
    assert max(lengths) > 10, "the built-in model says nothing"


def test_built_in_model_on_conversations(api: Api, built_in_reference: Reference) -> None:
    compared = 0
    for messages in CHATS:
        prompt = built_in_reference.chat(messages)
        rendered = api.post("/chat_tokenize", {"messages": messages})
        assert [token["id"] for token in rendered["tokenize_response"]] == prompt, messages
        expected = built_in_reference.greedy(prompt, NEW_TOKENS)
        said = api.post("/v1/chat/completions", {"messages": messages, "max_tokens": NEW_TOKENS, "temperature": 0})
        if expected.clear:
            assert said["choices"][0]["message"]["content"] == expected.text, messages
            assert said["usage"]["completion_tokens"] == len(expected.tokens), messages
            compared += 1
        assert said["usage"]["prompt_tokens"] == len(prompt), messages
    assert compared >= len(CHATS) - 2, "too many answers hang on rounding"


@pytest.mark.parametrize(("messages", "tools"), RICH_CHATS, ids=[str(number) for number in range(len(RICH_CHATS))])
def test_conversations_of_every_kind(
    api: Api, built_in_reference: Reference, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> None:
    prompt = built_in_reference.chat(messages, tools)
    rendered = api.post("/chat_tokenize", {"messages": messages, "tools": tools})
    assert [token["id"] for token in rendered["tokenize_response"]] == prompt
    in_parts = [
        message | {"content": [{"type": "text", "text": message["content"]}]} if message["role"] == "user" else message
        for message in messages
    ]
    as_parts = api.post("/chat_tokenize", {"messages": in_parts, "tools": tools})
    assert as_parts["templated_text"] == rendered["templated_text"]


def test_an_answer_that_is_begun_is_continued(api: Api, built_in_reference: Reference) -> None:
    messages = [{"role": "user", "content": "Tell me a story."}, {"role": "assistant", "content": "Once upon a"}]
    prompt = built_in_reference.chat_continued(messages)
    expected = built_in_reference.greedy(prompt, NEW_TOKENS)
    assert expected.clear
    said = api.post("/v1/chat/completions", {"messages": messages, "max_tokens": NEW_TOKENS, "temperature": 0})
    assert said["choices"][0]["message"]["content"] == expected.text
    assert said["usage"]["prompt_tokens"] == len(prompt)


@pytest.mark.parametrize("tiny", VARIANTS, ids=str)
def test_tiny_model_alone(tiny: Tiny, models_folder: Path) -> None:
    folder = write_tiny(tiny, models_folder)
    reference = Reference(folder)
    random_ = random.Random(tiny.seed)
    with LLM(
        str(folder), threads=1, max_total_tokens=256, block_size=BLOCK_SIZE, max_batch_size=8,
        max_batch_prefill_tokens=CHUNK,
    ) as llm:  # fmt: skip
        for length in (1, 2, 7, 8, 9, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5):
            case = random_case(reference, random_, length, NEW_TOKENS)
            greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, truncate_prompt_tokens=case.truncate)
            (output,) = llm.generate(case.text, greedy, use_tqdm=False)
            (answer,) = output.outputs
            assert output.prompt_token_ids == list(case.prompt)
            must_match(answer.token_ids, case.expected, str(case))
            assert answer.text == case.expected.text, str(case)
            assert answer.finish_reason == ("stop" if answer.token_ids[-1] == END else "length")


@pytest.mark.parametrize("seed", [20261121])
def test_requests_at_random_moments_in_a_pool_too_small(
    seed: int, start: Start, tiny_folder: Path, tiny_reference: Reference
) -> None:
    print(f"seed {seed}")
    random_ = random.Random(seed)
    lengths = [1, 2, CHUNK, 2 * CHUNK + 1, *(random_.randint(1, MAX_TOTAL_TOKENS - NEW_TOKENS - 1) for _ in range(28))]
    cases = [random_case(tiny_reference, random_, length, random_.randint(NEW_TOKENS // 2, NEW_TOKENS))
             for length in lengths]  # fmt: skip
    moments = [random_.uniform(0.0, 0.8) for _ in cases]
    launcher = start(
        model=tiny_folder, block_size=BLOCK_SIZE, max_total_tokens=MAX_TOTAL_TOKENS, max_batch_size=32,
        max_batch_prefill_tokens=CHUNK, kv_memory=GROUPED.pool_bytes(POOL_BLOCKS, BLOCK_SIZE),
    ).wait_ready()  # fmt: skip
    assert launcher.metrics().value("textgen_kv_blocks_total") == POOL_BLOCKS
    client = Api(launcher.url)

    def hold() -> None:
        """A machine that is quick would otherwise be done with each before the next one comes."""
        with frozen(launcher.shard()):
            until(lambda: in_the_house(launcher.metrics()) >= len(cases) / 2, "half of them are there")

    together([hold, *(functools.partial(ask_later, client, *pair) for pair in zip(moments, cases, strict=True))])
    after = launcher.metrics()
    assert after.value("textgen_preemptions_total") > 0, "every request found room: the test tests nothing"
    assert empty(after)
    client.close()
    assert launcher.faults() == []


def test_a_shared_beginning_is_computed_once(start: Start, tiny_folder: Path, tiny_reference: Reference) -> None:
    """What earlier requests left in the pool serves later ones that begin alike, and changes no answer."""
    random_ = random.Random(77)
    launcher = start(
        model=tiny_folder, block_size=BLOCK_SIZE, max_total_tokens=512, max_batch_size=8, max_batch_prefill_tokens=CHUNK
    ).wait_ready()
    client = Api(launcher.url)
    beginning = words(random_, 60)
    prompts = [f"{beginning} {words(random_, random_.randint(1, 12))}" for _ in range(8)]
    expected = [tiny_reference.greedy(tiny_reference.encode(text), 16) for text in prompts]

    def ask(text: str) -> tuple[Answer, float]:
        before = launcher.metrics().value(_RUN)
        return client.generate(text, max_new_tokens=16), launcher.metrics().value(_RUN) - before

    first, first_run = ask(prompts[0])
    again, again_run = ask(prompts[0])
    assert first.tokens == again.tokens
    assert first_run >= len(tiny_reference.encode(prompts[0])) + 15
    assert again_run <= BLOCK_SIZE + 16, "the whole prompt was computed again"
    penalized = client.generate(prompts[0], max_new_tokens=16, repetition_penalty=2.0)
    truth = tiny_reference.greedy(tiny_reference.encode(prompts[0]), 16, repetition_penalty=2.0)
    assert truth.tokens != expected[0].tokens
    must_match(penalized.tokens, truth, "a penalty on tokens that the shard did not see again")
    answers = together([functools.partial(client.generate, text, max_new_tokens=16) for text in prompts])
    for text, answer, truth in zip(prompts, answers, expected, strict=True):
        must_match(answer.tokens, truth, text)
    assert empty(launcher.metrics())
    client.close()


def test_prompt_logprobs_are_whole_beside_a_shared_beginning(api: Api, built_in_reference: Reference) -> None:
    """Reused blocks have keys and values but no logits, so such a request computes its prompt itself."""
    text = "Once upon a time there was a small boat on the river, and nobody knew whose it was."
    wanted = {"inputs": text, "parameters": {"max_new_tokens": 4, "decoder_input_details": True}}
    api.generate(text, max_new_tokens=4)
    for _ in range(2):
        prefill = api.post("/generate", wanted)["details"]["prefill"]
        assert [token["id"] for token in prefill] == built_in_reference.encode(text)
        truth = built_in_reference.prompt_logprobs(text)
        assert prefill[0]["logprob"] is None
        assert [token["logprob"] for token in prefill[1:]] == pytest.approx(truth, abs=1e-3)


def in_the_house(metrics: Metrics) -> float:
    return metrics.value("textgen_sequences_running") + metrics.value("textgen_sequences_waiting")


def ask_later(client: Api, seconds: float, case: Case) -> None:
    """The moment is part of what is tried, not a synchronisation."""
    threading.Event().wait(seconds)
    check(case, client.case(case))


def check(case: Case, answer: Answer) -> None:
    must_match(answer.tokens, case.expected, str(case))
    assert answer.text == case.expected.text, str(case)
    ended = answer.tokens[-1] == 2
    assert answer.finish_reason == ("eos_token" if ended else "length")


def empty(metrics: Metrics) -> bool:
    """Whether nothing runs, waits or holds a block."""
    names = ("textgen_sequences_running", "textgen_sequences_waiting", "textgen_kv_blocks_used")
    return all(metrics.has(name) and metrics.value(name) == 0 for name in names)
