"""Linear layers, whole or shared by ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from textgen.layers.weight import LoadContext, Part, Weight
from textgen.parallel import Parallel


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x @ weight.T + bias, summed over the ranks when the inputs are shared out (`reduce`)."""

    weight: Weight
    bias: Tensor | None = None
    reduce: Parallel | None = None

    def __call__(self, x: Tensor) -> Tensor:
        y = self.weight.multiply(x, self.bias)
        return y if self.reduce is None else self.reduce.all_reduce(y)

    def reordered(self, order: Tensor) -> Linear:
        """The same with its outputs in another order. order [out] int64."""
        bias = None if self.bias is None else self.bias.index_select(0, order)
        return Linear(self.weight.reordered(order), bias, self.reduce)


@dataclass(frozen=True, slots=True)
class Output:
    """One matrix of a fused layer, in units that the ranks share out (heads, neurons), and where its rows are stored.

    It may be part of a stored matrix of `total` rows: its units then begin at row `first`, `stride` rows apart.
    """

    name: str
    units: int
    unit_size: int = 1
    what: str = "outputs"
    first: int = 0
    stride: int | None = None  # None: unit after unit
    total: int | None = None  # None: the matrix is stored alone

    def rows(self, parallel: Parallel) -> list[slice]:
        """The stored rows that the rank keeps."""
        units = parallel.share(self.units, self.what)
        stride, first = self.stride or self.unit_size, self.first
        if stride == self.unit_size:
            return [slice(first + units.start * stride, first + units.stop * stride)]
        starts = (first + unit * stride for unit in range(units.start, units.stop))
        return [slice(start, start + self.unit_size) for start in starts]

    def parts(self, suffix: str, parallel: Parallel, *inner: int, transposed: bool = False) -> list[Part]:
        """Those rows of the tensor `name.suffix`, which has `inner` numbers in each."""
        size, name = self.total or self.units * self.unit_size, f"{self.name}.{suffix}"
        return [Part(name, (size, *inner), rows=rows, transposed=transposed) for rows in self.rows(parallel)]


def load_column_linear(
    context: LoadContext, outputs: Sequence[Output], inputs: int, bias: bool, transposed: bool = False
) -> Linear:
    """Outputs shared by the ranks: each keeps its units of every matrix; several matrices are fused in one."""
    parallel = context.parallel
    weights = [part for output in outputs for part in output.parts("weight", parallel, inputs, transposed=transposed)]
    biases = [part for output in outputs for part in output.parts("bias", parallel)]
    return Linear(context.weight(*weights), context.tensor(*biases) if bias else None)


def load_row_linear(
    context: LoadContext, name: str, outputs: int, inputs: Output, bias: bool, transposed: bool = False
) -> Linear:
    """Inputs shared by the ranks: each multiplies its own, and the products are summed. Rank 0 adds the bias."""
    units = context.parallel.share(inputs.units, inputs.what)
    columns = slice(units.start * inputs.unit_size, units.stop * inputs.unit_size)
    shape = (outputs, inputs.units * inputs.unit_size)
    weight = Part(f"{name}.weight", shape, columns=columns, transposed=transposed)
    added = context.tensor(Part(f"{name}.bias", (outputs,))) if bias and context.parallel.rank == 0 else None
    return Linear(context.weight(weight), added, context.parallel)
