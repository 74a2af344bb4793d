//! Fills a step under one token budget: streams first, then prompts that were begun, then new ones. A stream never waits for a
//! prompt.
//!
//! Where passing is allowed (`max_passes`), most steps run the prompts of a class by what is left of them: a chat does not wait
//! for a long document that was begun before it. One step in a few keeps to the rank, so that the first by rank advances
//! whatever comes.
//!
//! The running sequences are ranked (`preemption`). Whoever lacks a block takes it from the last of them.

use super::flight::{Flight, Ticket};
use super::plan::{Plan, Segment};
use super::sequence::{Arrival, Index};
use super::step_time::Load;
use super::{Priority, Scheduler};

/// One step in so many runs prompts by their rank, however long they are.
const RANKED: u64 = 4;

/// What newcomers must be to go before a prompt that was begun: of a more urgent class, or of the same and less than half as
/// long. One about as long wins little, and what it has in common with the other would be computed twice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Before {
    pub(super) class: Priority,
    /// Tokens that they have less than; none of the same class has less than 0.
    pub(super) tokens: u32,
}

impl Before {
    /// Whether nobody of a class goes before.
    pub(super) fn ends_at(self, class: Priority) -> bool {
        class > self.class || (class == self.class && self.tokens == 0)
    }
}

/// What is left while a step is being filled.
#[derive(Debug)]
pub(super) struct Round {
    /// Tokens that the step may still run.
    pub(super) budget: u32,
    /// Somebody lost a seat: nobody is to take one, least of all the same again.
    pub(super) crowded: bool,
    /// Sequences in the middle of their prompts, in their rank.
    pub(super) prompts: Vec<Index>,
    /// Waiting sequences that found no room, or have just given way.
    pub(super) skipped: Vec<Arrival>,
    pub(super) load: Load,
    tickets: Vec<Ticket>,
}

/// A run of positions that a sequence has the blocks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Booking {
    index: Index,
    start: u32,
    length: u32,
    /// Blocks whose pages the shard has been told of.
    held: usize,
}

impl Scheduler {
    /// Plans the next step into `plan`, whatever that held before. Returns false, with an empty plan, when nothing can run
    /// now: no work, all of it waiting for results, or `steps_in_flight` steps not completed.
    pub fn plan_into(&mut self, plan: &mut Plan) -> bool {
        plan.clear();
        if self.flights.len() >= self.config.steps_in_flight as usize {
            return false;
        }
        let tickets = self.spare.pop().unwrap_or_default();
        let budget = self.config.max_step_tokens;
        let (prompts, skipped, load) = (Vec::new(), Vec::new(), Load::default());
        let mut round = Round { budget, crowded: false, prompts, skipped, load, tickets };
        if self.pages.is_some() {
            self.leave_behind();
        }
        self.make_way(&mut round);
        self.continue_streams(plan, &mut round);
        self.continue_prompts(plan, &mut round);
        self.admit_waiting(None, plan, &mut round);
        if plan.segments.is_empty() {
            self.spare.push(round.tickets);
            return false;
        }
        self.seats.announce(&mut plan.freed);
        self.last_step += 1;
        plan.step = self.last_step;
        self.flights.push_back(Flight { step: plan.step, load: round.load, tickets: round.tickets });
        true
    }

    /// Streams first, in their rank. The budget suffices for each: there are no more slots than tokens in a step.
    /// Whoever must give way for blocks comes later than all that are in the plan already.
    fn continue_streams(&mut self, plan: &mut Plan, round: &mut Round) {
        let mut place = 0;
        let mut spare = round.budget.saturating_sub(self.seats.len() as u32);
        while let Some(index) = self.seats.at(place) {
            let sequence = &self.store[index];
            if let Some(group) = sequence.group {
                if !self.continue_group(group, plan, round) {
                    return;
                }
                place += self.beams_of(group);
                continue;
            }
            if sequence.is_in_prompt() {
                round.prompts.push(index);
            } else if sequence.runnable() > 0 && !sequence.paused {
                while self.fits(index, 1) == 0 {
                    let Some(victim) = self.seats.latest() else { return };
                    self.preempt(victim, round);
                    if victim == index {
                        return;
                    }
                }
                let length = self.fits(index, 1 + self.run_length(index, spare, round));
                spare -= length - 1;
                self.run(index, length, plan, round);
            }
            place += 1;
        }
    }

    /// Then prompts that were begun, each behind newcomers of a more urgent class, and behind far shorter ones unless this step
    /// keeps to the rank.
    fn continue_prompts(&mut self, plan: &mut Plan, round: &mut Round) {
        let by_length = self.config.max_passes > 0 && !(self.last_step + 1).is_multiple_of(RANKED);
        if by_length {
            round.prompts.sort_by_key(|&index| (self.store[index].priority, self.store[index].runnable()));
        }
        for place in 0..round.prompts.len() {
            let index = round.prompts[place];
            let sequence = &self.store[index];
            if sequence.seat.is_none() {
                continue;
            }
            let tokens = if by_length { sequence.runnable() / 2 } else { 0 };
            self.admit_waiting(Some(Before { class: sequence.priority, tokens }), plan, round);
            let start = self.store[index].seat.map_or(0, |seat| seat.planned);
            let wanted = self.runnable(index).min(round.budget).min(self.chunk(start, round));
            if wanted == 0 {
                continue;
            }
            let mut length = self.fits(index, wanted);
            while let Some(victim) = self.later_outsider(index).filter(|_| length == 0) {
                self.preempt(victim, round);
                length = self.fits(index, wanted);
            }
            // With nothing to take from later ones it keeps what it has, until some stream ends.
            if length > 0 {
                self.run(index, length, plan, round);
            }
        }
    }

    /// Tokens of a prompt that the step can run in time, or that are its share.
    pub(super) fn chunk(&self, start: u32, round: &Round) -> u32 {
        if round.load.streams == 0 {
            return u32::MAX;
        }
        if self.config.target_itl.is_none() {
            let left = self.config.beside(round.load.streams).saturating_sub(round.load.prompt_tokens());
            return u32::try_from(left).unwrap_or(u32::MAX);
        }
        let chunk = self.step_time.chunk(&round.load, start);
        if round.load.has_prompts() { chunk } else { chunk.max(self.config.least_chunk()) }
    }

    /// The latest one after a sequence that is not in the plan, nor any of its group.
    fn later_outsider(&self, index: Index) -> Option<Index> {
        let group = self.store[index].group;
        let own = |other: Index| other == index || (group.is_some() && self.store[other].group == group);
        let later = self.seats.iter().rev().take_while(|&other| !own(other));
        later.into_iter().find(|&other| !self.is_planned(other))
    }

    /// How many of `wanted` tokens a sequence can run with the blocks there are.
    pub(super) fn fits(&self, index: Index, wanted: u32) -> u32 {
        let sequence = &self.store[index];
        let Some(seat) = sequence.seat else { return 0 };
        let blocks = sequence.blocks.len() as u64 + u64::from(self.available_blocks());
        let room = (blocks * u64::from(self.config.block_size)).saturating_sub(u64::from(seat.planned));
        let length = u64::from(wanted).min(room) as u32;
        let forced = (seat.planned + length).saturating_sub(sequence.length());
        let samples = seat.planned + length >= sequence.length();
        let grown = self.running_tokens + self.tokens_to_sample(index);
        match self.config.token_cap().checked_sub(grown) {
            _ if !samples => length,
            Some(room) => length - u64::from(forced).saturating_sub(room) as u32,
            None => 0,
        }
    }

    pub(super) fn run(&mut self, index: Index, length: u32, plan: &mut Plan, round: &mut Round) {
        let held = self.store[index].blocks.len();
        let continuation = self.store[index].continuation.take();
        let booking = self.book(index, if continuation.is_some() { 0 } else { held }, length);
        if let Some(continuation) = continuation {
            self.announce(index, continuation, held, booking.start, plan);
        }
        self.push_segment(booking, plan, round);
    }

    /// Books the next `length` positions of a sequence, with blocks for them; `fit` has seen that there are enough.
    pub(super) fn book(&mut self, index: Index, held: usize, length: u32) -> Booking {
        let (mut start, mut in_prompt, mut samples, mut forced) = (0, false, false, 0);
        let sequence = &mut self.store[index];
        if let Some(seat) = sequence.seat.as_mut() {
            (start, in_prompt) = (seat.planned, seat.planned < seat.admitted);
            // What a newcomer starts from is copied in this very step.
            (seat.step, seat.planned_before) = (self.last_step + 1, if held == 0 { 0 } else { start });
            seat.planned += length;
            samples = seat.planned >= seat.admitted;
            forced = if in_prompt { 0 } else { length - 1 };
            seat.pending += u32::from(samples) + forced;
        }
        self.tenants.charge(sequence.account, length);
        if samples {
            self.running_tokens += self.tokens_to_sample(index) + u64::from(forced);
            self.note_sampling(index);
            self.take_run(index, forced);
        }
        let needed = self.config.blocks_for(start + length) as usize;
        while self.store[index].blocks.len() < needed {
            let Some(block) = self.allocate() else {
                debug_assert!(false, "sequence {} was promised a block", self.store[index].id);
                break;
            };
            self.store[index].blocks.push(block);
        }
        if in_prompt {
            self.publish(index, self.last_step + 1);
        }
        Booking { index, start, length, held }
    }

    pub(super) fn push_segment(&self, booking: Booking, plan: &mut Plan, round: &mut Round) {
        let Booking { index, start, length, held } = booking;
        let sequence = &self.store[index];
        let Some(seat) = sequence.seat else { return };
        let last = start >= seat.admitted;
        let sample = start + length >= seat.admitted;
        let (first_token, first_block) = (plan.tokens.len(), plan.blocks.len());
        let forced = if last { length - 1 } else { 0 };
        if last {
            plan.tokens.extend_from_slice(&sequence.run[sequence.run.len() - forced as usize..]);
        } else {
            plan.tokens.extend_from_slice(&sequence.tokens[start as usize..(start + length) as usize]);
        }
        self.tell_pages(sequence, held, &mut plan.blocks);
        plan.segments.push(Segment {
            sequence: sequence.id,
            slot: seat.slot,
            start,
            length,
            last,
            sample,
            prompt_logprobs: (forced > 0 && !sequence.unscored) || (!last && sequence.is_to_be_scored()),
            tokens: first_token..plan.tokens.len(),
            blocks: first_block..plan.blocks.len(),
        });
        round.budget -= length;
        if forced > 0 {
            round.load.add_prompt(start, length);
        } else if last || self.is_decoding(index) {
            round.load.add_stream(start);
        } else {
            round.load.add_prompt(start, length);
        }
        round.tickets.push(Ticket {
            index,
            epoch: seat.epoch,
            slot: seat.slot,
            sample,
            forced,
            reports: sequence.group.is_some(),
        });
    }
}
