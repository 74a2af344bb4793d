"""A token for each of many sequences, from what lies on the device: the step that graphs replay.

The host sends what a step does not know by itself, some bytes for each sequence: the pages of blocks that begin, and
the numbers that tokens are drawn with. Positions, tables, sampling parameters and the tokens sampled last are there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from textgen.models.decoder import Begun, Model, PackedBatch
from textgen.models.groups import LayerGroups
from textgen.ops.cuda import sampling
from textgen.ops.cuda.fixed import FixedAttention, FixedTokens
from textgen.ops.sampling import Floats, uniform
from textgen.ops.transfer import upload
from textgen.shard.accelerator import Accelerator, Event
from textgen.shard.cache import KvCache
from textgen.shard.graphs import Graphs
from textgen.shard.masks import Arrived
from textgen.shard.protocol import Ints
from textgen.shard.slots import Slots

RING = 4  # steps whose pinned memory is in use at most: two are in flight
LEAST_CONTEXT = 1024  # positions; graphs are for contexts of up to this, twice this, and so on

_FLOATS = ("exponent", "top_p", "min_p", "repetition", "frequency", "presence")


def default_sizes(most: int) -> tuple[int, ...]:
    """Batch sizes that waste little: 1, 2, 4, 8, then in steps of 8, 16 and 32 up to the first that has room."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, most + 32, 32)]
    fits = [size for size in sizes if size < most]
    return (*fits, next((size for size in sizes if size >= most), most))


@dataclass(frozen=True, slots=True)
class Results:
    """What a step has drawn; on the host once its event is over."""

    tokens: Ints
    logprobs: Floats
    normalisers: Floats


@dataclass(slots=True)
class Launched:
    """A step that is under way."""

    count: int
    place: int  # of the ring
    event: Event | None = None  # None: nothing is sampled yet


class DecodeSteps:
    """The tensors of such steps and their graphs. sizes: batches are filled up to the next one, with rows of nobody."""

    def __init__(
        self,
        model: Model,
        cache: KvCache,
        groups: LayerGroups,
        slots: Slots,
        accelerator: Accelerator,
        sizes: Sequence[int],
        graphs: Graphs,
        captured: Sequence[int] | None = None,
        chunk: int | None = None,
    ) -> None:
        """captured: the sizes that graphs are for; None: all. chunk: of `FixedTokens`."""
        assert accelerator.kernels is not None
        self.sizes, self.graphs = tuple(sizes), graphs
        self._chunk = chunk
        self._captured = set(sizes if captured is None else captured)
        self._model, self._cache, self._groups, self._slots = model, cache, groups, slots
        self._accelerator, self._kernels = accelerator, accelerator.kernels
        self._vocab, self._nobodys_page = model.spec.vocab_size, cache.num_pages
        rows, there = self.sizes[-1], accelerator.device
        width = slots.tables.shape[2]
        self._numbers = torch.zeros(4, rows, dtype=torch.int64, device=there)  # slot, position, 1 if real, prompt
        self._floats = torch.zeros(len(_FLOATS), rows, device=there)
        self._top_k = torch.zeros(rows, dtype=torch.int32, device=there)
        self._tables = torch.zeros(slots.groups, rows, width, dtype=torch.int32, device=there)
        self._work = torch.ones(rows, 4, dtype=torch.int32, device=there)
        self._work[:, :2] = torch.arange(rows, device=there)[:, None]
        self._logits = torch.zeros(rows, self._vocab, device=there)
        self._inputs = torch.zeros(12 * rows, dtype=torch.uint8, device=there)
        self._results = torch.zeros(16 * rows, dtype=torch.uint8, device=there)
        self._words = -(-self._vocab // 32)
        self._bits = torch.zeros(rows, self._words, dtype=torch.int32, device=there)
        self._masked = torch.zeros(rows, dtype=torch.int32, device=there)
        self._sent = [accelerator.pinned(12 * rows) for _ in range(RING)]
        self._got = [accelerator.pinned(16 * rows) for _ in range(RING)]
        self._sent_masks = [accelerator.pinned(4 * rows * (self._words + 1)) for _ in range(RING)]
        self._turn = 0
        self._rows = self._count = self._longest = 0
        self._penalised = self._drawn = False
        self._seeds = np.zeros(0, np.uint64)
        self._next = np.zeros(0, np.int64)  # where the next token of each will stand

    def takes(self, slot: Ints) -> bool:
        """Whether sequences of these slots can be run so."""
        slots = self._slots
        typical = (slots.typical_p[slot] < 1) & (slots.temperature[slot] > 0)
        # The kernels know neither.
        other = typical | (slots.window[slot] > 0)
        return len(slot) <= self.sizes[-1] and self._vocab <= sampling.MAX_VOCAB and not other.any()

    def load(self, slot: Ints, start: Ints) -> None:
        """Bring sequences to the device whose last tokens ran at positions `start` [n]."""
        slots, count = self._slots, len(slot)
        rows = next(size for size in self.sizes if size >= count)
        numbers = np.zeros((4, rows), np.int64)
        numbers[0] = len(slots.state)  # nobody's
        numbers[:, :count] = slot, start, np.ones_like(slot), slots.prompt_len[slot]
        floats = np.zeros((len(_FLOATS), rows), np.float32)
        floats[[1, 3]] = 1
        top_k = np.zeros(rows, np.int32)
        drawn = slots.sampling_rows(slot, start)
        columns = sampling.host_columns(drawn, self._vocab)
        floats[:, :count] = columns[0], columns[2], columns[3], drawn.repetition, drawn.frequency, drawn.presence
        top_k[:count] = columns[1]
        tables = np.full((slots.groups, rows, slots.tables.shape[2]), self._nobodys_page, np.int32)
        tables[:, :count] = slots.tables[:, slot]
        for target, values in (
            (self._numbers[:, :rows], numbers),
            (self._floats[:, :rows], floats),
            (self._top_k[:rows], top_k),
            (self._tables[:, :rows], tables),
        ):
            target.copy_(upload(values, target.device))
        self._rows, self._count = rows, count
        self._penalised, self._drawn = bool(drawn.penalised.any()), bool((drawn.temperature > 0).any())
        self._seeds, self._next = drawn.seed, start + 2
        self._longest = int(start.max()) + 1

    def forward(self, begun: Begun | None) -> Launched:
        """Queue everything up to the logits of the loaded sequences, a position further each time. begun: the sequences
        whose token is the first of a block."""
        rows, place = self._rows, self._turn
        self._turn = (place + 1) % RING
        sent: NDArray[Any] = self._sent[place].numpy()
        numbers, pages = sent[: 8 * rows].view(np.float64), sent[8 * rows : 12 * rows].view(np.int32)
        numbers[:] = 0
        if self._drawn:
            numbers[: self._count] = uniform(self._seeds, self._next)
        pages[:] = -1
        if begun is not None:
            pages[begun.sequences] = begun.pages
        self._accelerator.copy(self._inputs[: 12 * rows], self._sent[place][: 12 * rows])
        self._longest += 1
        self._next = self._next + 1
        longest = LEAST_CONTEXT
        while longest < self._longest:
            longest *= 2
        longest = min(longest, self._slots.max_context)
        self._run(("forward", rows, longest), partial(self._forward, rows, longest))
        return Launched(self._count, place)

    def sample(self, launched: Launched, masks: tuple[Ints, Arrived] | None = None) -> None:
        """Queue the draw from these logits. masks: rows of the batch, and what their grammars allow."""
        rows, place = self._rows, launched.place
        if masks is not None:
            self._send_masks(place, *masks)
        kind = ("sample", rows, self._penalised, masks is not None)
        self._run(kind, partial(self._sample, rows, self._penalised, masks is not None))
        self._accelerator.copy(self._got[place][: 16 * rows], self._results[: 16 * rows])
        launched.event = self._accelerator.record()

    def _run(self, kind: Hashable, work: Callable[[], None]) -> None:
        if self._rows in self._captured:
            self.graphs.run(kind, work)
        else:
            work()

    def results(self, launched: Launched, rows: int) -> Results:
        """Waits for a step that sampled; `rows` as `padded` told when it was launched. They are copies."""
        assert launched.event is not None
        launched.event.wait()
        got: NDArray[Any] = self._got[launched.place].numpy()
        n = launched.count
        floats = got[8 * rows : 16 * rows].view(np.float32)
        return Results(got[: 8 * rows].view(np.int64)[:n].copy(), floats[:n].copy(), floats[rows : rows + n].copy())

    @property
    def padded(self) -> int:
        """Rows of the loaded batch, those of nobody included."""
        return self._rows

    def _send_masks(self, place: int, which: Ints, arrived: Arrived) -> None:
        rows, words = self._rows, self._words
        sent: NDArray[Any] = self._sent_masks[place].numpy()
        masked = sent[: 4 * rows].view(np.int32)
        masked[:] = 0
        bits = sent[4 * rows : 4 * rows * (words + 1)].reshape(rows, 4 * words)
        bound = ~(arrived.late | arrived.free)
        masked[which[bound]] = 1
        bits[which[bound]] = arrived.bits[bound][:, : 4 * words]
        held = self._sent_masks[place].view(torch.int32)
        self._accelerator.copy(self._masked[:rows], held[:rows])
        self._accelerator.copy(self._bits[:rows].view(-1), held[rows : rows * (words + 1)])

    def _forward(self, rows: int, longest: int) -> None:
        slot, position, real, _ = self._numbers[:, :rows]
        size = self._slots.block_size
        position.add_(real)
        block = (position // size)[:, None]
        within = position % size
        tables = self._tables[:, :rows]
        if len(tables) == 1:
            began = self._inputs[8 * rows : 12 * rows].view(torch.int32)[:, None]
            tables[0].scatter_(1, block, torch.where(began >= 0, began, tables[0].gather(1, block)))
        self._work[:rows, 3] = position
        of_groups, attention = [], []
        for table, window in zip(tables, self._groups.windows, strict=True):
            of_groups.append(table.gather(1, block)[:, 0].long() * size + within)
            fixed = FixedTokens(table, self._work[:rows], longest, size, self._chunk)
            attention.append(FixedAttention(self._kernels, fixed, window, self._model.like))
        batch = PackedBatch(
            ids=self._slots.last_token.index_select(0, slot),
            positions=position,
            rows=[of_groups[group] for group in self._groups.group],
            attention=[attention[group] for group in self._groups.group],
        )
        self._logits[:rows].copy_(self._model.logits(self._model.hidden(batch, self._cache.layers)))

    def _sample(self, rows: int, penalised: bool, masked: bool) -> None:
        slot, position, _, prompt = self._numbers[:, :rows]
        exponent, top_p, min_p, repetition, frequency, presence = self._floats[:, :rows]
        logits = self._logits[:rows]
        u = self._inputs[: 8 * rows].view(torch.float64)
        columns = sampling.DrawColumns(exponent, self._top_k[:rows], top_p, min_p, u)
        following = position + 1
        penalties = masks = None
        if penalised:
            history = self._slots.history
            penalties = sampling.Penalties(history, slot, following, prompt, repetition, frequency, presence)
        if masked:
            masks = sampling.Masks(self._bits[:rows], self._masked[:rows])
        if penalties is None and masks is None:
            tokens, normaliser = sampling.draw(self._kernels, logits, columns)
        else:
            shaped = sampling.shape(self._kernels, logits, penalties, masks)
            tokens, _ = sampling.draw(self._kernels, shaped, columns)
            normaliser = logits.logsumexp(dim=-1)
        self._slots.last_token.index_copy_(0, slot, tokens)
        if penalised:
            self._slots.history.index_put_((slot, following), tokens.to(torch.int32))
        self._results[: 8 * rows].view(torch.int64).copy_(tokens)
        floats = self._results[8 * rows : 16 * rows].view(torch.float32)
        floats[:rows] = logits.gather(-1, tokens[:, None])[:, 0] - normaliser
        floats[rows:] = normaliser
