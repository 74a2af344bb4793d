"""What a person sees who starts a server, and what the server says of itself."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from support.api import Api
from support.models import BUILT_IN
from support.raw import send
from support.reference import Reference
from support.server import Launcher, Start, environment

ROUTES = {
    "/": {"get", "post"},
    "/generate": {"post"},
    "/generate_stream": {"post"},
    "/tokenize": {"post"},
    "/chat_tokenize": {"post"},
    "/v1/chat/completions": {"post"},
    "/v1/completions": {"post"},
    "/v1/models": {"get"},
    "/info": {"get"},
    "/health": {"get"},
    "/ping": {"get"},
    "/ready": {"get"},
    "/metrics": {"get"},
}

# TGI's names and kinds, as dashboards use them.
TGI_METRICS = {
    "tgi_request_count": "counter",
    "tgi_request_success": "counter",
    "tgi_request_duration": "histogram",
    "tgi_request_validation_duration": "histogram",
    "tgi_request_queue_duration": "histogram",
    "tgi_request_inference_duration": "histogram",
    "tgi_request_mean_time_per_token_duration": "histogram",
    "tgi_request_input_length": "histogram",
    "tgi_request_generated_tokens": "histogram",
    "tgi_request_max_new_tokens": "histogram",
    "tgi_request_skipped_tokens": "summary",
    "tgi_request_failure": "counter",
    "tgi_batch_concat": "counter",
    "tgi_batch_concat_duration": "histogram",
    "tgi_batch_filter_duration": "histogram",
    "tgi_batch_inference_count": "counter",
    "tgi_batch_inference_success": "counter",
    "tgi_batch_inference_failure": "counter",
    "tgi_batch_inference_duration": "histogram",
    "tgi_batch_forward_duration": "histogram",
    "tgi_batch_decode_duration": "histogram",
    "tgi_batch_next_size": "histogram",
    "tgi_batch_current_size": "gauge",
    "tgi_batch_current_max_tokens": "gauge",
    "tgi_batch_max_total_tokens": "gauge",
    "tgi_queue_size": "gauge",
}
SHARD_METRICS = (
    "textgen_shard_steps_total",
    "textgen_shard_tokens_total",
    "textgen_shard_sampled_tokens_total",
    "textgen_shard_kv_blocks",
    "textgen_shard_kv_blocks_in_use",
    "textgen_shard_slots_in_use",
)
INFO = {
    "model_id", "model_sha", "model_pipeline_tag", "max_concurrent_requests", "max_best_of", "max_stop_sequences",
    "max_input_tokens", "max_total_tokens", "validation_workers", "max_client_batch_size", "router", "version", "sha",
    "docker_label",
    # of TGI 2, which clients still read
    "model_dtype", "model_device_type", "waiting_served_ratio", "max_batch_total_tokens", "max_waiting_tokens",
    "max_batch_size",
}  # fmt: skip


# --- the log of a start


def test_phase_times_are_printed(built_in: Launcher) -> None:
    (line,) = [line for line in built_in.log.splitlines() if "ready on http://" in line]
    phases = dict(re.findall(r"([a-z][a-z -]*?) (\d+\.\d\d) s", line[line.index("(") :]))
    assert set(phases) == {"launcher", "resolve", "plan", "router", "import", "read", "place", "warm-up"}, line
    assert built_in.address in line
    total = float(re.search(r"after (\d+\.\d) s", line)[1])  # type: ignore[index]
    assert 0 < total < 90
    exported = built_in.metrics()
    assert exported.value("textgen_time_to_ready_seconds") == pytest.approx(total, abs=0.06)
    for part, seconds in phases.items():
        assert exported.value("textgen_time_to_ready_part_seconds", part=part) == pytest.approx(
            float(seconds), abs=0.006
        )


def test_the_log_names_the_model_and_the_memory(built_in: Launcher) -> None:
    log = built_in.log
    assert "textgen-demo" in log
    assert "built-in model" in log
    assert "Connected" in log
    for row in ("memory plan:", "available", "weights", "KV cache", "left to the machine"):
        assert row in log


def test_a_log_that_is_no_terminal_has_no_colours(built_in: Launcher) -> None:
    assert "\x1b" not in built_in.raw_log


def test_the_curl_line_can_be_pasted(built_in: Launcher) -> None:
    lines = built_in.log.splitlines()
    first = next(number for number, line in enumerate(lines) if line.strip().startswith("curl "))
    command = "\n".join(lines[first : first + 3])
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:2] == ["curl", "-N"]
    assert words[2] == f"{built_in.url}/v1/chat/completions"
    body = json.loads(words[words.index("-d") + 1])
    assert body["stream"] is True
    answer = send(built_in.url, "POST", "/v1/chat/completions", json.dumps(body | {"max_tokens": 8}).encode())
    assert answer.status == 200
    assert answer.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_streams(built_in: Launcher) -> None:
    lines = built_in.log.splitlines()
    first = next(number for number, line in enumerate(lines) if line.strip().startswith("curl "))
    command = "\n".join(lines[first : first + 3])
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=60, check=True)
    assert done.stdout.startswith(b"data: {")
    assert done.stdout.endswith(b"data: [DONE]\n\n")


def test_json_logs(start: Start, tiny_folder: Path) -> None:
    launcher = start(model=tiny_folder, json_output=True).wait_ready()
    launcher.stop()
    entries = [json.loads(line) for line in launcher.log.splitlines()]
    assert entries
    for entry in entries:
        assert {"timestamp", "level", "target", "message"} <= set(entry), entry
    assert {entry["target"].split("::")[0].split(".")[0] for entry in entries} >= {"textgen_launcher", "textgen_router"}
    assert any(entry["message"] == "Connected" for entry in entries)
    assert launcher.process.returncode == 0


def test_settings_from_the_environment(start: Start, tiny_folder: Path) -> None:
    launcher = start(
        environ={"MODEL_ID": str(tiny_folder), "MAX_INPUT_LENGTH": "40", "MAX_TOTAL_TOKENS": "64", "PORT": "1"}
    ).wait_ready()
    info = send(launcher.url, "GET", "/info").json()
    assert (info["max_input_tokens"], info["max_total_tokens"]) == (40, 64)
    assert info["model_id"] == str(tiny_folder)
    assert not launcher.url.endswith(":1"), "a flag beats its variable"


def test_help_and_version() -> None:
    for flag, words in (("--help", ("--model-id", "exit codes", "MAX_TOTAL_TOKENS")), ("--version", ("textgen",))):
        done = subprocess.run(
            [sys.executable, "-m", "textgen.launcher", flag], capture_output=True, text=True, timeout=60,
            env=environment(), check=True,
        )  # fmt: skip
        for word in words:
            assert word in done.stdout


def test_the_console_script() -> None:
    script = Path(sys.executable).parent / "textgen-launcher"
    assert script.exists(), "the package is not installed"
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert re.fullmatch(r"textgen-launcher \S+", done.stdout.strip())


# --- what the server says of itself


def test_info(built_in: Launcher) -> None:
    info = send(built_in.url, "GET", "/info").json()
    assert set(info) >= INFO
    assert info["model_id"] == "textgen-demo"
    assert info["model_dtype"] == "float32"
    assert info["model_device_type"] == "cpu"
    positions = json.loads((BUILT_IN / "config.json").read_text())["max_position_embeddings"]
    assert info["max_total_tokens"] == positions
    assert info["max_input_tokens"] == positions - 1
    assert info["max_batch_total_tokens"] >= positions


def test_models(built_in: Launcher) -> None:
    listed = send(built_in.url, "GET", "/v1/models").json()
    longest = send(built_in.url, "GET", "/info").json()["max_total_tokens"]
    card = {"id": "textgen-demo", "object": "model", "created": 0, "owned_by": "textgen-demo", "max_model_len": longest}
    assert listed == {"object": "list", "data": [card]}


@pytest.mark.parametrize("path", ["/", "/health", "/ping", "/ready"])
def test_health_is_an_empty_200(built_in: Launcher, path: str) -> None:
    answer = send(built_in.url, "GET", path)
    assert (answer.status, answer.body) == (200, b"")


def test_openapi(built_in: Launcher) -> None:
    answer = send(built_in.url, "GET", "/api-doc/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert document["openapi"].startswith("3.")
    described = {path: set(item) & {"get", "post"} for path, item in document["paths"].items()}
    assert {path: described.get(path) for path in ROUTES} == ROUTES
    schemas = document["components"]["schemas"]
    references = set(re.findall(r'"\$ref": ?"#/components/schemas/([^"]+)"', answer.body.decode()))
    assert references <= set(schemas), "a reference leads nowhere"
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_the_openapi_document_describes_the_answers(built_in: Launcher, api: Api) -> None:
    document = send(built_in.url, "GET", "/api-doc/openapi.json").json()
    answers = {
        "GenerateResponse": api.post(
            "/generate",
            {"inputs": "Hello", "parameters": {"max_new_tokens": 3, "details": True, "decoder_input_details": True,
                                               "top_n_tokens": 2}},
        ),
        "ChatCompletion": api.post(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "logprobs": True, "top_logprobs": 2},
        ),
        "Completion": api.post("/v1/completions", {"prompt": "Hi", "max_tokens": 3, "logprobs": 1}),
        "Info": send(built_in.url, "GET", "/info").json(),
        "ModelList": send(built_in.url, "GET", "/v1/models").json(),
    }  # fmt: skip
    for name, answer in answers.items():
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema.validate(answer, schema, cls=jsonschema.Draft202012Validator)


def test_metrics(built_in: Launcher, api: Api) -> None:
    before = built_in.metrics()
    api.generate("Once upon a time", max_new_tokens=5, ignore_eos=True)
    page = send(built_in.url, "GET", "/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    after = built_in.metrics()
    assert {name: after.kinds.get(name) for name in TGI_METRICS} == TGI_METRICS
    for name in SHARD_METRICS:
        assert after.has(name), name

    def grown(name: str, **labels: str) -> float:
        return after.value(name, **labels) - before.value(name, **labels)

    assert grown("tgi_request_count") == grown("tgi_request_success") == 1
    assert grown("tgi_request_generated_tokens_sum") == 5
    assert grown("tgi_request_duration_count") == 1
    assert grown("tgi_batch_inference_count", method="prefill") == 1
    assert grown("tgi_batch_inference_count", method="decode") >= 4
    assert grown("textgen_shard_sampled_tokens_total") >= 5
    assert after.value("textgen_kv_blocks_total") == after.value("textgen_shard_kv_blocks") > 0
    assert after.value("textgen_kv_blocks_used") == 0


def test_request_ids(built_in: Launcher, api: Api) -> None:
    mine = api.http.get("/health", headers={"x-request-id": "mine-7"})
    assert mine.headers["x-request-id"] == "mine-7"
    assert api.http.get("/health").headers["x-request-id"] != api.http.get("/health").headers["x-request-id"]


def test_browsers_may_call(built_in: Launcher, api: Api) -> None:
    preflight = api.http.options(
        "/v1/chat/completions",
        headers={"origin": "http://localhost:5173", "access-control-request-method": "POST",
                 "access-control-request-headers": "content-type,authorization"},
    )  # fmt: skip
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "*"
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()


def test_tokenize(built_in: Launcher, built_in_reference: Reference, api: Api) -> None:
    text = "The naïve 😀 cat"
    spans = api.post("/tokenize", {"inputs": text})
    for span in spans:
        assert text[span["start"] : span["stop"]] == span["text"]
    assert spans[-1]["stop"] == len(text)
    ids = [span["id"] for span in spans]
    assert api.post("/detokenize", {"tokens": ids}) == {"prompt": built_in_reference.tokenizer.decode(ids)}
    assert api.post("/detokenize", {"tokens": ids, "skip_special_tokens": True}) == {"prompt": text}
