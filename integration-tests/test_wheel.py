"""The wheel that `make wheel` leaves in dist/."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

pytestmark = pytest.mark.wheel

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
MEGABYTE = 10**6


@pytest.fixture(scope="module")
def path() -> Path:
    wheels = sorted(DIST.glob("textgen_launcher-*.whl"), key=lambda wheel: wheel.stat().st_mtime)
    if not wheels:
        pytest.skip("there is no wheel in dist/; `make wheel` builds one")
    return wheels[-1]


@pytest.fixture(scope="module")
def wheel(path: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_one_wheel_for_every_python(path: Path, wheel: zipfile.ZipFile) -> None:
    _, _, python, abi, _ = path.stem.split("-")
    assert (python, abi) == ("cp310", "abi3")
    extensions = [name for name in wheel.namelist() if name.endswith(".so")]
    assert extensions == ["textgen/_router.abi3.so"]


def test_size(path: Path) -> None:
    assert path.stat().st_size < 25 * MEGABYTE


def test_the_built_in_model_is_inside(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"):
        assert f"textgen/demo/model/{name}" in names
    assert wheel.getinfo("textgen/demo/model/model.safetensors").file_size < 12 * MEGABYTE


def test_python_sources_and_types_are_inside(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for name in ("__init__.py", "py.typed", "_router.pyi", "launcher/cli.py", "shard/__main__.py"):
        assert f"textgen/{name}" in names
    assert not [name for name in names if "__pycache__" in name or name.startswith(("tests/", "integration-tests/"))]


def test_the_kernels_for_gpus_are_inside(wheel: zipfile.ZipFile) -> None:
    here = {file.name for file in (ROOT / "csrc" / "cuda").iterdir()}
    assert "attention_decode.cu" in here and "device.cuh" in here
    assert {f"textgen/ops/cuda/kernels/{name}" for name in here} <= set(wheel.namelist())


def test_what_checks_a_gpu_is_inside(wheel: zipfile.ZipFile) -> None:
    here = {file.name for file in (ROOT / "python" / "textgen" / "gpu").glob("*.py")}
    assert {"__main__.py", "check.py", "kernels.py", "server.py"} <= here
    assert {f"textgen/gpu/{name}" for name in here} <= set(wheel.namelist())


def test_the_console_scripts(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
    scripts = wheel.read(entry_points).decode().replace(" ", "").splitlines()
    assert {"textgen=textgen.cli:main", "textgen-launcher=textgen.launcher.cli:main"} <= set(scripts)


def test_metadata(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(wheel.read(name).decode())
    assert metadata["Name"] == "textgen-launcher"
    assert metadata["Requires-Python"] == ">=3.10"
    assert any(name.endswith("LICENSE") for name in wheel.namelist())
    needed = [text for text in metadata.get_all("Requires-Dist", []) if "extra" not in text]
    assert any(text.startswith("torch") for text in needed)
    assert not any(text.startswith("transformers") for text in needed)
