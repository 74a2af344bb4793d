"""From the columns of a step to a packed batch: who is at fault, which tokens run where, what is sampled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from textgen.layers.outputs import Outputs, outputs_of
from textgen.models.decoder import PackedBatch
from textgen.models.groups import LayerGroups
from textgen.ops import Ops, SegmentLayout
from textgen.ops.sampling import Mask
from textgen.ops.transfer import upload
from textgen.shard.protocol import Admit, Flag, Ints, ProtocolError, Source, StepColumns, unpack_u32
from textgen.shard.slots import FAILURES, Slots, State
from textgen.shard.sources import UNLIKE, any_of, encoder_batch, take_sources
from textgen.shard.token_rules import check_rules

_SAMPLE, _LAST, _PROMPT_LOGPROBS = int(Flag.SAMPLE), int(Flag.LAST), int(Flag.PROMPT_LOGPROBS)
_KNOWN_FLAGS = _SAMPLE | _LAST | _PROMPT_LOGPROBS
_SPARED = 2  # tokens of a step for each that is asked for, from which on the others go without the last layer


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the numbers of a step are held against."""

    vocab_size: int
    num_pages: int
    max_slots: int
    max_batch_tokens: int
    max_context: int
    max_top_n: int
    block_size: int
    encoder: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """Why slots cannot run: one `Failed` frame."""

    slots: Ints
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Segments:
    """The segments of a step that will run; columns of one length."""

    slot: Ints
    start: Ints
    length: Ints
    sample: Mask
    last: Mask
    prompt_logprobs: Mask
    tokens: Ints  # explicit ids, concatenated
    new_pages: Ints
    blocks: Ints

    @property
    def end(self) -> Ints:
        return self.start + self.length

    @property
    def offset(self) -> Ints:
        """[n] index of each segment's first token in the packed batch."""
        return np.cumsum(self.length) - self.length

    @property
    def explicit(self) -> Mask:
        """[tokens] whether a token's id came with the step."""
        explicit = np.ones(int(self.length.sum()), np.bool_)
        explicit[self.offset[self.last]] = False
        return explicit

    @property
    def owner(self) -> Ints:
        """[tokens] the segment of each token."""
        return np.repeat(np.arange(len(self.slot)), self.length)

    def positions(self, owner: Ints) -> Ints:
        """[tokens] where each token stands in its sequence."""
        return np.arange(len(owner)) - (self.offset - self.start)[owner]


def check_admit(admit: Admit, bounds: Bounds) -> Fault | None:
    """Why the sequence cannot be seated, if it cannot. Raises `ProtocolError` when the slot itself is no slot."""
    if admit.slot >= bounds.max_slots:
        raise ProtocolError(f"slot {admit.slot} is not below {bounds.max_slots}")
    slot = np.array([admit.slot])
    for name, top_n in (("top_n", admit.top_n), ("prompt_top_n", admit.prompt_top_n)):
        if top_n > bounds.max_top_n:
            return Fault(slot, "limit", f"{name} {top_n} is over the limit of {bounds.max_top_n}")
    if admit.prompt_len > bounds.max_context or len(admit.history) > 4 * bounds.max_context:
        return Fault(slot, "limit", f"the sequence is longer than the context of {bounds.max_context}")
    if broken := _check_source(admit.source, bounds):
        return Fault(slot, "protocol", broken)
    if admit.adapter is not None:
        return Fault(slot, "protocol", f"adapter {admit.adapter} is not loaded")
    history = unpack_u32(admit.history, "history")
    if history.size and int(history.max()) >= bounds.vocab_size:
        return Fault(slot, "protocol", f"a token id is not below the vocabulary's size of {bounds.vocab_size}")
    if admit.rules is not None and (broken := check_rules(admit.rules, bounds.vocab_size)):
        return Fault(slot, "protocol", broken)
    wrong = [name for name, good in _sampling_ranges(admit).items() if not good]
    if wrong:
        return Fault(slot, "protocol", f"{wrong[0]} {getattr(admit, wrong[0])} is out of range")
    return None


def _check_source(source: Source | None, bounds: Bounds) -> str | None:
    """What is wrong with an input for the encoder."""
    if (source is not None) != bounds.encoder:
        return "the model has an encoder and the sequence no input for it, or the other way round"
    if source is None:
        return None
    blocks = -(-source.tokens // bounds.block_size)
    if source.tokens == 0 or source.positions != blocks * bounds.block_size:
        return f"an input of {source.tokens} tokens does not end with its blocks at position {source.positions}"
    if source.tokens > bounds.max_context:
        return f"the input is longer than the context of {bounds.max_context}"
    return None


def _sampling_ranges(admit: Admit) -> dict[str, bool]:
    """Whether each number is one that sampling is defined for; NaN never is."""
    return {
        "temperature": 0 <= admit.temperature < np.inf,
        "top_p": 0 <= admit.top_p <= 1,
        "min_p": 0 <= admit.min_p <= 1,
        "typical_p": 0 < admit.typical_p <= 1,
        "repetition_penalty": 0 < admit.repetition_penalty < np.inf,
        "frequency_penalty": -np.inf < admit.frequency_penalty < np.inf,
        "presence_penalty": -np.inf < admit.presence_penalty < np.inf,
    }


def check_step(columns: StepColumns, slots: Slots, bounds: Bounds) -> None:
    """Refuse a step that no slot alone can be blamed for. Raises `ProtocolError`."""
    _below("slot", columns.slot, bounds.max_slots)
    _below("freed slot", columns.freed, bounds.max_slots)
    _below("copied page", columns.copies, bounds.num_pages)
    if slots.groups > 1 and (columns.new_pages % slots.groups).any():
        raise ProtocolError(f"a segment has new pages for other than all {slots.groups} groups of layers")
    if len(np.unique(columns.slot)) != len(columns.slot):
        raise ProtocolError("a slot has two segments in one step")
    if int(columns.length.sum()) > bounds.max_batch_tokens:
        raise ProtocolError(f"a step of {columns.length.sum()} tokens is over the limit of {bounds.max_batch_tokens}")


def _below(what: str, values: Ints, bound: int) -> None:
    if values.size and int(values.max()) >= bound:
        raise ProtocolError(f"{what} {values.max()} is not below {bound}")


def check_segments(columns: StepColumns, slots: Slots, bounds: Bounds) -> tuple[Segments, dict[int, Ints], list[Fault]]:
    """The segments that can run, their inputs for the encoder by slot, and a fault for every one that cannot."""
    faults: list[Fault] = []
    inputs: dict[int, Ints] = {}
    if bounds.encoder:
        taken = take_sources(columns, slots, bounds.vocab_size, bounds.num_pages)
        columns, inputs = taken.columns, taken.inputs
        if taken.unlike.size:
            faults.append(Fault(taken.unlike, "protocol", UNLIKE))
    rules = _rules(columns, slots, bounds)
    good = np.ones(len(columns.slot), np.bool_)
    if np.logical_or.reduce([at_fault for at_fault, _, _ in rules]).any():
        for at_fault, kind, message in rules:
            first = at_fault & good
            if first.any():
                faults.append(Fault(columns.slot[first], kind, message))
                good &= ~at_fault
    return _keep(columns, good), inputs, faults


def _rules(columns: StepColumns, slots: Slots, bounds: Bounds) -> list[tuple[Mask, str, str]]:
    """Per rule: which segments break it, the kind of failure, and the sentence for it. Earlier rules come first."""
    state = slots.state[columns.slot]
    blocks = slots.table_len[columns.slot] + columns.new_pages // slots.groups
    end = columns.start + columns.length
    nothing_sampled = ((columns.flags & _LAST) != 0) & ~slots.has_last[columns.slot]
    rules = [
        (state == State.EMPTY, "the slot has no sequence"),
        (columns.flags > _KNOWN_FLAGS, "the segment has unknown flags"),
        (columns.draft != 0, "the segment has a draft, which this shard does not verify"),
        (end > bounds.max_context, f"the segment ends behind the last position of {bounds.max_context}"),
        (end > blocks * slots.block_size, "the segment ends behind the blocks of its slot"),
        (blocks > slots.tables.shape[2], "the slot has more blocks than a sequence can fill"),
        (nothing_sampled, "the segment asks for the last token, but none was sampled"),
    ]
    if columns.tokens.size and int(columns.tokens.max()) >= bounds.vocab_size:
        wrong = any_of(columns.tokens >= bounds.vocab_size, columns.explicit)
        rules.append((wrong, f"a token id is not below the vocabulary's size of {bounds.vocab_size}"))
    if columns.blocks.size and int(columns.blocks.max()) >= bounds.num_pages:
        wrong = columns.blocks >= bounds.num_pages
        if slots.span is not None:
            wrong &= ~slots.missing(columns.blocks).reshape(-1)
        rules.append(
            (any_of(wrong, columns.new_pages), f"a page is not below the number of pages of {bounds.num_pages}")
        )
    if slots.span is not None:
        behind = slots.behind_after(columns.slot, columns.new_pages, columns.blocks) * slots.block_size
        gone = (behind > 0) & (columns.start - slots.span + 1 < behind)
        rules.append((gone, "the segment's window reaches pages that its slot has not"))
    of_router = [(at_fault, "protocol", message) for at_fault, message in rules]
    return _failed_earlier(state, slots.failed_as[columns.slot]) + of_router


def _failed_earlier(state: NDArray[np.int8], failed_as: NDArray[np.int8]) -> list[tuple[Mask, str, str]]:
    """A segment may be on its way while its slot fails: it is answered with the same kind."""
    failed = state == State.FAILED
    if not failed.any():
        return []
    message = "the slot failed in an earlier step"
    return [(failed & (failed_as == code), kind, message) for code, kind in enumerate(FAILURES)]


def _keep(columns: StepColumns, good: Mask) -> Segments:
    tokens, blocks = columns.tokens, columns.blocks
    if not good.all():
        tokens = tokens[np.repeat(good, columns.explicit)]
        blocks = blocks[np.repeat(good, columns.new_pages)]
    flags = columns.flags[good]
    return Segments(
        slot=columns.slot[good],
        start=columns.start[good],
        length=columns.length[good],
        sample=(flags & _SAMPLE) != 0,
        last=(flags & _LAST) != 0,
        prompt_logprobs=(flags & _PROMPT_LOGPROBS) != 0,
        tokens=tokens,
        new_pages=columns.new_pages[good],
        blocks=blocks,
    )


def pack(
    segments: Segments, inputs: dict[int, Ints], slots: Slots, ops: Ops, groups: LayerGroups, like: Tensor
) -> PackedBatch:
    """The step's tensors on the device of `like`: built once for each group, used by all its layers."""
    where = segments.offset, segments.length
    sources = slots.decoder_start[segments.slot].any()
    owner = segments.owner
    positions = segments.positions(owner)
    blocks, within = np.divmod(positions, slots.block_size)
    of_tokens, width = segments.slot[owner], -(-int(segments.end.max()) // slots.block_size)
    drawn = segments.last & (segments.length == 1)
    rows, attention, layouts = [], [], []
    for tables, window in zip(slots.tables, groups.windows, strict=True):
        own = tables[of_tokens, blocks].astype(np.int64) * slots.block_size + within
        rows.append(upload(own, like.device))
        of_segments = tables[segments.slot, :width]
        layout = SegmentLayout(segments.offset, segments.start, segments.length, of_segments, slots.block_size, drawn)
        attention.append(ops.attention(layout, window, like))
        layouts.append(layout)
    last = groups.group[-1]
    return PackedBatch(
        ids=_ids(segments, slots),
        positions=upload(positions, like.device),
        rows=[rows[group] for group in groups.group],
        attention=[attention[group] for group in groups.group],
        encoder=encoder_batch(inputs, slots, segments.slot, where, ops, like) if sources else None,
        outputs=_outputs(segments, layouts[last], groups.windows[last], ops, like),
    )


def _outputs(segments: Segments, layout: SegmentLayout, window: int | None, ops: Ops, like: Tensor) -> Outputs | None:
    """The tokens that are sampled behind; of a step without any its last one, so that nothing is ever empty. None:
    all, since a prompt is scored, or little would be spared."""
    counts = segments.sample.astype(np.int64)
    if not counts.any():
        counts[-1] = 1
    if segments.prompt_logprobs.any() or _SPARED * int(counts.sum()) > int(segments.length.sum()):
        return None
    return outputs_of(counts, layout, window, ops, like)


def _ids(segments: Segments, slots: Slots) -> Tensor:
    """[tokens] ids. Those sampled last are taken from where they lie: on the device."""
    device = slots.last_token.device
    if not segments.tokens.size:
        return slots.last_token.index_select(0, upload(segments.slot, device))
    explicit = segments.explicit
    ids = np.zeros(len(explicit), np.int64)
    ids[explicit] = segments.tokens
    packed = upload(ids, device)
    if segments.last.any():
        where = upload(segments.offset[segments.last], device)
        of_slots = upload(segments.slot[segments.last], device)
        packed.index_copy_(0, where, slots.last_token.index_select(0, of_slots))
    return packed
