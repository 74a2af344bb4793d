//! What the scheduler decided for one step.

use std::ops::Range;

use super::{PageId, SequenceId, Slot, StepId, Token};

/// A run of positions of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Whose.
    pub sequence: SequenceId,
    /// Its seat.
    pub slot: Slot,
    /// First position to run.
    pub start: u32,
    /// Positions to run.
    pub length: u32,
    /// The first token is the one sampled last in this slot; `length` counts it and `tokens` does not hold it. What follows
    /// it, if anything does, was known before it was sampled.
    pub last: bool,
    /// Sample the token at position `start + length`.
    pub sample: bool,
    /// Report the log-probabilities of this segment's tokens: of a prompt that is to be scored, and of tokens that were known
    /// before they were sampled. A recomputed prompt reports again: keep them by position.
    pub prompt_logprobs: bool,
    /// The token ids, as a range of [`Plan::tokens`].
    pub tokens: Range<usize>,
    /// Blocks to append to the slot's table before the segment runs, as a range of [`Plan::blocks`]: for each the page of each
    /// group of layers, or [`super::NO_PAGE`]. With a sequence's first segment come those that hold its cached tokens.
    pub blocks: Range<usize>,
}

/// A sequence takes a slot. A beam search takes one per beam, and a beam that goes on from another takes its own anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// Whose.
    pub sequence: SequenceId,
    /// Its seat.
    pub slot: Slot,
    /// Tokens, from the start on, that need not be run. A recomputed sequence finds what is left of its own.
    pub cached_tokens: u32,
}

/// One step. Reuse the same plan for the next: [`super::Scheduler::plan_into`] keeps the memory of its vectors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Number of the step, rising by one from plan to plan.
    pub step: StepId,
    /// Sequences that take a slot in this step, to be announced before it. Taking a slot resets it.
    pub admits: Vec<Admission>,
    /// Decoding sequences first, then prompts; each group by class, deadline and arrival. At most one per slot.
    pub segments: Vec<Segment>,
    /// Token ids of all segments, concatenated.
    pub tokens: Vec<Token>,
    /// Pages of the new blocks of all segments, concatenated.
    pub blocks: Vec<PageId>,
    /// Pages to copy (from, to) before the segments run. Every source is to be read before any page is written.
    pub copies: Vec<(PageId, PageId)>,
    /// Slots whose sequence is gone, and that nobody takes in this step.
    pub freed: Vec<Slot>,
}

impl Plan {
    /// Tokens the step runs: what counts against the budget.
    pub fn token_count(&self) -> usize {
        self.segments.iter().map(|segment| segment.length as usize).sum()
    }

    /// The token ids that a segment of this plan carries.
    pub fn tokens_of(&self, segment: &Segment) -> &[Token] {
        &self.tokens[segment.tokens.clone()]
    }

    /// Pages of the new blocks that a segment of this plan carries.
    pub fn blocks_of(&self, segment: &Segment) -> &[PageId] {
        &self.blocks[segment.blocks.clone()]
    }

    pub(super) fn clear(&mut self) {
        self.step = 0;
        self.admits.clear();
        self.segments.clear();
        self.tokens.clear();
        self.blocks.clear();
        self.copies.clear();
        self.freed.clear();
    }
}
