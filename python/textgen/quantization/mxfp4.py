"""Checkpoints' tensors in MXFP4, the 4-bit floating point of the Open Compute Project's Microscaling Formats 1.0."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from textgen.layers.weight import WeightSource
from textgen.quantization.blocks import KINDS, BlockWeight

GROUP = KINDS["MXFP4"]


@dataclass(frozen=True, slots=True)
class Mxfp4Weight:
    """[out, in] as it is stored, in views of a mapped file if they are any: to be packed soon.

    pairs [stored, in / 32, 16] uint8, the first of two neighbours in the low half; scales [stored, in / 32] uint8;
    order [out] int64: which row each output is.
    """

    pairs: Tensor
    scales: Tensor
    order: Tensor

    @property
    def outputs(self) -> int:
        return len(self.order)

    @property
    def inputs(self) -> int:
        return self.pairs.shape[1] * GROUP

    @property
    def views(self) -> tuple[Tensor, Tensor]:
        return self.pairs, self.scales

    def stretches(self, rows: int) -> Iterator[tuple[int, BlockWeight]]:
        """Parts of at most so many rows as blocks of GGUF files, each with its first output."""
        first = 0
        for order in self.order.split(rows):
            yield first, replace(self, order=order).blocks()
            first += len(order)

    def blocks(self) -> BlockWeight:
        """The same, in whose blocks a byte has a number of the first half and one of the second."""
        pairs = self.pairs[self.order]
        first, second = torch.stack((pairs & 0xF, pairs >> 4), dim=-1).flatten(2).chunk(2, dim=-1)
        whole = torch.cat((self.scales[self.order][..., None], first | second << 4), dim=-1)
        return BlockWeight("MXFP4", (whole.flatten(1),), self.inputs)

    def numbers(self) -> Tensor:
        """[out, in] float32."""
        return self.blocks().numbers()

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x is quantized group by group of each row."""
        return self.blocks().multiply(x, bias)

    def reordered(self, order: Tensor) -> Mxfp4Weight:
        return replace(self, order=self.order[order])

    def columns(self, which: slice) -> Mxfp4Weight | None:
        """The same of some inputs; None where these are not whole groups."""
        chosen = range(self.inputs)[which]
        if chosen.start % GROUP or chosen.stop % GROUP or chosen.step != 1:
            return None
        groups = slice(chosen.start // GROUP, chosen.stop // GROUP)
        return replace(self, pairs=self.pairs[:, groups], scales=self.scales[:, groups])


def read_mxfp4(source: WeightSource, name: str, shape: tuple[int, int, int], index: int) -> Mxfp4Weight:
    """[out, in]: one of the matrices of shape [count, out, in] that are stored as pairs and scales.

    Raises `ModelError` when the tensors do not fit the shape.
    """
    count, rows, columns = shape
    groups = columns // GROUP
    pairs = source.read_bytes(f"{name}_blocks", (count, rows, groups, GROUP // 2), index)
    scales = source.read_bytes(f"{name}_scales", (count, rows, groups), index)
    return Mxfp4Weight(pairs.view(rows, groups, -1), scales.view(rows, groups), torch.arange(rows))
