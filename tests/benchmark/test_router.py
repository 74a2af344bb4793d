"""The router benchmark's own server: the real router, a shard that computes nothing, a moment of every load."""

from __future__ import annotations

import json

import pytest

from benchmark.report import ROOT
from benchmark.router import parts
from benchmark.router.parts import measure, router, router_settings

BINARY = ROOT / "target" / "release" / "router-bench"  # as the Rust tests leave it; what is measured is built otherwise
pytestmark = pytest.mark.skipif(not BINARY.exists(), reason="needs `cargo build --release -p router-bench`")


@pytest.fixture(autouse=True)
def _built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "BINARY", BINARY)


def test_settings_are_the_launchers_with_wider_limits() -> None:
    settings = json.loads(router_settings(BINARY, http_threads=2))
    assert (settings["http_threads"], settings["max_batch_size"], settings["payload_limit"]) == (2, 1024, 2_000_000)


def test_the_real_router_is_loaded_and_soaked() -> None:
    with router(max_concurrent_requests=8) as server:
        seen = measure("load", address=server.address, pid=server.pid, connections=4, tokens=7, warm_up=0.2, window=0.5)
        assert seen["requests"] > 0 and seen["cpu_us_per_token"] > 0
        soaked = measure("soak", address=server.address, pid=server.pid, connections=12, requests=400)
    assert soaked["done"] == 400
    assert sum(count for kind, count in soaked["kinds"].items() if not kind.isdigit()) == 400
