"""The stand-in for a GPU sees what kernels do wrong; without that, equal numbers would say little."""

from __future__ import annotations

import ctypes
import random
import subprocess
from ctypes import c_char_p, c_uint32, c_uint64, c_void_p
from pathlib import Path

import pytest

from textgen.ops.cuda.source import FOLDER

from .host_device import COMPILER, SHIM

HEAD = '#include "device.cuh"\nstruct P { u32* out; };\n'
WRONG = {
    "a barrier that some threads leave out": (
        "if (threadIdx.x < 32) __syncthreads();",
        "waits for threads that never come: __syncthreads",
    ),
    "a shuffle that some lanes leave out": (
        "if (threadIdx.x % 32 < 31) p.out[0] = __shfl_xor_sync(ALL_LANES, 1u, 1);",
        "waits for threads that never come: __shfl_xor_sync",
    ),
    "lanes that meet in different operations": (
        "if (threadIdx.x % 2 == 0) __syncwarp(); else p.out[0] = __ballot_sync(ALL_LANES, true);",
        "threads meet in different operations",
    ),
    "a copy that nobody waits for": (
        "SHARED_MEMORY(s); copy_async(s + 16 * threadIdx.x, p.out); copy_commit();",
        "still under way",
    ),
    "a copy to no 16 bytes": (
        "SHARED_MEMORY(s); copy_async(s + 4, p.out);",
        "goes where no 16 bytes begin",
    ),
}
pytestmark = pytest.mark.skipif(COMPILER is None, reason="g++ is missing")


def compiled(folder: Path, body: str) -> ctypes.CDLL:
    source, out = folder / "kernel.cu", folder / "kernel.so"
    source.write_text(HEAD + "KERNEL(kernel, P, 64) {\n" + body + "\n}\n")
    command = [str(COMPILER), "-std=c++17", "-O1", "-fPIC", "-shared", "-DTEXTGEN_HOST", f"-I{SHIM}", f"-I{FOLDER}"]
    subprocess.run([*command, "-x", "c++", str(source), "-o", str(out)], check=True, capture_output=True)
    library = ctypes.CDLL(str(out))
    library.kernel.restype = c_char_p
    library.kernel.argtypes = [c_void_p, c_uint64, c_void_p, c_uint32, c_uint32, c_uint64]
    return library


def run(library: ctypes.CDLL, out: ctypes.Array[c_uint32], seed: int, threads: int = 64) -> str | None:
    params, grid = c_void_p(ctypes.addressof(out)), (c_uint32 * 3)(1, 1, 1)
    error: bytes | None = library.kernel(ctypes.byref(params), 8, grid, threads, 2048, seed)
    return None if error is None else error.decode()


@pytest.mark.parametrize("wrong", WRONG)
def test_ends_with_a_message(tmp_path: Path, rng: random.Random, wrong: str) -> None:
    body, message = WRONG[wrong]
    error = run(compiled(tmp_path, body), (c_uint32 * 64)(), rng.getrandbits(64))
    assert error is not None and message in error


@pytest.mark.parametrize("barrier", [True, False])
def test_a_missing_barrier_gives_other_numbers(tmp_path: Path, rng: random.Random, barrier: bool) -> None:
    library = compiled(
        tmp_path,
        "SHARED_MEMORY(s); u32* shared = reinterpret_cast<u32*>(s); shared[threadIdx.x] = threadIdx.x;"
        + ("__syncthreads();" if barrier else "")
        + "p.out[threadIdx.x] = shared[63 - threadIdx.x];",
    )
    out = (c_uint32 * 64)()
    assert run(library, out, rng.getrandbits(64)) is None
    assert (list(out) == list(range(63, -1, -1))) is barrier


def test_an_asynchronous_copy_is_there_only_when_waited_for(tmp_path: Path, rng: random.Random) -> None:
    body = (
        "SHARED_MEMORY(s); const u32* shared = reinterpret_cast<u32*>(s) + 4 * threadIdx.x;"
        "copy_async(s + 16 * threadIdx.x, p.out); copy_commit(); const u32 before = *shared; copy_wait<0>();"
        "const u32 after = *shared; __syncthreads(); p.out[threadIdx.x] = before == after ? 1 : after;"
    )
    out = (c_uint32 * 64)(7)
    assert run(compiled(tmp_path, body), out, rng.getrandbits(64)) is None
    assert list(out) == [7] * 64


def test_blocks_of_a_size_that_the_kernel_is_not_for_are_refused(tmp_path: Path, rng: random.Random) -> None:
    library = compiled(tmp_path, "p.out[threadIdx.x] = 1;")
    for threads in (0, 33, 96):
        error = run(library, (c_uint32 * 64)(), rng.getrandbits(64), threads)
        assert error == "the block has a size that the kernel is not for"
