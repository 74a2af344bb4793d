"""Programs as the kernels take them: operations with addresses, buffers with places, weights packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from textgen.layers.cache import LayerCache
from textgen.layers.weight import DenseWeight, HeadTable, Weight
from textgen.models.spec import ClampedSilu, GatedActivation
from textgen.ops.cpu.draw import DRAW, Records
from textgen.ops.cpu.instructions import (
    Activate,
    Activated,
    ActivateGated,
    AddRows,
    Affine,
    Attend,
    Before,
    Clamp,
    Embed,
    FindLikeliest,
    Gated,
    Instruction,
    MixExperts,
    Move,
    Multiply,
    Normalize,
    Pick,
    Program,
    RotaryTable,
    RotateAndWrite,
    Route,
    Scale,
    Switch,
    TakeOutputs,
    View,
)
from textgen.ops.cpu.layout import ALIGNED, Layout, lay_out
from textgen.ops.cpu.library import DTYPES, BufferRecord, Handle, Kernels, Operation, PlanOptions
from textgen.ops.cpu.packing import check_packable, pack, room
from textgen.ops.cpu.values import NotRecorded
from textgen.ops.pages import empty
from textgen.quantization.cache import KeptWeight
from textgen.quantization.stored import StoredWeight

# Kinds of operations, flags and activations; `csrc/cpu/include/textgen_cpu_kinds.h` says what each kind takes.
LINEAR, EMBED, NORM, ADD_ROWS, ROPE_WRITE, ATTENTION, ACTIVATE, ACTIVATE_GATED, CLAMP, SCALE = range(10)
GATHER_ROWS, EXPERTS, ROPE_TABLE, ARGMAX, MOVE, ROUTE, SWITCH, PICK, DRAW_TOKENS = range(10, 19)
KINDS = {
    LINEAR: "products", EMBED: "embedding", NORM: "norms", ADD_ROWS: "sums", ROPE_WRITE: "rotation, cache write",
    ATTENTION: "attention", ACTIVATE: "activations", ACTIVATE_GATED: "activations", CLAMP: "clamps", SCALE: "scalings",
    EXPERTS: "experts", ROPE_TABLE: "rotary tables", ARGMAX: "likeliest tokens", MOVE: "moves",
    ROUTE: "choice of experts", SWITCH: "switches", PICK: "inputs in another order", GATHER_ROWS: "rows of outputs",
}  # fmt: skip
ADD, LAYER, BY_POSITION, PACKED, NORMALIZED = 1, 2, 2, 4, 1
SCORES = {"softmax": 0, "chosen": 1, "sigmoid": 2}
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "relu2": 4}
CLAMPED_SILU = 5
BEFORE_NORM, BEFORE_ACTIVATION, BEFORE_GATED = 1, 2, 3


def check_lowerable(program: Program) -> None:
    """Raises `NotRecorded` with what the kernels do not do."""
    for each in program.instructions:
        if isinstance(each, Multiply):
            check_packable(each.weight)
        elif isinstance(each, MixExperts):
            for weight in (*each.up, *each.down):
                check_packable(weight)


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
    tables: Mapping[int, Handle] = field(default_factory=dict)  # by `id`: tables that are packed somewhere else
    layout: Layout = field(init=False)
    likeliest: tuple[Tensor, Tensor, Tensor] | None = None  # [rows] tokens, normalisers, logprobs, where it finds them
    masks: NDArray[np.int64] | None = None  # [rows] addresses of bits, for `choice`; 0: a row stays as it is
    draws: Records | None = None  # [rows] how each is drawn, for `drawing`
    _views: dict[View, int] = field(default_factory=dict)
    _records: list[_Record] = field(default_factory=list)
    _choice: _Record | None = None
    _drawing: _Record | None = None
    _keeps: list[object] = field(default_factory=list)
    _unpacked: list[tuple[Handle, Weight]] = field(default_factory=list)
    _packed: dict[int, Handle] = field(default_factory=dict)
    _arena: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.layout = lay_out(self.program, self.rows)
        self._arena = empty([self.layout.size + ALIGNED], torch.uint8)
        self._arena = self._arena[-self._arena.data_ptr() % ALIGNED :][: self.layout.size]
        self._records += [self._lower(each) for each in self.program.instructions]
        self.program = Program((), self.program.result, self.program.given)

    @property
    def operations(self) -> int:
        return len(self._records)

    @property
    def kinds(self) -> list[int]:
        """Of its operations, in order."""
        return [record.kind for record in self._records]

    @property
    def packed(self) -> Mapping[int, Handle]:
        """By `id`: the packed form of each weight; of one that has the model's own numbers by that of these."""
        return self._packed

    def pack(self, threads: int) -> None:
        """Fill in the weights, one after the other; each original is let go before the next."""
        self._unpacked.reverse()
        with ThreadPoolExecutor(threads, "pack") as workers:
            while self._unpacked:
                pack(self.kernels, workers, *self._unpacked.pop())

    def view(self, at: View, rows: int) -> Tensor:
        """[rows, width], in place."""
        place, dtype = self.layout.places[at.buffer], at.buffer.dtype
        first = place.offset // dtype.itemsize + at.first
        return self._arena.view(dtype).as_strided((rows, at.width), (place.stride, 1), first)

    def bytes(self, at: View, rows: int) -> NDArray[np.uint8]:
        """[rows, bytes of the width], in place."""
        return self.view(at, rows).view(torch.uint8).numpy()

    def plan(self, pool: Handle, segments: int, context: int, layers: Sequence[LayerPlace] = ()) -> Handle:
        """Raises `KernelsMissing` when the kernels refuse an operation."""
        return self._bound(self._records, pool, segments, context, layers)

    def choice(self, pool: Handle) -> Handle | None:
        """What finds the likeliest tokens again, of those that `masks` allow: -1 where there are none. None where the
        program finds no tokens."""
        return None if self._choice is None else self._bound([self._choice], pool, 0, 0, ())

    def drawing(self, pool: Handle) -> Handle | None:
        """What draws tokens in place of the likeliest, as `draws` says. None where the program finds no tokens."""
        return None if self._drawing is None else self._bound([self._drawing], pool, 0, 0, ())

    def _bound(
        self, records: Sequence[_Record], pool: Handle, segments: int, context: int, layers: Sequence[LayerPlace]
    ) -> Handle:
        operations = (Operation * len(records))()
        for record, operation in zip(records, operations, strict=True):
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
            buffers[index] = BufferRecord(
                None, offset, view.width, place.stride, DTYPES[dtype], int(view.buffer.of_outputs)
            )
        options = PlanOptions(
            ops=operations, buffers=buffers, arena=self._arena.data_ptr(), op_count=len(operations),
            buffer_count=len(buffers), arena_bytes=self.layout.size, max_tokens=self.rows, max_outputs=self.rows,
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
                args = [self._weight(each.weight), self._address(each.bias, torch.float32)]
                args += [self._at(each.x), self._at(each.y)]
                more, constants, flags = self._before(each.before)
                return _Record(LINEAR, args + more, constants, flags | ADD * each.add)
            case Embed(table=table):
                flags = ADD * each.add | BY_POSITION * each.by_position
                packed = self.tables.get(id(table.head if isinstance(table, HeadTable) else table))
                if packed is not None:
                    self._keeps.append(packed)
                    flags, where = flags | PACKED, packed.address
                elif isinstance(table, HeadTable):
                    raise NotRecorded("an embedding that is looked up in a head which no product takes")
                else:
                    where = self._address(table)
                args = [where, DTYPES[table.dtype], table.shape[0], self._at(each.y), each.offset]
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
                args += [self._at(each.table), *[0] * 6, each.first, 0, 0]
                return _Record(ROPE_WRITE, args, layer=each.layer)
            case Attend(form=form):
                args = [self._at(each.x), self._at(each.y), each.heads, each.kv_heads, each.head_dim, each.value_dim]
                args += [0] * 6 + [0, *(self._address(part) for part in (form.slopes, form.sinks, form.biases))]
                args += [0 if form.biases is None else form.biases.shape[1], 0, 0]
                return _Record(ATTENTION, args, (form.scale, form.soft_cap or 0.0), layer=each.layer)
            case TakeOutputs():
                return _Record(GATHER_ROWS, [self._at(each.x), self._at(each.y)])
            case Activate():
                return _Record(ACTIVATE, [self._at(each.x), self._at(each.y), ACTIVATIONS[each.kind]])
            case ActivateGated():
                gate, limits = _gated(each.kind)
                return _Record(ACTIVATE_GATED, [self._at(each.x), self._at(each.y), gate], limits)
            case Clamp():
                return _Record(CLAMP, [self._at(each.x)], (each.low, each.high))
            case Move():
                args = [self._at(each.x), self._at(each.y), each.units, each.width, each.x_step, each.y_step]
                return _Record(MOVE, args)
            case Pick():
                return _Record(PICK, [self._at(each.x), self._at(each.y), self._address(each.order)])
            case Switch():
                return _Record(SWITCH, [self._at(each.x), self._at(each.s)])
            case Route(spec=spec):
                args = [self._at(each.x), self._at(each.chosen), self._at(each.shares), self._address(each.correction)]
                best = 1 if spec.group_score == "best" else 2
                args += [SCORES[spec.score], spec.groups, spec.top_groups, best]
                return _Record(ROUTE, args, (spec.scale,), NORMALIZED * spec.normalize)
            case MixExperts():
                return self._mix(each)
            case FindLikeliest():
                tokens, numbers = torch.zeros(self.rows, dtype=torch.int64), torch.zeros(2, self.rows)
                self.likeliest, self.masks = (tokens, numbers[0], numbers[1]), np.zeros(self.rows, np.int64)
                self._keeps.append(self.masks)
                x, found, normalisers, logprobs = self._at(each.x), *map(self._address, self.likeliest)
                self._choice = _Record(ARGMAX, [x, found, normalisers, self.masks.ctypes.data, logprobs])
                if each.x.buffer.dtype == torch.float32:
                    self.draws = np.zeros(self.rows, DRAW)
                    self._keeps.append(self.draws)
                    self._drawing = _Record(DRAW_TOKENS, [x, self.draws.ctypes.data, found, normalisers, logprobs])
                return _Record(ARGMAX, [x, found, normalisers, 0, logprobs])
            case Scale():
                return _Record(SCALE, [self._at(each.x)], (each.factor, each.soft_cap or 0.0))
            case _:
                raise NotRecorded(f"the operation {type(each).__name__}")

    def _mix(self, each: MixExperts) -> _Record:
        count = len(each.up)
        up, down = (torch.tensor([self._weight(weight) for weight in matrices]) for matrices in (each.up, each.down))
        args = [self._at(view) for view in (each.x, each.y, each.chosen, each.shares)]
        args += [count, self._address(up), self._address(down)]
        args += [self._address(bias, torch.float32) for bias in (each.up_bias, each.down_bias)]
        gate, limits = _gated(each.kind)
        return _Record(EXPERTS, [*args, gate], limits)

    def _before(self, before: Before | None) -> tuple[list[int], tuple[float, ...], int]:
        """Arguments of a product from the fourth on, its numbers and flags."""
        match before:
            case None:
                return [], (), 0
            case Affine(spec, weight, bias):
                return [BEFORE_NORM, *self._numbers(weight), *self._numbers(bias)], (spec.eps,), _layer(before)
            case Activated(kind):
                return [BEFORE_ACTIVATION, 0, 0, 0, 0, ACTIVATIONS[kind]], (), 0
            case Gated():
                gate, limits = _gated(before.kind)
                return [BEFORE_GATED, 0, 0, 0, 0, gate], (0.0, *limits), 0

    def _weight(self, weight: Weight) -> int:
        """The address of its packed form, which `pack` fills in."""
        packed = room(self.kernels, weight)
        self._unpacked.append((packed, weight))
        self._keeps.append(packed)
        of = weight.weight if isinstance(weight, KeptWeight) else weight
        if isinstance(of, DenseWeight):
            self._packed[id(of.values)] = packed
        elif isinstance(of, StoredWeight) and len(of.views) == 1:
            self._packed[id(of.views[0])] = packed
        else:
            self._packed[id(of)] = packed
        return packed.address

    def _numbers(self, tensor: Tensor | None) -> tuple[int, int]:
        """Address and dtype of a norm's weight or bias."""
        if tensor is not None and tensor.dtype == torch.float16:
            tensor = tensor.float()
        return self._address(tensor), 0 if tensor is None else DTYPES[tensor.dtype]

    def _with_cache(self, record: _Record, place: LayerPlace) -> list[int]:
        keys, values = place.cache.keys, place.cache.values
        where = [place.group, keys.data_ptr(), values.data_ptr(), DTYPES[keys.dtype], keys.stride(1), values.stride(1)]
        if record.kind == ROPE_WRITE and record.args[4] == 0:
            where[2] = 0  # the values are in the keys
        scales = [0 if each is None else each.data_ptr() for each in (place.cache.key_scales, place.cache.value_scales)]
        args = [*record.args[:6], *where, *record.args[12:-2], *scales]
        if record.kind == ATTENTION:
            args[12] = place.window or 0
        return args


def _gated(kind: GatedActivation) -> tuple[int, tuple[float, ...]]:
    if isinstance(kind, ClampedSilu):
        return CLAMPED_SILU, (kind.limit, kind.alpha)
    return ACTIVATIONS[kind], ()


def _layer(affine: Affine) -> int:
    return LAYER if affine.spec.kind == "layer" else 0
