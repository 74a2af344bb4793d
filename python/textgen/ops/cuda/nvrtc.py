"""Compiles kernels by NVRTC, NVIDIA's compiler as a library. It needs no GPU, no driver and no toolkit: torch's wheels
for CUDA bring it, and `cuda.bindings` that call it."""

from __future__ import annotations

import logging
import re
from importlib import import_module
from typing import Any

from textgen.ops.cuda.source import Binary, Resources, Source, headers

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")  # those that the tests compile for
OPTIONS = ["--std=c++17", "--device-as-default-execution-space", "--extra-device-vectorization", "--ptxas-options=-v"]

_log = logging.getLogger(__name__)
_ENTRY = re.compile(r"Compiling entry function '(\w+)' for")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


class NvrtcMissing(Exception):
    """There is no NVRTC here; the message says how to get one."""


class CompileError(Exception):
    """A kernel does not compile; the message has the compiler's log."""


class Nvrtc:
    """The compiler for one architecture, such as `sm_90`. `NvrtcMissing`: there is none; `ValueError`: not that one."""

    def __init__(self, arch: str) -> None:
        self._api = _api()
        major, minor = self._checked(self._api.nvrtcVersion())
        known = [f"sm_{number}" for number in self._checked(self._api.nvrtcGetSupportedArchs())[0]]
        if arch not in known:
            raise ValueError(f"NVRTC {major}.{minor} does not compile for {arch}; it knows {', '.join(known)}")
        self.arch = arch
        self.version = f"nvrtc {major}.{minor}"

    @property
    def options(self) -> list[str]:
        return [f"--gpu-architecture={self.arch}", *OPTIONS]

    def compile(self, source: Source) -> Binary:
        """Machine code of the source; a warning of the compiler's is logged. `CompileError`: it has an error."""
        api, texts = self._api, headers()
        (program,) = self._checked(
            api.nvrtcCreateProgram(
                source.text.encode(),
                f"{source.name}.cu".encode(),
                len(texts),
                [text.encode() for text in texts.values()],
                [name.encode() for name in texts],
            )
        )
        try:
            options = [option.encode() for option in [*self.options, *source.defines]]
            (result, *_) = api.nvrtcCompileProgram(program, len(options), options)
            log = self._text(program, api.nvrtcGetProgramLogSize, api.nvrtcGetProgramLog).decode(errors="replace")
            if result != api.nvrtcResult.NVRTC_SUCCESS:
                raise CompileError(f"{source} does not compile for {self.arch}:\n{log.strip()}")
            if "warning" in log:
                _log.warning("%s compiles for %s with a warning:\n%s", source, self.arch, log.strip())
            code = self._text(program, api.nvrtcGetCUBINSize, api.nvrtcGetCUBIN)
        finally:
            api.nvrtcDestroyProgram(program)
        return Binary(code, resources_of(log))

    def _text(self, program: Any, size: Any, get: Any) -> bytes:
        (count,) = self._checked(size(program))
        data = bytes(count)  # the bindings write into it
        self._checked(get(program, data))
        return data.rstrip(b"\0") if get is self._api.nvrtcGetProgramLog else data

    def _checked(self, answer: tuple[Any, ...]) -> tuple[Any, ...]:
        result, *values = answer
        if result != self._api.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC answers {result.name}; see the message of its call in NVIDIA's reference")
        return tuple(values)


def resources_of(log: str) -> dict[str, Resources]:
    """What ptxas says of each kernel in its log."""
    found: dict[str, Resources] = {}
    _, *parts = _ENTRY.split(log)
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        stack, used = _STACK.search(text), _USED.search(text)
        if stack is None or used is None:
            raise CompileError(f"the log of ptxas has another form than expected:\n{log.strip()}")
        frame, stores, loads = map(int, stack.groups())
        found[name] = Resources(int(used[1]), frame, stores + loads, int(used[2] or 0))
    return found


def _api() -> Any:
    try:
        api = import_module("cuda.bindings.nvrtc")
        api.nvrtcVersion()
    except (ImportError, RuntimeError) as error:  # no bindings; or no library beside them
        raise NvrtcMissing(
            f"NVRTC is missing ({error}); install torch with CUDA, or: pip install cuda-bindings nvidia-cuda-nvrtc"
        ) from None
    return api
