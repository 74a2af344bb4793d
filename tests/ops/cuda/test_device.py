"""The code that launches on a GPU, with a driver in the driver's place that runs what it is given on this processor."""

from __future__ import annotations

import ctypes
import random
import subprocess
import sys
from contextlib import nullcontext
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from textgen.ops import AttentionForm, reference
from textgen.ops.cuda import device as device_module
from textgen.ops.cuda.device import CudaDevice, DriverError
from textgen.ops.cuda.ops import CudaOps

from ..cpu.test_attention import Case
from .conftest import BUILT
from .host_device import COMPILER, HostCompiler, library_of

STREAM = 77
pytestmark = pytest.mark.skipif(COMPILER is None, reason="g++ is missing")


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1


class Driver:
    """`cuda.bindings.driver` as far as it is called."""

    CUresult = Result
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.loaded: list[bytes] = []
        self.launched: list[str] = []
        self.allowed: dict[str, int] = {}
        self.answer = Result.CUDA_SUCCESS

    def cuModuleLoadData(self, code: bytes) -> tuple[Result, Any]:
        self.loaded.append(code)
        return self.answer, library_of(code)

    def cuModuleGetFunction(self, module: Any, name: bytes) -> tuple[Result, Any]:
        return self.answer, (name.decode(), module)

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> tuple[Result]:
        assert attribute == 8
        self.allowed[function[0]] = value
        return (self.answer,)

    def cuLaunchKernel(self, function: Any, *given: int) -> tuple[Result]:
        if self.answer != Result.CUDA_SUCCESS:
            return (self.answer,)
        x, y, z, threads, threads_y, threads_z, shared_bytes, stream, addresses, extra = given
        assert (threads_y, threads_z, stream, extra) == (1, 1, STREAM, 0)
        name, library = function
        assert shared_bytes <= self.allowed.get(name, 48 << 10)
        params = ctypes.c_void_p.from_address(addresses)
        size = ctypes.c_uint64.in_dll(library, f"{name}_bytes").value
        kernel = getattr(library, name)
        kernel.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, *[ctypes.c_uint32] * 2, ctypes.c_uint64]
        kernel.restype = ctypes.c_char_p
        seed = self._rng.getrandbits(64)
        assert kernel(params, size, (ctypes.c_uint32 * 3)(x, y, z), threads, shared_bytes, seed) is None
        self.launched.append(name)
        return (self.answer,)


@pytest.fixture
def driver(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver(rng)
    properties = SimpleNamespace(major=9, minor=0, multi_processor_count=132, shared_memory_per_block_optin=227 << 10)

    def compiler(arch: str) -> HostCompiler:
        assert arch == "sm_90"
        return HostCompiler()

    monkeypatch.setattr(device_module, "import_module", lambda name: driver)
    monkeypatch.setattr(device_module, "Nvrtc", compiler)
    monkeypatch.setattr(device_module, "default_folder", lambda: BUILT)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: SimpleNamespace(cuda_stream=STREAM))
    monkeypatch.setattr(CudaDevice, "holds", lambda self, tensor: True)
    return driver


def test_kernels_are_loaded_once_and_launched_on_torchs_stream(driver: Driver) -> None:
    ops = CudaOps(CudaDevice(0))
    x, weight = torch.randn(3, 64), torch.randn(64)
    for _ in range(2):
        torch.testing.assert_close(ops.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6))
    assert len(driver.loaded) == 1
    assert driver.launched == ["rms_norm"] * 2


def test_much_shared_memory_is_asked_for(rng: random.Random, driver: Driver) -> None:
    case = Case(rng, torch.float16, (2, 2), (256, 256), [(5, 9), (700, 1)], 16, AttentionForm(0.1), None)
    attention = CudaOps(CudaDevice(0)).attention(case.layout, None, case.keys)
    query = case.query.view(-1, 2, 256)
    got = attention(query, case.new_keys, case.new_values, case.keys, case.values, case.form)
    torch.testing.assert_close(got.float(), case.expected(torch.float32), rtol=2**-9, atol=2**-9)
    assert driver.launched == ["attention_tiles", "attention_combine"]
    assert driver.allowed == {"attention_tiles": (16 + 4 * 2 * 16) * (256 + 8) * 2}
    assert len(driver.loaded) == 2


def test_a_refusal_of_the_driver_names_itself(driver: Driver) -> None:
    ops = CudaOps(CudaDevice(0))
    driver.answer = Result.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_VALUE"):
        ops.rms_norm(torch.ones(1, 64), None, 1e-6)


def test_without_bindings_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(device_module, "import_module", missing)
    with pytest.raises(DriverError, match="pip install cuda-bindings"):
        CudaDevice(0)


def test_the_package_imports_no_kernels_for_gpus(tmp_path: Path) -> None:
    """Whoever serves on a processor pays nothing."""
    code = "import sys, textgen.ops; print([name for name in sys.modules if name.startswith('textgen.ops.cuda')])"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert told.stdout.strip() == "[]"
