//! One sequence: its tokens, its seat, and what it can run next.

use std::collections::HashMap;
use std::ops;

use thiserror::Error;

use super::beams::GroupIndex;
use super::chain::{CacheKey, Digest};
use super::prefix::NodeIndex;
use super::tenants::AccountIndex;
use super::{BlockId, Micros, Priority, SequenceId, Slot, StepId, TenantId, Token};

/// Place in a [`Store`].
pub(super) type Index = u32;
/// When a sequence was enqueued, counted in sequences. Kept for life: a recomputed sequence is as old as it was.
pub(super) type Arrival = u64;
/// Place among the running: the class, then the deadline, then the arrival.
pub(super) type Rank = (Priority, Micros, Arrival);
/// Number of a seating; no two are alike, so a late result can never reach the next occupant of a slot.
pub(super) type Epoch = u64;

/// A sequence to run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewSequence {
    /// Chosen by the caller, unique among the sequences that are not finished.
    pub id: SequenceId,
    /// The prompt; for a resumed sequence the prompt and the output so far.
    pub tokens: Vec<Token>,
    /// How many of `tokens` are prompt.
    pub prompt_len: u32,
    /// Prompt and output together never exceed this many tokens.
    pub max_len: u32,
    /// So many of its first positions mean nothing unless all of them are there (an encoder reads its input at once): one
    /// segment runs them all and some behind them, or they are cached to the last. Its cache key must stand for them.
    pub whole: u32,
    /// Report the log-probabilities of the prompt's tokens.
    pub prompt_logprobs: bool,
    /// Report no log-probabilities of tokens that are known before they are run.
    pub unscored: bool,
    /// Which cached prefixes it may use, and who may use its own.
    pub cache_key: CacheKey,
    /// Who is to get a fair share.
    pub tenant: TenantId,
    /// Its class; those of a lower number go first.
    pub priority: Priority,
    /// When it is no longer worth a seat, as an instant of the clock that [`super::Scheduler::advance`] is told.
    pub deadline: Option<Micros>,
}

/// Why a sequence can never run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refusal {
    /// There is nothing to start from.
    #[error("the prompt has no tokens: send at least one")]
    EmptyPrompt,
    /// `prompt_len` is more than there are tokens.
    #[error("the prompt is said to have {prompt_len} tokens and {tokens} were given")]
    PromptBeyondTokens {
        /// As given.
        prompt_len: u32,
        /// Tokens given.
        tokens: usize,
    },
    /// What must run in one segment is not followed by more of the prompt.
    #[error("the first {whole} tokens are run at once, and the prompt of {prompt_len} has none behind them")]
    NothingBehind {
        /// As given.
        whole: u32,
        /// As given.
        prompt_len: u32,
    },
    /// What must run in one segment does not fit a step beside all streams.
    #[error(
        "an input of {whole} tokens is run at once, and a step has room for {room} beside all that may run: shorten the input or raise --max-batch-prefill-tokens"
    )]
    OverStep {
        /// As given.
        whole: u32,
        /// Tokens of a step less one for each slot.
        room: u32,
    },
    /// No token may be generated.
    #[error(
        "{tokens} tokens leave no room for output under a limit of {max_len}: raise the limit or shorten the prompt"
    )]
    NothingToGenerate {
        /// Tokens given.
        tokens: usize,
        /// As given.
        max_len: u32,
    },
    /// It would not fit the pool even alone.
    #[error(
        "the sequence may need {needs_blocks} KV blocks and the pool has {has_blocks}: shorten the prompt, ask for fewer new tokens, or give the server more KV memory"
    )]
    TooLong {
        /// Blocks needed at its longest.
        needs_blocks: u32,
        /// Blocks of the pool.
        has_blocks: u32,
    },
    /// It would exceed `max_running_tokens` even alone.
    #[error(
        "the sequence may grow to {max_len} tokens and {limit} may run at once: ask for fewer new tokens or raise --max-batch-total-tokens"
    )]
    OverTokenLimit {
        /// As given.
        max_len: u32,
        /// The limit.
        limit: u32,
    },
    /// There are more beams than seats.
    #[error("a search of {width} beams needs {width} slots and the server has {slots}: ask for fewer beams")]
    TooManyBeams {
        /// As given.
        width: u32,
        /// Slots there are.
        slots: u32,
    },
    /// A search has no more answers than beams, and at least one.
    #[error("a search of {width} beams cannot return {returned} answers: ask for 1 to {width}")]
    NotSoManyBeams {
        /// As given.
        width: u32,
        /// As given.
        returned: u32,
    },
    /// The length penalty is infinite or not a number.
    #[error("the length penalty is not a finite number: 1 divides scores by the length and 0 leaves them as they are")]
    LengthPenalty,
    /// A beam search is not to be forked.
    #[error("sequence {id} is a beam search: ask for more beams instead of forking it")]
    IsBeams {
        /// As given.
        id: SequenceId,
    },
    /// There is none to fork.
    #[error("sequence {id} is not there: fork it before it is finished")]
    Unknown {
        /// As given.
        id: SequenceId,
    },
    /// The id is taken.
    #[error("sequence {id} is there already: finish it first or choose another id")]
    Duplicate {
        /// As given.
        id: SequenceId,
    },
}

/// A running sequence's place in the shard.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seat {
    pub(super) slot: Slot,
    pub(super) epoch: Epoch,
    /// Tokens known when seated: these are sent by id, all later ones are sampled in this seat.
    pub(super) admitted: u32,
    /// Positions planned so far, in steps completed or in flight.
    pub(super) planned: u32,
    /// Tokens being sampled by steps in flight.
    pub(super) pending: u32,
    /// The last step it had a part in.
    pub(super) step: StepId,
    /// Positions that it had in its blocks before that step.
    pub(super) planned_before: u32,
    /// Its blocks enter the prefix cache.
    pub(super) publishes: bool,
    /// Who gave it blocks to share or copy, apart from those of its path.
    pub(super) lender: Option<Epoch>,
}

/// A member of a group goes on from another one's blocks, and the shard is not told yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Continuation {
    /// The block of which a copy follows the shared ones.
    pub(super) copied: Option<BlockId>,
}

#[derive(Debug, Default)]
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    pub(super) arrival: Arrival,
    /// Known tokens: those that steps in flight sample are not among them.
    pub(super) tokens: Vec<Token>,
    pub(super) prompt_len: u32,
    pub(super) max_len: u32,
    /// First positions that are run in one segment.
    pub(super) whole: u32,
    pub(super) prompt_logprobs: bool,
    pub(super) unscored: bool,
    pub(super) tenant: TenantId,
    pub(super) account: AccountIndex,
    pub(super) priority: Priority,
    pub(super) deadline: Option<Micros>,
    pub(super) enqueued: Micros,
    /// How often it gave its seat to a more urgent one.
    pub(super) yielded: u32,
    /// Arrival of the first of those that go on from one prompt.
    pub(super) family: Arrival,
    /// There are or were others of its family.
    pub(super) has_kin: bool,
    /// The beam search that it is part of.
    pub(super) group: Option<GroupIndex>,
    /// It is part of one and not its leader: nothing waits for it, and nobody knows it by its id.
    pub(super) follows: bool,
    pub(super) continuation: Option<Continuation>,
    /// Some while running. Without a seat it waits, unless its length is reached.
    pub(super) seat: Option<Seat>,
    /// Block table: position p lies in `blocks[p / block_size]`.
    pub(super) blocks: Vec<BlockId>,
    /// Blocks, from the first on, whose window parts it looks at no more (`windows`).
    pub(super) behind: usize,
    pub(super) key: CacheKey,
    /// Digests of its first full blocks.
    pub(super) chain: Vec<Digest>,
    /// While running: the cached nodes of its first blocks.
    pub(super) path: Vec<NodeIndex>,
    /// While running: tokens that are known to follow those in flight (`runs`).
    pub(super) tail: Vec<Token>,
    /// While running: those of them that steps in flight run.
    pub(super) run: Vec<Token>,
    /// While running: it is not to be planned.
    pub(super) paused: bool,
}

impl Sequence {
    pub(super) fn new(new: NewSequence, arrival: Arrival, account: AccountIndex, now: Micros) -> Self {
        Self {
            id: new.id,
            arrival,
            tokens: new.tokens,
            prompt_len: new.prompt_len,
            max_len: new.max_len,
            whole: new.whole,
            prompt_logprobs: new.prompt_logprobs,
            unscored: new.unscored,
            tenant: new.tenant,
            account,
            priority: new.priority,
            deadline: new.deadline,
            enqueued: now,
            yielded: 0,
            family: arrival,
            has_kin: false,
            group: None,
            follows: false,
            continuation: None,
            seat: None,
            blocks: Vec::new(),
            behind: 0,
            key: new.cache_key,
            chain: Vec::new(),
            path: Vec::new(),
            tail: Vec::new(),
            run: Vec::new(),
            paused: false,
        }
    }

    pub(super) fn known(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// All it may generate is known.
    pub(super) fn is_complete(&self) -> bool {
        self.known() == self.max_len
    }

    /// Its place among the running: who comes last gives way first.
    pub(super) fn rank(&self) -> Rank {
        (self.priority, self.deadline.unwrap_or(Micros::MAX), self.arrival)
    }

    /// It runs and has known tokens to run.
    pub(super) fn is_in_prompt(&self) -> bool {
        self.seat.is_some_and(|seat| seat.planned < seat.admitted)
    }

    /// The log-probabilities of its prompt are still to be reported. Once there is output, they were.
    pub(super) fn is_to_be_scored(&self) -> bool {
        self.prompt_logprobs && self.known() == self.prompt_len
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.seat.is_none() && !self.is_complete() && !self.follows
    }

    /// Known tokens and those in flight.
    pub(super) fn length(&self) -> u32 {
        self.known() + self.seat.map_or(0, |seat| seat.pending)
    }

    /// Positions that its seat can run next: what it was seated with, then one for each token that it samples.
    pub(super) fn runnable(&self) -> u32 {
        match self.seat {
            // The token at the last position is never run: nothing comes after it.
            Some(seat) if self.length() < self.max_len => self.length() - seat.planned,
            _ => 0,
        }
    }
}

/// All sequences by id and by index. A removed one leaves an empty entry, without a seat, for the next.
#[derive(Debug, Default)]
pub(super) struct Store {
    entries: Vec<Sequence>,
    vacant: Vec<Index>,
    by_id: HashMap<SequenceId, Index>,
}

impl Store {
    pub(super) fn insert(&mut self, sequence: Sequence) -> Index {
        let id = sequence.id;
        let index = self.insert_follower(sequence);
        self.by_id.insert(id, index);
        index
    }

    /// Inserts a sequence that is not known by its id.
    pub(super) fn insert_follower(&mut self, sequence: Sequence) -> Index {
        match self.vacant.pop() {
            Some(index) => {
                self.entries[index as usize] = sequence;
                index
            }
            None => {
                self.entries.push(sequence);
                (self.entries.len() - 1) as Index
            }
        }
    }

    pub(super) fn remove(&mut self, index: Index) {
        let gone = std::mem::take(&mut self.entries[index as usize]);
        debug_assert!(gone.seat.is_none() && gone.blocks.is_empty(), "sequence {} was removed from its seat", gone.id);
        if !gone.follows {
            self.by_id.remove(&gone.id);
        }
        self.vacant.push(index);
    }

    pub(super) fn find(&self, id: SequenceId) -> Option<Index> {
        self.by_id.get(&id).copied()
    }

    /// Sequences that are known by their ids.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.entries.iter_mut()
    }

    /// All sequences, also those that follow a leader.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Index, &Sequence)> {
        // An empty entry may reach no tokens.
        (0..).zip(&self.entries).filter(|(_, sequence)| sequence.max_len > 0)
    }
}

impl ops::Index<Index> for Store {
    type Output = Sequence;
    fn index(&self, index: Index) -> &Sequence {
        &self.entries[index as usize]
    }
}

impl ops::IndexMut<Index> for Store {
    fn index_mut(&mut self, index: Index) -> &mut Sequence {
        &mut self.entries[index as usize]
    }
}
