"""The instruction sets that `make` builds kernels for: those of this machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

import pytest

from .native import LIBRARY, isas

SCRIPT = Path(__file__).parents[3] / "csrc/cpu/isas-here"
# As Linux names what each set needs.
AVX2 = {"avx2", "fma", "f16c"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
NEEDS: dict[str, set[str]] = {
    "portable": set(),
    "avx2": AVX2,
    "avxvnni": AVX2 | {"avx_vnni"},
    "avx512vnni": AVX512,
    "avx512": AVX512 | {"avx512_bf16"},
    "amx": AVX512 | {"avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"},
}
NOWHERE = "/nowhere/c++"


def here(compiler: str | None = None) -> list[str]:
    environment = os.environ | ({"CXX": compiler} if compiler is not None else {})
    return subprocess.run([SCRIPT], env=environment, check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86's features")
def test_they_are_those_that_linux_says_the_machine_has() -> None:
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    assert flags is not None
    assert here() == [isa for isa, needs in NEEDS.items() if needs <= set(flags[1].split())]


@pytest.mark.skipif(LIBRARY is not None, reason="a library that may have been built for fewer")
def test_the_extension_has_them() -> None:
    assert set(isas()) <= set(here())
    # A system may not allow tiles that the processor has, and that of ARM is not asked what it has.
    assert set(here()) - {"amx", "neon"} <= set(isas())


def test_a_compiler_that_cannot_say_leaves_none_out() -> None:
    assert here(NOWHERE) == []
