"""Streams: their bytes, their characters, many at once, and what is left when a client goes away."""

from __future__ import annotations

import functools
import json
import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.api import Answer, Api, native, together
from support.metrics import Metrics
from support.processes import frozen
from support.prompts import Case, random_case, words
from support.raw import connect, events_of, send_json
from support.reference import Reference, must_match
from support.scripted import Script
from support.server import UNHURRIED, Launcher, Start
from support.waiting import until

pytestmark = pytest.mark.timeout(180)

LONG = 1500  # tokens nobody waits for


@pytest.fixture(scope="module")
def tiny_server(start_for_module: Start, tiny_folder: Any) -> Launcher:
    return start_for_module(model=tiny_folder, max_batch_size=64, max_batch_prefill_tokens=256).wait_ready()


@pytest.fixture(scope="module")
def tiny(tiny_server: Launcher) -> Iterator[Api]:
    client = Api(tiny_server.url)
    yield client
    client.close()
    assert tiny_server.faults() == []


@pytest.fixture(scope="module")
def endless_server(start_for_module: Start, endless: Script) -> Launcher:
    return start_for_module(model=endless.folder, stream_buffer=256, **UNHURRIED).wait_ready()


# --- many at once


def test_64_streams_at_once(tiny: Api, tiny_server: Launcher, tiny_reference: Reference) -> None:
    seed = 64
    print(f"seed {seed}")
    random_ = random.Random(seed)
    cases = [random_case(tiny_reference, random_, random_.randint(1, 40), random_.randint(8, 24)) for _ in range(64)]
    before = _begun(tiny_server.metrics())
    with ThreadPoolExecutor(len(cases)) as pool:
        with frozen(tiny_server.shard()):  # nobody can be ready before everybody is here
            streams = [pool.submit(call) for call in _streams(tiny, cases)]
            until(lambda: _begun(tiny_server.metrics()) - before >= len(cases), "all streams have begun")
        answers = [stream.result() for stream in streams]
    for case, streamed, whole in zip(cases, answers, together(_wholes(tiny, cases)), strict=True):
        must_match(streamed.tokens, case.expected, str(case))
        assert streamed.text == "".join(streamed.pieces) == case.expected.text, str(case)
        assert (whole.tokens, whole.text) == (streamed.tokens, streamed.text), str(case)
    until(lambda: nothing_runs(tiny_server.metrics()), "all blocks are free again")


def _streams(client: Api, cases: list[Case]) -> list[functools.partial[Answer]]:
    return [
        functools.partial(client.stream, case.text, truncate=case.truncate, max_new_tokens=case.max_new_tokens)
        for case in cases
    ]


def _wholes(client: Api, cases: list[Case]) -> list[functools.partial[Answer]]:
    return [functools.partial(client.case, case) for case in cases]


# --- bytes


def test_native_stream_to_the_byte(scripted_server: Launcher, script: Script) -> None:
    answer = send_json(scripted_server.url, "/generate_stream", native("Say it", max_new_tokens=60))
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["transfer-encoding"] == "chunked"
    frames = events_of(answer.body)
    assert len(frames) == len(script.tokens)
    assert b"[DONE]" not in answer.body
    for number, (frame, token) in enumerate(zip(frames, script.tokens, strict=True), start=1):
        assert frame.startswith(b'{"index":%d,"token":{"id":%d,"text":"' % (number, token))
        event = json.loads(frame)
        assert list(event) == ["index", "token", "generated_text", "details"]
        assert list(event["token"]) == ["id", "text", "logprob", "special"]
        assert event["token"]["logprob"] == pytest.approx(0.0, abs=0.2)
    assert frames[0].endswith(b'"special":false},"generated_text":null,"details":null}')
    end = b'"special":true},"generated_text":' + json.dumps(script.text, ensure_ascii=False).encode()
    details = b',"details":{"finish_reason":"eos_token","generated_tokens":%d,"seed":null,"input_length":' % len(frames)
    assert end + details in frames[-1]


def test_top_tokens_of_a_stream(scripted_server: Launcher, script: Script) -> None:
    answer = send_json(scripted_server.url, "/generate_stream", native("Say it", max_new_tokens=3, top_n_tokens=2))
    for frame, token in zip(events_of(answer.body), script.tokens, strict=False):
        event = json.loads(frame)
        assert list(event) == ["index", "token", "top_tokens", "generated_text", "details"]
        assert [len(event["top_tokens"]), event["top_tokens"][0]["id"]] == [2, token]


def test_openai_streams_to_the_byte(scripted_server: Launcher, script: Script) -> None:
    chat = {"messages": [{"role": "user", "content": "Say it"}], "temperature": 0, "max_tokens": 60, "stream": True}
    plain = {"prompt": "Say it", "temperature": 0, "max_tokens": 60, "stream": True}
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", plain)):
        answer = send_json(scripted_server.url, path, body)
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["cache-control"] == "no-cache"
        *frames, last = events_of(answer.body)
        assert last == b"[DONE]"
        assert answer.body.endswith(b"}\n\ndata: [DONE]\n\n")
        events = [json.loads(frame) for frame in frames]
        assert _openai_text(events) == script.text
        reasons = [choice["finish_reason"] for event in events for choice in event["choices"]]
        assert reasons == [None] * (len(reasons) - 1) + ["stop"]


def _openai_text(events: list[dict[str, Any]]) -> str:
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices)


def test_compat_route(scripted_server: Launcher, script: Script) -> None:
    whole = send_json(scripted_server.url, "/", {"inputs": "Say it", "parameters": {"max_new_tokens": 60}})
    assert whole.json() == [{"generated_text": "Say it" + script.text}]
    streamed = send_json(
        scripted_server.url, "/",
        {"inputs": "Say it", "parameters": {"max_new_tokens": 60, "return_full_text": False}, "stream": True},
    )  # fmt: skip
    assert json.loads(events_of(streamed.body)[-1])["generated_text"] == script.text


def test_an_error_before_the_first_token_keeps_its_status(scripted_server: Launcher) -> None:
    answer = send_json(scripted_server.url, "/generate_stream", native("Say it", max_new_tokens=10**6))
    assert answer.status == 422
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error_type"] == "validation"


# --- characters


def test_no_character_is_ever_shown_in_part(scripted_api: Api, script: Script) -> None:
    """The script's characters are made of several tokens; each appears whole, with its last token."""
    streamed = scripted_api.stream("Say it", max_new_tokens=60)
    assert streamed.tokens == script.tokens
    assert streamed.text == "".join(streamed.pieces) == script.text
    assert "\ufffd" not in "".join(streamed.pieces)
    assert streamed.pieces.count("") >= 5, "the script was to have characters that several tokens make"
    assert scripted_api.generate("Say it", max_new_tokens=60).text == script.text


def test_a_character_cut_off_by_the_limit(scripted_api: Api, script: Script, tiny_reference: Reference) -> None:
    """As Transformers decodes the same tokens, at every length."""
    for length in range(1, len(script.tokens) + 1):
        streamed = scripted_api.stream("Say it", max_new_tokens=length)
        assert streamed.tokens == script.tokens[:length]
        assert streamed.text == "".join(streamed.pieces) == tiny_reference.decode(streamed.tokens)
        assert streamed.finish_reason == ("eos_token" if length == len(script.tokens) else "length")


def test_random_bytes_stream_as_they_decode(tiny: Api, tiny_reference: Reference) -> None:
    """A random model writes pieces of characters in any order."""
    random_ = random.Random(8)
    for _ in range(6):
        streamed = tiny.stream(words(random_, 5), max_new_tokens=80, temperature=3.0, seed=random_.getrandbits(32))
        assert "".join(streamed.pieces) == streamed.text == tiny_reference.decode(streamed.tokens)


# --- stop strings


@pytest.mark.parametrize("stop", ["cat", "at so", " c", "e cat sold 7 sm", "😀", "é", "日Ж", "box.", "7"])
def test_stop_strings_across_token_edges(scripted_api: Api, script: Script, stop: str) -> None:
    before = script.text[: script.text.index(stop)]
    for answer in (
        scripted_api.generate("Say it", max_new_tokens=60, stop=[stop]),
        scripted_api.stream("Say it", max_new_tokens=60, stop=["not there", stop]),
    ):
        assert answer.text == "".join(answer.pieces) == before + stop
        assert answer.finish_reason == "stop_sequence"
    body = {"prompt": "Say it", "max_tokens": 60, "temperature": 0, "stop": stop}
    assert scripted_api.post("/v1/completions", body)["choices"][0]["text"] == before
    with scripted_api.events("/v1/completions", body | {"stream": True}) as events:
        assert _openai_text(list(events)) == before


def test_the_first_of_several_stop_strings_wins(scripted_api: Api, script: Script) -> None:
    answer = scripted_api.generate("Say it", max_new_tokens=60, stop=["box", "sold", "cat s"])
    assert answer.text == script.text[: script.text.index("cat s")] + "cat s"


def test_the_beginning_of_a_stop_string_is_text_after_all(scripted_api: Api, script: Script) -> None:
    for stop in ("box.!", "sold 8", "日本"):
        answer = scripted_api.stream("Say it", max_new_tokens=60, stop=[stop])
        assert answer.text == "".join(answer.pieces) == script.text
        assert answer.finish_reason == "eos_token"


# --- ends


def test_the_end_of_sequence_can_be_ignored(scripted_api: Api, script: Script) -> None:
    twice = 2 * len(script.tokens)
    for answer in (
        scripted_api.generate("Say it", max_new_tokens=twice, ignore_eos=True),
        scripted_api.stream("Say it", max_new_tokens=twice, ignore_eos=True),
    ):
        assert answer.tokens == 2 * script.tokens
        assert answer.text == 2 * script.text
        assert answer.finish_reason == "length"


def test_stop_tokens(scripted_api: Api, script: Script) -> None:
    third = script.tokens[-4]
    answer = scripted_api.generate("Say it", max_new_tokens=60, stop_token_ids=[third])
    assert answer.tokens == script.tokens[:-3]
    assert answer.finish_reason == "stop_sequence"
    body = {"prompt": "Say it", "max_tokens": 60, "temperature": 0, "stop_token_ids": [third]}
    choice = scripted_api.post("/v1/completions", body)["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert script.text.startswith(choice["text"])
    assert len(choice["text"]) < len(answer.text), "OpenAI's routes leave the stop token out"


# --- a client that goes away


def test_a_closed_connection_frees_its_blocks_within_a_step(endless_server: Launcher) -> None:
    """The shard is held still while the client leaves: afterwards it gets no step but those it had already."""
    client = Api(endless_server.url)
    before = _dropped(endless_server.metrics())
    with ExitStack() as held:
        with client.events("/generate_stream", native("Go on", max_new_tokens=LONG)) as events:
            for _ in range(5):
                next(events)
            assert endless_server.metrics().value("textgen_kv_blocks_used") > 0
            held.enter_context(frozen(endless_server.shard()))
        until(lambda: _dropped(endless_server.metrics()) > before, "the server sees that the client is gone")
        sent = _steps(endless_server.metrics())
    until(lambda: nothing_runs(endless_server.metrics()), "the blocks are free")
    assert _steps(endless_server.metrics()) - sent <= 1
    client.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate_stream", native("Go on", max_new_tokens=LONG)),
        ("/v1/completions", {"prompt": ["Go", "on"], "max_tokens": LONG, "temperature": 0, "stream": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Go on"}], "temperature": 0,
                                  "max_tokens": LONG, "stream": True}),
    ],
    ids=["native", "completions", "chat"],
)  # fmt: skip
def test_closing_a_stream_long_before_its_end(endless_server: Launcher, path: str, body: Any) -> None:
    client = Api(endless_server.url)
    before = endless_server.metrics().value("textgen_shard_steps_total")
    with client.events(path, body) as events:
        for _ in range(4):
            next(events)
    until(lambda: nothing_runs(endless_server.metrics()), "the blocks are free")
    assert endless_server.metrics().value("textgen_shard_steps_total") - before < LONG / 2
    client.close()


def test_closing_a_whole_answer_before_its_end(endless_server: Launcher) -> None:
    """A client that stops waiting for an answer that is not streamed."""
    before = endless_server.metrics().value("textgen_shard_steps_total")
    body = json.dumps({"inputs": "Go on", "parameters": {"max_new_tokens": LONG}}).encode()
    with connect(endless_server.url) as connection:
        head = f"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        until(lambda: endless_server.metrics().value("textgen_kv_blocks_used") > 0, "the request runs")
    until(lambda: nothing_runs(endless_server.metrics()), "the blocks are free")
    assert endless_server.metrics().value("textgen_shard_steps_total") - before < LONG / 2


def _system_buffer() -> int:
    """Bytes that the system takes at most from a sender whose reader does not read."""
    return int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2])


def _stall(server: Launcher) -> socket.socket:
    """Asks for more than every buffer on the way can hold, since each event repeats a long name, and never reads."""
    name = "m" * min(_system_buffer() // 400, 1_000_000)
    wanted = {"model": name, "prompt": "Go on", "max_tokens": 2000, "temperature": 0, "stream": True}
    body = json.dumps(wanted).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    connection = connect(server.url, receive_buffer=4096)
    connection.sendall(head.encode() + b"\r\n\r\n" + body)
    until(lambda: server.metrics().value("textgen_sequences_running") == 1, "the request runs")
    return connection


def test_a_reader_that_stalls_is_cut_off_and_delays_nobody(endless_server: Launcher, endless: Script) -> None:
    before = endless_server.metrics()
    client = Api(endless_server.url)
    with _stall(endless_server):
        answer = client.stream("Go on", max_new_tokens=200)
        assert answer.text == "".join(answer.pieces)
        assert (endless.text * 20).startswith(answer.text)
        until(lambda: nothing_runs(endless_server.metrics()), "its blocks are free")
        after = endless_server.metrics()
    name = "textgen_shard_sampled_tokens_total"
    assert after.value(name) - before.value(name) < 2000, "it was to be cut off before its end"
    until(lambda: _dropped(endless_server.metrics()) > _dropped(before), "it counts as dropped")
    client.close()


def test_a_reader_that_stalls_keeps_no_place(start: Start, endless: Script) -> None:
    """Neither in the house nor when the server is asked to stop."""
    server = start(
        model=endless.folder, max_concurrent_requests=1, slow_reader_timeout=1, **UNHURRIED
    ).wait_ready()  # fmt: skip
    body = native("Go on", max_new_tokens=1)
    with _stall(server):
        until(lambda: send_json(server.url, "/generate_stream", body).status == 200, "there is room again")
    with _stall(server):
        server.process.terminate()
        assert server.wait(60) == 0


def nothing_runs(metrics: Metrics) -> bool:
    names = ("textgen_sequences_running", "textgen_sequences_waiting", "textgen_kv_blocks_used")
    assert all(metrics.has(name) for name in names)
    return all(metrics.value(name) == 0 for name in names)


def _dropped(metrics: Metrics) -> float:
    return metrics.value("tgi_request_failure", err="dropped")


def _begun(metrics: Metrics) -> float:
    return metrics.value("tgi_request_count")


def _steps(metrics: Metrics) -> float:
    return metrics.value("tgi_batch_inference_count")


# --- prompts beside running streams


def test_prompts_are_cut_for_running_streams(start: Start, tiny_folder: Path, tiny_reference: Reference) -> None:
    """A prompt that one step could hold takes several while a stream runs, once the server knows what steps take."""
    launcher = start(model=tiny_folder, target_itl_ms=1, max_batch_prefill_tokens=2048, **UNHURRIED).wait_ready()
    client = Api(launcher.url)
    random_ = random.Random(3)
    for length in (10, 600, 40, 300, 100, 900, 200, 20, 500, 60, 700, 400):
        client.case(random_case(tiny_reference, random_, length, 6))
    long = random_case(tiny_reference, random_, 1500, 8)
    with client.events("/generate_stream", native("Go on", max_new_tokens=LONG, ignore_eos=True)) as events:
        for _ in range(5):
            next(events)
        before = _prompt_steps(launcher.metrics())
        answer = client.case(long)
        assert _prompt_steps(launcher.metrics()) - before >= 3
    must_match(answer.tokens, long.expected, str(long))
    client.close()


@pytest.mark.parametrize(("share", "steps"), [(None, 2), (0, 1)])
def test_prompts_have_half_a_step_beside_a_stream(
    start: Start, tiny_folder: Path, tiny_reference: Reference, share: int | None, steps: int
) -> None:
    launcher = start(
        model=tiny_folder, max_prefill_per_stream=share, max_batch_prefill_tokens=1024, **UNHURRIED
    ).wait_ready()
    client = Api(launcher.url)
    long = random_case(tiny_reference, random.Random(4), 900, 8)
    with client.events("/generate_stream", native("Go on", max_new_tokens=LONG, ignore_eos=True)) as events:
        for _ in range(5):
            next(events)
        before = _prompt_steps(launcher.metrics())
        answer = client.case(long)
        assert _prompt_steps(launcher.metrics()) - before == steps
    must_match(answer.tokens, long.expected, str(long))
    client.close()


def _prompt_steps(metrics: Metrics) -> float:
    return metrics.value("tgi_batch_inference_count", method="prefill")
