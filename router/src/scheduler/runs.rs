//! Runs of tokens that are known before they are sampled, because nothing else may follow (a grammar forces them).
//!
//! A sequence with a known tail runs in one segment the token sampled last and as much of the tail as there is room for, and
//! samples behind it. So every segment of it samples, however the run is cut. Tails live as long as the seat: a sequence that
//! loses it is recomputed from what was reported, and its caller offers the rest again or lets it be sampled.

use super::planner::Round;
use super::sequence::Index;
use super::{Scheduler, SequenceId, Token};

impl Scheduler {
    /// Says which tokens come from `position` on, whatever is sampled. Those that are in flight already are left as they are;
    /// the others replace what was said before. The caller sees to it that what is sampled behind a part of them is the next.
    pub fn offer(&mut self, id: SequenceId, position: u32, tokens: &[Token]) {
        let Some(index) = self.store.find(id) else { return };
        let sequence = &mut self.store[index];
        if sequence.seat.is_none() || sequence.group.is_some() {
            return;
        }
        sequence.tail.clear();
        let in_flight = sequence.length().checked_sub(position).map(|known| known as usize);
        sequence.tail.extend_from_slice(in_flight.and_then(|known| tokens.get(known..)).unwrap_or_default());
    }

    /// Leaves a sequence out of the plans, until it is resumed or loses its seat. What is in flight is not touched, nor is a
    /// prompt that has begun.
    pub fn pause(&mut self, id: SequenceId) {
        self.set_paused(id, true);
    }

    /// Takes a sequence into the plans again.
    pub fn resume(&mut self, id: SequenceId) {
        self.set_paused(id, false);
    }

    fn set_paused(&mut self, id: SequenceId, paused: bool) {
        if let Some(index) = self.store.find(id) {
            let sequence = &mut self.store[index];
            sequence.paused = paused && sequence.seat.is_some();
        }
    }

    /// Tokens of its tail that a stream runs beside the next one. `spare` tokens of the step's budget belong to no stream.
    pub(super) fn run_length(&self, index: Index, spare: u32, round: &Round) -> u32 {
        let sequence = &self.store[index];
        let Some(seat) = sequence.seat.filter(|_| !sequence.tail.is_empty()) else { return 0 };
        let room = (sequence.max_len - sequence.length()).saturating_sub(1);
        (sequence.tail.len() as u32).min(room).min(spare).min(self.chunk(seat.planned, round))
    }

    /// The first `forced` tokens of the tail are in flight now, and the one behind them is being sampled.
    pub(super) fn take_run(&mut self, index: Index, forced: u32) {
        let sequence = &mut self.store[index];
        if !sequence.tail.is_empty() {
            sequence.run.extend(sequence.tail.drain(..forced as usize));
            let sampled = usize::from(!sequence.tail.is_empty());
            sequence.tail.drain(..sampled);
        }
    }

    pub(super) fn forget_run(&mut self, index: Index) {
        let sequence = &mut self.store[index];
        sequence.tail.clear();
        sequence.run.clear();
        sequence.paused = false;
    }
}
