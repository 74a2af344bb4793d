"""Who asks and for how long: API keys that share nothing, deadlines in the queue and in a seat, shares of each key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from support.api import Api, native
from support.processes import frozen
from support.raw import send_json
from support.server import UNHURRIED, Launcher, Start
from support.waiting import until

pytestmark = pytest.mark.timeout(180)

SOON = {"x-request-timeout": "300ms"}
LONG = 1500  # tokens nobody waits for
LONG_TEXT = "A text that is long enough to fill several blocks of the prefix cache, whoever sends it. " * 2


@pytest.fixture(scope="module")
def server(start_for_module: Start, tiny_folder: Path) -> Iterator[Launcher]:
    launcher = start_for_module(model=tiny_folder, max_batch_size=2, block_size=8, **UNHURRIED).wait_ready()
    yield launcher
    assert launcher.faults() == []


def cached(launcher: Launcher, key: str, **extra: Any) -> int:
    """Tokens of `LONG_TEXT` that this key finds in the cache."""
    with openai.OpenAI(base_url=f"{launcher.url}/v1", api_key=key, max_retries=0) as client:
        said = client.completions.create(model="m", prompt=LONG_TEXT, max_tokens=2, temperature=0, extra_body=extra)
    assert said.usage is not None
    assert said.usage.prompt_tokens_details is not None
    return said.usage.prompt_tokens_details.cached_tokens or 0


def hits(launcher: Launcher) -> float:
    return launcher.metrics().value("textgen_prefix_cache_hit_tokens_total")


def test_two_keys_share_no_prefix(server: Launcher) -> None:
    assert cached(server, "first") == 0
    assert cached(server, "first") > 0
    before = hits(server)
    assert cached(server, "second") == 0
    assert cached(server, "first", cache_salt="a") == 0
    assert hits(server) == before
    assert cached(server, "second") > 0
    assert cached(server, "first", cache_salt="a") > 0
    for secret in ("first", "second"):
        assert secret not in server.log.replace("first come", "")


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_a_deadline_passes_in_the_queue_and_in_a_seat(server: Launcher, path: str) -> None:
    """The shard is held still: two requests have a seat, the others wait. All are told, with a true status."""
    failed = server.metrics().value("tgi_request_failure", err="timeout")
    with frozen(server.shard()), ThreadPoolExecutor(5) as pool:

        def ask() -> httpx.Response:
            body = native("Hello", max_new_tokens=5)
            return httpx.post(server.url + path, json=body, headers=SOON, timeout=60, trust_env=False)

        answers = [future.result() for future in [pool.submit(ask) for _ in range(5)]]
    assert [answer.status_code for answer in answers] == [504] * 5
    assert {answer.json()["error_type"] for answer in answers} == {"timeout"}
    assert server.metrics().value("tgi_request_failure", err="timeout") == failed + 5
    until(lambda: idle(server), "everything is free again")
    assert send_json(server.url, "/generate", native("Hello", max_new_tokens=2)).status == 200


def test_a_deadline_passes_while_a_text_is_tokenized(server: Launcher) -> None:
    """All of a long text becomes tokens before it is cut: more than a millisecond's work on any machine."""
    body = native("Nobody waits for so many words. " * 50_000, max_new_tokens=2, truncate=8)
    validations = "tgi_request_validation_duration_count"
    before, failed = server.metrics().value(validations), server.metrics().value("tgi_request_failure", err="timeout")
    assert send_json(server.url, "/generate", body).status == 200
    assert server.metrics().value(validations) == before + 1
    hurried = {"x-request-timeout": "1ms"}
    for path in ("/generate", "/generate_stream"):
        answer = httpx.post(server.url + path, json=body, headers=hurried, timeout=60, trust_env=False)
        assert (answer.status_code, answer.json()["error_type"]) == (504, "timeout")
    assert server.metrics().value("tgi_request_failure", err="timeout") == failed + 2
    assert server.metrics().value(validations) == before + 1, "it came no further than the text"
    until(lambda: idle(server), "everything is free again")
    assert send_json(server.url, "/generate", native("Hello", max_new_tokens=2)).status == 200


def test_a_stream_that_runs_out_of_time_says_so(server: Launcher) -> None:
    body = {"prompt": "Go on", "max_tokens": LONG, "temperature": 0, "stream": True, "ignore_eos": True}
    url = server.url + "/v1/completions"
    with (
        httpx.Client(timeout=60, trust_env=False) as client,
        client.stream("POST", url, json=body, headers={"x-request-timeout": "2"}) as answer,
    ):
        assert answer.status_code == 200
        lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line)
        first = json.loads(next(lines))
        assert "choices" in first
        with frozen(server.shard()):
            *_, error, done = lines
    assert json.loads(error)["error"]["code"] == "timeout"
    assert json.loads(error)["error"]["http_status_code"] == 504
    assert done == "[DONE]"
    until(lambda: idle(server), "everything is free again")


def idle(launcher: Launcher) -> bool:
    metrics = launcher.metrics()
    names = ("textgen_sequences_running", "textgen_sequences_waiting", "textgen_kv_blocks_used")
    return all(metrics.value(name) == 0 for name in names)


def test_a_key_has_its_share_and_the_queue_its_end(start: Start, tiny_folder: Path) -> None:
    launcher = start(
        model=tiny_folder, max_batch_size=2, max_requests_per_key=2, max_queue_size=1, max_request_timeout=60
    ).wait_ready()

    def ask(key: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        body = native("Hello", max_new_tokens=3)
        return httpx.post(launcher.url + "/generate_stream", json=body, headers=headers, timeout=60, trust_env=False)

    with ThreadPoolExecutor(3) as pool:
        with frozen(launcher.shard()):
            inside = [pool.submit(ask, "one") for _ in range(2)]
            until(lambda: launcher.metrics().value("tgi_request_count") == 2, "two are in the house")
            own = ask("one")
            inside.append(pool.submit(ask, "two"))
            until(lambda: launcher.metrics().value("tgi_request_count") == 4, "three are in the house")
            full = ask("three")
        assert [future.result().status_code for future in inside] == [200] * 3
    assert (own.status_code, own.json()["error_type"]) == (429, "rate_limited")
    assert (full.status_code, full.json()["error_type"]) == (503, "queue_full")
    for answer in (own, full):
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    metrics = launcher.metrics()
    assert metrics.value("textgen_requests_refused_total", cause="key_requests") == 1
    assert metrics.value("textgen_requests_refused_total", cause="queue_requests") == 1
    assert metrics.value("tgi_request_failure", err="overloaded") == 2


def test_an_api_of_one_key_is_served_beside_a_flood(server: Launcher) -> None:
    """Another key's long queue does not stand before a newcomer of an own one: fair shares, not first come."""
    client = Api(server.url)
    with ThreadPoolExecutor(12) as pool:
        with frozen(server.shard()):
            flood = [pool.submit(asked_by, server, "flood", 200) for _ in range(11)]
            until(lambda: waiting(server) + running(server) == 11, "the flood is in the house")
            single = pool.submit(asked_by, server, "single", 2)
            until(lambda: waiting(server) + running(server) == 12, "the other is too")
        assert single.result() < sorted(future.result() for future in flood)[5]
    client.close()


def asked_by(launcher: Launcher, key: str, tokens: int) -> float:
    """Milliseconds that the server says it had the request wait."""
    body = {"inputs": "Hello", "parameters": {"max_new_tokens": tokens, "ignore_eos": True}}
    headers = {"x-api-key": key}
    answer = httpx.post(launcher.url + "/generate", json=body, headers=headers, timeout=120, trust_env=False)
    assert answer.status_code == 200
    return float(answer.headers["x-queue-time"])


def waiting(launcher: Launcher) -> float:
    return launcher.metrics().value("textgen_sequences_waiting")


def running(launcher: Launcher) -> float:
    return launcher.metrics().value("textgen_sequences_running")
