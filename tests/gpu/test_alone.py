"""The check and the benchmark need what the wheel and torch bring, and nothing else: not the tests, not a compiler."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
import torch

import textgen

ROOT = Path(__file__).parents[2]
PACKAGE = Path(textgen.__file__).parent
NO_GPU = 3
# Asked for only where a part needs them, which says so where they are missing.
OPTIONAL = {"aiohttp", "gguf", "matplotlib", "transformers"}
OURS = {"benchmark", "textgen"}


SOURCES = sorted([*(PACKAGE / "gpu").glob("*.py"), *(ROOT / "benchmark" / "gpu").glob("*.py")])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.parent.name}/{path.stem}")
def test_sources_are_for_the_oldest_python_and_import_what_is_installed(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    needed = {name.partition(">")[0].partition(";")[0].strip() for name in requires("textgen-launcher") or ()}
    assert found <= {*sys.stdlib_module_names, *OURS, *OPTIONAL, *(name.replace("-", "_") for name in needed)}
    if path.is_relative_to(PACKAGE):
        assert not found & {"benchmark", *OPTIONAL}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_they_run_of_an_installed_package(tmp_path: Path) -> None:
    """A copy of what the wheel has, with the kernels, in a folder of its own; the benchmark from the checkout."""
    site = tmp_path / "site"
    shutil.copytree(PACKAGE, site / "textgen", ignore=shutil.ignore_patterns("__pycache__", "demo"))
    assert list((site / "textgen" / "ops" / "cuda" / "kernels").glob("*.cu"))
    environment = os.environ | {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    for module, words, where in (("textgen.gpu", ["check"], tmp_path), ("benchmark.gpu.run", [], ROOT)):
        command = [sys.executable, "-m", module, *words]
        done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == NO_GPU, done.stderr
        assert done.stderr.startswith("no GPU: torch")
