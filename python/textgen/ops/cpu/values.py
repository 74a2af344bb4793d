"""What stands in for tensors and operations while a decoder is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from textgen.layers.weight import Weight
from textgen.models.spec import Activation, GatedActivation, NormSpec
from textgen.ops.cpu.instructions import (
    READ,
    Activate,
    ActivateGated,
    AddRows,
    Affine,
    Attend,
    Buffer,
    Clamp,
    Embed,
    Instruction,
    Join,
    Multiply,
    Normalize,
    Pick,
    RotaryTable,
    Rotate,
    Scale,
    TakeOutputs,
    View,
    WriteCache,
)
from textgen.ops.interface import AttentionForm
from textgen.quantization.blocks import StackedWeight
from textgen.quantization.ordered import OrderedWeight

TOKENS = 1_000_003  # the length of every recorded tensor: no size that a model has


class NotRecorded(Exception):
    """A plan has no operation for what the decoder does; the message names it."""

    def __str__(self) -> str:
        return f"there is no operation for {self.args[0]}"


@dataclass(slots=True)
class Tape:
    """The operations so far, in the model's dtype."""

    dtype: torch.dtype
    instructions: list[Instruction] = field(default_factory=list)
    of_outputs: bool = False  # whether what is new has rows of outputs alone

    def new(self, width: int, dtype: torch.dtype | None = None) -> View:
        return View.whole(Buffer(width, dtype or self.dtype, self.of_outputs))

    def add(self, instruction: Instruction) -> None:
        self.instructions.append(instruction)

    def add_early(self, instruction: Instruction) -> None:
        """Right behind what wrote last what it reads, so that it parts no others that belong together."""
        read = [view for _, view in instruction.operands()]
        index = len(self.instructions)
        while index > 0 and not any(
            use != READ and view.overlaps(other)
            for use, view in self.instructions[index - 1].operands()
            for other in read
        ):
            index -= 1
        self.instructions.insert(index, instruction)


@dataclass(frozen=True, slots=True)
class TokenNumbers:
    """[tokens] int64 that come with the step: ids or positions, and what is added to them."""

    tape: Tape
    positions: bool
    offset: int = 0

    def __add__(self, offset: int) -> TokenNumbers:
        return TokenNumbers(self.tape, self.positions, self.offset + offset)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is not F.embedding:
            raise NotRecorded(f"torch's {function.__name__} of token numbers")
        numbers, table = args[:2]
        y = numbers.tape.new(table.shape[1])
        numbers.tape.add(Embed(table=table, y=y, by_position=numbers.positions, offset=numbers.offset))
        return Rows(numbers.tape, y, (y.width,))


@dataclass(frozen=True, slots=True)
class Rows:
    """[tokens, *sizes]: a view of a buffer in place of a tensor."""

    tape: Tape
    at: View
    sizes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (TOKENS, *self.sizes)

    @property
    def dtype(self) -> torch.dtype:
        return self.at.buffer.dtype

    def view(self, *shape: Any) -> Rows:
        sizes = list(shape[0] if len(shape) == 1 else shape)
        if sizes.pop(0) != TOKENS or not sizes:
            raise NotRecorded("a view that mixes tokens")
        if -1 in sizes:
            sizes[sizes.index(-1)] = self.at.width // -prod(sizes)
        return self._as(self.at, tuple(sizes))

    def flatten(self, start: int) -> Rows:
        if start != 1:
            raise NotRecorded("a view that mixes tokens")
        return self._as(self.at, (self.at.width,))

    def __getitem__(self, index: Any) -> Rows:
        tokens, units, *rest = index if isinstance(index, tuple) else (index, slice(None))
        if tokens != slice(None) or rest or not isinstance(units, slice) or units.step is not None:
            raise NotRecorded("a slice of other than whole heads")
        chosen, size = range(self.sizes[0])[units], prod(self.sizes[1:])
        return self._as(self.at.part(chosen.start * size, len(chosen) * size), (len(chosen), *self.sizes[1:]))

    def clamp(self, low: float, high: float) -> Rows:
        y = self._like()
        self.tape.add(Clamp(low=low, high=high, x=self.at, y=y.at))
        return y

    def add_(self, other: Any, *, alpha: float = 1.0) -> Rows:
        if not isinstance(other, Rows) or other.at.width != self.at.width:
            raise NotRecorded("a sum of other than rows of one width")
        self.tape.add(AddRows(x=self.at, y=other.at, factor=alpha))
        return self

    def mul_(self, factor: Any) -> Rows:
        if not isinstance(factor, (int, float)):
            raise NotRecorded("a product of rows")
        self.tape.add(Scale(factor=float(factor), x=self.at))
        return self

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is not torch.cat or (kwargs or {}).get("dim") != 1 or len(args[0]) != 2:
            raise NotRecorded(f"torch's {function.__name__}")
        first, second = args[0]
        y = first.tape.new(first.at.width + second.at.width)
        first.tape.add(Join(first=first.at, second=second.at, y=y))
        return first._as(y, (first.sizes[0] + second.sizes[0], *first.sizes[1:]))

    def __getattr__(self, name: str) -> Any:
        raise NotRecorded(f"the tensor method {name}")

    def __matmul__(self, other: object) -> Any:
        raise NotRecorded("a product with a plain tensor")

    def _as(self, at: View, sizes: tuple[int, ...]) -> Rows:
        return Rows(self.tape, at, sizes)

    def _like(self) -> Rows:
        return self._as(self.tape.new(self.at.width), self.sizes)


@dataclass(frozen=True, slots=True)
class RecordedWeight:
    """In place of a weight: its product is recorded."""

    weight: Weight
    outputs: int

    def multiply(self, x: Any, bias: Tensor | None) -> Any:
        if len(x.sizes) != 1:
            raise NotRecorded("a product of other than rows")
        y, weight = x.tape.new(self.outputs), self.weight
        stacked = weight if isinstance(weight, StackedWeight) else StackedWeight((weight,))
        first = 0
        for part, own in zip(stacked.parts, stacked.split(bias), strict=True):
            columns, given = y.part(first, part.outputs), x.at
            if isinstance(part, OrderedWeight):
                given, order, part = x.tape.new(len(part.order)), part.order, part.of
                x.tape.add(Pick(order=order.to(torch.int32), x=x.at, y=given))
            x.tape.add(Multiply(weight=part, bias=own, x=given, y=columns))
            first += part.outputs
        return Rows(x.tape, y, (self.outputs,))


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """In place of the keys or values of a layer's cache."""

    layer: int
    values: bool


@dataclass(frozen=True, slots=True)
class RecordedAttention:
    """In place of the step's attention in one layer."""

    layer: int
    of_outputs: bool = False  # nothing behind it has other rows

    def __call__(
        self, query: Any, key: Any, value: Any, keys: object, values: object, form: AttentionForm, scales: object = None
    ) -> Any:
        (heads, head_dim), (kv_heads, value_dim) = query.sizes, value.sizes
        return self.add(query.tape, query.at, (heads, kv_heads, head_dim, value_dim), form)

    def add(self, tape: Tape, query: View, sizes: tuple[int, int, int, int], form: AttentionForm) -> Rows:
        """sizes: heads, kv_heads, head_dim and value_dim."""
        tape.of_outputs = self.of_outputs
        heads, kv_heads, head_dim, value_dim = sizes
        y = tape.new(heads * value_dim)
        tape.add(
            Attend(
                layer=self.layer, heads=heads, kv_heads=kv_heads, head_dim=head_dim, value_dim=value_dim,
                form=form, x=query, y=y,
            )
        )  # fmt: skip
        return Rows(tape, y, (y.width,))


@dataclass(frozen=True, slots=True)
class RecordedOutputs:
    """In place of `Outputs`."""

    attend: RecordedAttention

    def take(self, x: Any) -> Rows:
        y = View.whole(Buffer(x.at.width, x.dtype, of_outputs=True))
        x.tape.add_early(TakeOutputs(x=x.at, y=y))
        return Rows(x.tape, y, x.sizes)


def affine_of(spec: NormSpec, weight: Tensor | None, bias: Tensor | None) -> Affine:
    """A norm as it is computed, with the numbers that it has."""
    return Affine(
        NormSpec(eps=spec.eps, kind=spec.kind, affine=weight is not None, bias=bias is not None), weight, bias
    )


class RecordedOps:
    """In place of `Ops`: what the layers call."""

    def rms_norm(self, x: Any, weight: Tensor | None, eps: float) -> Any:
        return self._norm(x, affine_of(NormSpec(eps=eps), weight, None))

    def add_rms_norm(self, x: Any, residual: Any, weight: Tensor | None, eps: float) -> Any:
        return self.rms_norm(residual.add_(x), weight, eps)

    def layer_norm(self, x: Any, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
        return self._norm(x, affine_of(NormSpec(eps=eps, kind="layer"), weight, bias))

    def _norm(self, x: Any, affine: Affine) -> Any:
        y = x._like()
        x.tape.add(Normalize(affine=affine, size=x.sizes[-1], x=x.at, y=y.at))
        return y

    def rotary_table(self, positions: Any, inverse: Tensor, factor: float, like: Any) -> tuple[Any, Any]:
        y = like.tape.new(2 * len(inverse), like.dtype)
        like.tape.add(RotaryTable(inverse=inverse, factor=factor, y=y))
        return y, y

    def rotate(self, x: Any, cos: Any, sin: Any) -> Any:
        y = x._like()
        x.tape.add(Rotate(size=x.sizes[-1], x=x.at, table=cos, y=y.at))
        return y

    def activate(self, x: Any, kind: Activation) -> Any:
        y = x._like()
        x.tape.add(Activate(kind=kind, x=x.at, y=y.at))
        return y

    def activate_gated(self, gate_up: Any, kind: GatedActivation) -> Any:
        y = gate_up.tape.new(gate_up.at.width // 2)
        gate_up.tape.add(ActivateGated(kind=kind, x=gate_up.at, y=y))
        return Rows(gate_up.tape, y, (y.width,))

    def write_kv(self, cache: Any, rows: object, new: Any, scales: object = None) -> None:
        new.tape.add(WriteCache(layer=cache.layer, values=cache.values, x=new.at))

    def rotate_and_write(
        self, turned: Any, value: Any, tables: Any, keys: Any, values: Any, rows: object, scales: object = None
    ) -> Any:
        if tables is not None:
            turned = self.rotate(turned, *tables)
        self.write_kv(keys, rows, turned[:, turned.sizes[0] - value.sizes[0] :])
        self.write_kv(values, rows, value)
        return turned

    def __getattr__(self, name: str) -> Any:
        raise NotRecorded(f"the operation {name}")
