"""Weights of few bits for a GPU: packed for its kernels when they are loaded.

Other than on a processor, activations are not quantized: y = x @ (scale * (value - zero)).T, summed in float32.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from textgen.layers.weight import DenseFormat, LoadContext, Part, Tied, Weight, WeightFormat
from textgen.ops.cuda.bricks import BRICK, HALF, SIGN, Bricks, Form, Plain, pack
from textgen.ops.cuda.device import Device
from textgen.ops.cuda.linear import HALVES, Linears
from textgen.quantization.blocks import StackedWeight
from textgen.quantization.fp8 import Fp8Format, Fp8Weight
from textgen.quantization.integers import Int4Weight, Int8Weight, nibbles
from textgen.quantization.ordered import OrderedWeight
from textgen.quantization.packed4 import Int4ZerosWeight

log = logging.getLogger(__name__)

FLOATS: dict[torch.dtype, Form] = {torch.float8_e4m3fn: "E4M3", torch.float8_e5m2: "E5M2"}
_INFINITE: dict[Form, int] = {"E4M3": 0x7F, "E5M2": 0x7C}  # bits that only codes of no number have all


@dataclass(frozen=True, slots=True)
class KernelWeight:
    """w = scale * (value - zero) in the kernels' layout. linears: None where torch runs every operation."""

    bricks: Bricks
    linears: Linears | None = field(repr=False)

    @property
    def outputs(self) -> int:
        return self.bricks.outputs

    @property
    def nbytes(self) -> int:
        return self.bricks.nbytes

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Activations are not quantized, and sums are float32.

        What no kernel takes (float32, inputs that are no multiple of 8) is multiplied by torch, with all numbers of the
        weight in float32 meanwhile.
        """
        if self.linears is not None and self.linears.takes(x, self.bricks):
            return self.linears.multiply(x, self.bricks, bias)
        y = x.float() @ self.bricks.plain().numbers().t()
        return (y if bias is None else y + bias.float()).to(x.dtype)

    def reordered(self, order: Tensor) -> KernelWeight:
        return KernelWeight(pack(self.bricks.plain().reordered(order)), self.linears)


@dataclass(frozen=True, slots=True)
class KernelFormat(WeightFormat):
    """What another format makes, packed for the kernels of a GPU; what is dense or has no kernel stays as it is."""

    inner: WeightFormat
    linears: Linears | None = field(repr=False)

    @property
    def by_expert(self) -> bool:
        """Not for a GPU: one grouped product multiplies all experts' numbers, and asks the host nothing."""
        return False

    def read_numbers(self, context: LoadContext, part: Part, into: Tensor) -> None:
        self.inner.read_numbers(context, part, into)

    def around(self, inner: WeightFormat) -> KernelFormat:
        return KernelFormat(inner, self.linears)

    def load(self, context: LoadContext, parts: Sequence[Part]) -> Weight:
        weight = self._packed(self.inner.load(context, parts), context.device)
        if isinstance(weight, Fp8Weight):  # nothing that kernels multiply, and torch would turn it each time
            return self.inner.of(weight.numbers().to(context.dtype))
        return weight

    def of(self, values: Tensor) -> Weight:
        return self._packed(self.inner.of(values), values.device)

    def tied(self, context: LoadContext, part: Part) -> Tied:
        table, head = self.inner.tied(context, part)
        return Tied(table, self._packed(head, context.device))

    def _packed(self, weight: Weight, device: torch.device) -> Weight:
        match weight:
            case StackedWeight(parts):
                return StackedWeight(tuple(self._packed(part, device) for part in parts))
            case OrderedWeight(of, order):
                return OrderedWeight(self._packed(of, device), order.to(device))
            case Int8Weight() | Int4Weight() | Int4ZerosWeight():
                return KernelWeight(pack(_plain(weight, device)), self.linears)
            case Fp8Weight():
                moved = Fp8Weight(weight.values.to(device), weight.scales.to(device), weight.group)
                plain = _plain_fp8(moved)
                return moved if plain is None else KernelWeight(pack(plain), self.linears)
        return weight


def kernel_format(
    inner: WeightFormat | None, kernels: Device | None, there: torch.device, dtype: torch.dtype
) -> WeightFormat:
    """For a model of that dtype on a GPU.

    inner: None for what a checkpoint has, 8-bit numbers among it where kernels multiply them.
    """
    native = kernels is not None and dtype in HALVES
    if inner is not None and not native:
        log.warning(
            "quantized weights are multiplied by torch, which is slow: kernels take bfloat16 and float16; "
            "give --dtype bfloat16, and not --attention torch"
        )
    linears = None if kernels is None else Linears.on(kernels, there)
    return KernelFormat(inner or (Fp8Format() if native else DenseFormat()), linears)


def _plain(weight: Int8Weight | Int4Weight | Int4ZerosWeight, device: torch.device) -> Plain:
    scales = weight.scales.to(device)
    if isinstance(weight, Int8Weight):
        values = weight.values.to(device)
        signs = (values < 0).to(torch.uint8) * SIGN
        return Plain("INT8", values.abs().view(torch.uint8) | signs, scales[:, None], None, 0)
    zeros = weight.zeros.to(device) if isinstance(weight, Int4ZerosWeight) else None
    return Plain("INT4", nibbles(weight.pairs.to(device)).view(torch.uint8), scales, zeros, weight.group)


def _plain_fp8(weight: Fp8Weight) -> Plain | None:
    """None where a group is none of the kernels', or a code is no number."""
    form, codes = FLOATS[weight.values.dtype], weight.values.view(torch.uint8)
    unknown = codes & _INFINITE[form] == _INFINITE[form]
    if (weight.group != HALF and weight.group % BRICK) or bool(unknown.any()):
        return None
    return Plain(form, codes, weight.scales, None, weight.group)
