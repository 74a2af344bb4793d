"""Where kernels run: a GPU behind CUDA's driver. Tests have a device of their own in its place."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor

from textgen.ops.cuda.cache import CompileCache, default_folder, default_limit
from textgen.ops.cuda.nvrtc import Nvrtc
from textgen.ops.cuda.source import Source

PLAIN_SHARED_BYTES = 48 << 10  # what a kernel may have without asking first


class Kernel(Protocol):
    """Launches on the device's current stream: a grid of blocks of `threads`, with so much dynamic shared memory."""

    def __call__(self, grid: Sequence[int], threads: int, params: ctypes.Structure, shared_bytes: int = 0) -> None: ...


class Device(Protocol):
    """Compiles kernels and launches them."""

    @property
    def processors(self) -> int:
        """Multiprocessors."""
        ...

    @property
    def shared_bytes(self) -> int:
        """The most shared memory that a block may have."""
        ...

    def kernel(self, source: Source, name: str | None = None) -> Kernel:
        """The source's kernel of that name, else of the file's name; compiled and loaded once."""
        ...

    def holds(self, tensor: Tensor) -> bool:
        """Whether kernels can read the tensor."""
        ...


class DriverError(Exception):
    """CUDA's driver refuses a call; the message names it."""


class CudaDevice:
    """The GPU that torch calls `cuda:index`. `NvrtcMissing`: there is no compiler; `DriverError`: no driver."""

    def __init__(self, index: int) -> None:
        try:
            self._driver: Any = import_module("cuda.bindings.driver")
        except ImportError as error:
            raise DriverError(f"CUDA's bindings are missing ({error}); pip install cuda-bindings") from None
        self._device = torch.device("cuda", index)
        properties = torch.cuda.get_device_properties(self._device)
        self.processors = int(properties.multi_processor_count)
        self.shared_bytes = int(properties.shared_memory_per_block_optin)
        compiler = Nvrtc(f"sm_{properties.major}{properties.minor}")
        self._cache = CompileCache(compiler, default_folder(), default_limit())
        self._modules: dict[Source, Any] = {}
        self._kernels: dict[tuple[Source, str | None], Kernel] = {}

    def kernel(self, source: Source, name: str | None = None) -> Kernel:
        known = self._kernels.get((source, name))
        if known is None:
            known = self._kernels[source, name] = self._load(source, name or source.name)
        return known

    def _load(self, source: Source, name: str) -> Kernel:
        driver = self._driver
        with torch.cuda.device(self._device):
            torch.cuda.current_stream()  # torch's context is there and current
            module = self._modules.get(source)
            if module is None:
                module = self._modules[source] = self._checked(driver.cuModuleLoadData(self._cache.get(source).code))
            function = self._checked(driver.cuModuleGetFunction(module, name.encode()))
        allowed = PLAIN_SHARED_BYTES

        def launch(grid: Sequence[int], threads: int, params: ctypes.Structure, shared_bytes: int = 0) -> None:
            nonlocal allowed
            if shared_bytes > allowed:
                attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self._checked(driver.cuFuncSetAttribute(function, attribute, shared_bytes))
                allowed = shared_bytes
            addresses = (ctypes.c_void_p * 1)(ctypes.addressof(params))
            stream = torch.cuda.current_stream(self._device).cuda_stream
            self._checked(
                driver.cuLaunchKernel(
                    function, *grid, threads, 1, 1, shared_bytes, stream, ctypes.addressof(addresses), 0
                )
            )

        return launch

    def holds(self, tensor: Tensor) -> bool:
        return tensor.device == self._device

    def _checked(self, answer: tuple[Any, ...]) -> Any:
        result, *values = answer
        if result != self._driver.CUresult.CUDA_SUCCESS:
            raise DriverError(f"CUDA's driver answers {result.name}; see its message in NVIDIA's reference")
        return values[0] if values else None
