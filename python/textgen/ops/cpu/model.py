"""A decoder that the kernels run: one call for the layers of a step, one for its logits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import addressof, c_void_p, pointer
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from textgen.layers.cache import LayerCache
from textgen.models.decoder import Begun, Decoder, Found, Likeliest, Model, PackedBatch
from textgen.models.spec import DecoderSpec
from textgen.ops.cpu.draw import draws, fill
from textgen.ops.cpu.instructions import Embed
from textgen.ops.cpu.library import Following, Group, Handle, Kernels, KernelsMissing, Step
from textgen.ops.cpu.lower import LayerPlace, Lowered, check_lowerable
from textgen.ops.cpu.record import Recording, record
from textgen.ops.cpu.values import NotRecorded
from textgen.ops.reference_attention import PagedAttention
from textgen.ops.sampling import Allowed, Histories, SamplingRows

log = logging.getLogger(__name__)

SPIN_US = 200  # that a worker waits for the next step before it sleeps
WIDER = 8  # blocks that a table has more when it is full
PROMPT_ROWS = 64  # logits of a prompt are asked for in so many rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSizes:
    """The largest step: tokens, sequences, and tokens of a sequence; the threads that run it, and their processors."""

    max_tokens: int
    max_slots: int
    max_context: int
    threads: int
    cpus: Sequence[int] = ()  # one for each thread, or none: as the system likes


class PlannedModel:
    """See `Model`; what a method returns is overwritten by its next call."""

    def __init__(self, recording: Recording, kernels: Kernels, sizes: PlanSizes) -> None:
        """Its weights are filled in by `pack`. Raises `KernelsMissing` when the kernels lack an operation."""
        self.spec: DecoderSpec = recording.spec
        table = next(each.table for each in recording.hidden.instructions if isinstance(each, Embed))
        self.like = table.new_empty(0)
        self._kernels, self._sizes = kernels, sizes
        self._pool = kernels.pool(sizes.threads, SPIN_US, sizes.cpus)
        self._rows = max(sizes.max_slots, PROMPT_ROWS)
        self._logits = Lowered(kernels, recording.logits, self._rows)
        # A table that is the head too is looked up in its packed form: it is in memory once.
        self._hidden = Lowered(kernels, recording.hidden, sizes.max_tokens, self._logits.packed)
        self._logits_plan, self._choice = self._logits.plan(self._pool, 0, 0), self._logits.choice(self._pool)
        self._drawing = self._logits.drawing(self._pool)
        self._plan: Handle | None = None
        self._bound: object = None
        self._step, self._found = Step(), 0
        self._every = np.arange(sizes.max_tokens)
        self._last: _Filled | None = None
        keys = torch.empty((1, 1, self.spec.num_kv_heads, self.spec.head_dim), dtype=self.like.dtype)
        nowhere = LayerPlace(LayerCache(keys, keys), 0, None)
        self._hidden.plan(self._pool, sizes.max_tokens, sizes.max_context, [nowhere] * self.spec.num_layers)

    @property
    def isa(self) -> str:
        return self._kernels.isa

    @property
    def operations(self) -> int:
        """Of one step."""
        return self._hidden.operations + self._logits.operations

    def pack(self) -> None:
        """Copy the weights into the kernels' form, letting go of the originals on the way."""
        self._hidden.pack(self._sizes.threads)
        self._logits.pack(self._sizes.threads)

    @contextmanager
    def profiled(self) -> Iterator[Callable[[], list[tuple[int, int]]]]:
        """While it is open, steps are timed: what it gives tells kind and nanoseconds of each operation so far."""
        parts = [(self._plan, self._hidden), (self._logits_plan, self._logits)]
        spent = [(plan, part.kinds, np.zeros(part.operations, np.int64)) for plan, part in parts if plan is not None]
        for plan, _, times in spent:
            self._kernels.profile(plan, times.ctypes.data)
        try:
            yield lambda: [pair for _, kinds, times in spent for pair in zip(kinds, times.tolist(), strict=True)]
        finally:
            for plan, _, _ in spent:
                self._kernels.profile(plan, None)

    def hidden(self, batch: PackedBatch, caches: Sequence[LayerCache]) -> Tensor:
        """See `Model`."""
        groups, of_layers = _groups(batch)
        windows = tuple(attention.window for attention, _ in groups)
        bound = ([id(cache) for cache in caches], of_layers, windows)
        if self._plan is None or self._bound != bound:
            places = [LayerPlace(cache, at, windows[at]) for cache, at in zip(caches, of_layers, strict=True)]
            sizes = self._sizes
            self._plan = self._hidden.plan(self._pool, sizes.max_tokens, sizes.max_context, places)
            self._bound = bound
        self._last = _fill(self._step, batch, groups, self._every)
        self._kernels.run(self._plan, self._step)
        return self._hidden.view(self._hidden.program.result, self._step.outputs)

    def repeat(
        self,
        slots: NDArray[np.int64],
        last: NDArray[np.int64],
        drawn: SamplingRows | None = None,
        history: Tensor | None = None,
    ) -> Repeated | None:
        """See `Repeats`."""
        hidden, logits, count = self._hidden, self._logits, self._found
        if self._last is None or self._plan is None or self._choice is None or count != self._step.tokens:
            return None
        drawing = None
        if drawn is not None:
            drawing = self._to_draw(drawn, None if history is None else Histories(history, slots))
            if drawing is None:
                return None
        program = logits.program
        assert program.given is not None and logits.likeliest is not None and logits.masks is not None
        tokens, _, logprobs = logits.likeliest
        filled, rows = self._last, Step(tokens=count)
        end, begin = hidden.bytes(hidden.program.result, count), logits.bytes(program.given, count)
        assert end.flags.c_contiguous and begin.flags.c_contiguous
        for column in filled.moving:
            column += 1
        moving = (c_void_p * len(filled.moving))(*(column.ctypes.data for column in filled.moving))
        following = Following(
            layers=self._plan.address, head=self._logits_plan.address,
            drawing=None if drawing is None else drawing.address,
            draws=None if logits.draws is None else logits.draws.ctypes.data,
            step=pointer(self._step), rows=pointer(rows),
            from_=end.ctypes.data, to=begin.ctypes.data, bytes=end.nbytes,
            moving=addressof(moving), moving_count=len(filled.moving),
            slots=slots.ctypes.data, last=last.ctypes.data, ids=filled.ids.ctypes.data,
            table=filled.table.ctypes.data, places=filled.rows.ctypes.data,
            found=tokens.data_ptr(), logprobs=logprobs.data_ptr(),
        )  # fmt: skip
        keeps = self._plan, self._logits_plan, drawing, self._step, moving, slots, last, history, logits, end, begin
        return Repeated(
            kernels=self._kernels,
            following=following,
            rows=rows,
            choice=self._choice,
            masks=logits.masks[:count],
            filled=filled,
            found=Found(tokens[:count].numpy(), logprobs[:count].numpy()),
            keeps=keeps,
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, vocab] float32 from rows of `hidden`."""
        if len(hidden) > self._rows:
            whole = torch.cat([self.logits(part).clone() for part in torch.split(hidden, self._rows)])
            self._found = 0
            return whole
        program = self._logits.program
        assert program.given is not None
        self._logits.view(program.given, len(hidden)).copy_(hidden)
        self._kernels.run(self._logits_plan, Step(tokens=len(hidden)))
        self._found = len(hidden)
        return self._logits.view(program.result, len(hidden))

    def likeliest(self) -> Likeliest | None:
        """Of the rows of the last `logits`: it is found on the way."""
        if self._logits.likeliest is None or self._found == 0:
            return None
        tokens, normalisers, _ = self._logits.likeliest
        return Likeliest(tokens[: self._found], normalisers[: self._found])

    def draw(
        self, rows: SamplingRows, source: Histories | Tensor | None, allowed: Allowed | None = None
    ) -> Tensor | None:
        """See `Draws`."""
        drawing = self._to_draw(rows, source, allowed)
        if drawing is None or self._logits.likeliest is None:
            return None
        self._kernels.run(drawing, Step(tokens=self._found))
        return self._logits.likeliest[0][: self._found].clone()

    def _to_draw(
        self, rows: SamplingRows, source: Histories | Tensor | None, allowed: Allowed | None = None
    ) -> Handle | None:
        """What draws such rows of the last `logits`, which it is told; None where nothing does."""
        records, count = self._logits.draws, len(rows.temperature)
        if self._drawing is None or records is None or count == 0 or count != self._found or not draws(rows, allowed):
            return None
        if isinstance(source, Tensor) and (source.dtype != torch.float32 or source.stride(1) != 1):
            return None
        fill(records[:count], rows, source, allowed)
        return self._drawing


def _groups(batch: PackedBatch) -> tuple[list[tuple[PagedAttention, Tensor]], list[int]]:
    """Distinct attentions of the step with their rows, and each layer's."""
    numbers: dict[tuple[int, int], int] = {}
    groups: list[tuple[PagedAttention, Tensor]] = []
    of_layers = []
    for attention, rows in zip(batch.attention, batch.rows, strict=True):
        key = id(attention), id(rows)
        if (number := numbers.get(key)) is None:
            assert isinstance(attention, PagedAttention)
            number = numbers[key] = len(groups)
            groups.append((attention, rows))
        of_layers.append(number)
    return groups, of_layers


@dataclass(slots=True)
class _Filled:
    """What a step points at. moving: what rises by one where each sequence goes on by a token in its block."""

    keeps: object
    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    rows: NDArray[np.int64]  # of the first group, as what follows
    table: NDArray[np.int32]
    group: Group
    moving: Sequence[NDArray[np.int64]]

    def room(self) -> int:
        """Steps that the table has a place for, which is made wider where the next one finds none."""
        (count, width), size = self.table.shape, self.group.block_size
        room: int = width * size - int(self.starts.max())
        if room <= 0:
            more = WIDER - room // size
            self.table = np.concatenate((self.table, np.zeros((count, more), np.int32)), axis=1)
            self.group.tables, self.group.table_stride = self.table.ctypes.data, width + more
            room += more * size
        return room


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """See `Repeat`. Without torch, whose ways are long when nothing of them is in the caches: a step has just read all
    weights."""

    kernels: Kernels
    following: Following  # its columns are those of the step that comes
    rows: Step  # of the head
    choice: Handle  # among what masks allow
    masks: NDArray[np.int64]  # [n] addresses of their bits
    filled: _Filled
    found: Found
    keeps: object  # what `following` points to

    def room(self) -> int:
        room = self.filled.room()
        self.following.table = self.filled.table.ctypes.data
        return room

    def run(self, begun: Begun | None, keep: bool) -> Found | None:
        pairs = None
        if begun is not None:
            self.room()
            pairs = np.column_stack(begun).astype(np.int32)
        return self.found if self.kernels.follow(self.following, pairs, keep) else None

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        following = self.following
        return self.kernels.follows, addressof(following), following.found, following.logprobs

    def choose_again(self, rows: NDArray[np.int64], bits: NDArray[np.uint8]) -> bool:
        bits = np.ascontiguousarray(bits)
        self.masks[rows] = bits.ctypes.data + bits.strides[0] * np.arange(len(rows))
        self.kernels.run(self.choice, self.rows)
        self.masks[rows] = 0
        return bool(self.found.tokens[rows].min() >= 0)


def _fill(
    step: Step, batch: PackedBatch, groups: Sequence[tuple[PagedAttention, Tensor]], every: NDArray[np.int64]
) -> _Filled:
    """Point the step at the batch. What is returned must live until the step has run. every: 0, 1, 2, ..."""
    layout = groups[0][0].layout
    columns = [np.array(column, np.int64) for column in (layout.offsets, layout.starts, layout.lengths)]
    records = (Group * len(groups))()
    tables = []
    for group, (attention, rows) in zip(records, groups, strict=True):
        table = np.ascontiguousarray(attention.layout.tables, np.int32)
        tables.append(table)
        group.rows, group.tables = rows.data_ptr(), table.ctypes.data
        group.table_stride, group.block_size = table.shape[1], attention.layout.block_size
    step.tokens, step.segments, step.groups = len(batch.ids), len(columns[0]), len(groups)
    step.ids, step.positions = batch.ids.data_ptr(), batch.positions.data_ptr()
    step.offsets, step.starts, step.lengths = (column.ctypes.data for column in columns)
    step.group = records
    outputs = batch.outputs
    if outputs is None:
        step.outputs, step.sampled, step.tails = step.tokens, every.ctypes.data, step.lengths
    else:
        tails = np.ascontiguousarray(outputs.counts, np.int64)
        columns.append(tails)
        step.outputs, step.sampled, step.tails = len(outputs.rows), outputs.rows.data_ptr(), tails.ctypes.data
    places = {id(rows): rows.numpy() for _, rows in groups}
    moving = columns[1], batch.positions.numpy(), *places.values()
    keeps = columns, tables, records, batch, every
    of_first = places[id(groups[0][1])]
    return _Filled(keeps, batch.ids.numpy(), columns[1], of_first, tables[0], records[0], moving)


def load_planned(load: Callable[[], Model], isa: str | None, sizes: PlanSizes) -> Model:
    """The loaded model as a plan, or as it is, with a line in the log, where plan, machine or build lack something.

    Raises what `load` raises.
    """
    model = load()
    if not isinstance(model, Decoder):
        log.info("plan: off, because Transformers' own modelling runs this model")
        return model
    try:
        planned = _planned(model, isa, sizes)
    except (NotRecorded, KernelsMissing) as error:
        log.info("plan: off, because of this: %s", error)
        return model
    except Exception:  # the boundary that keeps a fault of the recorder's from costing more than speed
        log.exception("plan: off, because recording the model failed; please report it")
        return model
    log.info("plan: %d operations, kernels for %s", planned.operations, planned.isa)
    del model  # so that each weight is let go as soon as it is packed
    planned.pack()
    return planned


def _planned(decoder: Decoder, isa: str | None, sizes: PlanSizes) -> PlannedModel:
    recording = record(decoder)
    check_lowerable(recording.hidden)
    check_lowerable(recording.logits)
    kernels = Kernels(isa)
    if isa is None and kernels.isa == "portable":
        raise KernelsMissing("the only kernels for this processor are the portable ones, which torch is faster than")
    return PlannedModel(recording, kernels, sizes)
