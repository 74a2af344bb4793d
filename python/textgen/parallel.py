"""Tensor parallelism: which slice of a weight a rank keeps, and how the ranks' results meet again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, distributed


@dataclass(frozen=True, slots=True)
class Parallel:
    """This process's place among the ranks of one model. One rank: every method is the identity.

    With more, the default `torch.distributed` group must be up before a method is called.
    """

    rank: int = 0
    world_size: int = 1

    def share(self, size: int, what: str) -> slice:
        """The slice of `size` that this rank keeps. Raises `ValueError` when the ranks cannot share it evenly."""
        if size % self.world_size:
            raise ValueError(f"{size} {what} cannot be shared by {self.world_size} ranks")
        each = size // self.world_size
        return slice(self.rank * each, (self.rank + 1) * each)

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over the ranks, in place."""
        if self.world_size > 1:
            distributed.all_reduce(x)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """The ranks' tensors side by side along the last dimension."""
        if self.world_size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.world_size)]
        distributed.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=-1)
