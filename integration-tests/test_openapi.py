"""The OpenAPI document against the server: calls that schemathesis makes up from it, and the events of streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.api import Api
from support.server import Launcher, Start

# For each operation and phase; `make fuzz-api` makes more.
EXAMPLES = int(os.environ.get("FUZZ_API_EXAMPLES", "0"))
# Unions of the bodies of other routes: making them up takes as long as all the others together.
UNIONS = "^/(invocations|vertex)$"
HOOKS = Path(__file__).parent / "support" / "fuzzing.py"
CONFIG = """
# Rules that join fields, or are finer than JSON Schema's numbers, are in no schema: what fits it may be refused by one
# of them with 422, but is never called malformed.
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "404", "409", "422", "429"]

# These dialects have one status for both.
[[operations]]
include-path-regex = "^/(v1/messages|api/|v2|invocations|vertex)"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "404", "409", "422", "429"]

# These take the bodies of other routes and look at the text alone.
[[operations]]
include-path-regex = "^/(chat_)?tokenize$|/(count|input)_tokens$"
[operations.checks.wrong_data_is_refused]
enabled = false
"""

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
STREAMS: dict[str, list[dict[str, Any]]] = {
    "/": [{"inputs": "Hi", "stream": True, "parameters": {"max_new_tokens": 4}}],
    "/generate_stream": [{"inputs": "Hi", "parameters": {"max_new_tokens": 4, "top_n_tokens": 2, "details": True}}],
    "/v1/chat/completions": [
        CHAT | {"stream": True, "logprobs": True, "stream_options": {"include_usage": True}},
        CHAT | {"stream": True, "async_tools": True, "tools": [{"type": "function", "function": {"name": "clock"}}]},
    ],
    "/v1/completions": [{"prompt": ["Hi", "Ho"], "max_tokens": 4, "stream": True, "logprobs": 2}],
    "/v1/responses": [{"input": "Hi", "stream": True, "max_output_tokens": 16, "store": False}],
    "/v1/messages": [CHAT | {"stream": True, "model": "m"}],
    "/v2/models/{model}/generate_stream": [{"text_input": "Hi", "max_tokens": 4, "return_cumulative_logprob": True}],
    "/invocations": [CHAT | {"stream": True}, {"inputs": "Hi", "stream": True, "parameters": {"max_new_tokens": 4}}],
}


@pytest.fixture(scope="module")
def short(start_for_module: Start) -> Launcher:
    """The built-in model with little room: no answer takes long."""
    return start_for_module(dtype="float32", max_input_tokens=48, max_total_tokens=64).wait_ready()


@pytest.mark.timeout(900)
def test_made_up_calls_get_what_is_documented(short: Launcher, tmp_path: Path) -> None:
    """No 5xx, no status, type, header or body that the document does not have."""
    report = tmp_path / "report.json"
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    phases = "examples,coverage,fuzzing" if EXAMPLES else "fuzzing"
    command = [
        *(sys.executable, "-W", "ignore", "-m", "schemathesis.cli", "--config-file", str(config), "--no-color", "run"),
        *("--phases", phases, "--max-examples", str(EXAMPLES or 2), "--exclude-checks", "negative_data_rejection"),
        *("--seed", "7", "--generation-database", "none", "--no-shrink", "--continue-on-failure"),
        *("--output-truncate", "false", "--report", "json", "--report-json-path", str(report)),
        *(() if EXAMPLES else ("--exclude-path-regex", UNIONS)),
        f"{short.url}/api-doc/openapi.json",
    ]
    environ = os.environ | {"NO_PROXY": "*", "SCHEMATHESIS_HOOKS": str(HOOKS)}
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environ)
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2_000:]
    said = json.loads(report.read_text())
    assert (said["failures"], said["errors"]) == ([], [])
    assert said["operations"]["tested"] == said["operations"]["selected"] > 20
    assert said["test_cases"]["generated"] >= (5_000 if EXAMPLES else 20)
    assert short.ready()


@pytest.mark.parametrize("path", STREAMS)
def test_streams_have_the_events_that_are_documented(api: Api, path: str) -> None:
    document = api.http.get("/api-doc/openapi.json").json()
    content = document["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]
    schema = content["schema"]["properties"]["data"]["contentSchema"] | {"components": document["components"]}
    validator = jsonschema.Draft202012Validator(schema)
    for body in STREAMS[path]:
        with api.events(path.format(model="textgen-demo"), body) as events:
            seen = list(events)
        assert len(seen) > 1
        for event in seen:
            validator.validate(event)


def test_every_stream_is_tested(api: Api) -> None:
    document = api.http.get("/api-doc/openapi.json").json()
    answers = {path: item["post"]["responses"] for path, item in document["paths"].items() if "post" in item}
    streams = {
        path
        for path, by_status in answers.items()
        if "text/event-stream" in by_status.get("200", {}).get("content", {})
    }
    assert streams == set(STREAMS)


def test_swagger_ui(api: Api) -> None:
    """The page and what it loads, as a browser gets it."""
    page = api.http.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    loaded = {name: api.http.get(f"/docs/{name}") for name in ("swagger-ui.css", "swagger-ui-bundle.js", "start.js")}
    for name, answer in loaded.items():
        assert f'"docs/{name}"' in page.text
        assert answer.status_code == 200
    assert "function" in loaded["swagger-ui-bundle.js"].text
    assert len(loaded["swagger-ui-bundle.js"].content) > 1_000_000
    assert '"api-doc/openapi.json"' in loaded["start.js"].text
