"""What callers give becomes bodies, and what the router tells becomes outputs."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tests.llm.fakes import packed
from textgen.launcher.errors import SettingsError
from textgen.launcher.flags import Share
from textgen.llm.base import SYNONYMS, library_settings
from textgen.llm.errors import InvalidRequest, RequestError, request_error
from textgen.llm.outputs import Logprob
from textgen.llm.params import SamplingParams, StructuredOutputsParams
from textgen.llm.prompts import chat, completion, conversations_of, params_of, prompts_of
from textgen.llm.replies import Account, decode

ALWAYS = {"temperature": 1.0, "n": 1, "max_tokens": 16, "skip_special_tokens": True, "return_token_ids": True}


def body(prompt: Any = "x", **given: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(completion(prompt, SamplingParams(**given)).content)
    return made


def test_only_what_was_said_is_sent() -> None:
    assert body() == ALWAYS | {"prompt": "x", "stream": False}
    said = body(
        temperature=0.0, max_tokens=None, stop=["a"], logit_bias={5: -1.0}, skip_special_tokens=False, logprobs=0,
        structured_outputs=StructuredOutputsParams(choice=["yes", "no"]), early_stopping=False, use_beam_search=True,
    )  # fmt: skip
    assert said["temperature"] == 0.0
    assert "max_tokens" not in said
    assert said["logit_bias"] == {"5": -1.0}
    assert said["skip_special_tokens"] is False
    assert said["logprobs"] == 0
    assert said["structured_outputs"] == {"choice": ["yes", "no"]}
    assert said["early_stopping"] is False


def test_a_conversation_has_openais_names_for_log_probabilities() -> None:
    messages = [{"role": "user", "content": "x"}]
    made = json.loads(chat(messages, SamplingParams(logprobs=3), {"tools": None, "tool_choice": "none"}).content)
    assert (made["messages"], made["logprobs"], made["top_logprobs"]) == (messages, True, 3)
    assert made["tool_choice"] == "none"
    assert "tools" not in made


@pytest.mark.parametrize(
    "prompt", [[5, 6], (5, 6), np.array([5, 6]), {"prompt_token_ids": [5, 6]}, range(5, 7)], ids=str
)
def test_token_ids_come_in_many_forms(prompt: Any) -> None:
    assert body(prompt)["prompt"] == [5, 6]


@pytest.mark.parametrize("prompt", ["", [], {"prompt": ""}, {}, None, 3, [1.5], ["a"], {"prompt": ["a"]}], ids=str)
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequest, match="prompt"):
        completion(prompt, SamplingParams())


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_cannot_say_are_refused(number: float) -> None:
    with pytest.raises(InvalidRequest, match="top_p"):
        body(top_p=number)
    with pytest.raises(InvalidRequest, match="logit_bias"):
        body(logit_bias={1: number})
    with pytest.raises(InvalidRequest):
        chat([{"role": "user", "content": object()}], SamplingParams(), {})


def test_no_tokens_are_no_answer() -> None:
    for number in (0, -1):
        with pytest.raises(InvalidRequest, match="`max_tokens` must be at least 1"):
            body(max_tokens=number, prompt_logprobs=1)


def test_one_or_several() -> None:
    assert prompts_of("ab") == ["ab"]
    assert prompts_of([1, 2]) == [[1, 2]]
    mixed: list[Any] = ["a", [1]]
    assert prompts_of(mixed) == mixed
    assert prompts_of({"prompt": "a"}) == [{"prompt": "a"}]
    assert prompts_of([]) == []
    message = {"role": "user", "content": "x"}
    assert conversations_of([message]) == [[message]]
    assert conversations_of([[message], [message]]) == [[message], [message]]
    assert len(params_of(None, 3)) == 3
    with pytest.raises(InvalidRequest, match="2 sampling parameters for 3 prompts"):
        params_of([SamplingParams()] * 2, 3)


def test_pieces_of_an_answer_are_joined() -> None:
    account = Account("id", scored=True, prompt_scored=True)
    score = [7, "g", -1.5, None, [[8, "h", -0.5]]]
    pieces = [
        packed(prompt=["p", [1, 2], [None, [2, "b", -0.25, 3, []]]], parts={1: ["x", [9], [score], -1.5, *[None] * 4]}),
        packed(cached_tokens=1, parts={0: ["y", [5], [score], -1.0, "length", None, None, None, [1, 3, 4]]}),
        packed(done=True, parts={1: ["z", [6], [score], -0.5, "stop", "zz", None, None, [0.5, 2.5, 6]]}),
    ]  # fmt: skip
    fresh = [account.add(decode(piece)) for piece in pieces]
    assert [[(each.index, each.text, each.token_ids) for each in one] for one in fresh] == [
        [(1, "x", [9])], [(0, "y", [5])], [(1, "z", [6])],
    ]  # fmt: skip
    output = account.output
    assert (output.prompt, output.prompt_token_ids, output.finished, output.num_cached_tokens) == ("p", [1, 2], True, 1)
    assert (metrics := output.metrics) is not None
    arrived = metrics.arrival_time
    times = (metrics.first_scheduled_time, metrics.first_token_time, metrics.last_token_time)
    assert times == pytest.approx((arrived + 0.5, arrived + 2.5, arrived + 6))
    assert output.prompt_logprobs == [None, {2: Logprob(-0.25, 3, "b")}]
    first, second = output.outputs
    assert (first.finish_reason, first.stop_reason, first.finished()) == ("length", None, True)
    assert (second.text, second.token_ids, second.cumulative_logprob) == ("xz", [9, 6], -2.0)
    assert (second.finish_reason, second.stop_reason) == ("stop", "zz")
    assert second.logprobs == [{8: Logprob(-0.5, 1, "h"), 7: Logprob(-1.5, None, "g")}] * 2


def test_errors_have_the_class_of_their_status() -> None:
    assert isinstance(request_error("x", status=422, kind="validation"), ValueError)
    for status in (424, 429, 500, 503):
        error = request_error("x", status=status, kind="k", index=3)
        assert type(error) is RequestError
        assert (error.status, error.index) == (status, 3)


def test_settings_are_the_launchers_by_their_names_or_vllms() -> None:
    settings = library_settings("m", {"max_model_len": 64, "kv_memory": "0.25", "prefix_caching": False, "threads": 2})
    assert (settings.model_id, settings.max_total_tokens, settings.threads) == ("m", 64, 2)
    assert settings.kv_memory == Share(0.25)
    assert settings.prefix_caching is False
    for name in SYNONYMS:
        with pytest.raises(SettingsError, match="two names|must be"):
            library_settings(None, {SYNONYMS[name]: "1", name: "1"})
    cases: list[tuple[dict[str, Any], str]] = [
        ({"port": 1}, "server"), ({"max_connections": 1}, "server"), ({"thread": 1}, "did you mean threads"),
        ({"threads": 0}, "threads='0' must be"), ({"prefix_caching": "perhaps"}, "true or false"),
    ]  # fmt: skip
    for given, words in cases:
        with pytest.raises(SettingsError, match=words):
            library_settings(None, given)


def test_the_package_costs_nothing_until_the_library_is_used_and_then_no_torch() -> None:
    program = """
import sys, textgen
assert not any(name.startswith("textgen.") for name in sys.modules)
assert textgen.LLM and textgen.AsyncLLM and set(textgen.__all__) <= set(dir(textgen.llm)) | {"__version__"}
assert not {"torch", "transformers", "huggingface_hub"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
