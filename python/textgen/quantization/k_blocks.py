"""GGUF's K types in torch, on any device: blocks of 256 inputs, whose groups have scales (and minima) of few bits that
the block's own numbers in float16 are multiplied by. Layouts: ggml's `block_q4_K`, `block_q5_K` and `block_q6_K`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

K_TYPES = ("Q4_K", "Q5_K", "Q6_K")
BLOCK = 256  # inputs
CENTRE = 32  # what Q6_K stores more than the value


class Integers(NamedTuple):
    """w = scale * value - minimum."""

    values: Tensor  # [out, in] uint8, of Q6_K int8
    scales: Tensor  # [out, groups] float32, for 32 inputs, of Q6_K 16
    minima: Tensor | None  # as scales; none in Q6_K

    def numbers(self) -> Tensor:
        """[out, in] float32."""
        groups = self.values.float().unflatten(1, (self.scales.shape[1], -1))
        groups *= self.scales[..., None]
        if self.minima is not None:
            groups -= self.minima[..., None]
        numbers: Tensor = groups.flatten(1)
        return numbers


def k_integers(kind: str, blocks: Tensor) -> Integers:
    """kind: of `K_TYPES`. blocks [out, bytes of a row] uint8."""
    return _q6(_blocks_of(blocks, 210)) if kind == "Q6_K" else _q45(kind, _blocks_of(blocks, _BYTES[kind]))


_BYTES = {"Q4_K": 144, "Q5_K": 176}


def _blocks_of(rows: Tensor, size: int) -> Tensor:
    """[out, blocks, bytes]."""
    return rows.view(len(rows), -1, size)


def _q45(kind: str, blocks: Tensor) -> Integers:
    """Each 32 bytes are the low bits of 64 values; Q5_K has a fifth bit of all 32th neighbours in one byte."""
    whole = _halves(blocks[..., :4])
    first, second, higher = blocks[..., 4:16].split(4, dim=-1)  # scales, minima; four bits of the last four of each
    scales = torch.cat((first & 63, higher & 15 | first >> 6 << 4), dim=-1)
    minima = torch.cat((second & 63, higher >> 4 | second >> 6 << 4), dim=-1)
    low = blocks[..., -BLOCK // 2 :].unflatten(-1, (4, 1, 32))
    values = torch.cat((low & 15, low >> 4), dim=-2).flatten(-3, -2)  # [out, blocks, 8, 32]
    if kind == "Q5_K":
        values |= (blocks[..., None, 16:48] >> _shifts(8, 1, blocks.device) & 1) << 4
    return Integers(values.flatten(1), (scales * whole[..., :1]).flatten(1), (minima * whole[..., 1:]).flatten(1))


def _q6(blocks: Tensor) -> Integers:
    """Each 64 bytes are the low bits of 128 values, and 32 bytes two bits more of them."""
    low = blocks[..., : BLOCK // 2].unflatten(-1, (2, 1, 2, 32))
    values = torch.cat((low & 15, low >> 4), dim=-3).flatten(-3, -2)  # [out, blocks, 2, 4, 32]
    higher = blocks[..., BLOCK // 2 : 192].unflatten(-1, (2, 1, 32))
    values |= (higher >> _shifts(4, 2, blocks.device) & 3) << 4
    scales = blocks[..., 192:208].contiguous().view(torch.int8) * _halves(blocks[..., 208:])
    return Integers(values.view(torch.int8).sub_(CENTRE).flatten(1), scales.flatten(1), None)


def _halves(raw: Tensor) -> Tensor:
    return raw.contiguous().view(torch.float16).float()


def _shifts(count: int, step: int, device: torch.device) -> Tensor:
    """[count, 1]."""
    return torch.arange(0, count * step, step, dtype=torch.uint8, device=device)[:, None]
