"""The seats of a shard: what it knows of each sequence, one array per fact, indexed by slot."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from textgen.ops.rules import RuledRows, TokenRules
from textgen.ops.sampling import Mask, SamplingRows
from textgen.ops.transfer import upload
from textgen.shard.protocol import NO_PAGE, Admit, Ints, unpack_u32
from textgen.shard.token_rules import token_rules

FAILURES = ("protocol", "limit", "numerics", "internal")


class State(IntEnum):
    EMPTY = 0
    SEATED = 1
    FAILED = 2  # answered with Failed; nothing runs in it until the next Admit


class Slots:
    """Sizes: `max_slots` sequences of at most `max_context` tokens in blocks of `block_size` tokens.

    windows: of the groups of layers, each of which has a table of its own; those without a window come first.
    encoder: each has an input of at most as many tokens too, which an encoder reads.
    """

    def __init__(
        self,
        max_slots: int,
        max_context: int,
        block_size: int,
        device: torch.device,
        windows: Sequence[int | None] = (None,),
        encoder: bool = False,
    ) -> None:
        self.block_size = block_size
        self.groups, self.full = len(windows), list(windows).count(None)
        self.span = max((window for window in windows if window is not None), default=None)
        self.max_context = max_context
        blocks = -(-max_context // block_size)
        self.state = np.zeros(max_slots, np.int8)
        self.failed_as = np.zeros(max_slots, np.int8)  # index in FAILURES, for slots in state FAILED
        self.tables = np.zeros((self.groups, max_slots, blocks), np.int32)
        self.table_len = np.zeros(max_slots, np.int64)
        self.source_len = np.zeros(max_slots, np.int64)  # tokens of the encoder's input
        self.decoder_start = np.zeros(max_slots, np.int64)  # the router's position of the decoder's first token
        self.sourced = np.zeros(max_slots, np.bool_)  # the blocks of the input are known
        self.source_tables = np.zeros((max_slots, blocks if encoder else 0), np.int32)
        self.behind = np.zeros(max_slots, np.int64)  # blocks, the first ones, without a page in groups with a window
        self.start = np.zeros(max_slots, np.int64)  # where the last segment began
        self.temperature = np.zeros(max_slots, np.float32)
        self.top_k = np.zeros(max_slots, np.int64)
        self.top_p = np.ones(max_slots, np.float32)
        self.min_p = np.zeros(max_slots, np.float32)
        self.typical_p = np.ones(max_slots, np.float32)
        self.repetition = np.ones(max_slots, np.float32)
        self.frequency = np.zeros(max_slots, np.float32)
        self.presence = np.zeros(max_slots, np.float32)
        self.window = np.zeros(max_slots, np.int64)
        self.remembers = np.zeros(max_slots, np.bool_)  # its history is kept up, for a penalty or a rule
        self.ruled = np.zeros(max_slots, np.bool_)
        self.rules: dict[int, TokenRules] = {}  # of the slots that are `ruled`
        self.seed = np.zeros(max_slots, np.uint64)
        self.prompt_len = np.zeros(max_slots, np.int64)
        self.top_n = np.zeros(max_slots, np.int64)
        self.prompt_top_n = np.zeros(max_slots, np.int64)
        self.has_last = np.zeros(max_slots, np.bool_)  # something was sampled since Admit
        # One row more than there are slots: that of the rows that fill up a captured batch.
        self.last_token = torch.zeros(max_slots + 1, dtype=torch.int64, device=device)
        self.last_logits: dict[int, Tensor] = {}  # of a prompt cut in chunks, while its log-probabilities are asked for
        self._device = device
        # [max_slots + 1, max_context + 1] int32, made when somebody first asks for it.
        self._history: Tensor | None = None

    @property
    def failed(self) -> Mask:
        mask: Mask = self.state == State.FAILED
        return mask

    def admit(self, admit: Admit) -> None:
        """Seat a sequence in the slot, whatever was in it before."""
        slot = admit.slot
        self.free(np.array([slot]))
        self.state[slot] = State.SEATED
        self.temperature[slot] = admit.temperature
        self.top_k[slot] = admit.top_k
        self.top_p[slot] = admit.top_p
        self.min_p[slot] = admit.min_p
        self.typical_p[slot] = admit.typical_p
        self.repetition[slot] = admit.repetition_penalty
        self.frequency[slot] = admit.frequency_penalty
        self.presence[slot] = admit.presence_penalty
        self.window[slot] = admit.penalty_window
        if admit.rules is not None:
            self.rules[slot] = token_rules(admit.rules, self._device)
            self.ruled[slot] = True
        penalised = admit.repetition_penalty != 1 or admit.frequency_penalty != 0 or admit.presence_penalty != 0
        self.remembers[slot] = penalised or (admit.rules is not None and self.rules[slot].needs_history)
        self.seed[slot] = admit.seed
        if admit.source is not None:
            self.source_len[slot] = admit.source.tokens
            self.decoder_start[slot] = admit.source.positions
        self.prompt_len[slot] = admit.prompt_len
        self.top_n[slot] = admit.top_n
        self.prompt_top_n[slot] = admit.prompt_top_n
        if self.remembers[slot]:
            known = upload(unpack_u32(admit.history, "history").astype(np.int32), self._device)
            self.history[slot, : len(known)] = known

    def free(self, slots: Ints) -> None:
        """Empty the slots; freeing an empty one changes nothing."""
        self.state[slots] = State.EMPTY
        self.table_len[slots] = 0
        self.source_len[slots] = 0
        self.decoder_start[slots] = 0
        self.sourced[slots] = False
        self.behind[slots] = 0
        self.has_last[slots] = False
        self.remembers[slots] = False
        self.ruled[slots] = False
        for slot in slots.tolist():
            self.last_logits.pop(slot, None)
            self.rules.pop(slot, None)

    def fail(self, slots: Ints, kind: str) -> None:
        """Nothing more runs in these slots until they are admitted again."""
        seated = slots[self.state[slots] != State.EMPTY]
        self.state[seated] = State.FAILED
        self.failed_as[seated] = FAILURES.index(kind)

    def refuse(self, slots: Ints, kind: str) -> None:
        """As `fail`, for sequences that were never seated."""
        self.state[slots] = State.SEATED
        self.fail(slots, kind)

    def remember(self, slots: Ints, positions: Ints, tokens: Tensor) -> None:
        """Note tokens [n] int64 in the history of slots that keep one."""
        kept = np.flatnonzero(self.remembers[slots])
        if not kept.size:
            return
        where = (upload(slots[kept], self._device), upload(positions[kept], self._device))
        chosen = tokens.index_select(0, upload(kept, self._device))
        self.history.index_put_(where, chosen.to(torch.int32))

    def append_blocks(self, slots: Ints, counts: Ints, pages: Ints) -> None:
        """Append each slot's next `counts` of the concatenated `pages` to its tables, for which there is room."""
        if self.span is not None:
            self.behind[slots] = self.behind_after(slots, counts, pages)
            pages = np.where(pages == NO_PAGE, 0, pages)  # never looked at
        counts = counts // self.groups
        owners = np.repeat(slots, counts)
        self.tables[:, owners, self._places(slots, counts)] = pages.reshape(-1, self.groups).T
        self.table_len[slots] += counts

    def _places(self, slots: Ints, counts: Ints) -> Ints:
        """Where in their tables each slot's next `counts` blocks will be."""
        firsts = self.table_len[slots] - (np.cumsum(counts) - counts)
        places: Ints = np.arange(int(counts.sum())) + np.repeat(firsts, counts)
        return places

    def missing(self, pages: Ints) -> Mask:
        """[blocks, groups] whether a new block has no page in a group with a window."""
        missing: Mask = pages.reshape(-1, self.groups) == NO_PAGE
        missing[:, : self.full] = False
        return missing

    def behind_after(self, slots: Ints, counts: Ints, pages: Ints) -> Ints:
        """[n] `behind` of each slot once it has its next `counts` of the concatenated `pages`."""
        behind: Ints = self.behind[slots]
        missing = self.missing(pages).any(axis=1)
        if missing.any():
            counts = counts // self.groups
            owners = np.repeat(np.arange(len(slots)), counts)
            np.maximum.at(behind, owners[missing], self._places(slots, counts)[missing] + 1)
        return behind

    @property
    def history(self) -> Tensor:
        """Token ids by slot and position, kept up only for slots that remember. The last row is nobody's."""
        if self._history is None:
            shape = (len(self.state) + 1, self.max_context + 1)
            self._history = torch.zeros(shape, dtype=torch.int32, device=self._device)
        return self._history

    def sampling_rows(self, slots: Ints, position: Ints) -> SamplingRows:
        """How the next token of each slot is drawn; `position` is where it will stand."""
        return SamplingRows(
            temperature=self.temperature[slots],
            top_k=self.top_k[slots],
            top_p=self.top_p[slots],
            min_p=self.min_p[slots],
            typical_p=self.typical_p[slots],
            repetition=self.repetition[slots],
            frequency=self.frequency[slots],
            presence=self.presence[slots],
            window=self.window[slots],
            seed=self.seed[slots],
            position=position,
            prompt_len=self.prompt_len[slots],
        )

    def ruled_rows(self, slots: Ints, position: Ints) -> RuledRows | None:
        """The rules of the slots that have some; `slots` are the rows of the logits."""
        rows = np.flatnonzero(self.ruled[slots])
        if not rows.size:
            return None
        ruled = slots[rows]

        def tokens(index: Ints, at: Ints) -> Tensor:
            where = upload(ruled[index], self._device), upload(at, self._device)
            return self.history[where].long()

        rules = [self.rules[slot] for slot in ruled.tolist()]
        return RuledRows(rows, rules, position[rows], self.prompt_len[ruled], tokens)

    def in_use(self) -> int:
        """Slots that are not empty."""
        return int(np.count_nonzero(self.state))

    def blocks_in_use(self) -> int:
        """Different pages in the tables of seated sequences that a segment as the last one could look at; read by the
        metrics from another thread."""
        seated = np.flatnonzero(self.state)
        width = np.arange(self.tables.shape[2])
        used = np.repeat((width < self.table_len[seated, None])[None], self.groups, axis=0)
        if self.span is not None:
            reached = np.maximum(self.start[seated] - self.span + 1, 0) // self.block_size
            used[self.full :] &= width >= reached[:, None]
        sources = np.where(self.sourced, self.decoder_start // self.block_size, 0)[seated]
        read = self.source_tables[seated][np.arange(self.source_tables.shape[1]) < sources[:, None]]
        return int(np.unique(np.concatenate((self.tables[:, seated][used], read))).size)
