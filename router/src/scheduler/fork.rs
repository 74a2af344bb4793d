//! Sequences that go on from one prompt (n > 1, best_of): they share its blocks, and each has its own copy of the last one.
//!
//! Every fork waits for a seat of its own. When it gets one and a relative has run the prompt by then, it takes that one's
//! blocks; otherwise it runs the prompt like anyone else. So nothing depends on who is seated when, or gives way, or ends.

use super::sequence::{Index, Sequence};
use super::{NewSequence, Refusal, Scheduler, SequenceId};

/// What a newcomer can have of its relatives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kin {
    /// Nobody has what it wants.
    None,
    /// One is at it: the next step may know more.
    Later,
    /// This one has run all of the prompt that is wanted.
    Ready(Index),
}

impl Scheduler {
    /// Enqueues a sequence for each of `ids` that starts from the prompt of sequence `id`, with all that it asks for except
    /// the log-probabilities of the prompt. Nothing has changed on an error.
    pub fn fork(&mut self, id: SequenceId, ids: &[SequenceId]) -> Result<(), Refusal> {
        let origin = self.store.find(id).ok_or(Refusal::Unknown { id })?;
        if self.store[origin].group.is_some() {
            return Err(Refusal::IsBeams { id });
        }
        for (place, &fork) in ids.iter().enumerate() {
            if self.store.find(fork).is_some() || ids[..place].contains(&fork) {
                return Err(Refusal::Duplicate { id: fork });
            }
        }
        for &fork in ids {
            let new = self.store[origin].forked(fork);
            let index = self.add(new);
            self.store[index].family = self.store[origin].family;
            self.store[index].has_kin = true;
        }
        self.store[origin].has_kin |= !ids.is_empty();
        Ok(())
    }

    /// Positions of the prompt that a newcomer need not run if a relative has.
    pub(super) fn shareable(&self, index: Index) -> u32 {
        let sequence = &self.store[index];
        if sequence.is_to_be_scored() { 0 } else { sequence.prompt_len.min(sequence.known() - 1) }
    }

    pub(super) fn kin(&self, index: Index) -> Kin {
        let sequence = &self.store[index];
        let wanted = self.shareable(index);
        if !sequence.has_kin || wanted == 0 {
            return Kin::None;
        }
        let mut found = Kin::None;
        for other in self.seats.iter().filter(|&other| self.store[other].family == sequence.family) {
            let Some(seat) = self.store[other].seat else { continue };
            let written = if seat.step > self.last_step { seat.planned_before } else { seat.planned };
            if written >= wanted {
                return Kin::Ready(other);
            }
            found = Kin::Later;
        }
        found
    }
}

impl Sequence {
    fn forked(&self, id: SequenceId) -> NewSequence {
        NewSequence {
            id,
            tokens: self.tokens[..self.prompt_len as usize].to_vec(),
            prompt_len: self.prompt_len,
            max_len: self.max_len,
            whole: self.whole,
            prompt_logprobs: false,
            unscored: self.unscored,
            cache_key: self.key,
            tenant: self.tenant,
            priority: self.priority,
            deadline: self.deadline,
        }
    }
}
