"""Weights of 4 and 8 bits in the layout of `csrc/cuda/linear.cuh`, and back: bricks of 64 outputs by 64 inputs, in
which each lane of a warp has its own numbers together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from textgen.quantization.rows import E2M1

Form: TypeAlias = Literal["INT4", "E2M1", "INT8", "E4M3", "E5M2"]
FOUR_BITS: tuple[Form, ...] = ("INT4", "E2M1")

BRICK, HALF = 64, 32
STRETCH = 1 << 24  # numbers packed at a time: what is between stays small beside the weights
SIGN = 0x80
_FLOATS: dict[Form, torch.dtype] = {"E4M3": torch.float8_e4m3fn, "E5M2": torch.float8_e5m2}
# A number's place: brick of outputs, 16 of those, 8 of those, output; brick of inputs, half, lane, step, half of it,
# neighbour.
_OF_OUTPUTS, _OF_INPUTS = (4, 2, 8), (2, 4, 2, 2, 2)
_TO_LANES4 = (0, 4, 1, 3, 6, 5, 7, 9, 8, 2)
_TO_LANES8 = (0, 4, 5, 1, 3, 6, 7, 8, 9, 2)


class Kind(NamedTuple):
    """What a kernel is compiled for, but for the dtype of x. See `Plain`."""

    form: Form
    group: int
    scales: torch.dtype
    zeros: torch.dtype | None


@dataclass(frozen=True, slots=True)
class Plain:
    """w = scale * (value - zero), row by row; with minima scale * value - minimum.

    codes [out, in] uint8: of INT4 8 more than the value where there are no zeros, else the value; of INT8 a sign and a
    magnitude; of E2M1, E4M3 and E5M2 the number's bits, none of which is NaN or infinite. scales [out, groups] float16,
    bfloat16 or float32; zeros of INT4 [out, groups]: points in uint8, minima in the scales' dtype, or None. group:
    inputs that share a scale, a multiple of 32 that divides the inputs or, if larger than 32, their next multiple; 0:
    all of them, with scales [out, 1] float32.
    """

    form: Form
    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    group: int

    def numbers(self) -> Tensor:
        """[out, in] float32."""
        outputs, inputs = self.codes.shape
        if self.form == "INT4":
            values = self.codes.float()
            if self.zeros is None:
                values -= 8.0
            elif self.zeros.dtype == torch.uint8:
                values -= self._spread(self.zeros.float(), inputs)
        elif self.form == "INT8":
            values = (self.codes & 127).float()
            values = torch.where(self.codes < SIGN, values, -values)
        elif self.form == "E2M1":
            values = torch.tensor(E2M1, device=self.codes.device)[self.codes.int()]
        else:
            values = self.codes.view(_FLOATS[self.form]).float()
        values.mul_(self._spread(self.scales.float(), inputs))
        if self.zeros is not None and self.zeros.dtype == self.scales.dtype:
            values -= self._spread(self.zeros.float(), inputs)
        return values

    def reordered(self, order: Tensor) -> Plain:
        codes, scales = self.codes.index_select(0, order), self.scales.index_select(0, order)
        zeros = None if self.zeros is None else self.zeros.index_select(0, order)
        return Plain(self.form, codes, scales, zeros, self.group)

    def _spread(self, of_groups: Tensor, inputs: int) -> Tensor:
        if self.group == 0:
            return of_groups
        return of_groups.repeat_interleave(self.group, dim=1)[:, :inputs]


@dataclass(frozen=True, slots=True)
class Bricks:
    """A `Plain` as the kernels read it, filled up to whole bricks.

    packed [outputs / 64, inputs / 64, 1 or 2, 4, 32, 16] uint8; scales and zeros [outputs / 64, groups, 8, 4, 2], but
    scales of a group of all inputs [outputs]. Of several matrices of one size, which lie one behind the other, outputs
    are those of each.
    """

    form: Form
    packed: Tensor
    scales: Tensor
    zeros: Tensor | None
    group: int
    outputs: int
    inputs: int

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.scales.nbytes + (0 if self.zeros is None else self.zeros.nbytes)

    @property
    def kind(self) -> Kind:
        return Kind(self.form, self.group, self.scales.dtype, None if self.zeros is None else self.zeros.dtype)

    def split(self) -> list[Bricks]:
        """The matrices, one by one: the same memory."""
        bricks = -(-self.outputs // BRICK)
        scales = self.scales.split(bricks * BRICK if self.group == 0 else bricks)
        zeros = [None] * len(scales) if self.zeros is None else self.zeros.split(bricks)
        parts = zip(self.packed.split(bricks), scales, zeros, strict=True)
        return [Bricks(self.form, *part, self.group, self.outputs, self.inputs) for part in parts]

    def plain(self) -> Plain:
        """Of one matrix."""
        codes = (_unpack4 if self.form in FOUR_BITS else _unpack8)(self.packed)
        groups = 1 if self.group == 0 else -(-self.inputs // self.group)
        scales = self.scales[:, None] if self.group == 0 else _rows_of(self.scales)
        zeros = None if self.zeros is None else _rows_of(self.zeros)[: self.outputs, :groups]
        codes = codes[: self.outputs, : self.inputs]
        return Plain(self.form, codes, scales[: self.outputs, :groups], zeros, self.group)


def pack(plain: Plain) -> Bricks:
    """On the same device. What is filled up has scales of 0."""
    outputs, inputs = plain.codes.shape
    padded = -(-inputs // BRICK) * BRICK
    units, lanes = (1, _pack4) if plain.form in FOUR_BITS else (2, _pack8)
    size = (-(-outputs // BRICK), padded // BRICK, units, 4, 32, 16)
    packed = torch.empty(size, dtype=torch.uint8, device=plain.codes.device)
    some = max(STRETCH // (padded * BRICK), 1)  # bricks of outputs
    for first in range(0, len(packed), some):
        codes = plain.codes[first * BRICK : (first + some) * BRICK]
        packed[first : first + some] = lanes(F.pad(codes, (0, padded - inputs, 0, -len(codes) % BRICK)))
    if plain.group == 0:
        scales, zeros = F.pad(plain.scales[:, 0], (0, -outputs % BRICK)), None
    else:
        groups = -(-padded // plain.group)
        scales = _lanes_of(plain.scales, groups)
        zeros = None if plain.zeros is None else _lanes_of(plain.zeros, groups)
    return Bricks(plain.form, packed, scales, zeros, plain.group, outputs, inputs)


def stack(matrices: Iterable[Bricks | None], count: int) -> Bricks | None:
    """So many of one size and kind, one behind the other. None where one is of another, or is None."""
    whole: Bricks | None = None

    def place(into: Tensor, one: Tensor, at: int) -> None:
        into[at * len(one) : (at + 1) * len(one)] = one

    for at, one in enumerate(matrices):
        if one is None:
            return None
        if whole is None:
            packed, scales = _room(one.packed, count), _room(one.scales, count)
            zeros = None if one.zeros is None else _room(one.zeros, count)
            whole = replace(one, packed=packed, scales=scales, zeros=zeros)
        if (one.kind, one.outputs, one.inputs) != (whole.kind, whole.outputs, whole.inputs):
            return None
        place(whole.packed, one.packed, at)
        place(whole.scales, one.scales, at)
        if whole.zeros is not None and one.zeros is not None:
            place(whole.zeros, one.zeros, at)
    return whole


def _room(tensor: Tensor, count: int) -> Tensor:
    """For so many of a tensor."""
    return tensor.new_empty(count * len(tensor), *tensor.shape[1:])


def _pack4(codes: Tensor) -> Tensor:
    lanes = _places(codes).permute(_TO_LANES4)
    return (lanes[..., 0] | lanes[..., 1] << 4).reshape(-1, codes.shape[1] // BRICK, 1, 4, 32, 16)


def _unpack4(packed: Tensor) -> Tensor:
    both = torch.stack((packed & 15, packed >> 4), dim=-1)
    return _rows(both, packed.shape[1], (4, 8, 4, 2, 2, 2, 2, 2), _TO_LANES4)


def _pack8(codes: Tensor) -> Tensor:
    """The sign of each number goes to the byte of the one 8 outputs further, where the kernel wants it."""
    lanes = _exchanged(_places(codes).permute(_TO_LANES8))
    return lanes.reshape(-1, codes.shape[1] // BRICK, 2, 4, 32, 16)


def _unpack8(packed: Tensor) -> Tensor:
    pairs = _exchanged(packed.unflatten(-1, (-1, 2)))
    return _rows(pairs, packed.shape[1], (2, 4, 8, 4, 2, 2, 2, 2), _TO_LANES8)


def _exchanged(pairs: Tensor) -> Tensor:
    """Of each two bytes, the signs."""
    first, second = pairs[..., 0], pairs[..., 1]
    size = SIGN - 1
    return torch.stack(((first & size) | (second & SIGN), (second & size) | (first & SIGN)), dim=-1)


def _places(codes: Tensor) -> Tensor:
    return codes.view(-1, *_OF_OUTPUTS, codes.shape[1] // BRICK, *_OF_INPUTS)


def _rows(lanes: Tensor, across: int, sizes: tuple[int, ...], order: tuple[int, ...]) -> Tensor:
    """[outputs, inputs] of what was permuted by `order`."""
    back = sorted(range(len(order)), key=lambda place: order[place])
    return lanes.reshape(-1, across, *sizes).permute(back).reshape(-1, across * BRICK)


def _lanes_of(values: Tensor, groups: int) -> Tensor:
    """[outputs / 64, groups, 8, 4, 2] of [outputs, fewer groups]."""
    outputs, given = values.shape
    filled = F.pad(values, (0, groups - given, 0, -outputs % BRICK))
    return filled.view(-1, 4, 2, 8, groups).permute(0, 4, 3, 1, 2).contiguous()


def _rows_of(lanes: Tensor) -> Tensor:
    return lanes.permute(0, 3, 4, 2, 1).reshape(-1, lanes.shape[1])
