"""What NVIDIA's driver says of the GPU that a shard would get. By its own libraries: the launcher imports no torch.

`libcuda` heeds CUDA_VISIBLE_DEVICES and CUDA's order of devices; how much of the memory is free only NVML says without
a context, which would take memory itself.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path

CUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_NAME_BYTES = 128
_NO_DEVICE = 100


@dataclass(frozen=True, slots=True)
class Gpu:
    """The first GPU that this process may use. Bytes."""

    name: str
    capability: tuple[int, int]
    total: int
    free: int | None  # None: NVML is not there to say it

    def __str__(self) -> str:
        return f"{self.name} (sm_{self.capability[0]}{self.capability[1]})"


class GpuMissing(Exception):
    """There is no GPU to use; the message says why, and what to do."""


class _Memory(Structure):
    _fields_ = [("total", c_uint64), ("free", c_uint64), ("used", c_uint64)]


def find_gpu(cuda: str = CUDA, nvml: str = NVML) -> Gpu:
    """The GPU that torch will call `cuda:0`. Raises `GpuMissing`."""
    try:
        driver = ctypes.CDLL(cuda)
    except OSError:
        raise GpuMissing("this machine has no NVIDIA driver; install one or use --device cpu") from None
    if code := driver.cuInit(0):
        if code == _NO_DEVICE:
            raise GpuMissing("no GPU is visible to this process; look at CUDA_VISIBLE_DEVICES, or use --device cpu")
        raise GpuMissing(f"NVIDIA's driver does not start (CUDA error {code}); see nvidia-smi, or use --device cpu")
    device, count = c_int(), c_int()
    if driver.cuDeviceGetCount(byref(count)) or not count.value or driver.cuDeviceGet(byref(device), 0):
        raise GpuMissing("no GPU is visible to this process; look at CUDA_VISIBLE_DEVICES, or use --device cpu")
    name, total, uuid = (c_char * _NAME_BYTES)(), c_size_t(), (c_char * 16)()
    major, minor = c_int(), c_int()
    failed = [
        driver.cuDeviceGetName(name, _NAME_BYTES, device),
        driver.cuDeviceTotalMem_v2(byref(total), device),
        driver.cuDeviceGetAttribute(byref(major), _MAJOR, device),
        driver.cuDeviceGetAttribute(byref(minor), _MINOR, device),
        driver.cuDeviceGetUuid_v2(uuid, device),
    ]
    if any(failed):
        raise GpuMissing(f"NVIDIA's driver does not tell of its GPU (CUDA error {max(failed)}); see nvidia-smi")
    capability = (major.value, minor.value)
    return Gpu(name.value.decode(errors="replace"), capability, total.value, _free(nvml, uuid.raw))


def _free(nvml: str, uuid: bytes) -> int | None:
    """Free bytes of the GPU, or the part of one (MIG), of that UUID."""
    try:
        library = ctypes.CDLL(nvml)
    except OSError:
        return None
    if library.nvmlInit_v2():
        return None
    try:
        handle, memory, text = c_void_p(), _Memory(), _uuid_text(uuid)
        library.nvmlDeviceGetHandleByUUID.argtypes = [c_char_p, POINTER(c_void_p)]
        library.nvmlDeviceGetMemoryInfo.argtypes = [c_void_p, POINTER(_Memory)]
        for kind in ("GPU", "MIG"):
            if not library.nvmlDeviceGetHandleByUUID(f"{kind}-{text}".encode(), byref(handle)):
                return None if library.nvmlDeviceGetMemoryInfo(handle, byref(memory)) else int(memory.free)
        return None
    finally:
        library.nvmlShutdown()


def _uuid_text(raw: bytes) -> str:
    digits = raw.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def torch_cuda() -> str | None:
    """The version of CUDA that the installed torch is built with, None for one of processors. It is not imported."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return None
    found = re.search(r"^cuda(?::[^=]*)? = '([0-9.]+)'", text, re.MULTILINE)
    return found[1] if found else None
