"""Traces of a real server: a collector gets the stages of a call under the caller's own trace, by both protocols."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.collector import Collector, Identity, by_grpc, by_http
from support.server import Launcher, Start
from support.tls import make_pair
from support.waiting import until

STAGES = {"tokenize", "queue", "prefill", "decode", "send"}
PROMPT = "words that are nobody's business"


PROTOCOLS = ["grpc", "http/protobuf"]


def collecting(protocol: str, identity: Identity | None = None) -> AbstractContextManager[Collector]:
    return by_grpc(identity) if protocol == "grpc" else by_http(identity)


@pytest.fixture(scope="module", params=PROTOCOLS)
def collector(request: pytest.FixtureRequest) -> Iterator[tuple[str, Collector]]:
    with collecting(request.param) as collector:
        yield request.param, collector


@pytest.fixture(scope="module")
def server(start_for_module: Start, tiny_folder: Path, collector: tuple[str, Collector]) -> Launcher:
    protocol, running = collector
    return start_for_module(
        model=tiny_folder, otlp_endpoint=running.endpoint, otlp_protocol=protocol, otlp_service_name="tested"
    ).wait_ready()


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="there is no openssl to make certificates with; Debian's package has it"
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_collector_behind_tls_gets_spans_if_it_is_trusted(
    start: Start, tiny_folder: Path, tmp_path: Path, protocol: str
) -> None:
    identity = Identity(tmp_path / "cert.pem", tmp_path / "key.pem")
    make_pair(tmp_path, identity.cert, identity.key)
    with collecting(protocol, identity) as running:
        told = {"otlp_endpoint": running.endpoint, "otlp_protocol": protocol, "model": tiny_folder}
        trusting = start(environ={"SSL_CERT_FILE": str(identity.cert)}, **told).wait_ready()
        wary = start(**told).wait_ready()
        for launcher in (trusting, wary):
            answer = httpx.post(launcher.url + "/generate", json={"inputs": PROMPT}, trust_env=False, timeout=60)
            assert answer.status_code == 200, answer.text
        until(lambda: fate(trusting, "sent") > 0, "spans have arrived")
        until(lambda: fate(wary, "lost") > 0, "spans are lost")
        assert fate(trusting, "lost") == fate(wary, "sent") == 0
        assert "takes no traces" in wary.log


def fate(launcher: Launcher, name: str) -> float:
    return launcher.metrics().value("textgen_trace_spans_total", fate=name)


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
    assert fate(server, "lost") == 0
    assert fate(server, "sent") > 0


def test_an_address_that_is_none_ends_the_start(start: Start, tiny_folder: Path) -> None:
    launcher = start(model=tiny_folder, otlp_endpoint="ftp://collector")
    assert launcher.wait() == 2
    assert "--otlp-endpoint" in launcher.log and "http://" in launcher.log
