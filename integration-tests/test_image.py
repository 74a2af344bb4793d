"""The image, built from the wheel in dist/ and started as a user of TGI starts TGI's: where a Docker engine, an image
to build on (`IMAGE_BASE`) and a wheel are there. `IMAGE` names one that was built before."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from support.raw import send, send_json
from support.scripted import Script
from support.waiting import until

from textgen.launcher.errors import ExitCode

ROOT = Path(__file__).parents[1]
BASE = os.environ.get("IMAGE_BASE", "textgen-base:bookworm")
NAME = "textgen-test"
MEGABYTE = 10**6
BUILD_SECONDS, START_SECONDS = 3000, 120.0
# What torch brings with itself.
TORCH = ("torch", "torchgen", "functorch", "nvidia", "triton")

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(BUILD_SECONDS + 300)]


def docker(*arguments: str, seconds: float = 120, check: bool = True) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0 or not check, done.stdout[-2000:] + done.stderr[-4000:]
    return (done.stdout + done.stderr).strip()


def why_not() -> str | None:
    """Why no image can be built here."""
    if shutil.which("docker") is None:
        return "there is no docker"
    for question, answer in ((["info"], "no Docker engine answers"), (["image", "inspect", BASE], f"no image {BASE}")):
        if subprocess.run(["docker", *question], capture_output=True, timeout=60, check=False).returncode:
            return answer
    return None


@pytest.fixture(scope="module")
def image() -> str:
    if built := os.environ.get("IMAGE"):
        return built
    wheels = sorted((ROOT / "dist").glob("textgen_launcher-*.whl"), key=lambda wheel: wheel.stat().st_mtime)
    if not wheels:
        pytest.skip("there is no wheel in dist/; `make wheel` builds one")
    if (reason := why_not()) is not None:
        pytest.skip(f"{reason}; IMAGE_BASE names an image of Debian or Ubuntu to build on")
    given = {"BASE_IMAGE": BASE, "BUILD_IMAGE": BASE, "WHEEL": f"dist/{wheels[-1].name}"}
    given |= {"TORCH_INDEX": os.environ["TORCH_INDEX"]} if os.environ.get("TORCH_INDEX") else {}
    arguments = [word for name, value in given.items() for word in ("--build-arg", f"{name}={value}")]
    docker("build", "--network", "host", "-f", f"{ROOT}/docker/Dockerfile", "-t", NAME, *arguments, str(ROOT),
           seconds=BUILD_SECONDS)  # fmt: skip
    return NAME


@dataclass
class Container:
    """A started container, its server on loopback."""

    identity: str

    @property
    def url(self) -> str:
        port = docker("port", self.identity, "80/tcp").splitlines()[0].rpartition(":")[2]
        return f"http://127.0.0.1:{port}"

    @property
    def log(self) -> str:
        return docker("logs", self.identity)

    def inspect(self, form: str) -> str:
        return docker("inspect", "--format", form, self.identity)

    def wait_ready(self) -> Container:
        def look() -> bool:
            assert self.inspect("{{.State.Running}}") == "true", self.log
            try:
                return httpx.get(f"{self.url}/ready", trust_env=False, timeout=5).status_code == 200
            except httpx.TransportError:
                return False

        until(look, "the container's server is ready", START_SECONDS)
        return self

    def server(self) -> dict[str, str]:
        """What the system says of the launcher's process."""
        return dict(line.split(":\t", 1) for line in self.run("cat", "/proc/1/status").splitlines() if ":\t" in line)

    def run(self, *command: str) -> str:
        return docker("exec", self.identity, *command)


class Containers:
    """Started by a test, gone after it."""

    def __init__(self, image: str) -> None:
        self._image, self._started = image, list[str]()

    def start(self, *options: str, arguments: tuple[str, ...] = ()) -> Container:
        identity = docker("run", "-d", *options, self._image, *arguments).splitlines()[-1]
        self._started.append(identity)
        return Container(identity)

    def remove(self) -> None:
        for identity in self._started:
            docker("rm", "--force", "--volumes", identity, check=False)


@pytest.fixture
def containers(image: str) -> Iterator[Containers]:
    made = Containers(image)
    yield made
    made.remove()


@pytest.fixture
def data(tmp_path: Path, script: Script) -> Path:
    """A volume of a TGI user: the daemon made it, so it is root's, and TGI has been writing there as root."""
    folder = tmp_path / "data"
    shutil.copytree(script.folder, folder / "model")
    for path in (folder, *folder.rglob("*")):  # for others to read, as TGI's umask leaves it
        path.chmod(0o755 if path.is_dir() else 0o644)
    if os.geteuid() != 0:
        docker("run", "--rm", "-v", f"{folder}:/data", BASE, "chown", "-R", "0:0", "/data")
    return folder


def test_the_size_beside_torch(image: str) -> None:
    whole = int(docker("image", "inspect", "--format", "{{.Size}}", image))
    listed = docker(
        "run", "--rm", "--entrypoint", "sh", image, "-c", "du -sb /opt/textgen/lib/python3*/site-packages/*"
    )
    sizes = {Path(line.split("\t")[1]).name: int(line.split("\t")[0]) for line in listed.splitlines()}
    of_torch = sum(size for name, size in sizes.items() if name in TORCH or name.startswith("nvidia_"))
    print(f"image {whole / MEGABYTE:.0f} MB, of which torch {of_torch / MEGABYTE:.0f} MB")
    assert whole - of_torch < 1200 * MEGABYTE


def test_the_command_of_tgis_users(containers: Containers, data: Path, script: Script) -> None:
    container = containers.start(
        "-p", "127.0.0.1::80", "-v", f"{data}:/data", arguments=("--model-id", "/data/model")
    ).wait_ready()
    said = send_json(container.url, "/generate", {"inputs": "a"}).json()
    assert said["generated_text"] == script.text
    assert send(container.url, "GET", "/health").status == 200
    # It began as root and is nobody with privileges now; what was root's in the volume is its own.
    process = container.server()
    assert process["Uid"].split() == ["1000"] * 4
    assert (process["NoNewPrivs"], int(process["CapEff"], 16) & ~(1 << 10)) == ("1", 0)
    assert (data / "model" / "config.json").stat().st_uid == 1000
    assert container.run("sh", "-c", "stat -c %u /data /data/model").split() == ["1000", "1000"]
    until(lambda: container.inspect("{{.State.Health.Status}}") == "healthy", "Docker calls it healthy", START_SECONDS)
    docker("stop", "--time", "60", container.identity)
    assert container.inspect("{{.State.ExitCode}}") == "0"
    assert "stopped" in container.log


def test_a_volume_of_somebody_elses_is_used_as_that_one(containers: Containers, data: Path) -> None:
    for path in (data, *data.rglob("*")):
        os.chown(path, 4321, 4321)
    container = containers.start("-p", "127.0.0.1::80", "-v", f"{data}:/data", "-e", "MODEL_ID=/data/model")
    container.wait_ready()
    assert container.server()["Uid"].split() == ["4321"] * 4
    assert (data / "model").stat().st_uid == 4321


def test_everything_read_only_without_any_privilege(containers: Containers, data: Path) -> None:
    """As a restricted pod: a user without a name, no capability, nothing to write to but /tmp."""
    container = containers.start(
        "-p", "127.0.0.1::80", "--user", "12345:12345", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
        "--read-only", "--tmpfs", "/tmp", "-v", f"{data}:/repository:ro",
        arguments=("--model-id", "/repository/model"),
    ).wait_ready()  # fmt: skip
    assert container.server()["Uid"].split() == ["12345"] * 4
    assert send_json(container.url, "/generate", {"inputs": "a"}).status == 200


def test_root_without_any_power_serves_from_a_volume_of_the_engines(containers: Containers, data: Path) -> None:
    """`--cap-drop ALL` and no --user: it cannot become anybody else. The endpoint's model is at /repository."""
    container = containers.start(
        "-p", "127.0.0.1::80", "--cap-drop", "ALL", "-v", "/data", "-v", f"{data}/model:/repository:ro"
    ).wait_ready()
    process = container.server()
    assert (process["Uid"].split(), int(process["CapEff"], 16)) == (["0"] * 4, 0)
    assert "may not give up root" in container.log and "may not write" not in container.log
    container.run("touch", "/data/a-model")
    assert send_json(container.url, "/generate", {"inputs": "a"}).status == 200


def test_a_repository_that_may_not_be_read_is_not_taken_for_none(containers: Containers, data: Path) -> None:
    (data / "model").chmod(0o700)
    container = containers.start("--user", "12345:12345", "-v", f"{data}/model:/repository:ro")
    assert docker("wait", container.identity) == str(int(ExitCode.MODEL))
    assert "error: " in container.log and "/repository" in container.log


def test_sagemaker_starts_it_with_serve(containers: Containers, data: Path, script: Script) -> None:
    container = containers.start("-v", f"{data}/model:/opt/ml/model:ro", arguments=("serve",))
    until(lambda: "Connected" in container.log, "the model is loaded", START_SECONDS)
    code = (
        "import json, urllib.request as r; "
        "assert r.urlopen('http://127.0.0.1:8080/ping').status == 200; "
        "q = r.Request('http://127.0.0.1:8080/invocations', json.dumps({'inputs': 'a'}).encode(), "
        "{'content-type': 'application/json'}); print(r.urlopen(q).read().decode())"
    )
    assert script.text in json.loads(container.run("python3", "-c", code))[0]["generated_text"]
    assert container.run("python3", "-m", "textgen.launcher.health") == "/health is 200"


def test_tgis_command_leads_to_the_same_entrance(containers: Containers) -> None:
    container = containers.start("--entrypoint", "text-generation-launcher", arguments=("--port", "x"))
    assert docker("wait", container.identity) == "2"
    assert "error: --port 'x' must be a whole number" in container.log
