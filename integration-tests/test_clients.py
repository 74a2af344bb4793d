"""The official clients, as their own documentation uses them, streamed and not."""

from __future__ import annotations

import asyncio
import json
import re
import warnings
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import jsonschema
import openai
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient, TextGenerationInputGrammarType
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.errors import ValidationError as HubValidationError
from support.api import Api
from support.models import BOS, END
from support.reference import Reference
from support.scripted import Script
from support.server import Launcher

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the libraries, at import
    from text_generation import AsyncClient, Client
    from text_generation.errors import ValidationError
    from text_generation.types import Grammar, GrammarType, Message

T = TypeVar("T")

# The text-generation client was written for an older pydantic.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pydantic.PydanticDeprecatedSince20")

PROMPT = "Once upon a time"
MESSAGES: list[Any] = [
    {"role": "system", "content": "You are helpful."},
    {"role": "user", "content": "Tell me a story."},
]


@pytest.fixture
def chat_text(built_in_reference: Reference) -> str:
    """The first tokens of the greedy answer to `MESSAGES`."""
    return built_in_reference.greedy(built_in_reference.chat(MESSAGES), 24).text


@pytest.fixture
def plain_text(built_in_reference: Reference) -> str:
    return built_in_reference.greedy(built_in_reference.encode(PROMPT), 24).text


# --- openai


@pytest.fixture(scope="module")
def gpt(built_in: Launcher) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{built_in.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def with_async_gpt(server: Launcher, use: Callable[[openai.AsyncOpenAI], Awaitable[T]]) -> T:
    async def run() -> T:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            return await use(client)

    return asyncio.run(run())


def test_openai_models(gpt: openai.OpenAI) -> None:
    assert [model.id for model in gpt.models.list()] == ["textgen-demo"]
    assert gpt.models.retrieve("textgen-demo").id == "textgen-demo"
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        gpt.models.retrieve("org/gpt-4")


def test_openai_chat(gpt: openai.OpenAI, chat_text: str) -> None:
    said = gpt.chat.completions.create(model="textgen-demo", messages=MESSAGES, max_tokens=24, temperature=0)
    assert said.choices[0].message.content == chat_text
    assert said.choices[0].message.role == "assistant"
    assert said.id.startswith("chatcmpl-")
    assert said.usage is not None
    assert said.usage.total_tokens == said.usage.prompt_tokens + said.usage.completion_tokens


def test_openai_fields_that_only_tell_how(gpt: openai.OpenAI, chat_text: str) -> None:
    """The developer's messages are the system's, and what is about OpenAI's own service changes nothing."""
    spoken: list[Any] = [{**MESSAGES[0], "role": "developer"}, MESSAGES[1]]
    said = gpt.chat.completions.create(
        model="textgen-demo", messages=spoken, max_completion_tokens=24, temperature=0, reasoning_effort="max",
        verbosity="low", modalities=["text"], prediction={"type": "content", "content": "x"}, store=True,
        metadata={"a": "b"}, service_tier="auto", user="u", safety_identifier="s", prompt_cache_key="k",
        prompt_cache_retention="24h",
    )  # fmt: skip
    assert said.choices[0].message.content == chat_text
    with pytest.raises(openai.UnprocessableEntityError, match="`functions` is not supported yet: send `tools`"):
        gpt.chat.completions.create(model="m", messages=MESSAGES, functions=[{"name": "f"}])
    refused: list[Any] = [*MESSAGES, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}]
    again = gpt.chat.completions.create(model="m", messages=[*refused, MESSAGES[1]], max_tokens=1)
    assert again.usage is not None and again.usage.completion_tokens == 1


def test_openai_chat_stream(gpt: openai.OpenAI, chat_text: str) -> None:
    chunks = list(
        gpt.chat.completions.create(
            model="textgen-demo", messages=MESSAGES, max_tokens=24, temperature=0, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    *spoken, counts = chunks
    assert len(spoken) > 3
    assert spoken[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in spoken) == chat_text
    assert [chunk.choices[0].finish_reason for chunk in spoken[:-1]] == [None] * (len(spoken) - 1)
    assert spoken[-1].choices[0].finish_reason in ("length", "stop")
    assert counts.choices == []
    assert counts.usage is not None
    assert 0 < counts.usage.completion_tokens <= 24
    assert len({chunk.id for chunk in chunks}) == 1


def test_openai_echo_scores_a_prompt(gpt: openai.OpenAI, built_in_reference: Reference) -> None:
    """As evaluation harnesses ask: the prompt's own log-probabilities, and the best tokens in its place."""
    text = "Once upon a time there was a little cat."
    ids = built_in_reference.encode(text)
    truth = built_in_reference.prompt_distributions(ids)
    asked: list[Any] = [text, ids]  # text and tokens
    for prompt in asked:
        said = gpt.completions.create(model="m", prompt=prompt, max_tokens=0, echo=True, logprobs=3, temperature=0)
        (choice,) = said.choices
        assert choice.text == text
        assert choice.logprobs is not None and said.usage is not None
        assert (said.usage.prompt_tokens, said.usage.completion_tokens) == (len(ids), 0)
        scores: list[Any] = choice.logprobs.token_logprobs or []  # the first token has none, whatever the type says
        tops: list[Any] = choice.logprobs.top_logprobs or []
        assert scores[0] is None and tops[0] is None
        expected = [float(truth[place, token]) for place, token in enumerate(ids[1:])]
        assert scores[1:] == pytest.approx(expected, abs=1e-3)
        best = truth.topk(3).values
        for place, top in enumerate(tops[1:]):
            assert max(top.values()) == pytest.approx(float(best[place, 0]), abs=1e-3)
        offsets, tokens = choice.logprobs.text_offset or [], choice.logprobs.tokens or []
        for token, offset in zip(tokens[1:], offsets[1:], strict=True):
            assert text[offset:].startswith(token), (token, offset)


def test_openai_echo_before_a_text(gpt: openai.OpenAI, plain_text: str) -> None:
    whole = gpt.completions.create(model="m", prompt=PROMPT, max_tokens=24, temperature=0, echo=True, logprobs=1)
    assert whole.choices[0].text == PROMPT + plain_text
    assert whole.usage is not None and whole.choices[0].logprobs is not None
    assert len(whole.choices[0].logprobs.tokens or []) == whole.usage.total_tokens
    stream = gpt.completions.create(model="m", prompt=PROMPT, max_tokens=24, temperature=0, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == PROMPT + plain_text


def test_openai_prompt_logprobs(gpt: openai.OpenAI, built_in_reference: Reference) -> None:
    """vLLM's extension on both routes, for a prompt of several chunks and one whose beginning is cached."""
    long = "The cat sold seven small boxes to a dog. " * 8
    for text in (long, long, long + "Then it left."):
        ids = built_in_reference.encode(text)
        truth = built_in_reference.prompt_distributions(ids)
        extra = {"prompt_logprobs": 2, "return_token_ids": True}
        said: Any = gpt.completions.create(model="m", prompt=text, max_tokens=3, temperature=0, extra_body=extra)
        choice = said.choices[0]
        assert choice.prompt_token_ids == ids
        assert len(choice.token_ids) == said.usage.completion_tokens
        assert choice.prompt_logprobs[0] is None
        for place, (token, entries) in enumerate(zip(ids[1:], choice.prompt_logprobs[1:], strict=True)):
            own = entries[str(token)]
            assert own["logprob"] == pytest.approx(float(truth[place, token]), abs=1e-3)
            likelier = int((truth[place] > truth[place, token] + 1e-4).sum())
            equal = int((truth[place] > truth[place, token] - 1e-4).sum())
            assert likelier < own["rank"] <= equal
            assert {1, 2} <= {entry["rank"] for entry in entries.values()}
    chat: Any = gpt.chat.completions.create(
        model="m", messages=MESSAGES, max_tokens=2, temperature=0, extra_body={"prompt_logprobs": 0}
    )
    ids = built_in_reference.chat(MESSAGES)
    assert len(chat.prompt_logprobs) == len(ids)
    assert list(chat.prompt_logprobs[-1]) == [str(ids[-1])]


def test_openai_usage_in_every_chunk(gpt: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    stream = gpt.chat.completions.create(
        model="m", messages=MESSAGES, max_tokens=6, temperature=0, stream=True, stream_options=options
    )
    counts = [chunk.usage.completion_tokens for chunk in stream if chunk.usage]
    assert counts == sorted(counts) and counts[-1] == 6 and len(counts) > 6


def test_openai_logit_bias_and_its_kin(gpt: openai.OpenAI, built_in_reference: Reference) -> None:
    token = built_in_reference.encode(" small")[-1]
    said = gpt.completions.create(
        model="m", prompt=PROMPT, max_tokens=5, temperature=1.0, seed=3, logit_bias={str(token): 100}
    )
    assert said.choices[0].text == built_in_reference.decode([token] * 5)
    banned = gpt.chat.completions.create(
        model="m", messages=MESSAGES, max_tokens=5, temperature=1.0, logit_bias={str(token): -100},
        extra_body={"min_tokens": 5, "bad_words": ["the"], "skip_special_tokens": False, "reasoning_effort": "low"},
    )  # fmt: skip
    assert banned.usage is not None and banned.usage.completion_tokens == 5


def test_openai_chat_logprobs(gpt: openai.OpenAI, chat_text: str) -> None:
    said = gpt.chat.completions.create(
        model="textgen-demo", messages=MESSAGES, max_tokens=8, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = said.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert said.usage is not None
    assert len(logprobs.content) == said.usage.completion_tokens
    for token in logprobs.content:
        assert len(token.top_logprobs) == 3
        assert token.token == token.top_logprobs[0].token
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob)
        assert all(one.logprob <= 0 for one in token.top_logprobs)
    shown = b"".join(bytes(token.bytes or []) for token in logprobs.content).decode()
    assert chat_text.startswith(shown)


def test_openai_twenty_alternatives(gpt: openai.OpenAI) -> None:
    """As many as OpenAI's interface allows."""
    said = gpt.chat.completions.create(model="m", messages=MESSAGES, max_tokens=2, logprobs=True, top_logprobs=20)
    assert said.choices[0].logprobs is not None
    assert [len(token.top_logprobs) for token in said.choices[0].logprobs.content or []] == [20, 20]


def test_openai_completions(gpt: openai.OpenAI, built_in_reference: Reference, plain_text: str) -> None:
    said = gpt.completions.create(model="textgen-demo", prompt=PROMPT, max_tokens=24, temperature=0)
    assert said.choices[0].text == plain_text
    ids = built_in_reference.encode(PROMPT)
    assert ids[0] == BOS
    from_ids = gpt.completions.create(model="textgen-demo", prompt=ids, max_tokens=24, temperature=0)
    assert from_ids.choices[0].text == plain_text
    assert said.usage is not None
    assert from_ids.usage is not None
    assert from_ids.usage.prompt_tokens == said.usage.prompt_tokens
    assert from_ids.usage.completion_tokens == said.usage.completion_tokens


def test_openai_several_completions(gpt: openai.OpenAI, built_in_reference: Reference) -> None:
    prompts = ["Anna has", "2 + 2 =", "The cat"]
    expected = [built_in_reference.greedy(built_in_reference.encode(text), 16).text for text in prompts]
    said = gpt.completions.create(model="textgen-demo", prompt=prompts, max_tokens=16, temperature=0)
    assert [choice.index for choice in said.choices] == [0, 1, 2]
    assert [choice.text for choice in said.choices] == expected
    texts = ["", "", ""]
    for chunk in gpt.completions.create(
        model="textgen-demo", prompt=prompts, max_tokens=16, temperature=0, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == expected


def test_openai_completions_stream(gpt: openai.OpenAI, plain_text: str) -> None:
    chunks = list(gpt.completions.create(model="m", prompt=PROMPT, max_tokens=24, temperature=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == plain_text
    assert chunks[-1].choices[0].finish_reason in ("length", "stop")
    assert {chunk.model for chunk in chunks} == {"m"}


def test_openai_async(built_in: Launcher, chat_text: str, plain_text: str) -> None:
    async def use(client: openai.AsyncOpenAI) -> tuple[str | None, str, str]:
        whole = await client.chat.completions.create(model="tgi", messages=MESSAGES, max_tokens=24, temperature=0)
        stream = await client.chat.completions.create(
            model="tgi", messages=MESSAGES, max_tokens=24, temperature=0, stream=True
        )
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        completion = await client.completions.create(
            model="tgi", prompt=PROMPT, max_tokens=24, temperature=0, stream=True
        )
        completed = "".join([chunk.choices[0].text async for chunk in completion])
        return whole.choices[0].message.content, streamed, completed

    assert with_async_gpt(built_in, use) == (chat_text, chat_text, plain_text)


def test_openai_async_many_at_once(built_in: Launcher, chat_text: str) -> None:
    async def one(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(
            model="tgi", messages=MESSAGES, max_tokens=24, temperature=0, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def use(client: openai.AsyncOpenAI) -> list[str]:
        return await asyncio.gather(*(one(client) for _ in range(12)))

    assert with_async_gpt(built_in, use) == [chat_text] * 12


def test_openai_errors(gpt: openai.OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="temperature") as caught:
        gpt.chat.completions.create(model="m", messages=MESSAGES, temperature=-1)
    assert caught.value.code == "validation"
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.UnprocessableEntityError, match="temperature"):
        list(gpt.chat.completions.create(model="m", messages=MESSAGES, temperature=-1, stream=True))
    with pytest.raises(openai.NotFoundError):
        gpt.embeddings.create(model="m", input="text")


def test_openai_stop(scripted_server: Launcher, script: Script) -> None:
    with openai.OpenAI(base_url=f"{scripted_server.url}/v1", api_key="none", max_retries=0) as client:
        cut = client.completions.create(model="m", prompt="Say it", max_tokens=40, temperature=0, stop="at so")
        assert cut.choices[0].text == script.text[: script.text.index("at so")]
        assert cut.choices[0].finish_reason == "stop"
        whole = client.completions.create(model="m", prompt="Say it", max_tokens=40, temperature=0)
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == (script.text, "stop")


# --- huggingface_hub


@pytest.fixture(scope="module")
def hub(built_in: Launcher) -> Iterator[InferenceClient]:
    with InferenceClient(base_url=built_in.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def hub_model(built_in: Launcher) -> Iterator[InferenceClient]:
    """`text_generation` takes the address as the model."""
    with InferenceClient(model=built_in.url, timeout=60) as client:
        yield client


def test_hub_text_generation(hub_model: InferenceClient, plain_text: str) -> None:
    assert hub_model.text_generation(PROMPT, max_new_tokens=24, return_full_text=False) == plain_text
    assert hub_model.text_generation(PROMPT, max_new_tokens=24, return_full_text=True) == PROMPT + plain_text


def test_hub_text_generation_details(hub_model: InferenceClient, built_in_reference: Reference) -> None:
    expected = built_in_reference.greedy(built_in_reference.encode(PROMPT), 24)
    said = hub_model.text_generation(
        PROMPT, max_new_tokens=24, return_full_text=False, details=True, decoder_input_details=True
    )
    assert said.generated_text == expected.text
    assert said.details is not None
    assert [token.id for token in said.details.tokens] == list(expected.tokens)
    assert [token.id for token in said.details.prefill] == built_in_reference.encode(PROMPT)
    first: float | None = said.details.prefill[0].logprob  # the library's types do not know that it can be null
    assert not isinstance(first, float)
    assert all(token.logprob <= 0 for token in said.details.prefill[1:])
    assert said.details.finish_reason == ("eos_token" if expected.tokens[-1] == END else "length")
    assert said.details.seed is None


def test_hub_text_generation_stream(hub_model: InferenceClient, plain_text: str) -> None:
    pieces = list(hub_model.text_generation(PROMPT, max_new_tokens=24, return_full_text=False, stream=True))
    assert len(pieces) > 3
    assert "".join(pieces).removesuffix("<|end|>") == plain_text


def test_hub_text_generation_stream_details(hub_model: InferenceClient, plain_text: str) -> None:
    *others, last = hub_model.text_generation(
        PROMPT, max_new_tokens=24, return_full_text=False, stream=True, details=True
    )
    assert all(event.generated_text is None and event.details is None for event in others)
    assert last.generated_text == plain_text
    assert last.details is not None
    assert last.details.generated_tokens == len(others) + 1


def test_hub_sampling(hub_model: InferenceClient) -> None:
    def draw() -> str:
        return str(
            hub_model.text_generation(
                PROMPT, max_new_tokens=16, do_sample=True, temperature=1.2, top_k=50, top_p=0.95, typical_p=0.95,
                repetition_penalty=1.1, seed=9, return_full_text=False,
            )
        )  # fmt: skip

    assert draw() == draw()


def test_hub_chat(hub: InferenceClient, chat_text: str) -> None:
    said = hub.chat_completion(MESSAGES, max_tokens=24, temperature=0)
    assert said.choices[0].message.content == chat_text
    chunks = list(hub.chat_completion(MESSAGES, max_tokens=24, temperature=0, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == chat_text
    alike = hub.chat.completions.create(model="textgen-demo", messages=MESSAGES, max_tokens=24, temperature=0)
    assert alike.choices[0].message.content == chat_text


def test_hub_grammar(hub_model: InferenceClient) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    grammar = TextGenerationInputGrammarType(type="json", value=schema)
    whole = hub_model.text_generation(PROMPT, max_new_tokens=60, return_full_text=False, grammar=grammar)
    jsonschema.validate(json.loads(whole), schema)
    pieces = hub_model.text_generation(PROMPT, max_new_tokens=60, return_full_text=False, grammar=grammar, stream=True)
    assert "".join(pieces).removesuffix("<|end|>") == whole


def test_hub_chat_with_a_shape(hub: InferenceClient) -> None:
    schema = {"type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"],
              "additionalProperties": False}  # fmt: skip
    shape: Any = {"type": "json_schema", "json_schema": {"name": "weather", "schema": schema, "strict": True}}
    whole = hub.chat_completion(MESSAGES, max_tokens=60, response_format=shape, temperature=0)
    assert isinstance(json.loads(whole.choices[0].message.content or "")["sunny"], bool)
    pieces = list(hub.chat_completion(MESSAGES, max_tokens=60, response_format=shape, temperature=0, stream=True))
    said = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert said == whole.choices[0].message.content


def test_hub_chat_with_tools(hub: InferenceClient) -> None:
    parameters = {"type": "object", "properties": {"place": {"enum": ["Bern", "Rome"]}}, "required": ["place"],
                  "additionalProperties": False}  # fmt: skip
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
    said = hub.chat_completion(MESSAGES, max_tokens=120, tools=tools, tool_choice="required", temperature=0)
    calls = said.choices[0].message.tool_calls or []
    assert said.choices[0].finish_reason == "tool_calls" and calls
    for call in calls:
        assert call.function.name == "weather"
        arguments: Any = call.function.arguments
        assert json.loads(arguments)["place"] in ("Bern", "Rome")


def test_hub_prompt_for_tools(hub: InferenceClient, built_in_reference: Reference) -> None:
    """`tool_prompt` comes behind the last message, as in TGI."""
    function: dict[str, Any] = {"name": "clock", "parameters": {"type": "object", "properties": {}}}
    tools: list[Any] = [{"type": "function", "function": function}]
    said = hub.chat_completion(MESSAGES, tools=tools, tool_prompt="Use the clock.", max_tokens=1)
    told = [MESSAGES[0], {**MESSAGES[1], "content": MESSAGES[1]["content"] + "\n---\nUse the clock."}]
    assert said.usage.prompt_tokens == len(built_in_reference.chat(told, tools))


def test_hub_async(built_in: Launcher, plain_text: str, chat_text: str) -> None:
    async def use() -> tuple[str, str, str, str]:
        async with AsyncInferenceClient(model=built_in.url, timeout=60) as client:
            whole = await client.text_generation(PROMPT, max_new_tokens=24, return_full_text=False)
            stream = await client.text_generation(PROMPT, max_new_tokens=24, return_full_text=False, stream=True)
            streamed = "".join([piece async for piece in stream]).removesuffix("<|end|>")
        async with AsyncInferenceClient(base_url=built_in.url, timeout=60) as client:
            chat = await client.chat_completion(MESSAGES, max_tokens=24, temperature=0)
            chunks = await client.chat_completion(MESSAGES, max_tokens=24, temperature=0, stream=True)
            said = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
        return whole, streamed, chat.choices[0].message.content or "", said

    assert asyncio.run(use()) == (plain_text, plain_text, chat_text, chat_text)


def test_hub_errors(hub: InferenceClient, hub_model: InferenceClient) -> None:
    with pytest.raises(HubValidationError, match="temperature"):
        hub_model.text_generation(PROMPT, temperature=-1.0)
    with pytest.raises(HfHubHTTPError, match="422"):
        hub.chat_completion(MESSAGES, temperature=-1.0)


# --- text-generation, TGI's own client


@pytest.fixture(scope="module")
def tgi(built_in: Launcher) -> Client:
    return Client(built_in.url, timeout=60)


def test_tgi_generate(tgi: Client, built_in_reference: Reference) -> None:
    expected = built_in_reference.greedy(built_in_reference.encode(PROMPT), 24)
    said = tgi.generate(PROMPT, max_new_tokens=24, decoder_input_details=True)
    assert said.generated_text == expected.text
    assert tuple(token.id for token in said.details.tokens) == expected.tokens
    assert [token.id for token in said.details.prefill] == built_in_reference.encode(PROMPT)
    full = tgi.generate(PROMPT, max_new_tokens=24, return_full_text=True)
    assert full.generated_text == PROMPT + expected.text


def test_tgi_generate_stream(tgi: Client, plain_text: str) -> None:
    events = list(tgi.generate_stream(PROMPT, max_new_tokens=24))
    assert "".join(event.token.text for event in events if not event.token.special) == plain_text
    assert events[-1].generated_text == plain_text
    assert events[-1].details is not None
    assert events[-1].details.generated_tokens == len(events)


def test_tgi_generate_sampled(tgi: Client) -> None:
    drawn = [
        tgi.generate(PROMPT, max_new_tokens=12, do_sample=True, temperature=1.3, top_n_tokens=2, seed=3)
        for _ in range(2)
    ]
    assert drawn[0].generated_text == drawn[1].generated_text
    assert drawn[0].details.seed == 3
    tops = drawn[0].details.top_tokens
    assert tops is not None
    assert [len(top) for top in tops] == [2] * len(drawn[0].details.tokens)


def test_tgi_stop(scripted_server: Launcher, script: Script) -> None:
    said = Client(scripted_server.url, timeout=60).generate("Say it", max_new_tokens=40, stop_sequences=["at so"])
    assert said.generated_text == script.text[: script.text.index("at so")] + "at so"
    assert said.details.finish_reason.value == "stop_sequence"


def test_tgi_chat(tgi: Client, chat_text: str) -> None:
    said = tgi.chat([Message(**message) for message in MESSAGES], max_tokens=24, temperature=0)
    assert said.choices[0].message.content == chat_text


def test_tgi_grammar(tgi: Client) -> None:
    grammar = Grammar(type=GrammarType.Regex, value=r"\+[1-9][0-9]{6,8} \((home|work)\)")
    whole = tgi.generate(PROMPT, max_new_tokens=60, grammar=grammar)
    assert re.fullmatch(grammar.value, whole.generated_text)
    streamed = [piece.token.text for piece in tgi.generate_stream(PROMPT, max_new_tokens=60, grammar=grammar)
                if not piece.token.special]  # fmt: skip
    assert "".join(streamed) == whole.generated_text


def test_tgi_errors(tgi: Client) -> None:
    with pytest.raises(ValidationError, match="max_new_tokens"):
        tgi.generate(PROMPT, max_new_tokens=10**6)
    with pytest.raises(ValidationError, match="max_new_tokens"):
        list(tgi.generate_stream(PROMPT, max_new_tokens=10**6))


def test_tgi_async(built_in: Launcher, plain_text: str, chat_text: str) -> None:
    async def use() -> tuple[str, str, str]:
        client = AsyncClient(built_in.url, timeout=60)
        whole = await client.generate(PROMPT, max_new_tokens=24)
        events = [event async for event in client.generate_stream(PROMPT, max_new_tokens=24)]
        streamed = "".join(event.token.text for event in events if not event.token.special)
        chat = await client.chat([Message(**message) for message in MESSAGES], max_tokens=24, temperature=0)
        return whole.generated_text, streamed, chat.choices[0].message.content

    assert asyncio.run(use()) == (plain_text, plain_text, chat_text)


# --- the header names that dashboards of TGI read


def test_answer_headers(api: Api) -> None:
    answer = api.http.post("/generate", json={"inputs": PROMPT, "parameters": {"max_new_tokens": 4}})
    assert int(answer.headers["x-compute-characters"]) == len(PROMPT)
    assert int(answer.headers["x-generated-tokens"]) == 4
    assert int(answer.headers["x-prompt-tokens"]) > 1
    assert float(answer.headers["x-compute-time"]) > 0
    names = ("total-time", "validation-time", "queue-time", "inference-time", "time-per-token")
    times = {name: int(answer.headers[f"x-{name}"]) for name in names}
    assert times["inference-time"] <= times["total-time"]
    assert answer.headers["x-compute-type"] == "cpu"
