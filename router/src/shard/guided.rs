//! One sequence under a grammar, between the engine, the scheduler's plans and the mask workers.
//!
//! Its matcher is here or with a worker. A token that was sampled waits until the matcher has taken it: only then is it known
//! whether the answer is whole with it. A mask is written by whoever can first: a worker, or right here when what comes next
//! is known.

use std::collections::VecDeque;
use std::time::Duration;

use super::mask_workers::{Followed, Follower, Job, MaskWorkers};
use super::masks::MaskTicket;
use crate::grammar::{Guide, MatchError};
use crate::scheduler::{Output, SequenceId, StepId, Token};

/// The newest counts for one in so many in the average time of a mask.
const MEMORY: u32 = 8;

/// A token with what the shard said of it.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) output: Output,
    pub(super) logprob: f32,
    pub(super) top: Vec<(Token, f32)>,
    /// The answer is whole with it.
    pub(super) whole: bool,
}

/// What the engine keeps of a sequence under a grammar.
#[derive(Debug)]
pub(super) struct Guided {
    id: SequenceId,
    key: usize,
    /// `None` while a worker has it.
    follower: Option<Follower>,
    /// Position of the first token that was not heard yet.
    known: u32,
    /// Tokens that the matcher has not taken, or is about to.
    waiting: VecDeque<Heard>,
    /// Tokens behind the known ones that must come, and that the matcher has taken.
    ahead: VecDeque<Token>,
    /// The mask behind those, if it is known.
    mask: Option<Vec<u32>>,
    /// The answer is whole behind those.
    whole: bool,
    /// Masks that steps in flight wait for, and the positions that they are for.
    tickets: VecDeque<(u32, MaskTicket)>,
    /// The position and the slot of the mask that is being found.
    finding: Option<(u32, u32)>,
    /// The mask that the shard has a part of.
    open: Option<(u32, MaskTicket)>,
    /// The shard wants the rest of it, or of the one that is being found.
    asked: bool,
    /// Whether parts of masks will do.
    in_part: bool,
    /// And for the shard, which asks for the rest.
    shard_asks: bool,
    jumps: bool,
    words: usize,
    /// How long a mask takes.
    pace: Duration,
    /// How long a job takes.
    effort: Duration,
    /// Masks take longer than steps: it is planned only when its mask is there.
    slow: bool,
    /// The step that the last token came from.
    heard_in: StepId,
}

impl Guided {
    /// A sequence with its prompt, of `prompt_len` tokens. It `jumps` over forced tokens when nothing is wanted of them that
    /// only sampling tells. Masks `in_part` will do for one that takes the likeliest token.
    pub(super) fn new(id: SequenceId, guide: &Guide, prompt_len: u32, jumps: bool, in_part: bool) -> Self {
        Self {
            id,
            key: guide.key(),
            follower: Some(Follower::New(guide.clone())),
            known: prompt_len,
            waiting: VecDeque::new(),
            ahead: VecDeque::new(),
            mask: None,
            whole: false,
            tickets: VecDeque::new(),
            finding: None,
            open: None,
            asked: false,
            in_part,
            shard_asks: false,
            jumps,
            words: 0,
            pace: Duration::ZERO,
            effort: Duration::ZERO,
            slow: false,
            heard_in: 0,
        }
    }

    /// A step that is about to be sent samples the token at this position. The shard `asks` for what a part of a mask leaves out,
    /// or takes none.
    pub(super) fn want(&mut self, position: u32, mut ticket: MaskTicket, asks: bool) {
        self.shard_asks = asks;
        self.words = ticket.words().len();
        self.tickets.push_back((position, ticket));
    }

    /// A token has come.
    pub(super) fn hear(&mut self, step: StepId, heard: Heard) {
        self.heard_in = step;
        self.known = heard.output.position + 1;
        self.finding.take_if(|(position, _)| *position < self.known);
        self.open.take_if(|(position, _)| *position < self.known);
        self.asked &= self.finding.is_some() || self.open.is_some();
        self.waiting.push_back(heard);
    }

    /// A step that was to sample it is over. If no token has come of it, the sequence has lost its seat.
    pub(super) fn step_is_over(&mut self, step: StepId) {
        if self.heard_in != step {
            self.forget_tickets();
        }
    }

    /// What steps in flight sample of it will not be used: nobody must wait for its masks.
    pub(super) fn forget_tickets(&mut self) {
        self.tickets.clear();
        (self.finding, self.open, self.asked) = (None, None, false);
    }

    /// The shard, which has a part of the mask in this slot, wants all of it; whether it is this one's.
    pub(super) fn ask(&mut self, slot: u32) -> bool {
        let finding = self.finding.map(|(_, slot)| slot);
        let own = self.open.as_ref().map(|(_, ticket)| ticket.slot()).or(finding) == Some(slot);
        self.asked |= own;
        own
    }

    /// A worker has given the matcher back. A mask that takes longer than `patience` makes it slow.
    pub(super) fn take_back(&mut self, followed: Followed, patience: Duration) {
        let Followed { follower, taken, run, whole, mask, open, took, spent } = followed;
        // Without a place the step that it was for is over.
        self.open = open.zip(self.finding.take()).map(|(ticket, (position, _))| (position, ticket));
        self.follower = Some(follower);
        self.ahead.extend(run);
        (self.mask, self.whole) = (mask, whole);
        self.pace = (self.pace * (MEMORY - 1) + took) / MEMORY;
        self.effort = if self.effort.is_zero() { spent } else { (self.effort * (MEMORY - 1) + spent) / MEMORY };
        self.slow = self.pace > patience;
        // Those that were taken are like tokens that were known ahead.
        for heard in self.waiting.iter().take(taken).rev() {
            self.ahead.push_front(heard.output.token);
        }
    }

    /// Does all that can be done now: tokens that were taken go to `out`, masks that are known are written, and the workers
    /// are given what is left. A mask that takes longer than `patience` makes it slow.
    ///
    /// # Errors
    /// Why the sequence cannot go on.
    pub(super) fn settle(
        &mut self,
        workers: &mut MaskWorkers,
        patience: Duration,
        out: &mut Vec<Heard>,
    ) -> Result<(), MatchError> {
        while let Some(job) = self.next_job(out)? {
            match workers.start(job, self.effort)? {
                Some(followed) => self.take_back(followed, patience),
                None => break,
            }
        }
        Ok(())
    }

    /// What is left to do for the workers, once all else is done.
    fn next_job(&mut self, out: &mut Vec<Heard>) -> Result<Option<Job>, MatchError> {
        if self.follower.is_none() {
            return Ok(None);
        }
        while let Some(&due) = self.ahead.front() {
            let Some(mut heard) = self.waiting.pop_front() else { break };
            if heard.output.token != due {
                return Err(MatchError::Rejected(heard.output.token));
            }
            self.ahead.pop_front();
            heard.whole = self.whole && self.ahead.is_empty();
            out.push(heard);
        }
        if self.whole && self.ahead.is_empty() {
            return Ok(None);
        }
        while self.tickets.front().is_some_and(|&(position, _)| position < self.known) {
            self.tickets.pop_front();
        }
        if self.waiting.is_empty() {
            self.write_known_masks();
        } else {
            self.mask = None;
        }
        if self.asked {
            self.open.take().into_iter().for_each(|open| self.tickets.push_front(open));
        }
        let due = self.known + self.ahead.len() as u32;
        let is_due = self.tickets.front().is_some_and(|&(position, _)| position == due);
        let ticket = if is_due { self.tickets.pop_front().map(|(_, ticket)| ticket) } else { None };
        let Some(follower) = self.follower.take_if(|_| ticket.is_some() || !self.waiting.is_empty()) else {
            return Ok(None);
        };
        let tokens = self.waiting.iter().map(|heard| heard.output.token).collect();
        let (id, key, words, looks_ahead) = (self.id, self.key, self.words, self.slow && self.tickets.is_empty());
        let jumps = self.jumps && self.ahead.is_empty();
        self.finding = ticket.as_ref().map(|ticket| (due, ticket.slot()));
        let in_part = self.in_part && self.shard_asks && !std::mem::take(&mut self.asked);
        Ok(Some(Job { id, key, follower, tokens, ticket, words, looks_ahead, jumps, in_part }))
    }

    /// Writes the masks of positions about which all is known.
    fn write_known_masks(&mut self) {
        while let Some(&(position, _)) = self.tickets.front() {
            let place = (position - self.known) as usize;
            let forced = self.ahead.get(place).copied();
            let known = place == self.ahead.len() && (self.whole || self.mask.is_some());
            if forced.is_none() && !known {
                return;
            }
            let Some((_, mut ticket)) = self.tickets.pop_front() else { return };
            if let Some(token) = forced {
                let words = ticket.words();
                words.fill(0);
                if let Some(word) = words.get_mut(token as usize / 32) {
                    *word |= 1 << (token % 32);
                }
                ticket.publish();
            } else if let Some(mask) = self.mask.take() {
                ticket.words().copy_from_slice(&mask);
                ticket.publish();
            }
            // Else the answer is whole before: nobody uses what is sampled there.
        }
    }

    /// Tokens that are known to come, from which position on: the scheduler runs them without sampling. The last one of a
    /// whole answer is sampled, since nothing comes behind it.
    pub(super) fn run(&mut self) -> Option<(u32, &[Token])> {
        if self.ahead.is_empty() || !self.waiting.is_empty() || self.follower.is_none() {
            return None;
        }
        let (known, whole) = (self.known, self.whole);
        let tokens: &[Token] = self.ahead.make_contiguous();
        Some((known, if whole { tokens.split_last()?.1 } else { tokens }))
    }

    /// Whether it is not to be planned beyond the token at this position, for now.
    pub(super) fn pauses_after(&self, position: u32) -> bool {
        let end = self.known + self.ahead.len() as u32;
        self.slow || (self.whole && position + 1 == end)
    }

    /// Whether it can be planned again after a pause.
    pub(super) fn is_ready(&self) -> bool {
        self.follower.is_some() && self.waiting.is_empty() && !self.whole
    }
}
