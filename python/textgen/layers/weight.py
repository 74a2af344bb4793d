"""The seam that weight formats enter by: a weight knows how to load itself and how to multiply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from textgen.ops.pages import empty
from textgen.parallel import Parallel

Product: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""x @ weight.T + bias, as `Ops.linear`."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stored tensor and the slice of it that this rank keeps.

    `shape`, `rows` and `columns` are as the tensor is used; `transposed` says that it is stored the other way round.
    With `index`, it is one of `stacked` tensors that are stored in one.
    """

    name: str
    shape: tuple[int, ...]
    rows: slice = field(default_factory=lambda: slice(None))
    columns: slice = field(default_factory=lambda: slice(None))  # second dimension, where there is one
    transposed: bool = False
    index: int = 0
    stacked: int | None = None

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape that the file has."""
        shape = self.shape[::-1] if self.transposed else self.shape
        return shape if self.stacked is None else (self.stacked, *shape)

    @property
    def cut(self) -> tuple[int | slice, ...]:
        """What to read of it."""
        slices = (self.rows, self.columns)[: len(self.shape)]
        slices = slices[::-1] if self.transposed else slices
        return slices if self.stacked is None else (self.index, *slices)

    @property
    def kept(self) -> tuple[int, ...]:
        """The shape of the slice."""
        slices = (self.rows, self.columns)[: len(self.shape)]
        return tuple(len(range(*cut.indices(size))) for cut, size in zip(slices, self.shape, strict=True))


class WeightSource(Protocol):
    """Stored tensors by name."""

    def read(self, part: Part, into: Tensor) -> None:
        """Copy the part into a tensor of its kept shape, converting the dtype. Raises `ModelError`."""
        ...

    def has(self, name: str) -> bool: ...

    def skip(self, part: Part) -> None:
        """The part is not read: it is there in another form."""
        ...

    def read_bytes(self, name: str, shape: tuple[int, ...], index: int) -> Tensor:
        """One of the uint8 tensors that are stored stacked in one of that shape. Raises `ModelError`."""
        ...


@dataclass(frozen=True, slots=True)
class LoadContext:
    """Where weights come from and where they go."""

    source: WeightSource
    dtype: torch.dtype
    device: torch.device
    parallel: Parallel
    format: WeightFormat = field(default_factory=lambda: DenseFormat())

    @property
    def float32(self) -> LoadContext:
        """The same for the few weights that are kept in float32."""
        return replace(self, dtype=torch.float32)

    def tensor(self, *parts: Part) -> Tensor:
        """The parts stacked along the first dimension, read straight into place."""
        kept = [part.kept for part in parts]
        rows = [shape[0] for shape in kept]
        whole = empty((sum(rows), *kept[0][1:]), self.dtype, self.device)
        for part, target in zip(parts, torch.split(whole, rows), strict=True):
            self.source.read(part, target)
        return whole

    def weight(self, *parts: Part) -> Weight:
        """Several stored matrices become one, output after output, in the format of linear layers."""
        return self.format.load(self, parts)


@runtime_checkable
class Weight(Protocol):
    """The matrix of a linear layer in some storage format."""

    @property
    def outputs(self) -> int: ...

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x @ weight.T + bias. x [..., in], returns [..., out]."""
        ...

    def reordered(self, order: Tensor) -> Weight:
        """The same weight with its outputs in another order."""
        ...


class Numbered(Weight, Protocol):
    """A weight that stands for numbers."""

    def numbers(self) -> Tensor:
        """[out, in] float32."""
        ...


@runtime_checkable
class Looked(Protocol):
    """A weight of which single outputs can be had as numbers."""

    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """The numbers [..., in] of outputs [...]."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class HeadTable:
    """An embedding's table [vocab, width] that is looked up in the head: its numbers are in memory once."""

    head: Weight
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is not F.embedding:
            return NotImplemented
        index, table = args[:2]
        return table.rows(index, table.dtype)

    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        if not isinstance(self.head, Looked):
            raise NotImplementedError("this head is looked up by kernels alone")
        return self.head.rows(index, dtype)

    def new_empty(self, count: int) -> Tensor:
        return torch.empty(count, dtype=self.dtype)


Table: TypeAlias = Tensor | HeadTable


class Tied(NamedTuple):
    """An embedding's table [vocab, width] and the head that has the same numbers."""

    table: Table
    head: Weight


@runtime_checkable
class ExpertMatrices(Protocol):
    """The same matrix of every expert of a mixture."""

    @property
    def outputs(self) -> int: ...

    @property
    def each(self) -> Sequence[Weight]: ...

    def multiply(self, x: Tensor, ends: Tensor, bias: Tensor | None, sources: Tensor | None = None) -> Tensor:
        """Rows of each expert, which end before ends [experts], times its matrix; see `Ops.grouped_linear`."""
        ...


@dataclass(frozen=True, slots=True)
class SeparateMatrices:
    """Multiplied one by one, in the format of linear layers. It asks the host how many rows each has."""

    each: Sequence[Weight]

    @property
    def outputs(self) -> int:
        return self.each[0].outputs

    def multiply(self, x: Tensor, ends: Tensor, bias: Tensor | None, sources: Tensor | None = None) -> Tensor:
        x = x if sources is None else x.index_select(0, sources)
        y, begin = x.new_empty(len(x), self.outputs), 0
        for expert, end in enumerate(ends.tolist()):
            if end > begin:
                own = None if bias is None else bias[expert]
                y[begin:end] = self.each[expert].multiply(x[begin:end], own)
            begin = end
        return y


class WeightFormat(Protocol):
    """What the matrices of linear layers become as they are loaded."""

    def load(self, context: LoadContext, parts: Sequence[Part]) -> Weight: ...

    def of(self, values: Tensor) -> Weight:
        """Of a matrix [out, in] that is there already."""
        ...

    def tied(self, context: LoadContext, part: Part) -> Tied: ...

    def load_experts(self, context: LoadContext, experts: Sequence[Sequence[Part]]) -> ExpertMatrices | None:
        """The same matrix of every expert, all in one form. None: numbers of all in one tensor."""
        return SeparateMatrices([self.load(context, parts) for parts in experts])

    def keep_experts(
        self, context: LoadContext, experts: Mapping[str, Callable[[], Numbered]]
    ) -> ExpertMatrices | None:
        """As `load_experts`, of what the file has in few bits, by names of nothing else in the model."""
        return SeparateMatrices([self.of(read().numbers().to(context.dtype)) for read in experts.values()])

    def read_numbers(self, context: LoadContext, part: Part, into: Tensor) -> None:
        """What a matrix stands for, into a tensor of the part's kept shape."""
        context.source.read(part, into)


@runtime_checkable
class WrappingFormat(WeightFormat, Protocol):
    """What another format makes, and something more of it."""

    @property
    def inner(self) -> WeightFormat: ...

    def around(self, inner: WeightFormat) -> WrappingFormat:
        """The same of what that format makes."""
        ...


@dataclass(frozen=True, slots=True)
class DenseWeight:
    """A weight stored as it is multiplied: [out, in] in the model's dtype."""

    values: Tensor
    product: Product = F.linear

    @property
    def outputs(self) -> int:
        return self.values.shape[0]

    def numbers(self) -> Tensor:
        return self.values.float()

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return self.product(x, self.values, bias)

    def reordered(self, order: Tensor) -> DenseWeight:
        return replace(self, values=self.values.index_select(0, order))


@dataclass(frozen=True, slots=True)
class DenseFormat(WeightFormat):
    """As they are multiplied."""

    product: Product = F.linear

    def load(self, context: LoadContext, parts: Sequence[Part]) -> Weight:
        return DenseWeight(context.tensor(*parts), self.product)

    def load_experts(self, context: LoadContext, experts: Sequence[Sequence[Part]]) -> ExpertMatrices | None:
        return None

    def keep_experts(
        self, context: LoadContext, experts: Mapping[str, Callable[[], Numbered]]
    ) -> ExpertMatrices | None:
        return None

    def of(self, values: Tensor) -> Weight:
        return DenseWeight(values, self.product)

    def tied(self, context: LoadContext, part: Part) -> Tied:
        table = context.tensor(part)
        return Tied(table, self.of(table))
