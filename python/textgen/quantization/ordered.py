"""A weight whose inputs are stored in another order than they come in."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from textgen.layers.weight import Weight


@dataclass(frozen=True, slots=True)
class OrderedWeight:
    """Input i of `of` is number order[i] of what comes. order [in] int64."""

    of: Weight
    order: Tensor

    @property
    def outputs(self) -> int:
        return self.of.outputs

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return self.of.multiply(x.index_select(-1, self.order), bias)

    def reordered(self, order: Tensor) -> OrderedWeight:
        return OrderedWeight(self.of.reordered(order), self.order)
