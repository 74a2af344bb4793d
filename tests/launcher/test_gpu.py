"""What the launcher finds out of a GPU, from libraries in the place of NVIDIA's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from textgen.launcher.gpu import Gpu, GpuMissing, find_gpu
from textgen.launcher.hardware import inspect

COMPILER = shutil.which("cc")
GIB = 2**30

CUDA = """
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return INIT + (int)flags; }
int cuDeviceGetCount(int* count) { *count = COUNT; return 0; }
int cuDeviceGet(int* device, int index) { *device = 40 + index; return 0; }
int cuDeviceGetName(char* name, int size, int device) { strncpy(name, "Test GPU", (size_t)size); return device != 40; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = (size_t)80 << 30; return device != 40; }
int cuDeviceGetAttribute(int* value, int which, int device) { *value = which == 75 ? 9 : 0; return device != 40; }
int cuDeviceGetUuid_v2(char* uuid, int device) { for (int i = 0; i < 16; ++i) uuid[i] = (char)i; return device != 40; }
"""
NVML = """
#include <string.h>
struct Memory { unsigned long long total, free, used; };
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) {
    *handle = (void*)7;
    return strcmp(uuid, KIND "-00010203-0405-0607-0809-0a0b0c0d0e0f");
}
int nvmlDeviceGetMemoryInfo(void* handle, struct Memory* memory) {
    memory->free = 70ull << 30;
    return handle != (void*)7;
}
"""


def library(folder: Path, name: str, source: str, **macros: str) -> str:
    if COMPILER is None:
        pytest.skip("cc is missing")
    path = folder / f"{name}.so"
    defines = [f"-D{macro}={value}" for macro, value in macros.items()]
    command = [COMPILER, "-shared", "-fPIC", *defines, "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return str(path)


@pytest.mark.parametrize("kind", ["GPU", "MIG"])
def test_a_gpu(tmp_path: Path, kind: str) -> None:
    cuda = library(tmp_path, "cuda", CUDA, INIT="0", COUNT="1")
    found = find_gpu(cuda, library(tmp_path, "nvml", NVML, KIND=f'"{kind}"'))
    assert found == Gpu("Test GPU", (9, 0), 80 * GIB, 70 * GIB)
    assert str(found) == "Test GPU (sm_90)"


def test_without_nvml_nobody_says_what_is_free(tmp_path: Path) -> None:
    cuda = library(tmp_path, "cuda", CUDA, INIT="0", COUNT="1")
    assert find_gpu(cuda, str(tmp_path / "none.so")).free is None
    assert find_gpu(cuda, library(tmp_path, "nvml", NVML, KIND='"other"')).free is None


@pytest.mark.parametrize(
    ("init", "count", "sentence"),
    [("100", "0", "CUDA_VISIBLE_DEVICES"), ("0", "0", "CUDA_VISIBLE_DEVICES"), ("803", "1", "CUDA error 803")],
)
def test_no_gpu(tmp_path: Path, init: str, count: str, sentence: str) -> None:
    with pytest.raises(GpuMissing, match=sentence):
        find_gpu(library(tmp_path, "cuda", CUDA, INIT=init, COUNT=count))


def test_no_driver(tmp_path: Path) -> None:
    with pytest.raises(GpuMissing, match="no NVIDIA driver"):
        find_gpu(str(tmp_path / "none.so"))


def test_the_version_of_torch_is_read_without_it(tmp_path: Path) -> None:
    code = "import sys; from textgen.launcher.gpu import torch_cuda; print(torch_cuda(), 'torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path)
    version, imported = told.stdout.split()
    import torch

    assert (version, imported) == (str(torch.version.cuda), "False")


def test_why_there_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Gpu:
        raise GpuMissing("there is none")

    monkeypatch.setattr("textgen.launcher.hardware.find_gpu", none)
    monkeypatch.setattr("textgen.launcher.hardware.torch_cuda", lambda: "13.0")
    assert inspect(device="auto").no_gpu == "there is none"
    monkeypatch.setattr("textgen.launcher.hardware.torch_cuda", lambda: None)
    assert "built for processors" in inspect(device="cuda").no_gpu
