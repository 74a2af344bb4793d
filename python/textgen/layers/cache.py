"""What a layer of a step reads and writes beside its weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotary tables of a step's tokens."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's keys and values, each [blocks, block_size, kv_heads, dim].

    With latent attention the values are the first numbers of the keys: a view, not a copy.
    """

    keys: Tensor
    values: Tensor
    values_in_keys: bool = False

    @property
    def stored(self) -> tuple[Tensor, ...]:
        """The tensors that hold memory of their own."""
        return (self.keys,) if self.values_in_keys else (self.keys, self.values)
