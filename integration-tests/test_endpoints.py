"""The contracts of clouds, row by row of docs/endpoints.md: a row that no check here holds fails, and so does a check
without a row."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import httpx
import pytest
from support.raw import RawAnswer, send, send_json
from support.scripted import Script
from support.server import Launcher, Start

from tests.hub.mock_bucket import MockBucket
from textgen.hub.connection import connect
from textgen.launcher.arguments import parse_settings
from textgen.launcher.endpoints import CONTRACTS, translate
from textgen.launcher.errors import SettingsError
from textgen.launcher.settings import Settings
from textgen.launcher.tgi import ignored_variables

ROOT = Path(__file__).parents[1]
COMMIT = "0123456789" * 4
ENTRANCE = "textgen.launcher.container"


def rows() -> list[tuple[str, str]]:
    """Contract and first cell of every row of the page."""
    found, contract = [], ""
    for line in (ROOT / "docs" / "endpoints.md").read_text().splitlines():
        if line.startswith("## "):
            contract = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith(("| what ", "| --- ")):
            found.append((contract, line.split(" | ")[0].removeprefix("| ")))
    return found


def image_environment(name: str = "Dockerfile") -> dict[str, str]:
    """What the image's last stage puts into the environment."""
    text = (ROOT / "docker" / name).read_text().rpartition("\nFROM ")[2]
    (block,) = re.findall(r"^ENV ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    return dict(word.split("=", 1) for word in shlex.split(block.replace("\\\n", " ")))


IMAGE = {name: value for name, value in image_environment().items() if name not in ("PATH", "HOME")}


class Cloud:
    """Starts as one contract makes them."""

    def __init__(self, folder: Path, arguments: tuple[str, ...] = (), **environ: str) -> None:
        self.folder, self.arguments, self.fixed = folder, arguments, environ

    def settings(self, *flags: str, **environ: str) -> Settings:
        """What the launcher makes of a start of the image."""
        told = {**IMAGE, "HOSTNAME": "4f1d2c3b4a59", **self.fixed, **environ}
        start = translate([*self.arguments, *flags], told, self.folder)
        return parse_settings(start.arguments, {**told, **start.environ})

    def refusal(self, **environ: str) -> str:
        with pytest.raises(SettingsError) as caught:
            self.settings(**environ)
        return str(caught.value)

    def with_model(self, path: str) -> str:
        """A model at a folder of the cloud's; its whole path."""
        folder = self.folder / path.lstrip("/")
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        return str(folder)


Check: TypeAlias = Callable[[pytest.FixtureRequest, Cloud], None]
CHECKS: dict[tuple[str, str], Check] = {}


def row(contract: str, cell: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        assert (contract, cell) not in CHECKS
        CHECKS[contract, cell] = check
        return check

    return register


@pytest.fixture
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Cloud:
    """Under the contract of the row."""
    contract = request.node.callspec.params["contract"]
    if contract == "SageMaker":
        return Cloud(tmp_path, ("serve",))
    return Cloud(tmp_path, (), AIP_HTTP_PORT="8081") if contract == "Vertex AI" else Cloud(tmp_path)


@pytest.mark.parametrize(("contract", "cell"), rows(), ids=lambda value: value)
def test_row(request: pytest.FixtureRequest, cloud: Cloud, contract: str, cell: str) -> None:
    assert (contract, cell) in CHECKS, "this row of docs/endpoints.md has no check"
    CHECKS[contract, cell](request, cloud)


def test_every_check_has_its_row() -> None:
    assert set(CHECKS) == set(rows())


# --- one server for each contract, as its cloud starts it, but for an address that tests may have


def started(start: Start, *arguments: str, environ: dict[str, str], **flags: object) -> Launcher:
    environ = {"ALLOW_UNAUTHENTICATED": "true", "HF_HUB_OFFLINE": "1", **environ}
    return start(module=ENTRANCE, arguments=arguments, environ=environ, **flags).wait_ready()


@pytest.fixture(scope="module")
def hugging_face(start_for_module: Start, script: Script) -> Launcher:
    return started(start_for_module, environ={"MODEL_ID": str(script.folder)})


@pytest.fixture(scope="module")
def sagemaker(start_for_module: Start, script: Script) -> Launcher:
    return started(start_for_module, "serve", environ={"HF_MODEL_ID": str(script.folder), "SM_NUM_GPUS": "0"})


PREDICT, HEALTH = "/v1/endpoints/1/deployedModels/2:predict", "/v1/endpoints/1/deployedModels/2"


@pytest.fixture(scope="module")
def vertex(start_for_module: Start, script: Script, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """With its model in a bucket, and with a key."""
    environ = {
        "AIP_HTTP_PORT": "0", "AIP_HEALTH_ROUTE": HEALTH, "AIP_PREDICT_ROUTE": PREDICT,
        "AIP_STORAGE_URI": "gs://models/scripted", "API_KEY": "sesame", "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path_factory.mktemp("home")),
    }  # fmt: skip
    files = {f"scripted/{path.name}": path.read_bytes() for path in script.folder.iterdir()}
    with MockBucket("models", files) as bucket:
        environ["STORAGE_EMULATOR_HOST"] = bucket.url
        yield started(start_for_module, environ=environ, port=None)
    assert bucket.downloaded == sorted(set(bucket.downloaded)), "each file once"


def model(launcher: Launcher) -> str:
    headers = {"x-api-key": "sesame"}
    found: str = httpx.get(f"{launcher.url}/info", headers=headers, trust_env=False).json()["model_id"]
    return found


# --- Hugging Face

HF = "Hugging Face"


@row(HF, "`/repository`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings().model_id is None
    assert cloud.with_model("/repository") == cloud.settings().model_id
    assert cloud.settings("--model-id", "a/b").model_id == "a/b"
    assert cloud.settings(MODEL_ID="c/d").model_id == "c/d"


@row(HF, "port 80")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings().port == 80
    assert cloud.settings("-p", "81").port == 81
    assert cloud.settings(PORT="82").port == 82


@row(HF, "`/health`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    launcher: Launcher = request.getfixturevalue("hugging_face")
    answer = send(launcher.url, "GET", "/health")
    assert (answer.status, answer.body) == (200, b"")
    assert "listening" in launcher.log.split("Connected")[0], "before that there is somebody who says 503"


@row(HF, "`HF_TOKEN`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    patch.delenv("HF_HUB_OFFLINE", raising=False)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        patch.delenv("HF_TOKEN", raising=False)
        patch.setenv(name, "hf_of_the_environment")
        assert connect().token == "hf_of_the_environment"


@row(HF, "`HF_HOME`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert IMAGE["HF_HOME"] == "/data"
    assert cloud.settings().huggingface_hub_cache is None, "so the cache is below it"


@row(HF, "`HOSTNAME`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings().hostname == "0.0.0.0"
    assert cloud.settings(HOSTNAME="10.1.2.3").hostname == "10.1.2.3"
    assert cloud.settings("--hostname", "::1").hostname == "::1"


@row(HF, "`ALLOW_UNAUTHENTICATED`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings().allow_unauthenticated
    assert "--api-key" in cloud.refusal(ALLOW_UNAUTHENTICATED="false")


@row(HF, "`API_KEY`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings(API_KEY="sesame", ALLOW_UNAUTHENTICATED="false").api_key == "sesame"


@row(HF, "`MODEL_ID`, `REVISION`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    settings = cloud.settings(MODEL_ID="a/b", REVISION="v2")
    assert (settings.model_id, settings.revision) == ("a/b", "v2")
    script: Script = request.getfixturevalue("script")
    assert model(request.getfixturevalue("hugging_face")) == str(script.folder)


@row(HF, "`DTYPE`, `QUANTIZE`, `KV_CACHE_DTYPE`, `TRUST_REMOTE_CODE`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    settings = cloud.settings(DTYPE="bfloat16", QUANTIZE="int8", TRUST_REMOTE_CODE="true", REVISION=COMMIT)
    assert (settings.dtype, settings.quantize, settings.trust_remote_code) == ("bfloat16", "int8", True)
    assert cloud.settings(KV_CACHE_DTYPE="int8").kv_cache_dtype == "int8"
    assert cloud.settings(KV_CACHE_DTYPE="fp8_e4m3fn").kv_cache_dtype == "fp8"
    assert "use fp8" in cloud.refusal(KV_CACHE_DTYPE="fp8_e5m2")
    assert "--revision" in cloud.refusal(TRUST_REMOTE_CODE="true")


@row(HF, "`NUM_SHARD`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings(NUM_SHARD="1").num_shard == 1
    assert "--num-shard 2" in cloud.refusal(NUM_SHARD="2")


def numbers(cloud: Cloud, *names: str) -> None:
    """Each variable sets the setting of its name."""
    for name in names:
        assert getattr(cloud.settings(**{name: "7"}), name.lower()) == 7, name


@row(HF, "`MAX_INPUT_TOKENS`, `MAX_INPUT_LENGTH`, `MAX_TOTAL_TOKENS`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    numbers(cloud, "MAX_INPUT_TOKENS", "MAX_TOTAL_TOKENS")
    assert cloud.settings(MAX_INPUT_LENGTH="9").max_input_tokens == 9


@row(HF, "`MAX_CONCURRENT_REQUESTS`, `MAX_BATCH_PREFILL_TOKENS`, `MAX_BATCH_TOTAL_TOKENS`, `MAX_BATCH_SIZE`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    numbers(cloud, "MAX_CONCURRENT_REQUESTS", "MAX_BATCH_PREFILL_TOKENS", "MAX_BATCH_TOTAL_TOKENS", "MAX_BATCH_SIZE")


@row(
    HF,
    "`MAX_BEST_OF`, `MAX_STOP_SEQUENCES`, `MAX_TOP_N_TOKENS`, `MAX_CLIENT_BATCH_SIZE`, `PAYLOAD_LIMIT`, "
    "`VALIDATION_WORKERS`",
)
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    numbers(
        cloud, "MAX_BEST_OF", "MAX_STOP_SEQUENCES", "MAX_TOP_N_TOKENS", "MAX_CLIENT_BATCH_SIZE", "PAYLOAD_LIMIT",
        "VALIDATION_WORKERS",
    )  # fmt: skip


@row(HF, "`HUGGINGFACE_HUB_CACHE`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings(HUGGINGFACE_HUB_CACHE="/models").huggingface_hub_cache == "/models"


@row(HF, "`JSON_OUTPUT`, `CORS_ALLOW_ORIGIN`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    settings = cloud.settings(JSON_OUTPUT="true", CORS_ALLOW_ORIGIN="https://a.example,https://b.example")
    assert (settings.json_output, len(settings.cors_allow_origin)) == (True, 2)


@row(HF, "`SPECULATE`, `LORA_ADAPTERS`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    for name in ("SPECULATE", "LORA_ADAPTERS"):
        assert cloud.settings(**{name: "2"}) == cloud.settings()
        assert [name in warning for warning in ignored_variables({name: "2"})] == [True]


@row(HF, "`SHARDED`, `USAGE_STATS` and others without a meaning here")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    for name in ("SHARDED", "USAGE_STATS", "MASTER_PORT", "PROMETHEUS_PORT"):
        assert cloud.settings(**{name: "0"}) == cloud.settings()
        assert ignored_variables({name: "0"}) == []


# --- SageMaker

SM = "SageMaker"


@row(SM, "`serve`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings("--max-batch-size", "3").max_batch_size == 3
    assert request.getfixturevalue("sagemaker").ready()
    with pytest.raises(SettingsError, match="'serve' is not a flag"):
        Cloud(cloud.folder, ("--json-output", "serve")).settings()


@row(SM, "port 8080")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings().port == 8080
    assert cloud.settings("--port", "1").port == 1


@row(SM, "`SAGEMAKER_BIND_TO_PORT`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings(SAGEMAKER_BIND_TO_PORT="8090").port == 8090


@row(SM, "`GET /ping`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    answer = send(request.getfixturevalue("sagemaker").url, "GET", "/ping")
    assert (answer.status, answer.body) == (200, b"")


@row(SM, "`POST /invocations`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    url, text = request.getfixturevalue("sagemaker").url, request.getfixturevalue("script").text

    def said(body: dict[str, object]) -> object:
        answer: RawAnswer = send_json(url, "/invocations", body)
        assert answer.status == 200, answer.body
        return answer.json()

    assert said({"inputs": "a", "parameters": {"return_full_text": False}}) == [{"generated_text": text}]
    chat = said({"messages": [{"role": "user", "content": "a"}]})
    assert chat["choices"][0]["message"]["content"] == text  # type: ignore[index]
    assert said({"prompt": "a"})["choices"][0]["text"] == text  # type: ignore[index]
    streamed = send_json(url, "/invocations", {"inputs": "a", "stream": True})
    last = json.loads(streamed.body.rstrip().rpartition(b"data:")[2])
    assert last["generated_text"].endswith(text)


@row(SM, "`HF_MODEL_ID`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings(HF_MODEL_ID="a/b", MODEL_ID="c/d").model_id == "a/b"
    assert cloud.settings("--model-id", "e/f", HF_MODEL_ID="a/b").model_id == "e/f"
    script: Script = request.getfixturevalue("script")
    assert model(request.getfixturevalue("sagemaker")) == str(script.folder)


@row(SM, "`HF_MODEL_REVISION`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings(HF_MODEL_REVISION="v2").revision == "v2"


@row(SM, "`HF_MODEL_QUANTIZE`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings(HF_MODEL_QUANTIZE="int4").quantize == "int4"
    assert cloud.refusal(HF_MODEL_QUANTIZE="int3").startswith("HF_MODEL_QUANTIZE='int3' ")


@row(SM, "`HF_MODEL_TRUST_REMOTE_CODE`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings(HF_MODEL_TRUST_REMOTE_CODE="true", HF_MODEL_REVISION=COMMIT).trust_remote_code
    assert not cloud.settings(HF_MODEL_TRUST_REMOTE_CODE="false").trust_remote_code


@row(SM, "`SM_NUM_GPUS`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings(SM_NUM_GPUS="1").num_shard == cloud.settings(SM_NUM_GPUS="0").num_shard == 1
    assert "--num-shard 4" in cloud.refusal(SM_NUM_GPUS="4")


@row(SM, "`/opt/ml/model`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.with_model("/opt/ml/model") == cloud.settings().model_id
    assert cloud.settings(HF_MODEL_ID="a/b").model_id == "a/b"


@row(SM, "`MAX_INPUT_TOKENS` and other variables of TGI")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    numbers(cloud, "MAX_INPUT_TOKENS", "MAX_TOTAL_TOKENS", "MAX_BATCH_PREFILL_TOKENS", "MAX_CONCURRENT_REQUESTS")


# --- Vertex AI

VX = "Vertex AI"


@row(VX, "`AIP_HTTP_PORT`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings().port == 8081
    assert cloud.settings("--port", "1").port == 1
    assert request.getfixturevalue("vertex").ready()


@row(VX, "`AIP_HEALTH_ROUTE`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings(AIP_HEALTH_ROUTE=HEALTH).vertex_health_route == HEALTH
    assert cloud.refusal(AIP_HEALTH_ROUTE="health").startswith("AIP_HEALTH_ROUTE='health' ")
    answer = send(request.getfixturevalue("vertex").url, "GET", HEALTH)
    assert (answer.status, answer.body) == (200, b"")


@row(VX, "`AIP_PREDICT_ROUTE`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings(AIP_PREDICT_ROUTE=PREDICT).vertex_predict_route == PREDICT
    url, text = request.getfixturevalue("vertex").url, request.getfixturevalue("script").text
    body = {"instances": [{"inputs": "a"}, {"messages": [{"role": "user", "content": "a"}]}]}
    headers = {"authorization": "Bearer sesame"}
    said = httpx.post(url + PREDICT, json=body, headers=headers, trust_env=False, timeout=60)
    assert (said.status_code, said.json()) == (200, {"predictions": [text, text]})
    assert httpx.post(url + PREDICT, json=body, trust_env=False).status_code == 401


@row(VX, "routes of the server")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings(AIP_PREDICT_ROUTE="/v1/chat/completions").vertex_predict_route == "/v1/chat/completions"
    # What the router makes of it is held by its own tests.


@row(VX, "`AIP_STORAGE_URI`")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings(AIP_STORAGE_URI="/models/a", MODEL_ID="b/c").model_id == "/models/a"
    assert model(request.getfixturevalue("vertex")) == "gs://models/scripted"


@row(VX, "`MODEL_ID` and other variables of TGI")
def _(request: pytest.FixtureRequest, cloud: Cloud) -> None:
    assert cloud.settings(MODEL_ID="b/c").model_id == "b/c"
    numbers(cloud, "MAX_INPUT_TOKENS", "MAX_TOTAL_TOKENS", "MAX_BATCH_PREFILL_TOKENS", "MAX_CONCURRENT_REQUESTS")


# --- images


def test_both_images_are_made_alike() -> None:
    """But for what one says about itself and its GPUs."""

    def instructions(name: str) -> str:
        text = (ROOT / "docker" / name).read_text()
        kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        return re.sub(r"^ENV (?:.*\\\n)*.*\n", "", kept, flags=re.MULTILINE)

    assert instructions("Dockerfile") == instructions("Dockerfile.cuda")
    for_gpus = image_environment("Dockerfile.cuda")
    assert image_environment().items() <= for_gpus.items()
    assert parse_settings(["--kv-memory", "1GiB"], {"DEVICE": for_gpus["DEVICE"]}).device == "cuda"


def test_the_page_names_every_variable_of_the_table() -> None:
    page = (ROOT / "docs" / "endpoints.md").read_text()
    for contract in CONTRACTS:
        assert f"## {contract.name}\n" in page
        for each in contract.variables:
            assert f"| `{each.name}` |" in page, each.name
