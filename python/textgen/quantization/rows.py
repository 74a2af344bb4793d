"""Rows of numbers as 8-bit integers with a scale each: weights, activations, keys and values."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Integers from -127 to 127, int8, and the scale of each row (the last dimension), float32 [..., 1]."""
    largest = x.abs().amax(dim=-1, keepdim=True)
    inverse = torch.where(largest > 0, largest.new_tensor(LARGEST) / largest, 0.0)  # a number / x is 1 / x * number
    return (x * inverse).round_().to(torch.int8), largest / LARGEST
