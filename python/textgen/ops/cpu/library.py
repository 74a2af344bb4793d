"""The C library of kernels, bound by `ctypes`: a call costs about a microsecond and lets go of the interpreter lock.

The structures are those of `csrc/cpu/include/textgen_cpu.h`, which says what each field means.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_int32, c_int64, c_uint32, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ABI = 8
F32, BF16, F16, I8, U8, I32 = 0, 1, 2, 3, 4, 5
DTYPES = {
    torch.float32: F32, torch.bfloat16: BF16, torch.float16: F16, torch.int8: I8, torch.uint8: U8, torch.int32: I32,
}  # fmt: skip
ARGS, NUMBERS = 24, 8


class KernelsMissing(Exception):
    """The machine, the build or the request has no kernels; the message says why."""


class Rows(Structure):
    _fields_ = [
        ("values", c_void_p),
        ("scales", c_void_p),
        ("stride", c_int64),
        ("scale_stride", c_int64),
        ("rows", c_int64),
        ("dtype", c_int32),
        ("reserved", c_int32),
    ]


class BufferRecord(Structure):
    _fields_ = [
        ("address", c_void_p),
        ("offset", c_int64),
        ("width", c_int64),
        ("stride", c_int64),
        ("dtype", c_int32),
        ("extent", c_int32),
    ]


class Group(Structure):
    _fields_ = [("rows", c_void_p), ("tables", c_void_p), ("table_stride", c_int64), ("block_size", c_int64)]


class Step(Structure):
    _fields_ = [
        ("tokens", c_int64),
        ("outputs", c_int64),
        ("segments", c_int64),
        ("groups", c_int64),
        ("ids", c_void_p),
        ("positions", c_void_p),
        ("offsets", c_void_p),
        ("starts", c_void_p),
        ("lengths", c_void_p),
        ("sampled", c_void_p),
        ("tails", c_void_p),
        ("group", POINTER(Group)),
    ]


class Following(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("layers", "head", "drawing", "draws")),
        ("step", POINTER(Step)),
        ("rows", POINTER(Step)),
        *((name, c_void_p) for name in ("from_", "to")),
        ("bytes", c_int64),
        ("moving", c_void_p),
        ("moving_count", c_int64),
        *((name, c_void_p) for name in ("slots", "last", "ids", "table", "places", "found", "logprobs")),
    ]


class Operation(Structure):
    _fields_ = [("kind", c_int32), ("flags", c_int32), ("args", c_int64 * ARGS), ("numbers", c_double * NUMBERS)]


class PlanOptions(Structure):
    _fields_ = [
        ("ops", POINTER(Operation)),
        ("buffers", POINTER(BufferRecord)),
        ("arena", c_void_p),
        ("op_count", c_int64),
        ("buffer_count", c_int64),
        ("arena_bytes", c_int64),
        ("max_tokens", c_int64),
        ("max_outputs", c_int64),
        ("max_segments", c_int64),
        ("max_context", c_int64),
    ]


class _Api(Structure):
    _fields_ = [
        ("abi", c_uint32),
        ("size", c_uint32),
        ("isa", c_char_p),
        ("error", CFUNCTYPE(c_char_p)),
        ("pool_create", CFUNCTYPE(c_void_p, c_int32, c_int64, c_void_p)),
        ("pool_destroy", CFUNCTYPE(None, c_void_p)),
        ("weight_create", CFUNCTYPE(c_void_p, c_int32, c_int64, c_int64, c_int64)),
        ("weight_pack", CFUNCTYPE(c_int32, c_void_p, c_int64, POINTER(Rows))),
        ("weight_bytes", CFUNCTYPE(c_int64, c_void_p)),
        ("weight_destroy", CFUNCTYPE(None, c_void_p)),
        ("plan_create", CFUNCTYPE(c_void_p, c_void_p, POINTER(PlanOptions))),
        ("plan_run", CFUNCTYPE(c_int32, c_void_p, POINTER(Step))),
        ("plan_follow", CFUNCTYPE(c_int32, POINTER(Following), c_void_p, c_int64, c_int32)),
        ("plan_profile", CFUNCTYPE(None, c_void_p, c_void_p)),
        ("plan_destroy", CFUNCTYPE(None, c_void_p)),
        ("weight_memory", CFUNCTYPE(c_void_p, c_void_p)),
        ("weight_map", CFUNCTYPE(c_void_p, c_int32, c_int64, c_int64, c_int64, c_void_p, c_int64)),
        ("weight_widen", CFUNCTYPE(c_int32, c_void_p)),
    ]


class Handle:
    """Something of the library's; it is destroyed with this object, after which `keeps` may go."""

    def __init__(self, address: int, destroy: Any, *keeps: object) -> None:
        self.address = address
        weakref.finalize(self, _destroy, destroy, address, keeps)


def _destroy(destroy: Any, address: int, keeps: object) -> None:
    destroy(address)


class Kernels:
    """The kernels of one instruction set. `KernelsMissing`: there are none, or they refuse something."""

    def __init__(self, isa: str | None = None, library: Path | None = None) -> None:
        """library: one that `make -C csrc/cpu` built, in place of the one in the router's extension."""
        self._api = _Api.from_address(_address(isa, library))
        if self._api.abi != ABI:
            raise KernelsMissing(f"the library speaks version {self._api.abi}, this package version {ABI}; build again")
        self._run, self._follow = self._api.plan_run, self._api.plan_follow  # looked up once: each look makes an object
        self.follows = ctypes.cast(self._follow, c_void_p).value or 0  # the address of `plan_follow`
        self.isa: str = self._api.isa.decode()

    def pool(self, workers: int, spin_us: int, cpus: Sequence[int] = ()) -> Handle:
        """Threads that spin so long for work. cpus: the processor that each is bound to, or none.
        The first worker is whoever runs a plan first."""
        if cpus and len(cpus) < workers:
            raise ValueError(f"{workers} workers cannot be bound to {len(cpus)} processors one each")
        places = (c_int32 * workers)(*cpus[:workers]) if cpus else None  # copied there
        return self._made(self._api.pool_create(workers, spin_us, places), self._api.pool_destroy)

    def weight(self, form: int, outputs: int, inputs: int, group: int = 0) -> Handle:
        return self._made(self._api.weight_create(form, outputs, inputs, group), self._api.weight_destroy)

    def mapped(self, form: tuple[int, int, int, int], data: NDArray[np.uint8]) -> Handle:
        """A weight whose packed form is there: format, outputs, inputs and group, as `memory` gave it of such a one."""
        address = data.__array_interface__["data"][0]
        made = self._api.weight_map(*form, address, data.nbytes)
        return self._made(made, self._api.weight_destroy, data)

    def memory(self, weight: Handle) -> tuple[int, int]:
        """Where a weight's packed form lies, and its bytes."""
        return self._api.weight_memory(weight.address), self._api.weight_bytes(weight.address)

    def pack(self, weight: Handle, first: int, values: Tensor, scales: Tensor | None = None) -> bool:
        """Copy rows of a matrix into place. values [rows, in]; scales float32 [rows, 1 or groups]. Floats without
        scales become the integers of `Int8Format` and `Int4Format` where the weight has such. False where a compact
        weight has no room for numbers so far apart: it has to be widened, and packed anew."""
        rows = Rows(
            values=values.data_ptr(),
            scales=None if scales is None else scales.data_ptr(),
            stride=values.stride(0),
            scale_stride=0 if scales is None else scales.stride(0),
            rows=len(values),
            dtype=DTYPES[values.dtype],
        )
        result: int = self._api.weight_pack(weight.address, first, ctypes.byref(rows))
        self._check(result)
        return result == 0

    def widen(self, weight: Handle) -> None:
        """A compact weight becomes one of bfloat16 as it is, without any rows, and keeps its address."""
        self._check(self._api.weight_widen(weight.address))

    def plan(self, pool: Handle, options: PlanOptions, *keeps: object) -> Handle:
        made = self._api.plan_create(pool.address, ctypes.byref(options))
        return self._made(made, self._api.plan_destroy, pool, *keeps)

    def run(self, plan: Handle, step: Step) -> None:
        self._check(self._run(plan.address, ctypes.byref(step)))

    def follow(self, following: Following, begun: NDArray[np.int32] | None, keep: bool) -> bool:
        """Whether all log-probabilities that were found are finite. begun: [n, 2] sequences and their new pages."""
        where = (None, 0) if begun is None else (begun.ctypes.data, len(begun))
        result: int = self._follow(following, *where, keep)
        self._check(result)
        return result == 0

    def profile(self, plan: Handle, nanoseconds: int | None) -> None:
        """Add up each operation's time at an address of [operations] int64."""
        self._api.plan_profile(plan.address, nanoseconds)

    def _made(self, address: int | None, destroy: Any, *keeps: object) -> Handle:
        if address is None:
            raise KernelsMissing(self._error())
        return Handle(address, destroy, self, *keeps)

    def _check(self, result: int) -> None:
        if result < 0:
            raise KernelsMissing(self._error())

    def _error(self) -> str:
        return str(self._api.error().decode())


def _address(isa: str | None, library: Path | None) -> int:
    """Of the `tg_api` for the instruction set."""
    if library is not None:
        find = ctypes.CDLL(str(library)).tg_cpu_api
        find.restype, find.argtypes = c_void_p, [c_char_p]
        address = find(None if isa is None else isa.encode())
        if address is None:
            raise KernelsMissing(f"this machine cannot run the kernels {isa}")
        return int(address)
    try:
        from textgen import _router  # here: a shard without a plan has no use for it

        return _router.cpu_api(isa)
    except (AttributeError, ValueError) as error:
        raise KernelsMissing(str(error)) from None
