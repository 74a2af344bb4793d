"""Weights of few bits for a GPU: packed for its kernels when they are loaded.

Other than on a processor, activations are not quantized: y = x @ (scale * (value - zero)).T, summed in float32. GGUF's
blocks in 5 and 6 bits become 8 bits with a scale for 32 inputs, and so do 8 bits with -128 among them: a number moves
by 1/252 of its neighbours' largest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from textgen.layers.weight import (
    DenseFormat,
    DenseWeight,
    ExpertMatrices,
    LoadContext,
    Numbered,
    Part,
    SeparateMatrices,
    Tied,
    Weight,
    WeightFormat,
)
from textgen.ops.cuda.bricks import BRICK, HALF, SIGN, STRETCH, Bricks, Form, Plain, pack, stack
from textgen.ops.cuda.device import Device
from textgen.ops.cuda.linear import HALVES, Linears
from textgen.quantization.blocks import BlockFormat, BlockWeight, StackedWeight
from textgen.quantization.fp8 import Fp8Format, Fp8Weight
from textgen.quantization.integers import Int4Weight, Int8Weight, nibbles
from textgen.quantization.k_blocks import K_TYPES, k_integers
from textgen.quantization.mxfp4 import Mxfp4Weight
from textgen.quantization.ordered import OrderedWeight
from textgen.quantization.packed import Int4ZerosWeight

log = logging.getLogger(__name__)

FLOATS: dict[torch.dtype, Form] = {torch.float8_e4m3fn: "E4M3", torch.float8_e5m2: "E5M2"}
_INFINITE: dict[Form, int] = {"E4M3": 0x7F, "E5M2": 0x7C}  # bits that only codes of no number have all


@dataclass(frozen=True, slots=True)
class KernelWeight:
    """A `Plain` in the kernels' layout. linears: None where torch runs every operation."""

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
class KernelExperts:
    """Of every expert, `KernelWeight`s of one size that lie one behind the other: multiplied together, and the host is
    asked nothing."""

    bricks: Bricks
    linears: Linears = field(repr=False)

    @property
    def outputs(self) -> int:
        return self.bricks.outputs

    @property
    def each(self) -> Sequence[Weight]:
        return [KernelWeight(bricks, self.linears) for bricks in self.bricks.split()]

    def multiply(self, x: Tensor, ends: Tensor, bias: Tensor | None, sources: Tensor | None = None) -> Tensor:
        if self.linears.takes_experts(x, self.bricks, ends):
            return self.linears.multiply_experts(x, self.bricks, ends, bias, sources)
        return SeparateMatrices(self.each).multiply(x, ends, bias, sources)


@dataclass(frozen=True, slots=True)
class KernelFormat(WeightFormat):
    """What another format makes, packed for the kernels of a GPU; what is dense or has no kernel stays as it is."""

    inner: WeightFormat
    linears: Linears | None = field(repr=False)

    def load_experts(self, context: LoadContext, experts: Sequence[Sequence[Part]]) -> ExpertMatrices | None:
        return self._experts(context, lambda: self.inner.load_experts(context, experts))

    def keep_experts(
        self, context: LoadContext, experts: Mapping[str, Callable[[], Numbered]]
    ) -> ExpertMatrices | None:
        return self._experts(context, lambda: self.inner.keep_experts(context, experts))

    def _experts(self, context: LoadContext, load: Callable[[], ExpertMatrices | None]) -> ExpertMatrices | None:
        """None where numbers are to be multiplied, of all experts together."""
        if self.linears is None or context.dtype not in HALVES or (matrices := load()) is None:
            return None
        each = matrices.each
        whole = stack((_bricks(weight, context.device) for weight in each), len(each))
        if whole is None:  # perhaps some of them alone have an integer of -128
            whole = stack((_in_groups(weight, context.device) for weight in each), len(each))
        return KernelExperts(whole, self.linears) if whole is not None and whole.inputs % 8 == 0 else None

    def read_numbers(self, context: LoadContext, part: Part, into: Tensor) -> None:
        self.inner.read_numbers(context, part, into)

    def around(self, inner: WeightFormat) -> KernelFormat:
        return KernelFormat(inner, self.linears)

    def load(self, context: LoadContext, parts: Sequence[Part]) -> Weight:
        return self._packed(self.inner.load(context, parts), context.device, context.dtype)

    def of(self, values: Tensor) -> Weight:
        return self._packed(self.inner.of(values), values.device, values.dtype)

    def tied(self, context: LoadContext, part: Part) -> Tied:
        """A head that no kernel multiplies is the table itself."""
        table, head = self.inner.tied(context, part)
        if (bricks := _bricks(head, context.device)) is not None:
            return Tied(table, KernelWeight(bricks, self.linears))
        return Tied(table, self.inner.of(table) if isinstance(table, Tensor) else head)

    def _packed(self, weight: Weight, device: torch.device, dtype: torch.dtype) -> Weight:
        if (bricks := _bricks(weight, device)) is not None:
            return KernelWeight(bricks, self.linears)
        match weight:
            case StackedWeight(parts):
                return _stacked([self._packed(part, device, dtype) for part in parts])
            case OrderedWeight(of, order):
                return OrderedWeight(self._packed(of, device, dtype), order.to(device))
            case Fp8Weight() | BlockWeight() | Int8Weight():  # nothing that kernels multiply
                return self.inner.of(weight.numbers().to(device, dtype))
        return weight


def kernel_format(
    inner: WeightFormat | None, kernels: Device | None, there: torch.device, dtype: torch.dtype, blocks: bool = False
) -> WeightFormat:
    """For a model of that dtype on a GPU.

    inner: None for what a checkpoint has, numbers of few bits among it where kernels multiply them. blocks: it is a
    GGUF file.
    """
    native = kernels is not None and dtype in HALVES
    if inner is not None and not native:
        log.warning(
            "quantized weights are multiplied by torch, which is slow: kernels take bfloat16 and float16; "
            "give --dtype bfloat16, and not --attention torch"
        )
    linears = None if kernels is None else Linears.on(kernels, there)
    stored = DenseFormat() if not native else BlockFormat() if blocks else Fp8Format()
    return KernelFormat(inner or stored, linears)


def _stacked(parts: Sequence[Weight]) -> Weight:
    """Neighbours that are dense as one."""
    made = list[Weight]()
    for part in parts:
        if made and isinstance(made[-1], DenseWeight) and isinstance(part, DenseWeight):
            made[-1] = replace(part, values=torch.cat((made[-1].values, part.values)))
        else:
            made.append(part)
    return made[0] if len(made) == 1 else StackedWeight(tuple(made))


def _bricks(weight: Weight, device: torch.device) -> Bricks | None:
    """None of what no kernel multiplies."""
    plain = plain_of(weight, device)
    return None if plain is None else pack(plain)


def _in_groups(weight: Weight, device: torch.device) -> Bricks | None:
    """Of 8 bits, the form that those with an integer of -128 have."""
    match weight:
        case Int8Weight(values, scales) if values.shape[1] % HALF == 0:
            return pack(_scaled_anew(values.to(device), scales.to(device)[:, None]))
        case BlockWeight(kind="Q8_0"):
            values, scales = weight.integers()
            return pack(_scaled_anew(values.to(device), scales.to(device)))
    return None


def plain_of(weight: Weight, device: torch.device) -> Plain | None:
    match weight:
        case Int8Weight():
            return _plain_rows(weight.values.to(device), weight.scales.to(device)[:, None])
        case Int4Weight() | Int4ZerosWeight():
            zeros = weight.zeros.to(device) if isinstance(weight, Int4ZerosWeight) else None
            codes = nibbles(weight.pairs.to(device)).view(torch.uint8)
            return Plain("INT4", codes, weight.scales.to(device), zeros, weight.group)
        case Mxfp4Weight():
            order = weight.order.to(device)
            pairs, exponents = weight.pairs.to(device)[order], weight.scales.to(device)[order]
            return _plain_mxfp4(nibbles(pairs.flatten(1)).view(torch.uint8), exponents)
        case BlockWeight():
            return _plain_blocks(weight, device)
        case Fp8Weight():
            return _plain_fp8(Fp8Weight(weight.values.to(device), weight.scales.to(device), weight.group))
    return None


def _plain_rows(values: Tensor, scales: Tensor) -> Plain | None:
    """values [out, in] int8, scales [out, 1]. None where they are to be scaled anew and are not in whole groups."""
    if not bool((values == -SIGN).any()):  # which no magnitude of 7 bits is
        return _plain_int8(values, scales, 0)
    return None if values.shape[1] % HALF else _scaled_anew(values, scales)


def _plain_int8(values: Tensor, scales: Tensor, group: int) -> Plain:
    """values -127 to 127."""
    signs = (values < 0).to(torch.uint8) * SIGN
    return Plain("INT8", values.abs().view(torch.uint8) | signs, scales, None, group)


def _plain_mxfp4(codes: Tensor, exponents: Tensor) -> Plain:
    """exponents [out, in / 32] uint8 as they are stored: those of bfloat16."""
    bits = exponents.short() << 7
    scales = torch.where(exponents == 0, 1 << 6, bits)  # below the normal numbers
    return Plain("E2M1", codes, scales.view(torch.bfloat16), None, HALF)


def _plain_blocks(weight: BlockWeight, device: torch.device) -> Plain | None:
    """None where a scale is no number, or none of float16."""
    plain = _plain_of_kind(BlockWeight(weight.kind, (weight.blocks.to(device),), weight.inputs))
    finite = [bool(each.isfinite().all()) for each in (plain.scales, plain.zeros) if each is not None]
    return plain if all(finite) else None


def _plain_of_kind(weight: BlockWeight) -> Plain:
    if weight.kind in K_TYPES:
        return _plain_q4_k(weight) if weight.kind == "Q4_K" else _plain_k(weight)
    values, scales = weight.integers()
    if weight.kind == "MXFP4":
        return _plain_mxfp4(values.view(torch.uint8), scales.to(torch.uint8))
    if weight.kind == "Q4_0":
        return Plain("INT4", values.add_(8).view(torch.uint8), scales.half(), None, HALF)
    if bool((values == -SIGN).any()):
        return _scaled_anew(values, scales)
    return _plain_int8(values, scales.half(), HALF)


def _plain_q4_k(weight: BlockWeight) -> Plain:
    blocks = weight.blocks
    codes = torch.empty((weight.outputs, weight.inputs), dtype=torch.uint8, device=blocks.device)
    scales = torch.empty((weight.outputs, weight.inputs // HALF), dtype=torch.float16, device=blocks.device)
    minima = torch.empty_like(scales)
    for rows in _stretches(weight.outputs, weight.inputs):
        made = k_integers(weight.kind, blocks[rows])
        assert made.minima is not None
        codes[rows], scales[rows], minima[rows] = made.values, made.scales, made.minima
    return Plain("INT4", codes, scales, minima, HALF)


def _plain_k(weight: BlockWeight) -> Plain:
    blocks = weight.blocks
    return _in_8_bits(weight.outputs, weight.inputs, lambda rows: k_integers(weight.kind, blocks[rows]).numbers())


def _scaled_anew(values: Tensor, scales: Tensor) -> Plain:
    """values [out, in] int8, scales [out, groups] float32."""
    groups, (outputs, inputs) = values.unflatten(1, (scales.shape[1], -1)), values.shape
    return _in_8_bits(outputs, inputs, lambda rows: (groups[rows] * scales[rows][..., None]).flatten(1))


def _in_8_bits(outputs: int, inputs: int, numbers: Callable[[slice], Tensor]) -> Plain:
    """numbers: some rows, [rows, in] float32. Scales are rounded up, or the largest numbers would have no step."""
    made = list[Plain]()
    for rows in _stretches(outputs, inputs):
        parts = numbers(rows).unflatten(1, (-1, HALF))
        scales = (parts.abs().amax(dim=-1) * ((1 + 2**-8) / (SIGN - 1))).bfloat16()
        steps = torch.where(scales == 0, torch.inf, scales.float())
        values = (parts / steps[..., None]).round_()
        made.append(_plain_int8(values.to(torch.int8).flatten(1), scales, HALF))
    codes, scales = torch.cat([each.codes for each in made]), torch.cat([each.scales for each in made])
    return Plain("INT8", codes, scales, None, HALF)


def _stretches(outputs: int, inputs: int) -> Iterator[slice]:
    """Rows at a time: what they stand for is far larger than what is kept."""
    step = max(STRETCH // inputs, 1)
    return (slice(first, min(first + step, outputs)) for first in range(0, outputs, step))


def _plain_fp8(weight: Fp8Weight) -> Plain | None:
    """None where a group is none of the kernels', or a code is no number."""
    form, codes = FLOATS[weight.values.dtype], weight.values.view(torch.uint8)
    unknown = codes & _INFINITE[form] == _INFINITE[form]
    if (weight.group != HALF and weight.group % BRICK) or bool(unknown.any()):
        return None
    return Plain(form, codes, weight.scales, None, weight.group)
