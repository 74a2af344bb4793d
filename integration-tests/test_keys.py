"""API keys through the launcher: official clients with the right and the wrong one, a file of keys that changes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx
import openai
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import UnknownError
from support.server import Launcher, Start
from support.waiting import until

KEY, LISTED, LATER = "sesame-of-the-variable", "listed-in-the-file", "listed-later"


def write(path: Path, *keys: dict[str, object]) -> None:
    """Another file in its place, so that no reader finds half of one."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"keys": keys}))
    os.replace(fresh, path)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    write(path, {"name": "team", "sha256": hashlib.sha256(LISTED.encode()).hexdigest(), "max_requests": 1})
    return path


@pytest.fixture(scope="module")
def server(start_for_module: Start, tiny_folder: Path, file: Path) -> Iterator[Launcher]:
    launcher = start_for_module(
        model=tiny_folder, environ={"API_KEY": KEY}, api_key_file=file, log_level="debug"
    ).wait_ready()
    yield launcher
    assert launcher.faults() == []
    assert not any(key in launcher.log for key in (KEY, LISTED, LATER))


def asked(server: Launcher, key: str, **fields: object) -> str:
    """What openai's client gets."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
        said = client.completions.create(model="m", prompt="a b c", max_tokens=4, extra_body=fields)
    return said.choices[0].text


def test_openais_client(server: Launcher) -> None:
    assert asked(server, KEY) and asked(server, LISTED)
    with pytest.raises(openai.AuthenticationError, match="API key"):
        asked(server, "guessed")


def test_a_key_has_the_limits_of_its_entry(server: Launcher) -> None:
    with pytest.raises(openai.RateLimitError):
        asked(server, LISTED, n=2)
    assert asked(server, KEY, n=2)


def test_anthropics_client(server: Launcher) -> None:
    for key, good in ((KEY, True), ("guessed", False)):
        with anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0) as client:
            messages: list[anthropic.types.MessageParam] = [{"role": "user", "content": "a"}]
            if good:
                assert client.messages.count_tokens(model="m", messages=messages).input_tokens > 0
            else:
                with pytest.raises(anthropic.AuthenticationError):
                    client.messages.count_tokens(model="m", messages=messages)


def test_the_hubs_client(server: Launcher) -> None:
    assert InferenceClient(server.url, token=KEY).text_generation("a b c", max_new_tokens=2)
    with pytest.raises(UnknownError, match="API key"):  # what it calls a TGI error without a class of its own
        InferenceClient(server.url, token="guessed").text_generation("a b c", max_new_tokens=2)


def test_what_watches_the_server_needs_none_and_everything_else_does(server: Launcher) -> None:
    for path in ("/health", "/ping", "/ready"):
        assert server.status(path) == 200
    for path in ("/metrics", "/info", "/docs"):
        assert server.status(path) == 401
        headers = {"authorization": f"Bearer {KEY}"}
        assert httpx.get(server.url + path, headers=headers, trust_env=False).status_code == 200


def test_a_file_that_changes_is_followed(server: Launcher, file: Path) -> None:
    write(file, {"key": LATER})

    def taken(key: str) -> bool:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.get(f"{server.url}/info", headers=headers, trust_env=False).status_code == 200

    until(lambda: taken(LATER) and not taken(LISTED), "the file is read again")
    assert taken(KEY)


def test_a_file_that_is_none_ends_the_start(start: Start, tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    path.write_text('{"keys": [{"key": "hush", "extra": 1}]}')
    launcher = start(model=tiny_folder, api_key_file=path)
    assert launcher.wait() == 2
    assert "--api-key-file" in launcher.log and "hush" not in launcher.log
