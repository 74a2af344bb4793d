"""Rows of numbers in 8 bits: as integers with a scale each (weights, activations, keys and values), or as FP8."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127
FP8 = torch.float8_e4m3fn
LARGEST_FP8 = 448.0
_E2M1_SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # two exponent bits, one of fraction
E2M1 = (*_E2M1_SIZES, *(-size for size in _E2M1_SIZES))  # by the four bits of a number, the sign the highest


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Integers from -127 to 127, int8, and the scale of each row (the last dimension), float32 [..., 1]."""
    largest = x.abs().amax(dim=-1, keepdim=True)
    inverse = torch.where(largest > 0, largest.new_tensor(LARGEST) / largest, 0.0)  # a number / x is 1 / x * number
    return (x * inverse).round_().to(torch.int8), largest / LARGEST


def fp8_rows(x: Tensor) -> Tensor:
    """Numbers as FP8 (E4M3, arXiv 2209.05433), to the nearest; what is larger than 448 becomes 448.

    There is no scale, as other servers have none unless a checkpoint brings it: a number keeps four significant bits
    whatever its scale, and keys and values lie well within 2^-6 and 448. Where a row would need a scale, integers are
    better, which keep more of each number in the same memory.
    """
    return x.float().clamp(-LARGEST_FP8, LARGEST_FP8).to(FP8)


def copyable(x: Tensor) -> Tensor:
    """The same memory in a dtype whose rows torch copies by their numbers, which it does not for FP8."""
    return x.view(torch.uint8) if x.dtype == FP8 else x
