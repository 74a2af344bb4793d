"""What a layer of a step reads and writes beside its weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from textgen.ops import KvScales


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotary tables of a step's tokens."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's keys and values, each [blocks, block_size, kv_heads, dim].

    With latent attention the values are the first numbers of the keys: a view, not a copy. Keys and values in int8 have
    a scale for each token and head, [blocks, block_size, kv_heads] float32.
    """

    keys: Tensor
    values: Tensor
    values_in_keys: bool = False
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None  # those of the keys where the values are in them

    @property
    def scales(self) -> KvScales | None:
        """Of a cache of integers."""
        if self.key_scales is None or self.value_scales is None:
            return None
        return KvScales(self.key_scales, self.value_scales)

    @property
    def stored(self) -> tuple[Tensor, ...]:
        """The tensors that hold memory of their own; the first dimension of each is that of the blocks."""
        numbers = (self.keys,) if self.values_in_keys else (self.keys, self.values)
        return numbers if self.scales is None else (*numbers, *self.scales[: len(numbers)])
