"""Attention alone, over the cache of one layer: single tokens against the memory's bandwidth, prompt chunks against the
matrix rate; beside torch's own attention over the same numbers in one piece, and flash-attn where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from benchmark.gpu.ceilings import Ceilings
from benchmark.gpu.numbers import pairs
from benchmark.gpu.places import Place
from benchmark.gpu.shapes import SHAPES
from benchmark.gpu.tasks import Collected, Found, Task
from benchmark.gpu.turns import Turns, beside
from benchmark.report import Row
from textgen.ops import AttentionForm, Ops, SegmentLayout
from textgen.ops.cuda.flash import FA2_PAGE, FlashMissing, FlashOps, find_flash

BLOCK = 16
RUN = FA2_PAGE // BLOCK  # blocks that lie together, so that flash-attn takes the same memory as pages of its own
OF_SHEET = {"llama-8b": 0.8}  # of the data sheet's bandwidth
CHUNK = 2048  # tokens of a prompt's later chunk


@dataclass(frozen=True)
class Sizes:
    """Of one layer."""

    heads: int
    kv_heads: int
    dim: int

    @staticmethod
    def of(shape: str) -> Sizes:
        config: dict[str, Any] = SHAPES[shape]
        heads = config["num_attention_heads"]
        return Sizes(heads, config["num_key_value_heads"], config["hidden_size"] // heads)


@dataclass(frozen=True)
class Cache:
    """Keys and values [pages, BLOCK, kv_heads, dim], a table for each sequence, and both in one piece for each of them,
    [sequences, kv_heads, length, dim]."""

    keys: Tensor
    values: Tensor
    tables: NDArray[np.int32]
    gathered: tuple[Tensor, Tensor]

    def in_pages_of(self, positions: int) -> Cache:
        """The same memory."""
        run = positions // BLOCK
        keys, values = (x.view(-1, positions, *x.shape[2:]) for x in (self.keys, self.values))
        return Cache(keys, values, self.tables[:, ::run] // run, self.gathered)


def make_cache(sequences: int, length: int, sizes: Sizes, place: Place) -> Cache:
    """Random numbers in runs of blocks that lie anywhere."""
    runs = -(-length // FA2_PAGE)
    order = np.random.default_rng(0).permutation(sequences * runs).reshape(sequences, runs)
    tables: NDArray[np.int32] = (order[:, :, None] * RUN + np.arange(RUN)).reshape(sequences, -1).astype(np.int32)
    shape = (sequences * runs * RUN, BLOCK, sizes.kv_heads, sizes.dim)
    keys, values = (torch.randn(shape, dtype=torch.bfloat16, device=place.device) for _ in range(2))
    there = torch.from_numpy(tables).to(place.device).long()

    def gathered(stored: Tensor) -> Tensor:
        whole = torch.stack([stored[row].flatten(0, 1)[:length] for row in there])
        return whole.transpose(1, 2).contiguous()

    return Cache(keys, values, tables, (gathered(keys), gathered(values)))


class Programs:
    """Who attends, over the same query [sequences * length, heads, dim] and cache: by name."""

    def __init__(self, sizes: Sizes, turns: Turns) -> None:
        self._sizes, self._form = sizes, AttentionForm(sizes.dim**-0.5)
        self._ops, self._flash = turns.ops, None
        kernels = None if turns.accelerator is None else turns.accelerator.kernels
        try:
            if kernels is None:
                raise FlashMissing("no kernels run here")
            self._flash = FlashOps(kernels, find_flash(FA2_PAGE, torch.bfloat16))
        except FlashMissing as error:
            turns.missing.append(f"flash-attn beside us: {error}.")

    def over(self, query: Tensor, cache: Cache, start: int, length: int) -> dict[str, Callable[[], Tensor]]:
        """Each gives [sequences * length, heads * dim]."""
        programs: dict[str, Callable[[], Tensor]] = {
            "textgen": self._paged(self._ops, query, cache, BLOCK, start, length),
            "torch": self._plain(query, cache, start, length),
        }
        if self._flash is not None:
            pages = cache.in_pages_of(FA2_PAGE)
            programs["flash-attn"] = self._paged(self._flash, query, pages, FA2_PAGE, start, length)
        return programs

    def _paged(
        self, ops: Ops, query: Tensor, cache: Cache, block: int, start: int, length: int
    ) -> Callable[[], Tensor]:
        count = len(cache.tables)
        lengths, starts = np.full(count, length), np.full(count, start)
        layout = SegmentLayout(np.arange(count) * length, starts, lengths, cache.tables, block)
        attention = ops.attention(layout, None, cache.keys)
        new_keys, new_values = (x[:, :, start:].transpose(1, 2).flatten(0, 1).contiguous() for x in cache.gathered)
        return lambda: attention(query, new_keys, new_values, cache.keys, cache.values, self._form)

    def _plain(self, query: Tensor, cache: Cache, start: int, length: int) -> Callable[[], Tensor]:
        by_head = query.view(len(cache.tables), length, self._sizes.heads, self._sizes.dim).transpose(1, 2)
        grouped = self._sizes.heads != self._sizes.kv_heads
        masks: dict[str, Any] = {}
        if length > 1:
            masks = {"attn_mask": causal_lower_right(length, start + length)} if start else {"is_causal": True}

        def attend() -> Tensor:
            out = scaled_dot_product_attention(by_head, *cache.gathered, enable_gqa=grouped, **masks)
            return out.transpose(1, 2).reshape(len(query), -1)

        return attend


@torch.inference_mode()
def measure(task: Task, place: Place, ceilings: Ceilings) -> Found:
    sizes, found, turns = Sizes.of(task.shape), Collected(), Turns(place, task.rounds, BLOCK)
    programs = Programs(sizes, turns)
    for batch in task.batches:
        found.rows += _single(task, turns, ceilings, programs, sizes, batch)
    for tokens in task.prompts:
        found.rows += _chunk(task, turns, ceilings, programs, sizes, 0, tokens)
    longest = max(task.prompts)
    if longest > CHUNK:
        found.rows += _chunk(task, turns, ceilings, programs, sizes, longest - CHUNK, CHUNK)
    found.notes += sorted(set(turns.missing))
    return found.found()


def _single(task: Task, turns: Turns, ceilings: Ceilings, programs: Programs, sizes: Sizes, batch: int) -> list[Row]:
    """A token of each sequence."""
    read, place = 2 * batch * task.context * sizes.kv_heads * sizes.dim * 2, turns.place  # bytes
    caches = [make_cache(batch, task.context, sizes, place) for _ in range(turns.copies(read))]
    query = torch.randn(batch, sizes.heads, sizes.dim, device=place.device).to(torch.bfloat16)
    took = turns.seconds("attention", [programs.over(query, cache, task.context - 1, 1) for cache in caches])
    case = f"{task.shape}, attention of {batch} tokens over {task.context}"
    rows = ceilings.bandwidth_rows(case, "cache read", read / took["textgen"], OF_SHEET.get(task.shape))
    return rows + beside(case, took)


def _chunk(
    task: Task, turns: Turns, ceilings: Ceilings, programs: Programs, sizes: Sizes, start: int, length: int
) -> list[Row]:
    cache = make_cache(1, start + length, sizes, turns.place)
    query = torch.randn(length, sizes.heads, sizes.dim, device=turns.place.device).to(torch.bfloat16)
    took = turns.seconds("attention", [programs.over(query, cache, start, length)])
    done = 4.0 * sizes.heads * sizes.dim * pairs(start, length) / took["textgen"] / 1e12
    behind = f" behind {start}" if start else ""
    case = f"{task.shape}, attention of a chunk of {length}{behind}"
    row = Row(case, "products", "TFLOP/s", done, "matrices", None, ceilings.rate / 1e12)
    return [row, *beside(case, took)]
