"""Matrices of integers as checkpoints of GPTQ's, AWQ's and compressed-tensors' form store them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from textgen.layers.weight import LoadContext, Part
from textgen.models.errors import ModelError
from textgen.models.packed_config import Packed

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight outputs lies in each four bits, lowest first
WORD = 32  # bits of what several integers are packed in


@runtime_checkable
class IntegerSource(Protocol):
    """Stored tensors of which some are integers."""

    def read_integers(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.int32) -> Tensor:
        """A whole tensor. Raises `ModelError`."""
        ...


@dataclass(frozen=True, slots=True)
class Matrix:
    """w = scale * (value - zero), inputs in whole groups of one size.

    values [out, in] uint8, of 4 or 8 bits; scales [out, groups] float32; zeros as scales, uint8. order: where each
    input comes from, if from elsewhere.
    """

    values: Tensor
    scales: Tensor
    zeros: Tensor
    order: Tensor | None

    @property
    def group(self) -> int:
        return self.values.shape[1] // self.scales.shape[1]

    def grouped(self) -> Tensor:
        """[out, in] float32, the numbers in whose order they are stored."""
        groups = self.values.float().unflatten(1, (-1, self.group))
        groups -= self.zeros.float()[..., None]
        groups *= self.scales[..., None]
        numbers: Tensor = groups.flatten(1)
        return numbers

    def numbers(self) -> Tensor:
        """[out, in] float32, the inputs as they come."""
        return self.grouped() if self.order is None else self.grouped()[:, self.order.argsort()]

    def joined(self, others: Sequence[Matrix]) -> Matrix:
        """And the outputs of others whose inputs are in the same order."""
        each = [self, *others]
        values, scales, zeros = (
            torch.cat([getattr(one, name) for one in each]) for name in ("values", "scales", "zeros")
        )
        return Matrix(values, scales, zeros, self.order)


def read_matrix(stored: Packed, context: LoadContext, part: Part) -> Matrix | None:
    """None where the checkpoint has numbers. Raises `ModelError`."""
    source, name, (outputs, inputs) = context.source, part.name.removesuffix(".weight"), part.shape
    compressed = stored.method == "compressed-tensors"
    ends = (".weight_packed", ".weight_scale") if compressed else (".qweight",)
    if not isinstance(source, IntegerSource) or not any(source.has(name + end) for end in ends):
        return None
    if part.stacked is not None or inputs % (stored.group or 1):
        raise ModelError(f"the integers of '{name}', {outputs} x {inputs}, are not in whole groups of {stored.group}")
    read = {"gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed}[stored.method]
    whole = read(_Stored(stored, context, source, name, outputs, inputs))
    columns, group = range(inputs)[part.columns], whole.group
    apart = whole.order is not None and len(columns) < inputs
    if apart or columns.step != 1 or (whole.scales.shape[1] > 1 and (columns.start % group or columns.stop % group)):
        raise ModelError(f"the integers of '{name}' cannot be shared by so many shards; use fewer")
    values = whole.values if whole.order is None else whole.values.index_select(1, whole.order)
    within = slice(columns.start // group, -(-columns.stop // group))
    cut = (part.rows, within)
    return Matrix(values[part.rows, part.columns].contiguous(), whole.scales[cut], whole.zeros[cut], whole.order)


class _Stored(NamedTuple):
    """What is to be read."""

    form: Packed
    context: LoadContext
    source: IntegerSource
    name: str
    outputs: int
    inputs: int

    @property
    def groups(self) -> int:
        return self.inputs // (self.form.group or self.inputs)

    @property
    def in_a_word(self) -> int:
        return WORD // self.form.bits

    def has(self, end: str) -> bool:
        return self.context.source.has(self.name + end)

    def integers(self, end: str, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return self.source.read_integers(self.name + end, shape, dtype)

    def scales(self, end: str, *shape: int) -> Tensor:
        made = torch.empty(shape, dtype=torch.float32)
        self.context.source.read(Part(self.name + end, shape), made)
        return made

    def order(self, end: str) -> Tensor | None:
        if not self.has(end):
            return None
        return _order(self.name + end, self.integers(end, self.inputs), self.form.group or self.inputs)


def _gptq(stored: _Stored) -> Matrix:
    """Words hold neighbouring inputs of an output, and zero points neighbouring outputs."""
    outputs, inputs, groups, count, bits = *stored[4:], stored.groups, stored.in_a_word, stored.form.bits
    _must_divide(stored, outputs, inputs)
    values = _fields(stored.integers(".qweight", inputs // count, outputs).t(), bits)
    zeros = _fields(stored.integers(".qzeros", groups, outputs // count), bits) + stored.form.more
    return Matrix(values, stored.scales(".scales", groups, outputs).t(), zeros.t(), stored.order(".g_idx"))


def _awq(stored: _Stored) -> Matrix:
    """Words hold neighbouring outputs, in an order of their own."""
    outputs, inputs, groups, count = *stored[4:], stored.groups, stored.in_a_word
    _must_divide(stored, outputs)
    values = _fields(stored.integers(".qweight", inputs, outputs // count), stored.form.bits, AWQ_ORDER)
    zeros = _fields(stored.integers(".qzeros", groups, outputs // count), stored.form.bits, AWQ_ORDER)
    return Matrix(values.t(), stored.scales(".scales", groups, outputs).t(), zeros.t(), None)


def _compressed(stored: _Stored) -> Matrix:
    """Words hold neighbouring inputs, and zero points neighbouring outputs; or 8-bit integers are stored one by one.
    Of all that is packed the least is 0."""
    outputs, inputs, groups, count, bits = *stored[4:], stored.groups, stored.in_a_word, stored.form.bits
    if stored.has(".weight_packed"):
        values = _fields(stored.integers(".weight_packed", outputs, -(-inputs // count)), bits)[:, :inputs]
    else:
        signed = stored.integers(".weight", outputs, inputs, dtype=torch.int8)
        values = signed.view(torch.uint8) ^ (1 << (bits - 1))
    if stored.has(".weight_zero_point"):
        words = stored.integers(".weight_zero_point", -(-outputs // count), groups)
        zeros = _fields(words.t(), bits)[:, :outputs].t()
    else:
        zeros = torch.full((outputs, groups), 1 << (bits - 1), dtype=torch.uint8)
    if stored.form.whole:
        scales = stored.scales(".weight_scale", 1).expand(outputs, 1)
    else:
        scales = stored.scales(".weight_scale", outputs, groups)
    return Matrix(values, scales, zeros, stored.order(".weight_g_idx"))


def _must_divide(stored: _Stored, *sizes: int) -> None:
    if any(size % stored.in_a_word for size in sizes):
        raise ModelError(f"tensor '{stored.name}.qweight' of {stored.outputs} x {stored.inputs} is not in whole words")


def _order(name: str, index: Tensor, group: int) -> Tensor | None:
    """The inputs group by group, where a checkpoint made with desc_act has each input's group in `index`; None where
    they lie so already. Raises `ModelError`."""
    in_groups = torch.arange(len(index), dtype=index.dtype) // group
    if torch.equal(index, in_groups):
        return None
    order = index.argsort(stable=True)
    if not torch.equal(index[order], in_groups):
        raise ModelError(f"tensor '{name}' does not put {group} inputs into each group; download the model again")
    return order


def _fields(packed: Tensor, bits: int, order: Sequence[int] | None = None) -> Tensor:
    """[rows, columns * 32 / bits] uint8 from [rows, columns] int32, lowest first. order: where each of a word goes."""
    each = packed.contiguous().view(torch.uint8).view(*packed.shape, 4)
    if bits == 4:
        each = torch.stack((each & 15, each >> 4), dim=-1).flatten(-2)
    if order is not None:
        each = each[..., [order.index(place) for place in range(len(order))]]
    return each.flatten(1)
