"""Libraries over several clients. They are heavy and ask for other versions of the clients than the tests do: the extra
`clients` is for an environment of its own, and without it these tests are skipped."""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any

import pytest
from support.reference import Reference
from support.server import Launcher

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries

MODEL = "textgen-demo"
MESSAGES: list[Any] = [
    {"role": "system", "content": "You are helpful."},
    {"role": "user", "content": "Tell me a story."},
]


def library(name: str) -> Any:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # prices from its own files, not from the network
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: it comes with the extra `clients`")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


@pytest.fixture
def chat_text(built_in_reference: Reference) -> str:
    return built_in_reference.greedy(built_in_reference.chat(MESSAGES), 24).text


# `hosted_vllm` is OpenAI's chat with the extensions that vLLM and this server have.
ROUTES = [("openai", "/v1"), ("hosted_vllm", "/v1"), ("anthropic", ""), ("ollama_chat", "")]


@pytest.mark.parametrize(("provider", "path"), ROUTES)
def test_litellm(provider: str, path: str, built_in: Launcher, chat_text: str) -> None:
    litellm = library("litellm")
    asked: dict[str, Any] = {
        "model": f"{provider}/{MODEL}", "api_base": f"{built_in.url}{path}", "api_key": "none", "messages": MESSAGES,
        "temperature": 0, "max_tokens": 24,
    }  # fmt: skip
    said = litellm.completion(**asked)
    assert said.choices[0].message.content == chat_text
    assert said.usage.completion_tokens > 3
    pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True)]
    assert len(pieces) > 3
    assert "".join(pieces) == chat_text
    with pytest.raises(Exception, match="temperature"):  # each provider has a class of its own
        litellm.completion(**{**asked, "temperature": -1})


@pytest.mark.parametrize("responses", [False, True])
def test_langchain(responses: bool, built_in: Launcher, chat_text: str) -> None:
    langchain = library("langchain_openai")
    model = langchain.ChatOpenAI(
        model=MODEL, base_url=f"{built_in.url}/v1", api_key="none", temperature=0, max_tokens=24, max_retries=0,
        use_responses_api=responses,
    )  # fmt: skip
    spoken = [("system", MESSAGES[0]["content"]), ("user", MESSAGES[1]["content"])]
    assert model.invoke(spoken).text == chat_text
    pieces = [chunk.text for chunk in model.stream(spoken)]
    assert len(pieces) > 3
    assert "".join(pieces) == chat_text
