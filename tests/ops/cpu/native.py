"""Single operations of the CPU kernels on torch tensors, by the C interface of `csrc/cpu/include/textgen_cpu.h`."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_uint32, c_void_p
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

EMBED, NORM, ADD_ROWS, ROPE_WRITE, ATTENTION, ACTIVATE, ACTIVATE_GATED, CLAMP, SCALE, GATHER_ROWS = range(1, 11)
ROPE_TABLE, ARGMAX, DRAW_TOKENS = 12, 13, 18
ADD, BY_POSITION, LAYER_NORM = 1, 2, 2  # flags
EXPERTS, MOVE, ROUTE, SWITCH, PICK = 11, 14, 15, 16, 17
PACKED, NORMALIZED = 4, 1  # flags
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3, torch.int32: 5}


class Op(ctypes.Structure):
    _fields_ = [("kind", c_int32), ("flags", c_int32), ("args", c_int64 * 24), ("numbers", c_double * 8)]


class Buffer(ctypes.Structure):
    _fields_ = [
        ("address", c_void_p),
        ("offset", c_int64),
        ("width", c_int64),
        ("stride", c_int64),
        ("dtype", c_int32),
        ("extent", c_int32),
    ]


class Group(ctypes.Structure):
    _fields_ = [("rows", c_void_p), ("tables", c_void_p), ("table_stride", c_int64), ("block_size", c_int64)]


class StepColumns(ctypes.Structure):
    _fields_ = [
        *((name, c_int64) for name in ("tokens", "outputs", "segments", "groups")),
        *((name, c_void_p) for name in ("ids", "positions", "offsets", "starts", "lengths", "sampled", "tails")),
        ("group", POINTER(Group)),
    ]


class PlanOptions(ctypes.Structure):
    _fields_ = [
        ("ops", POINTER(Op)),
        ("buffers", POINTER(Buffer)),
        ("arena", c_void_p),
        *((name, c_int64) for name in ("op_count", "buffer_count", "arena_bytes")),
        *((name, c_int64) for name in ("max_tokens", "max_outputs", "max_segments", "max_context")),
    ]


def _function(result: Any, *arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(result, *arguments)


class Api(ctypes.Structure):
    _fields_ = [
        ("abi", c_uint32),
        ("size", c_uint32),
        ("isa", c_char_p),
        ("error", _function(c_char_p)),
        ("pool_create", _function(c_void_p, c_int32, c_int64, c_void_p)),
        ("pool_destroy", _function(None, c_void_p)),
        ("weight_create", _function(c_void_p, c_int32, c_int64, c_int64, c_int64)),
        ("weight_pack", _function(c_int32, c_void_p, c_int64, c_void_p)),
        ("weight_bytes", _function(c_int64, c_void_p)),
        ("weight_destroy", _function(None, c_void_p)),
        ("plan_create", _function(c_void_p, c_void_p, POINTER(PlanOptions))),
        ("plan_run", _function(c_int32, c_void_p, POINTER(StepColumns))),
        ("plan_follow", _function(c_int32, c_void_p, c_void_p, c_int64, c_int32)),
        ("plan_profile", _function(None, c_void_p, c_void_p)),
        ("plan_destroy", _function(None, c_void_p)),
    ]


LIBRARY = os.environ.get("TEXTGEN_CPU_LIBRARY")  # of `make -C csrc/cpu`; else the kernels in the extension module


def _address(isa: str) -> int:
    """Of the `tg_api` for an instruction set. Raises `ValueError` where the machine or the build lacks it."""
    if LIBRARY is None:
        from textgen import _router

        return _router.cpu_api(isa)
    library = ctypes.CDLL(LIBRARY)
    library.tg_cpu_api.restype, library.tg_cpu_api.argtypes = c_void_p, [c_char_p]
    address: int | None = library.tg_cpu_api(isa.encode())
    if address is None:
        raise ValueError(isa)
    return address


@lru_cache
def isas() -> tuple[str, ...]:
    """The instruction sets that this machine has."""

    def has(isa: str) -> bool:
        try:
            return _address(isa) != 0
        except ValueError:
            return False

    return tuple(isa for isa in ("amx", "avx512", "avx512vnni", "avxvnni", "avx2", "neon", "portable") if has(isa))


@dataclass
class Step:
    """What a step has beside its activations. Columns are kept here, so that their memory lives as long."""

    tokens: int
    outputs: int = 0
    ids: Tensor | None = None
    positions: Tensor | None = None
    sampled: Tensor | None = None
    tails: Any = None
    offsets: Any = None
    starts: Any = None
    lengths: Any = None
    rows: Tensor | None = None
    tables: Any = None
    block_size: int = 16
    kept: list[Any] = field(default_factory=list)

    def columns(self) -> StepColumns:
        def address(values: Any) -> int | None:
            if values is None:
                return None
            self.kept.append(values)
            if isinstance(values, Tensor):
                assert values.dtype == torch.int64 and values.is_contiguous()
                return values.data_ptr()
            assert values.flags.c_contiguous
            return int(values.ctypes.data)

        stride = 0 if self.tables is None else self.tables.shape[1]
        tables = None if self.tables is None else np.ascontiguousarray(self.tables, np.int32)
        group = Group(address(self.rows), address(tables), stride, self.block_size)
        self.kept.append(group)
        return StepColumns(
            self.tokens,
            self.outputs,
            0 if self.lengths is None else len(self.lengths),
            1,
            *(address(column) for column in (self.ids, self.positions)),
            *(address(column) for column in (self.offsets, self.starts, self.lengths)),
            *(address(column) for column in (self.sampled, self.tails)),
            ctypes.pointer(group),
        )


class Native:
    """Kernels of one instruction set on a pool of threads."""

    def __init__(self, isa: str, workers: int) -> None:
        self.isa = isa
        self._api = ctypes.cast(_address(isa), POINTER(Api)).contents
        assert self._api.isa == isa.encode()
        self._pool = self._api.pool_create(workers, 100, None)

    def close(self) -> None:
        self._api.pool_destroy(self._pool)

    def plan(
        self,
        op: tuple[int, dict[int, int], dict[int, float], int],
        buffers: Sequence[Tensor],
        outputs: Sequence[int] = (),
        context: int = 4096,
    ) -> Plan:
        """A plan of one operation: kind, args, numbers, flags. Buffers are tensors [rows, width], by index; those in
        `outputs` have a row for each output. Raises `ValueError` with the kernels' sentence."""
        kind, args, numbers, flags = op
        one = Op(kind, flags)
        for index, value in args.items():
            one.args[index] = value
        for index, number in numbers.items():
            one.numbers[index] = number
        described = (Buffer * max(len(buffers), 1))()
        for index, tensor in enumerate(buffers):
            rows, width = tensor.shape
            assert tensor.stride(1) == 1 or width == 1
            stride = tensor.stride(0) if rows > 1 else max(tensor.stride(0), width)
            described[index] = Buffer(tensor.data_ptr(), 0, width, stride, DTYPES[tensor.dtype], int(index in outputs))
        tokens = max((len(tensor) for tensor in buffers), default=1)
        options = PlanOptions(ctypes.pointer(one), described, None, 1, len(buffers), 0, tokens, tokens, tokens, context)
        plan = self._api.plan_create(self._pool, ctypes.byref(options))
        if not plan:
            raise ValueError(self._api.error().decode())
        return Plan(self._api, plan, list(buffers))

    def run(self, op: Any, buffers: Sequence[Tensor], step: Step, outputs: Sequence[int] = ()) -> None:
        plan = self.plan(op, buffers, outputs)
        try:
            plan.run(step)
        finally:
            plan.close()


class Plan:
    def __init__(self, api: Api, plan: int, buffers: list[Tensor]) -> None:
        self._api, self._plan, self._buffers = api, plan, buffers

    def run(self, step: Step) -> None:
        if self._api.plan_run(self._plan, ctypes.byref(step.columns())) != 0:
            raise ValueError(self._api.error().decode())

    def close(self) -> None:
        self._api.plan_destroy(self._plan)
