"""A device that is this processor: kernels of `csrc/cuda`, compiled as C++, run by `host/simt.h`."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from ctypes import c_char_p, c_uint32, c_uint64, c_void_p
from functools import cache, cached_property
from pathlib import Path

import torch

from textgen.ops.cuda.cache import CompileCache
from textgen.ops.cuda.device import Kernel
from textgen.ops.cuda.nvrtc import CompileError
from textgen.ops.cuda.source import FOLDER, Binary, Source

SHIM = Path(__file__).parent / "host"
COMPILER = shutil.which("g++")
OPTIONS = ["-std=c++17", "-O1", "-g1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
UNUSED = ["-Wno-unused-function", "-Wno-unused-variable", "-Wno-unknown-pragmas"]  # a kernel uses a part of device.cuh


class HostCompiler:
    """Compiles a kernel by g++ into a library."""

    arch = "host"

    @cached_property
    def version(self) -> str:
        """The compiler's, and the text of what stands in for a GPU."""
        told = subprocess.run([str(COMPILER), "--version"], check=True, capture_output=True, text=True).stdout
        return told + "".join(path.read_text() for path in sorted(SHIM.iterdir()))

    @property
    def options(self) -> list[str]:
        return [*OPTIONS, *UNUSED]

    def compile(self, source: Source) -> Binary:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "kernel.so"
            command = [str(COMPILER), *self.options, "-DTEXTGEN_HOST", *source.defines, f"-I{SHIM}", f"-I{FOLDER}"]
            command += ["-x", "c++", str(FOLDER / f"{source.name}.cu"), "-o", str(out)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise CompileError(f"{source} does not compile:\n{done.stderr}")
            return Binary(out.read_bytes(), {})


class HostDevice:
    """See `Device`. Threads run in an order drawn from the seed."""

    arch = "host"
    processors = 3
    shared_bytes = 227 << 10

    def __init__(self, seed: int, folder: Path) -> None:
        self._rng = random.Random(seed)
        self._cache = CompileCache(HostCompiler(), folder, 1 << 30)
        self.launches: list[str] = []
        self.grids: list[tuple[int, ...]] = []

    def kernel(self, source: Source, name: str | None = None) -> Kernel:
        function = getattr(library_of(self._cache.get(source).code), name or source.name)
        function.argtypes = [c_void_p, c_uint64, c_void_p, c_uint32, c_uint32, c_uint64]
        function.restype = c_char_p

        def launch(grid: Sequence[int], threads: int, params: ctypes.Structure, shared_bytes: int = 0) -> None:
            self.launches.append(name or source.name)
            self.grids.append(tuple(grid))
            if not 1 <= grid[0] < 2**31 or not all(1 <= size < 2**16 for size in grid[1:]):
                raise AssertionError(f"no GPU takes a grid of {grid}")
            size, seed = ctypes.sizeof(params), self._rng.getrandbits(64)
            error = function(ctypes.byref(params), size, (c_uint32 * 3)(*grid), threads, shared_bytes, seed)
            if error is not None:
                raise AssertionError(f"{source}: {error.decode()}")

        return launch

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu"


@cache
def library_of(code: bytes) -> ctypes.CDLL:
    """What g++ made, opened once."""
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(code)
        file.flush()
        return ctypes.CDLL(file.name)
