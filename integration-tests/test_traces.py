"""Traces of a real server: a collector gets the stages of a call under the caller's own trace, by both protocols."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.collector import Collector, by_grpc, by_http
from support.server import Launcher, Start
from support.waiting import until

STAGES = {"tokenize", "queue", "prefill", "decode", "send"}
PROMPT = "words that are nobody's business"


@pytest.fixture(scope="module", params=["grpc", "http/protobuf"])
def collector(request: pytest.FixtureRequest) -> Iterator[tuple[str, Collector]]:
    with by_grpc() if request.param == "grpc" else by_http() as collector:
        yield request.param, collector


@pytest.fixture(scope="module")
def server(start_for_module: Start, tiny_folder: Path, collector: tuple[str, Collector]) -> Launcher:
    protocol, running = collector
    return start_for_module(
        model=tiny_folder, otlp_endpoint=running.endpoint, otlp_protocol=protocol, otlp_service_name="tested"
    ).wait_ready()


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/v1/completions", "/v1/chat/completions"])
def test_a_call_tells_its_stages_under_the_callers_trace(
    server: Launcher, collector: tuple[str, Collector], path: str
) -> None:
    trace, parent = uuid.uuid4().hex, "00f067aa0ba902b7"
    body = {
        "inputs": PROMPT, "prompt": PROMPT, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4,
        "parameters": {"max_new_tokens": 4},
    }  # fmt: skip
    headers = {"traceparent": f"00-{trace}-{parent}-01"}
    answer = httpx.post(server.url + path, json=body, headers=headers, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text
    _, running = collector
    name = f"POST {path}"
    spans = until(lambda: all_there(running.spans(trace), name), "the collector has the whole trace")
    root = spans[name]
    assert root.parent_span_id.hex() == parent
    assert answer.headers["traceparent"] == f"00-{trace}-{root.span_id.hex()}-01"
    for stage in STAGES:
        assert spans[stage].parent_span_id == root.span_id
        assert spans[stage].start_time_unix_nano <= spans[stage].end_time_unix_nano <= root.end_time_unix_nano
    assert running.services() == {"tested"}
    assert not any(PROMPT.encode() in message.SerializeToString() for message in running.messages)


def all_there(spans: dict[str, Span], root: str) -> dict[str, Span] | None:
    return spans if STAGES | {root} <= spans.keys() else None


def test_what_is_sent_is_counted(server: Launcher) -> None:
    metrics = server.metrics()
    assert metrics.value("textgen_trace_spans_total", fate="lost") == 0
    assert metrics.value("textgen_trace_spans_total", fate="sent") > 0


def test_an_address_that_is_none_ends_the_start(start: Start, tiny_folder: Path) -> None:
    launcher = start(model=tiny_folder, otlp_endpoint="ftp://collector")
    assert launcher.wait() == 2
    assert "--otlp-endpoint" in launcher.log and "http://" in launcher.log
