"""The paged KV cache of a shard."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from textgen.layers.cache import LayerCache
from textgen.models.groups import LayerGroups
from textgen.models.spec import DecoderSpec
from textgen.ops import Ops
from textgen.ops.pages import empty
from textgen.ops.transfer import upload
from textgen.parallel import Parallel
from textgen.shard.protocol import Ints


@dataclass(frozen=True, slots=True)
class KvCache:
    """Keys and values of every layer, each [num_pages, block_size, kv_heads, head_dim].

    A page has a place for each layer of a group: layers at the same place of different groups share a tensor, and have
    different pages in it.
    """

    places: tuple[LayerCache, ...]
    layers: tuple[LayerCache, ...]  # the places of all layers
    num_pages: int  # that sequences may have

    @property
    def bytes_per_page(self) -> int:
        """Of all places together, on this rank."""
        return sum(stored[0].nbytes for place in self.places for stored in place.stored)

    def copy_pages(self, pairs: Ints, ops: Ops) -> None:
        """Copy the first page of each pair onto the second; all are read before any is written."""
        device = self.places[0].keys.device
        sources, targets = (upload(np.ascontiguousarray(column), device) for column in pairs.T)
        for place in self.places:
            for stored in place.stored:
                ops.copy_blocks(stored, sources, targets)


def allocate_cache(
    spec: DecoderSpec,
    num_pages: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    parallel: Parallel,
    groups: LayerGroups | None = None,
    spare: int = 0,
) -> KvCache:
    """An empty cache. Its memory is not touched: rows are read only after they were written.

    dtype: of the numbers; int8 comes with a scale for each token and head.
    groups: how layers share out pages (None: all are one group, and a page is a block).
    spare: pages behind those, for rows that fill up a batch; they are zeros.
    """
    latent = spec.attention.latent
    heads = spec.num_kv_heads if latent is not None else spec.num_kv_heads // parallel.world_size

    def place() -> LayerCache:
        rows = (num_pages + spare, block_size, heads)
        keys, scales = empty((*rows, spec.head_dim), dtype, device), None
        if dtype == torch.int8:
            scales = torch.empty(rows, dtype=torch.float32, device=device)
        if latent is not None:
            return LayerCache(keys, keys[..., : latent.kv_rank], True, scales, scales)
        return LayerCache(
            keys, empty(keys.shape, dtype, device), False, scales, None if scales is None else torch.empty_like(scales)
        )

    of_layers = tuple(range(spec.num_layers)) if groups is None else groups.place
    places = tuple(place() for _ in range(max(of_layers) + 1))
    for stored in (stored for made in places for stored in made.stored):
        stored[num_pages:].zero_()
    return KvCache(places, tuple(places[at] for at in of_layers), num_pages)
