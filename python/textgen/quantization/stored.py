"""Weights that stay in the mapped file until kernels have packed them: nothing of them is in memory twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from textgen.layers.weight import (
    DenseFormat,
    DenseWeight,
    ExpertMatrices,
    HeadTable,
    LoadContext,
    Looked,
    Numbered,
    Part,
    SeparateMatrices,
    Tied,
    Weight,
    WeightFormat,
)
from textgen.quantization.integers import Int4Format, Int8Format


@runtime_checkable
class ViewSource(Protocol):
    """Stored tensors of which some lie in memory as they are."""

    def view(self, part: Part, dtype: torch.dtype) -> Tensor | None:
        """The part in the mapped file, not to be written to; None where it would have to be converted.

        Raises `ModelError`.
        """
        ...


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """[out, in], output after output in several views of files. To be packed soon: a file may change on the disk."""

    views: tuple[Tensor, ...]

    @property
    def outputs(self) -> int:
        return sum(map(len, self.views))

    @property
    def inputs(self) -> int:
        return self.views[0].shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.views[0].dtype

    def stretches(self, rows: int) -> Iterator[tuple[int, Tensor]]:
        """Parts of at most so many rows that do not cross views, each with its first output."""
        first = 0
        for view in self.views:
            for part in view.split(rows):
                yield first, part
                first += len(part)

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return self._dense().multiply(x, bias)

    def reordered(self, order: Tensor) -> Weight:
        return self._dense().reordered(order)

    def _dense(self) -> DenseWeight:
        return DenseWeight(torch.cat(self.views))


@dataclass(frozen=True, slots=True)
class StoredFormat(DenseFormat):
    """For weights that are packed as soon as they are loaded: views where the file has them as they are multiplied."""

    def load(self, context: LoadContext, parts: Sequence[Part]) -> Weight:
        return _viewed(context, parts) or DenseFormat.load(self, context, parts)

    def load_experts(self, context: LoadContext, experts: Sequence[Sequence[Part]]) -> ExpertMatrices | None:
        return WeightFormat.load_experts(self, context, experts)

    def keep_experts(
        self, context: LoadContext, experts: Mapping[str, Callable[[], Numbered]]
    ) -> ExpertMatrices | None:
        """As they are, but in float32, which is there to compare with."""
        if context.dtype == torch.float32:
            return WeightFormat.keep_experts(self, context, experts)
        weights = [read() for read in experts.values()]
        if any(isinstance(weight, DenseWeight) for weight in weights):
            return WeightFormat.keep_experts(self, context, experts)
        return SeparateMatrices(weights)

    def tied(self, context: LoadContext, part: Part) -> Tied:
        """The table stays in the file too: where the head is packed, it is looked up in there."""
        stored = _viewed(context, (part,))
        return DenseFormat.tied(self, context, part) if stored is None else Tied(stored.views[0], stored)


def _viewed(context: LoadContext, parts: Sequence[Part]) -> StoredWeight | None:
    """Where a processor is to multiply what the file has."""
    source = context.source
    if not isinstance(source, ViewSource) or context.device.type != "cpu":
        return None
    views = [source.view(part, context.dtype) for part in parts]
    found = tuple(view for view in views if view is not None)
    if len(found) < len(parts):
        return None
    for part in parts:
        source.skip(part)
    return StoredWeight(found)


ByRows: TypeAlias = Int8Format | Int4Format
"""Formats in which an output's numbers depend on no other output."""


@dataclass(frozen=True, slots=True)
class DeferredWeight:
    """What a format makes of a stored weight, made while it is packed."""

    stored: StoredWeight
    format: ByRows

    @property
    def outputs(self) -> int:
        return self.stored.outputs

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return self._made().multiply(x, bias)

    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """The numbers [..., in] of outputs [...], none of which depends on another."""
        view = torch.cat(self.stored.views) if len(self.stored.views) > 1 else self.stored.views[0]
        made = self.format.of(view[index.flatten()])
        assert isinstance(made, Looked)
        return made.rows(torch.arange(index.numel()).view(index.shape), dtype)

    def reordered(self, order: Tensor) -> Weight:
        return self._made().reordered(order)

    def _made(self) -> Weight:
        return self.format.of(torch.cat(self.stored.views))


@dataclass(frozen=True, slots=True)
class DeferredFormat(WeightFormat):
    """Another format's, of weights that are packed as soon as they are loaded."""

    inner: ByRows

    def load(self, context: LoadContext, parts: Sequence[Part]) -> Weight:
        stored = _viewed(context, parts)
        return self.inner.load(context, parts) if stored is None else DeferredWeight(stored, self.inner)

    def of(self, values: Tensor) -> Weight:
        return self.inner.of(values)

    def tied(self, context: LoadContext, part: Part) -> Tied:
        if looks_up(self):
            stored = _viewed(context, (part,))
            if stored is None:
                return self.inner.tied(context, part)
            head = DeferredWeight(stored, self.inner)
            return Tied(HeadTable(head, part.shape, context.dtype), head)
        table, stored = context.tensor(part), _viewed(context, (part,))
        return Tied(table, self.inner.of(table) if stored is None else DeferredWeight(stored, self.inner))


def looks_up(form: WeightFormat) -> bool:
    """Whether a processor looks a tied table up in the head that this format makes."""
    return isinstance(form.inner if isinstance(form, DeferredFormat) else form, Int8Format)
