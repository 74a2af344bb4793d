"""The step itself: admit, run the segments, sample, answer. One thread, strictly in the order of the frames."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from textgen._router import Follower
from textgen.models.decoder import Draws, FindsLikeliest, Model, Repeats
from textgen.models.groups import LayerGroups
from textgen.ops import Ops
from textgen.ops.sampling import Allowed, Histories, Mask, SamplingRows, score, shape
from textgen.ops.transfer import upload
from textgen.shard.batch import Bounds, Fault, Segments, check_admit, check_segments, check_step, pack
from textgen.shard.cache import KvCache
from textgen.shard.errors import ShardError
from textgen.shard.memory import SharedMemory, WideLimit
from textgen.shard.protocol import (
    Admit,
    Done,
    Failed,
    Ints,
    ProtocolError,
    Step,
    StepColumns,
    Times,
    pack_f32,
    pack_ones,
    pack_u32,
    step_columns,
)
from textgen.shard.rows import Limits, row_faults
from textgen.shard.slots import Slots
from textgen.shard.steady import Answered, Following, NotFollowed, Series, Steady, continuation, steady
from textgen.shard.wide import prompt_logprobs, top_tokens

if TYPE_CHECKING:  # for GPUs alone
    from textgen.shard.pipeline import Pipeline

log = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """What a step answers, and its size for the metrics."""

    frames: Sequence[Done | Failed]
    segments: int = 0
    tokens: int = 0
    mask_wait: float | None = None  # seconds; None without masks


@dataclass(frozen=True, slots=True)
class _Sampled:
    slots: Ints
    tokens: Tensor  # [n] int64
    logprobs: Tensor  # [n]
    kept: Mask  # [n] false in the rows of `faults`
    top: list[bytes]  # per row; empty without top-n
    faults: Sequence[Fault] = ()
    mask_wait: float | None = None


class Runner:
    """Holds the model, its cache and the seats; each method answers one frame of the router."""

    def __init__(
        self,
        model: Model,
        cache: KvCache,
        groups: LayerGroups,
        slots: Slots,
        bounds: Bounds,
        memory: SharedMemory,
        ops: Ops,
        pipeline: Pipeline | None = None,
        lost: Callable[[BaseException], bool] | None = None,
    ) -> None:
        """pipeline: of a GPU, for steps that follow one another there. lost: whether nothing will run any more after
        an error."""
        self.model, self.cache, self.slots, self.bounds = model, cache, slots, bounds
        self.memory, self._ops = memory, ops
        self._finder = model if isinstance(model, FindsLikeliest) else None
        self._draws = model if isinstance(model, Draws) else None
        self._repeats = model if isinstance(model, Repeats) else None
        self.pipeline, self._lost = pipeline, lost
        self._steady: Steady | Following | None = None  # what the step before tells of the next one
        self.groups = groups

    @property
    def asks_for_masks(self) -> bool:
        """Whether parts of masks are of use: steps that look at the likeliest token first."""
        return self._repeats is not None and self.pipeline is None

    @torch.inference_mode()
    def admit(self, admit: Admit) -> list[Failed]:
        """Seat a sequence. The answer is empty when all is well."""
        self._steady = None
        try:
            fault = check_admit(admit, self.bounds)
        except ProtocolError as error:
            return [Failed(None, pack_u32([admit.slot]), "protocol", str(error))]
        if fault is None:
            self.slots.admit(admit)
            return []
        self.slots.free(fault.slots)
        self.slots.refuse(fault.slots, fault.kind)
        return [_failed(None, fault)]

    def step(self, step: Step, received_ns: int) -> Outcome:
        """Run one step to its end. Whatever goes wrong in it becomes a `Failed` frame."""
        *_, outcome = [*self.take(step, received_ns), *self.drain()]
        return outcome

    def take(self, step: Step, received_ns: int) -> Iterator[Outcome]:
        """The same, and of a device that runs while others are launched: outcomes in the order of steps, of this one
        perhaps later."""
        going_on, self._steady = self._steady, None
        if isinstance(going_on, Following) and not going_on.sound:
            going_on = None
        if going_on is None or not going_on.continues(step):
            yield from self.drain()
            yield self._work_out(step, received_ns)
            return
        if isinstance(going_on, Following):
            yield from self._follow(step, going_on, received_ns)
            return
        try:
            outcome = self._go_on(step.step, going_on, received_ns)
        except Exception as error:  # see `_work_out`
            yield self._broken(step, going_on.slot, error)
            return
        if outcome is None:
            yield self._work_out(step, received_ns)
            return
        self._steady = going_on
        yield outcome

    def run_on(self, follower: Follower, pending: bytes) -> Series:
        """Answer the steps that come, as long as each is as the one before: of those nothing goes through here.
        pending: what was read before."""
        if not isinstance(self._steady, Steady):
            return Series(pending)
        series = self._steady.run_on(follower, pending, self.slots)
        if series.unsound:
            self._steady = None
        return series

    def under_way(self) -> bool:
        """Whether a step was launched that is not answered."""
        return self.pipeline is not None and len(self.pipeline) > 0

    def ended(self) -> Iterator[Outcome]:
        """Of steps that have ended by now."""
        while self.pipeline is not None and len(self.pipeline) and self.pipeline.ready():
            yield self._answered(self.pipeline.finish())

    def drain(self) -> Iterator[Outcome]:
        """Of all steps under way; waits for them."""
        if self.pipeline is not None:
            yield from map(self._answered, self.pipeline.drain())

    def _follow(self, step: Step, following: Following, received_ns: int) -> Iterator[Outcome]:
        assert self.pipeline is not None
        launching = self.pipeline.launch(step.step, following, received_ns)
        while True:
            try:
                with torch.inference_mode():
                    answered = next(launching, None)
            except NotFollowed:
                yield from self.drain()
                yield self._work_out(step, received_ns)
                return
            except Exception as error:  # see `_work_out`
                yield from self.drain()
                yield self._broken(step, following.slot, error)
                return
            if answered is None:
                break
            yield self._answered(answered)
        self._steady = following

    def _answered(self, answered: Answered) -> Outcome:
        return Outcome(answered.frames, answered.count, answered.count, answered.mask_wait)

    @torch.inference_mode()
    def _work_out(self, step: Step, received_ns: int) -> Outcome:
        """Run a step of which nothing is known."""
        named: Ints | None = None
        try:
            columns = step_columns(step)
            named = columns.slot
            check_step(columns, self.slots, self.bounds)
            if columns.masks.size:
                self.memory.masks.check(columns.masks, columns.samples)
            return self._run(step, columns, received_ns)
        except ProtocolError as error:
            return self._abandon(step, named, "protocol", str(error))
        except WideLimit as error:
            return self._abandon(step, named, "limit", str(error))
        except Exception as error:  # the boundary that keeps a step's failure out of the next step
            return self._broken(step, named, error)

    def _broken(self, step: Step, named: Ints | None, error: Exception) -> Outcome:
        if self._lost is not None and self._lost(error):
            raise ShardError(f"the GPU does not answer any more: {str(error).strip().partition(chr(10))[0]}") from error
        log.exception("step %d failed", step.step)
        reason = str(error).strip().partition("\n")[0]
        return self._abandon(step, named, "internal", f"the step failed: {type(error).__name__}: {reason}")

    def _abandon(self, step: Step, named: Ints | None, kind: str, message: str) -> Outcome:
        """The whole step failed: none of its slots goes on before it is admitted again."""
        if named is not None:
            self.slots.fail(named[named < self.bounds.max_slots], kind)
        return Outcome([Failed(step.step, b"", kind, message)])

    def _go_on(self, number: int, steady: Steady, received_ns: int) -> Outcome | None:
        """A step that is as the one before. None: it has to be run as any other step, as if it had not been."""
        started = time.monotonic_ns()
        ran = steady.run(number, self.slots)
        if ran is None:
            return None
        tokens, logprobs = ran.tokens, ran.logprobs
        forwarded = time.monotonic_ns()
        done = Done(
            step=number,
            slots=steady.packed_slots,
            counts=pack_ones(len(tokens)),
            tokens=pack_u32(tokens),
            logprobs=pack_f32(logprobs),
            wide=None,
            times=Times(max(started - received_ns, 0), forwarded - started, time.monotonic_ns() - forwarded),
        )
        return Outcome([done], segments=len(tokens), tokens=len(tokens), mask_wait=ran.mask_wait)

    def _run(self, step: Step, columns: StepColumns, received_ns: int) -> Outcome:
        number, slots = step.step, self.slots
        slots.free(columns.freed)
        if columns.copies.size:
            self.cache.copy_pages(columns.copies, self._ops)
        segments, inputs, faults = check_segments(columns, slots, self.bounds)
        for fault in faults:
            slots.fail(fault.slots, fault.kind)
        slots.append_blocks(segments.slot, segments.new_pages, segments.blocks)
        slots.start[segments.slot] = segments.start
        started = forwarded = time.monotonic_ns()
        sampled, prompts = _NOTHING, {}
        if segments.slot.size:
            batch = pack(segments, inputs, slots, self._ops, self.groups, self.model.like)
            hidden = self.model.hidden(batch, self.cache.layers)
            logits = self._sampled_logits(segments, hidden, batch.outputs is None)
            forwarded = time.monotonic_ns()
            masks = columns.slot[columns.masks[:, 0]], columns.masks[:, 1]
            sampled = self._sample(number, segments, logits, masks)
            if segments.prompt_logprobs.any():
                prompts = prompt_logprobs(self.model, slots, segments, batch.ids, hidden)
        for fault in sampled.faults:
            slots.fail(fault.slots, fault.kind)
        faults += sampled.faults
        if segments.slot.size and not faults:
            pages = self.bounds.num_pages
            if self.pipeline is not None:
                self._steady = self.pipeline.follow(continuation(step, segments, slots, self.memory.masks, pages))
            else:
                self._steady = steady(step, segments, slots, self._repeats, self.memory.masks, pages)
        return Outcome(
            frames=[
                *(_failed(number, fault) for fault in faults),
                self._done(number, sampled, prompts, (received_ns, started, forwarded)),
            ],
            segments=len(segments.slot),
            tokens=int(segments.length.sum()),
            mask_wait=sampled.mask_wait,
        )

    def _sampled_logits(self, segments: Segments, hidden: Tensor, whole: bool) -> Tensor | None:
        """[sampled, vocab], None when nothing is sampled. whole: hidden has all tokens, not those alone."""
        if not segments.sample.any():
            return None
        rows = (segments.offset + segments.length - 1)[segments.sample]
        if whole and len(rows) < hidden.shape[0]:
            hidden = hidden.index_select(0, upload(rows, hidden.device))
        return self.model.logits(hidden)

    def _sample(self, number: int, segments: Segments, logits: Tensor | None, masks: tuple[Ints, Ints]) -> _Sampled:
        """Draw the next tokens; they are kept on the device for segments that go on from them.

        `masks`: slots of sequences under a grammar, and the mask slot of each.
        """
        slots = self.slots
        if segments.tokens.size and slots.remembers[segments.slot].any():
            self._remember_explicit(segments)
        if logits is None:
            return _NOTHING
        chosen, position = segments.slot[segments.sample], segments.end[segments.sample]

        def history(mask: Mask) -> Tensor:
            rows = upload(chosen[mask], logits.device)
            return slots.history[:, : int(position[mask].max())].index_select(0, rows).long()

        limits = self._limits(number, chosen, masks) if masks[0].size else None
        allowed = None if limits is None else limits.allowed
        rows, rules = slots.sampling_rows(chosen, position), slots.ruled_rows(chosen, position)
        known = None if self._finder is None else self._finder.likeliest()
        normaliser = None if known is None else known.normaliser
        shaped = logits
        if allowed is not None and known is not None and rules is None and rows.plain:
            tokens = allowed.likeliest(logits, known.tokens)
        elif rules is None and (drawn := self._drawn(rows, chosen, allowed)) is not None:
            tokens = drawn
        else:
            shaped = shape(logits, rows, history, allowed, rules)
            if shaped is not logits and (drawn := self._drawn(rows, shaped)) is not None:
                tokens = drawn
            else:
                largest = None if known is None or shaped is not logits else known.tokens
                tokens, found = self._ops.choose(shaped, rows, largest)
                normaliser = found if known is None and shaped is logits else normaliser
        scores = score(logits, tokens, normaliser)
        stuck = None if rules is None else chosen[rules.rows[rules.forbids(shaped, tokens).cpu().numpy()]]
        slots.last_token.index_copy_(0, upload(chosen, logits.device), tokens)
        slots.has_last[chosen] = True
        slots.remember(chosen, position, tokens)
        top = top_tokens(logits, scores.normaliser, slots.top_n[chosen])
        faults = row_faults(chosen, tokens, scores.normaliser, stuck, limits, self.memory.masks.timeout)
        kept = (
            ~np.isin(chosen, np.concatenate([fault.slots for fault in faults]))
            if faults
            else np.ones_like(chosen, bool)
        )
        waited = None if limits is None else limits.waited
        return _Sampled(chosen, tokens, scores.chosen, kept, top, faults, waited)

    def _drawn(self, rows: SamplingRows, source: Ints | Tensor, allowed: Allowed | None = None) -> Tensor | None:
        """[rows] tokens that the model itself draws from its last logits, or from shaped ones; None where it does not,
        or nothing is drawn. source: the slots that the rows are of, or shaped logits [rows, vocab]. allowed: what some
        rows may draw."""
        if self._draws is None or rows.plain:
            return None
        if not isinstance(source, Tensor):
            said = Histories(self.slots.history, source) if rows.penalised.any() else None
            return self._draws.draw(rows, said, allowed)
        return self._draws.draw(rows, source)

    def _limits(self, number: int, chosen: Ints, masks: tuple[Ints, Ints]) -> Limits:
        """What the masks of this step say of the sampled rows; waits for them. Slots that have failed have no row."""
        slots, places = masks
        row_of = np.full(self.bounds.max_slots, -1)
        row_of[chosen] = np.arange(len(chosen))
        rows = row_of[slots]
        alive = rows >= 0
        if not alive.all():
            rows, slots, places = rows[alive], slots[alive], places[alive]
        arrived = self.memory.masks.read(number, places)
        unbound, bits, late = arrived.late | arrived.free, arrived.bits, slots[arrived.late]
        if unbound.any():
            rows, slots, bits = rows[~unbound], slots[~unbound], bits[~unbound]
        return Limits(Allowed(rows, bits), slots, late, arrived.waited)

    def _remember_explicit(self, segments: Segments) -> None:
        owner, explicit = segments.owner, segments.explicit
        tokens = upload(segments.tokens, self.slots.last_token.device)
        self.slots.remember(segments.slot[owner][explicit], segments.positions(owner)[explicit], tokens)

    def _done(self, number: int, sampled: _Sampled, prompts: dict[int, bytes], times: tuple[int, int, int]) -> Done:
        if not sampled.kept.all():
            sampled = _only_kept(sampled)
        failed = self.slots.failed
        pieces = [row for row in sampled.top if row]
        pieces += [row for slot, row in prompts.items() if not failed[slot]]
        wide = self.memory.write(number, pieces) if pieces else None
        tokens, logprobs = sampled.tokens.cpu().numpy(), sampled.logprobs.cpu().numpy()
        received, started, forwarded = times
        return Done(
            step=number,
            slots=pack_u32(sampled.slots),
            counts=pack_ones(len(sampled.slots)),
            tokens=pack_u32(tokens),
            logprobs=pack_f32(logprobs),
            wide=wide,
            times=Times(max(started - received, 0), forwarded - started, time.monotonic_ns() - forwarded),
        )


_NOTHING = _Sampled(np.zeros(0, np.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0), np.zeros(0, np.bool_), [])


def _only_kept(sampled: _Sampled) -> _Sampled:
    kept = np.flatnonzero(sampled.kept)
    return replace(
        sampled,
        slots=sampled.slots[kept],
        tokens=sampled.tokens[kept],
        logprobs=sampled.logprobs[kept],
        kept=sampled.kept[kept],
        top=[sampled.top[row] for row in kept] if sampled.top else [],
    )


def _failed(step: int | None, fault: Fault) -> Failed:
    return Failed(step, pack_u32(fault.slots), fault.kind, fault.message)
