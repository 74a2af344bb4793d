"""What a plan is made of: buffers of activations, and operations on views of them.

A buffer is [rows, width]; a view takes some of its columns. The kernels of `csrc/cpu` run these operations, and
`interpret` runs them in torch, which is what the kernels are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from textgen.layers.weight import Table, Weight
from textgen.models.spec import Activation, GatedActivation, NormSpec, RouterSpec
from textgen.ops.interface import AttentionForm

READ, WRITTEN, CHANGED = "read", "written", "changed"


@dataclass(eq=False, slots=True)
class Buffer:
    """[rows, width] of one dtype; a row for each token of the step, or for each of its outputs."""

    width: int
    dtype: torch.dtype
    of_outputs: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """Columns of a buffer."""

    buffer: Buffer
    first: int
    width: int

    @classmethod
    def whole(cls, buffer: Buffer) -> View:
        return cls(buffer, 0, buffer.width)

    @property
    def end(self) -> int:
        return self.first + self.width

    def part(self, first: int, width: int) -> View:
        return View(self.buffer, self.first + first, width)

    def overlaps(self, other: View) -> bool:
        return self.buffer is other.buffer and self.first < other.end and other.first < self.end

    def covers(self, other: View) -> bool:
        return self.buffer is other.buffer and self.first <= other.first and other.end <= self.end


def _operand(use: str) -> Any:
    return field(metadata={"use": use})


@dataclass(frozen=True, slots=True)
class Affine:
    """The numbers of a norm. weight, bias [size], or [units, size] where each unit has its own."""

    spec: NormSpec
    weight: Tensor | None
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Activated:
    """activation(x)."""

    kind: Activation


@dataclass(frozen=True, slots=True)
class Gated:
    """activation(gate) * up. The gates come first, then as many ups."""

    kind: GatedActivation


Before: TypeAlias = Affine | Activated | Gated


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One operation. Its fields that are views say whether they are read, written or changed in place."""

    def operands(self) -> Iterator[tuple[str, View]]:
        """How each view is used, and the view."""
        for each in fields(self):
            if (use := each.metadata.get("use")) is not None and (view := getattr(self, each.name)) is not None:
                yield use, view

    def moved(self: Self, place: Callable[[View], View]) -> Self:
        """The same on other views."""
        used = {each.name for each in fields(self) if "use" in each.metadata}
        views = {name: getattr(self, name) for name in used}
        return replace(self, **{name: place(view) for name, view in views.items() if view is not None})


Self = TypeVar("Self", bound=Instruction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed(Instruction):
    """y = factor * table[id], or of the position + offset; `add`: y += it."""

    table: Table  # [rows, width]
    y: View = _operand(CHANGED)
    factor: float = 1.0
    by_position: bool = False
    offset: int = 0
    add: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalize(Instruction):
    """y = norm(x), unit by unit of `size` numbers; y may be x."""

    affine: Affine
    size: int
    x: View = _operand(READ)
    y: View = _operand(WRITTEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRows(Instruction):
    """x += factor * y; with `z`, z = norm(x) behind it, and z may be x."""

    x: View = _operand(CHANGED)
    y: View = _operand(READ)
    factor: float
    affine: Affine | None = None
    z: View | None = field(default=None, metadata={"use": WRITTEN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiply(Instruction):
    """y = x W^T + bias; `add`: y += it. With `before`, x is what that gives of its rows, and y is not x."""

    weight: Weight
    bias: Tensor | None
    x: View = _operand(READ)
    y: View = _operand(CHANGED)
    add: bool = False
    before: Before | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryTable(Instruction):
    """y = half the cosines, half the sines of each token's angles, times the factor. inverse [dim / 2] float32."""

    inverse: Tensor
    factor: float
    y: View = _operand(WRITTEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotate(Instruction):
    """y = x with the first numbers of each head turned; x may be y."""

    size: int  # of a head
    x: View = _operand(READ)
    table: View = _operand(READ)
    y: View = _operand(WRITTEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCache(Instruction):
    """Keys or values of the step's tokens go to the layer's cache."""

    layer: int
    values: bool
    x: View = _operand(READ)


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateAndWrite(Instruction):
    """Turn queries and keys of x in place (with a table), then write keys and values to the layer's cache.

    What turns begins at number `first` of a head. With a value_dim of 0 the values are in the keys.
    """

    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    first: int = 0
    x: View = _operand(CHANGED)
    table: View | None = field(default=None, metadata={"use": READ})


@dataclass(frozen=True, slots=True, kw_only=True)
class Attend(Instruction):
    """y = attention of the queries x over the layer's cache; of outputs alone where y is theirs."""

    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    form: AttentionForm
    x: View = _operand(READ)
    y: View = _operand(WRITTEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOutputs(Instruction):
    """y = the rows of x that are outputs."""

    x: View = _operand(READ)
    y: View = _operand(WRITTEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activate(Instruction):
    """y = activation(x); y may be x."""

    kind: Activation
    x: View = _operand(READ)
    y: View = _operand(WRITTEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivateGated(Instruction):
    """y = activation(gate) * up. x: the gates, then as many ups."""

    kind: GatedActivation
    x: View = _operand(READ)
    y: View = _operand(WRITTEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clamp(Instruction):
    """y = x within low and high; y may be x."""

    low: float
    high: float
    x: View = _operand(READ)
    y: View = _operand(WRITTEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale(Instruction):
    """x = factor * x in place; with a cap, cap * tanh(factor * x / cap)."""

    factor: float
    soft_cap: float | None = None
    x: View = _operand(CHANGED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Instruction):
    """Columns of x go to y, in `units` runs of `width`; the next run begins a step on."""

    units: int
    width: int
    x_step: int
    y_step: int
    x: View = _operand(READ)
    y: View = _operand(CHANGED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick(Instruction):
    """Column i of y is column order[i] of x. order [width of y] int32."""

    order: Tensor
    x: View = _operand(READ)
    y: View = _operand(WRITTEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch(Instruction):
    """x = sigmoid(s) * x. s [rows, 1]."""

    s: View = _operand(READ)
    x: View = _operand(CHANGED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(Instruction):
    """The experts that each token goes to, int32, and their shares, float32, of its scores x, float32."""

    spec: RouterSpec
    correction: Tensor | None  # [experts] float32
    x: View = _operand(READ)
    chosen: View = _operand(WRITTEN)
    shares: View = _operand(WRITTEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixExperts(Instruction):
    """y = the sum over a token's experts of share * down(activation(up(x)))."""

    up: Sequence[Weight]  # of each expert [2 * neurons, hidden], gates first
    down: Sequence[Weight]  # [hidden, neurons]
    up_bias: Tensor | None
    down_bias: Tensor | None
    kind: GatedActivation
    x: View = _operand(READ)
    chosen: View = _operand(READ)
    shares: View = _operand(READ)
    y: View = _operand(WRITTEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindLikeliest(Instruction):
    """Beside the program's result: the largest of each row of logits, and the log of the sum of their exp."""

    x: View = _operand(READ)


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Instruction):
    """y = the parts side by side. Only the recorder knows it: the parts have to lie so already."""

    first: View = _operand(READ)
    second: View = _operand(READ)
    y: View = _operand(WRITTEN)


@dataclass(frozen=True, slots=True)
class Program:
    """Operations in order, from what is there at the beginning (`given`) to what is wanted in the end."""

    instructions: tuple[Instruction, ...]
    result: View
    given: View | None = None
