//! Steps in flight, and what comes of their results.

use thiserror::Error;

use super::beams::FinishedBeams;
use super::reuse::Failure;
use super::sequence::{Epoch, Index};
use super::step_time::Load;
use super::{Micros, Scheduler, SequenceId, Slot, StepId, Token};

/// One segment of a step in flight: who sat where when it was planned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticket {
    pub(super) index: Index,
    pub(super) epoch: Epoch,
    pub(super) slot: Slot,
    pub(super) sample: bool,
    /// Known tokens that it runs before it samples.
    pub(super) forced: u32,
    /// It is a beam, of which the most likely tokens are wanted and not a sampled one.
    pub(super) reports: bool,
}

/// A step that was planned and is not completed.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) step: StepId,
    pub(super) load: Load,
    pub(super) tickets: Vec<Ticket>,
}

/// What a shard reports of a step, in columns.
#[derive(Debug, Clone, Copy, Default)]
pub struct Results<'a> {
    /// Slots that sampled, in the order of the plan's segments, without the failed ones.
    pub slots: &'a [Slot],
    /// Tokens sampled per slot.
    pub counts: &'a [u32],
    /// The sampled tokens of all slots, concatenated.
    pub tokens: &'a [Token],
    /// The most likely tokens per slot with their log-probabilities, the best first; needed for beams, and otherwise empty
    /// or left out.
    pub tops: &'a [Vec<(Token, f32)>],
    /// Slots of the plan whose sequence cannot go on, in any order.
    pub failed: &'a [Slot],
    /// How long the shard was busy with the step.
    pub elapsed: Option<Micros>,
}

/// A new token of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    /// Whose.
    pub sequence: SequenceId,
    /// The token.
    pub token: Token,
    /// Its position in the sequence, prompt included.
    pub position: u32,
    /// Its row in [`Results::slots`]: where its alternatives are found.
    pub row: usize,
    /// Its place in [`Results::tokens`]: where its log-probability is found, unless it was not sampled.
    pub place: usize,
    /// It was known before, and only run: its log-probability is that of its segment.
    pub forced: bool,
    /// It is the last one by the sequence's `max_len`. The sequence has left its slot and waits for `finish`.
    pub length_reached: bool,
}

/// What came of a step. Reuse it for the next: [`Scheduler::complete`] keeps the memory of its vectors.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Completed {
    /// New tokens, in the order of the plan's segments.
    pub outputs: Vec<Output>,
    /// Beam searches that are over; they are finished.
    pub beams: Vec<FinishedBeams>,
    /// Sequences that failed; they are finished.
    pub failed: Vec<SequenceId>,
}

/// A report that does not fit the steps in flight: the shard and the scheduler do not agree on what runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum StepMismatch {
    /// Steps complete in the order in which they were planned.
    #[error("the shard completed step {got} and the next one to complete is {}", .expected.map_or("none".to_owned(), |step| step.to_string()))]
    WrongStep {
        /// As reported.
        got: StepId,
        /// The oldest step in flight.
        expected: Option<StepId>,
    },
    /// The columns do not belong together.
    #[error("step {step}: {slots} slots, {counts} counts and {tokens} tokens do not belong together")]
    Columns {
        /// The step.
        step: StepId,
        /// Length of the column.
        slots: usize,
        /// Length of the column.
        counts: usize,
        /// Length of the column.
        tokens: usize,
    },
    /// A slot is reported that did not sample here.
    #[error("step {step} reports slot {slot} where slot {} was to sample", .expected.map_or("none".to_owned(), |slot| slot.to_string()))]
    WrongSlot {
        /// The step.
        step: StepId,
        /// As reported.
        slot: Slot,
        /// Whose turn it was.
        expected: Option<Slot>,
    },
    /// A slot that was to sample is not reported.
    #[error("step {step} reports no token for slot {slot}")]
    MissingSlot {
        /// The step.
        step: StepId,
        /// The slot.
        slot: Slot,
    },
    /// A slot sampled another number of tokens than planned.
    #[error("step {step} reports {count} tokens for slot {slot} where 1 was to be sampled")]
    WrongCount {
        /// The step.
        step: StepId,
        /// The slot.
        slot: Slot,
        /// As reported.
        count: u32,
    },
    /// The successors of a beam are missing or are no numbers.
    #[error("step {step} reports no log-probabilities of the next tokens of slot {slot}")]
    MissingTops {
        /// The step.
        step: StepId,
        /// The slot.
        slot: Slot,
    },
    /// A slot failed that had no part in the step.
    #[error("step {step} reports a failure of slot {slot}, which had no part in it")]
    ForeignFailure {
        /// The step.
        step: StepId,
        /// The slot.
        slot: Slot,
    },
}

impl Scheduler {
    /// Takes the results of the oldest step in flight into `completed`, whatever that held before. Results of sequences that
    /// were finished or lost their seat since are dropped. On an error nothing has changed: the shard's word cannot be
    /// relied on any more, and `reset` is the way on.
    pub fn complete(
        &mut self,
        step: StepId,
        results: &Results<'_>,
        completed: &mut Completed,
    ) -> Result<(), StepMismatch> {
        completed.clear();
        let flight = self.next_flight(step)?;
        let mut failed = results.failed.to_vec();
        failed.sort_unstable();
        check(flight, results, &failed)?;
        let Some(mut flight) = self.flights.pop_front() else {
            return Ok(());
        };
        if let Some(elapsed) = results.elapsed {
            self.step_time.learn(&flight.load, elapsed);
        }
        let mut row = 0;
        let mut failure = Failure::default();
        for ticket in flight.tickets.drain(..) {
            if failed.binary_search(&ticket.slot).is_ok() {
                self.fail_ticket(ticket, completed, &mut failure);
            } else if ticket.sample {
                self.take_result(ticket, row, results, completed);
                row += 1;
            }
        }
        self.spare.push(flight.tickets);
        self.distrust(failure);
        Ok(())
    }

    /// Takes the failure of the whole oldest step in flight: every sequence in it has failed.
    pub fn fail(&mut self, step: StepId, completed: &mut Completed) -> Result<(), StepMismatch> {
        completed.clear();
        self.next_flight(step)?;
        let Some(mut flight) = self.flights.pop_front() else {
            return Ok(());
        };
        let mut failure = Failure::default();
        for ticket in flight.tickets.drain(..) {
            self.fail_ticket(ticket, completed, &mut failure);
        }
        self.spare.push(flight.tickets);
        self.distrust(failure);
        Ok(())
    }

    fn next_flight(&self, step: StepId) -> Result<&Flight, StepMismatch> {
        let expected = self.flights.front();
        expected
            .filter(|flight| flight.step == step)
            .ok_or(StepMismatch::WrongStep { got: step, expected: expected.map(|flight| flight.step) })
    }

    fn is_seated(&self, ticket: Ticket) -> bool {
        self.store[ticket.index].seat.is_some_and(|seat| seat.epoch == ticket.epoch)
    }

    fn fail_ticket(&mut self, ticket: Ticket, completed: &mut Completed, failure: &mut Failure) {
        failure.epochs.push(ticket.epoch);
        if !self.is_seated(ticket) {
            return;
        }
        if let Some(group) = self.store[ticket.index].group {
            self.fail_group(group, completed, failure);
        } else {
            failure.read.extend_from_slice(&self.store[ticket.index].path);
            completed.failed.push(self.store[ticket.index].id);
            self.unseat(ticket.index);
            self.drop(ticket.index);
        }
    }

    fn take_result(&mut self, ticket: Ticket, row: usize, results: &Results<'_>, completed: &mut Completed) {
        if !self.is_seated(ticket) {
            return;
        }
        match self.store[ticket.index].group {
            Some(group) => self.take_report(group, ticket, row, results, completed),
            None => self.take_token(ticket, row, results.tokens[row], completed),
        }
    }

    fn take_token(&mut self, ticket: Ticket, row: usize, token: Token, completed: &mut Completed) {
        let sequence = &mut self.store[ticket.index];
        if let Some(seat) = sequence.seat.as_mut() {
            seat.pending -= 1 + ticket.forced;
        }
        let (id, place) = (sequence.id, row);
        for token in sequence.run.drain(..ticket.forced as usize) {
            let position = sequence.tokens.len() as u32;
            sequence.tokens.push(token);
            let output = Output { sequence: id, token, position, row, place, forced: true, length_reached: false };
            completed.outputs.push(output);
        }
        let position = sequence.known();
        sequence.tokens.push(token);
        let length_reached = sequence.is_complete();
        completed.outputs.push(Output { sequence: id, token, position, row, place, forced: false, length_reached });
        self.publish(ticket.index, self.last_step);
        if length_reached {
            self.unseat(ticket.index);
        }
    }
}

impl Completed {
    fn clear(&mut self) {
        self.outputs.clear();
        self.beams.clear();
        self.failed.clear();
    }
}

/// Checks that the report is about exactly the slots that were to sample. `failed` is sorted.
fn check(flight: &Flight, results: &Results<'_>, failed: &[Slot]) -> Result<(), StepMismatch> {
    let step = flight.step;
    let (slots, counts, tokens) = (results.slots.len(), results.counts.len(), results.tokens.len());
    let mut reported = results.slots.iter().zip(results.counts);
    let mut tops = results.tops.iter();
    for ticket in flight.tickets.iter().filter(|ticket| ticket.sample && failed.binary_search(&ticket.slot).is_err()) {
        let Some((&slot, &count)) = reported.next() else {
            return Err(StepMismatch::MissingSlot { step, slot: ticket.slot });
        };
        if slot != ticket.slot {
            return Err(StepMismatch::WrongSlot { step, slot, expected: Some(ticket.slot) });
        }
        if count != 1 {
            return Err(StepMismatch::WrongCount { step, slot, count });
        }
        let is_number = |(_, logprob): &(Token, f32)| !logprob.is_nan();
        if !tops.next().is_some_and(|top| !top.is_empty() && top.iter().all(is_number)) && ticket.reports {
            return Err(StepMismatch::MissingTops { step, slot });
        }
    }
    if let Some((&slot, _)) = reported.next() {
        return Err(StepMismatch::WrongSlot { step, slot, expected: None });
    }
    if slots != counts || slots != tokens {
        return Err(StepMismatch::Columns { step, slots, counts, tokens });
    }
    if failed.is_empty() {
        return Ok(());
    }
    let mut planned: Vec<Slot> = flight.tickets.iter().map(|ticket| ticket.slot).collect();
    planned.sort_unstable();
    match failed.iter().find(|slot| planned.binary_search(slot).is_err()) {
        Some(&slot) => Err(StepMismatch::ForeignFailure { step, slot }),
        None => Ok(()),
    }
}
