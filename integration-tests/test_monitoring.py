"""Prometheus itself, with the project's configuration, against a server under load: every panel of the dashboard, every
recorded series and every alert has what it asks for, and the counters say what the clients counted."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.server import Launcher, Start
from support.tls import make_pair
from support.waiting import until

FOLDER = Path(__file__).parents[1] / "docker" / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana" / "dashboards" / "textgen.json").read_text())
PANELS = [
    pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", ())
]
OURS = re.compile(r"\b(?:tgi|textgen)_[a-z_]+")
PROMPTS, REFUSED = 24, 5
# For each alert: series, a value a minute, that somebody should be told of, and what is then said.
OF_ONE = {"service": "s", "instance": "i"}
ALERTS: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "TextgenDown": (
        {'up{job="textgen", service="s", instance="i"}': "1x15 0x15"},
        OF_ONE | {"job": "textgen", "severity": "critical"},
        "i does not answer.",
    ),
    "TextgenShardRestarts": (
        {'textgen_shard_restarts_total{service="s", instance="i"}': "0x20 1x10"},
        OF_ONE | {"severity": "warning"},
        "A shard of i died and was replaced; its log says why.",
    ),
    "TextgenFaults": (
        {'tgi_request_failure{err="generation", service="s", instance="i"}': "0+60x30"},
        OF_ONE | {"err": "generation", "severity": "critical"},
        "i fails requests (generation).",
    ),
    "TextgenRefuses": (
        {
            'textgen_requests_refused_total{cause="queue", service="s", instance="i"}': "0+60x30",
            'tgi_request_count{service="s", instance="i"}': "0+600x30",
        },
        {"service": "s", "severity": "warning"},
        "s refuses more than one call in twenty for want of room: add a replica.",
    ),
    "TextgenQueueGrows": (
        {'textgen_sequences_waiting{service="s", instance="i"}': "1+1x30"},
        OF_ONE | {"severity": "warning"},
        "The queue of i has not been empty for ten minutes and grows.",
    ),
    "TextgenSlowFirstToken": (
        {
            'textgen_time_to_first_token_seconds_bucket{le="10", service="s", instance="i"}': "0x30",
            'textgen_time_to_first_token_seconds_bucket{le="20", service="s", instance="i"}': "0+60x30",
            'textgen_time_to_first_token_seconds_bucket{le="+Inf", service="s", instance="i"}': "0+60x30",
        },
        {"service": "s", "severity": "warning"},
        "One first token in a hundred of s takes more than ten seconds.",
    ),
    "TextgenPreempts": (
        {'textgen_preemptions_total{service="s", instance="i"}': "0+60x30"},
        OF_ONE | {"severity": "warning"},
        "i recomputes sequences for want of KV blocks: give it more with --kv-memory.",
    ),
}

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="there is no prometheus; Debian's package of that name has it"
    ),
]


@dataclass(frozen=True)
class Prometheus:
    """One that runs, and what it watches."""

    url: str
    server: Launcher

    def get(self, path: str, **parameters: str) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, trust_env=False, timeout=30).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def value(self, expression: str) -> float | None:
        """Of an expression with one result; None while it has none."""
        found = self.query(expression)
        return float(found[0]["value"][1]) if found else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def load(server: Launcher) -> None:
    """Calls that are answered, streamed and refused, so many at once that some wait."""

    def ask(number: int) -> int:
        path = "/generate_stream" if number % 2 else "/generate"
        body = {"inputs": f"{number} a b c", "parameters": {"max_new_tokens": 8}}
        return httpx.post(server.url + path, json=body, trust_env=False, timeout=60).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(PROMPTS))) == {200}
    for _ in range(REFUSED):
        body = {"inputs": "a", "parameters": {"temperature": -1}}
        assert httpx.post(f"{server.url}/generate", json=body, trust_env=False).status_code == 422


@contextmanager
def watching(server: Launcher, folder: Path, settled: Callable[[str], str] = str) -> Iterator[Prometheus]:
    """Prometheus with the project's configuration, as `settled` has it, that has seen the server."""
    shutil.copy(FOLDER / "rules.yml", folder)
    config = settled((FOLDER / "prometheus.yml").read_text())
    (folder / "prometheus.yml").write_text(re.sub("(interval:) 15s", r"\1 1s", config))
    target = {"targets": [server.address], "labels": {"service": "tested"}}
    (folder / "targets.yml").write_text(json.dumps([target]))  # JSON is YAML
    port = free_port()
    command = [
        "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    running = Prometheus(f"http://127.0.0.1:{port}", server)
    try:
        until(lambda: _answers(running), "Prometheus is ready")
        until(lambda: running.value("sum(tgi_request_count)") is not None, "the server is scraped")
        yield running
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def prometheus(
    start_for_module: Start, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    server = start_for_module(model=tiny_folder, max_batch_size=4).wait_ready()
    with watching(server, tmp_path_factory.mktemp("prometheus")) as running:
        load(server)
        until(lambda: running.value("sum(tgi_request_success)") == PROMPTS, "the load is scraped")
        # A rate needs two samples of everything.
        until(lambda: running.value("min(count_over_time(up[1m]))") or 0 >= 3, "there are several samples")
        until(lambda: running.query("service:textgen_kv_blocks:used_ratio"), "rules are evaluated")
        yield running


def _answers(running: Prometheus) -> bool:
    try:
        return httpx.get(f"{running.url}/-/ready", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("expression", PANELS)
def test_a_panel_has_something_to_show(prometheus: Prometheus, expression: str) -> None:
    for variable, value in (("$service", "tested"), ("$instance", ".*"), ("$__rate_interval", "1m")):
        expression = expression.replace(variable, value)
    assert "$" not in expression
    assert prometheus.query(expression), expression


def test_rules_and_alerts_are_evaluated_and_name_what_there_is(prometheus: Prometheus) -> None:
    def healthy() -> list[dict[str, Any]]:
        rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        return rules if all(rule["health"] == "ok" for rule in rules) else []

    rules = until(healthy, "every rule has been evaluated")
    assert {rule["type"] for rule in rules} == {"recording", "alerting"}
    exposed = httpx.get(prometheus.server.url + "/metrics", trust_env=False).text
    for rule in rules:
        assert all(f"\n{name}" in exposed for name in OURS.findall(re.sub(r"service:\S+", "", rule["query"]))), rule
        if rule["type"] == "recording":
            assert prometheus.query(rule["name"]), rule["name"]
        else:
            assert prometheus.query(rule["query"]) == [], f"{rule['name']} of a server that is well"


def test_counters_say_what_the_clients_counted(prometheus: Prometheus) -> None:
    counted = {
        "sum(tgi_request_count)": PROMPTS + REFUSED,
        "sum(tgi_request_success)": PROMPTS,
        'sum(tgi_request_failure{err="validation"})': REFUSED,
        "sum(tgi_request_generated_tokens_count)": PROMPTS,
        "sum(tgi_request_duration_count)": PROMPTS,
        "sum(textgen_time_to_first_token_seconds_count)": PROMPTS,
        'sum(textgen_http_requests_total{route="/generate", status="422"})': REFUSED,
    }
    for expression, expected in counted.items():
        until(lambda e=expression, v=expected: prometheus.value(e) == v, f"{expression} is {expected}")  # type: ignore[misc]
    generated = prometheus.value("sum(tgi_request_generated_tokens_sum)")
    assert generated is not None and PROMPTS <= generated <= 8 * PROMPTS
    assert generated - PROMPTS == prometheus.value("sum(textgen_inter_token_seconds_count)")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool; Debian's package prometheus has it")
def test_every_alert_is_given_when_it_should_be(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "rules.yml", tmp_path)
    named = set(re.findall(r"alert: (\w+)", (FOLDER / "rules.yml").read_text()))
    assert named == set(ALERTS)
    tests = []
    for name, (series, labels, summary) in ALERTS.items():
        given = {"exp_labels": labels, "exp_annotations": {"summary": summary}}
        others = [{"eval_time": "30m", "alertname": other, "exp_alerts": []} for other in named - {name}]
        tests.append(
            {
                "interval": "1m",
                "input_series": [{"series": one, "values": values} for one, values in series.items()],
                "alert_rule_test": [{"eval_time": "30m", "alertname": name, "exp_alerts": [given]}, *others],
            }
        )
    whole = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yml").write_text(json.dumps(whole))  # JSON is YAML
    done = subprocess.run(["promtool", "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl; Debian's package has it")
def test_a_server_with_keys_and_tls_is_scraped_as_the_configuration_says(
    start: Start, tiny_folder: Path, tmp_path: Path
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_pair(tmp_path, cert, key)
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [{"name": "team", "key": "sesame-of-the-team"}]}))
    (tmp_path / "scraper").write_text("sesame-of-prometheus")
    server = start(
        model=tiny_folder, tls_cert=cert, tls_key=key, api_key_file=tmp_path / "keys.json",
        environ={"API_KEY": "sesame-of-prometheus"},
    )  # fmt: skip

    def settled(config: str) -> str:
        config = re.sub(r"^    # ( *\w+:)", r"    \1", config, flags=re.MULTILINE)
        config = config.replace("/etc/prometheus/textgen-key", str(tmp_path / "scraper"))
        return config.replace("/etc/prometheus/textgen-ca.pem", str(cert))

    url, trusted = f"https://{server.address}", ssl.create_default_context(cafile=str(cert))
    with httpx.Client(base_url=url, verify=trusted, trust_env=False, timeout=60) as client:

        def ready() -> bool:
            server.must_run()
            return client.get("/ready").status_code == 200

        until(ready, "the server is ready", 90)
        with watching(server, tmp_path, settled) as running:
            body = {"inputs": "a b c", "parameters": {"max_new_tokens": 4}}
            asked = client.post("/generate", json=body, headers={"authorization": "Bearer sesame-of-the-team"})
            assert asked.status_code == 200, asked.text
            counted = 'sum by (key) (textgen_tokens_total{key="team"})'
            until(lambda: (running.value(counted) or 0) > 0, "the tokens of the key are scraped")
            assert running.value("up") == 1
