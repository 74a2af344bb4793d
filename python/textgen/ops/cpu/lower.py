"""Programs as the kernels take them: operations with addresses, buffers with places, weights packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from textgen.layers.cache import LayerCache
from textgen.layers.weight import Weight
from textgen.models.spec import ClampedSilu
from textgen.ops.cpu.instructions import (
    Activate,
    ActivateGated,
    AddRows,
    Affine,
    Attend,
    Clamp,
    Embed,
    Instruction,
    Multiply,
    Normalize,
    Program,
    RotaryTable,
    RotateAndWrite,
    Scale,
    View,
)
from textgen.ops.cpu.layout import ALIGNED, Layout, lay_out
from textgen.ops.cpu.library import DTYPES, BufferRecord, Handle, Kernels, Operation, PlanOptions
from textgen.ops.cpu.packing import check_packable, pack, room
from textgen.ops.cpu.values import NotRecorded

# Kinds of operations, flags and activations; `csrc/cpu/include/textgen_cpu_kinds.h` says what each kind takes.
LINEAR, EMBED, NORM, ADD_ROWS, ROPE_WRITE, ATTENTION, ACTIVATE, ACTIVATE_GATED, CLAMP, SCALE = range(10)
ROPE_TABLE = 12
ADD, LAYER, BY_POSITION = 1, 2, 2
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "relu2": 4}
CLAMPED_SILU = 5


def check_lowerable(program: Program) -> None:
    """Raises `NotRecorded` with what the kernels do not do."""
    for each in program.instructions:
        if isinstance(each, Multiply):
            check_packable(each.weight)
        if any(view.buffer.dtype not in (torch.float32, torch.bfloat16) for _, view in each.operands()):
            raise NotRecorded("activations in float16")


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """Where a layer's keys and values lie, and which of the step's groups and windows it has."""

    cache: LayerCache
    group: int
    window: int | None


@dataclass(slots=True)
class _Record:
    kind: int
    args: list[int]
    numbers: tuple[float, ...] = ()
    flags: int = 0
    layer: int | None = None  # whose cache is filled in when it is known


@dataclass(slots=True)
class Lowered:
    """A program for steps of up to `rows` rows; `plan` binds it to a cache, `pack` fills in its weights."""

    kernels: Kernels
    program: Program
    rows: int
    layout: Layout = field(init=False)
    _views: dict[View, int] = field(default_factory=dict)
    _records: list[_Record] = field(default_factory=list)
    _keeps: list[object] = field(default_factory=list)
    _unpacked: list[tuple[Handle, Weight]] = field(default_factory=list)
    _arena: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.layout = lay_out(self.program, self.rows)
        self._arena = torch.empty(self.layout.size + ALIGNED, dtype=torch.uint8)
        self._arena = self._arena[-self._arena.data_ptr() % ALIGNED :][: self.layout.size]
        self._records += [self._lower(each) for each in self.program.instructions]
        self.program = Program((), self.program.result, self.program.given)

    @property
    def operations(self) -> int:
        return len(self._records)

    def pack(self) -> None:
        """Fill in the weights, one after the other; each original is let go before the next."""
        self._unpacked.reverse()
        while self._unpacked:
            pack(self.kernels, *self._unpacked.pop())

    def view(self, at: View, rows: int) -> Tensor:
        """[rows, width], in place."""
        place, dtype = self.layout.places[at.buffer], at.buffer.dtype
        first = place.offset // dtype.itemsize + at.first
        return self._arena.view(dtype).as_strided((rows, at.width), (place.stride, 1), first)

    def plan(self, pool: Handle, segments: int, context: int, layers: Sequence[LayerPlace] = ()) -> Handle:
        """Raises `KernelsMissing` when the kernels refuse an operation."""
        operations = (Operation * len(self._records))()
        for record, operation in zip(self._records, operations, strict=True):
            args = record.args
            if record.layer is not None:
                args = self._with_cache(record, layers[record.layer])
            operation.kind, operation.flags = record.kind, record.flags
            operation.args[: len(args)] = args
            operation.numbers[: len(record.numbers)] = record.numbers
        buffers = (BufferRecord * len(self._views))()
        for view, index in self._views.items():
            place, dtype = self.layout.places[view.buffer], view.buffer.dtype
            offset = place.offset + view.first * dtype.itemsize
            buffers[index] = BufferRecord(None, offset, view.width, place.stride, DTYPES[dtype], 0)
        options = PlanOptions(
            ops=operations, buffers=buffers, arena=self._arena.data_ptr(), op_count=len(operations),
            buffer_count=len(buffers), arena_bytes=self.layout.size, max_tokens=self.rows, max_outputs=0,
            max_segments=segments, max_context=context,
        )  # fmt: skip
        caches = [place.cache for place in layers]
        return self.kernels.plan(pool, options, self._arena, tuple(self._keeps), caches)

    def _at(self, view: View | None) -> int:
        return -1 if view is None else self._views.setdefault(view, len(self._views))

    def _address(self, tensor: Tensor | None, dtype: torch.dtype | None = None) -> int:
        """Of a tensor that is kept as long as the program; 0 when there is none."""
        if tensor is None:
            return 0
        tensor = (tensor if dtype is None else tensor.to(dtype)).contiguous()
        self._keeps.append(tensor)
        return tensor.data_ptr()

    def _lower(self, each: Instruction) -> _Record:  # noqa: C901 - one case for each operation
        match each:
            case Multiply():
                packed = room(self.kernels, each.weight)
                self._unpacked.append((packed, each.weight))
                self._keeps.append(packed)
                added = self._address(each.bias, torch.float32)
                return _Record(LINEAR, [packed.address, added, self._at(each.x), self._at(each.y)], flags=int(each.add))
            case Embed(table=table):
                flags = ADD * each.add | BY_POSITION * each.by_position
                args = [self._address(table), DTYPES[table.dtype], len(table), self._at(each.y), each.offset]
                return _Record(EMBED, args, (each.factor,), flags)
            case Normalize():
                weight, bias = each.affine.weight, each.affine.bias
                units = 1 if weight is None or weight.dim() == 1 else len(weight)
                args = [self._at(each.x), self._at(each.y), *self._numbers(weight), *self._numbers(bias)]
                return _Record(NORM, [*args, each.size, units], (each.affine.spec.eps,), _layer(each.affine))
            case AddRows(affine=None):
                return _Record(ADD_ROWS, [self._at(each.x), self._at(each.y), -1], (each.factor,))
            case AddRows(affine=Affine(spec, weight, bias)):
                args = [self._at(each.x), self._at(each.y), self._at(each.z)]
                args += [*self._numbers(weight), *self._numbers(bias)]
                return _Record(ADD_ROWS, args, (each.factor, spec.eps), _layer(Affine(spec, weight, bias)))
            case RotaryTable():
                return _Record(ROPE_TABLE, [self._at(each.y), self._address(each.inverse)], (each.factor,))
            case RotateAndWrite():
                args = [self._at(each.x), each.heads, each.kv_heads, each.head_dim, each.value_dim]
                return _Record(ROPE_WRITE, [*args, self._at(each.table)], layer=each.layer)
            case Attend(form=form):
                args = [self._at(each.x), self._at(each.y), each.heads, each.kv_heads, each.head_dim, each.value_dim]
                args += [0] * 6 + [0, *(self._address(part) for part in (form.slopes, form.sinks, form.biases))]
                args.append(0 if form.biases is None else form.biases.shape[1])
                return _Record(ATTENTION, args, (form.scale, form.soft_cap or 0.0), layer=each.layer)
            case Activate():
                return _Record(ACTIVATE, [self._at(each.x), self._at(each.y), ACTIVATIONS[each.kind]])
            case ActivateGated(kind=ClampedSilu(limit=limit, alpha=alpha)):
                return _Record(ACTIVATE_GATED, [self._at(each.x), self._at(each.y), CLAMPED_SILU], (limit, alpha))
            case ActivateGated():
                return _Record(ACTIVATE_GATED, [self._at(each.x), self._at(each.y), ACTIVATIONS[str(each.kind)]])
            case Clamp():
                return _Record(CLAMP, [self._at(each.x)], (each.low, each.high))
            case Scale():
                return _Record(SCALE, [self._at(each.x)], (each.factor, each.soft_cap or 0.0))
            case _:
                raise NotRecorded(f"the operation {type(each).__name__}")

    def _numbers(self, tensor: Tensor | None) -> tuple[int, int]:
        """Address and dtype of a norm's weight or bias."""
        return self._address(tensor), 0 if tensor is None else DTYPES[tensor.dtype]

    def _with_cache(self, record: _Record, place: LayerPlace) -> list[int]:
        keys, values = place.cache.keys, place.cache.values
        where = [place.group, keys.data_ptr(), values.data_ptr(), DTYPES[keys.dtype], keys.stride(1), values.stride(1)]
        args = [*record.args[:6], *where, *record.args[12:]]
        if record.kind == ATTENTION:
            args[12] = place.window or 0
        return args


def _layer(affine: Affine) -> int:
    return LAYER if affine.spec.kind == "layer" else 0
