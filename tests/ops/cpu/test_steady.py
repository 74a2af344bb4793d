"""A step of a plan allocates nothing and asks nothing of the system."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.tiny import make_model

STEPS = 300  # as `steady` runs them
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that counts allocations."""
    compiler = shutil.which("cc")
    if compiler is None or os.environ.get("LD_PRELOAD"):
        pytest.skip("there is no C compiler, or something else is preloaded")
    library = tmp_path_factory.mktemp("counter") / "allocations.so"
    source = Path(__file__).parent / "allocations.c"
    made = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", library, source], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip("this C library's allocator cannot be counted")
    return library


@pytest.mark.parametrize(("architecture", "workers"), [("LlamaForCausalLM", 2), ("DeepseekV3ForCausalLM", 1)])
def test_steps_allocate_nothing_and_make_no_system_call(
    architecture: str, workers: int, counter: Path, tmp_path: Path
) -> None:
    make_model(tmp_path, architecture)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.ops.cpu.steady", tmp_path, str(workers)],
        cwd=ROOT, env=os.environ | {"LD_PRELOAD": str(counter), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        try:
            allocations, alive = process.stdout.readline(), process.stdout.readline() if workers == 1 else "alive"
        finally:
            process.kill()  # in strict mode it cannot end by itself
    assert int(allocations) < STEPS // 10, "the interpreter's own, now and then"
    if alive.strip() == "no strict mode":
        pytest.skip("the system has no strict mode for processes")
    assert alive.strip() == "alive", "a system call ended it"
