//! Who waits for a seat: in which class, for which tenant, and until when.

use std::collections::{BTreeMap, BTreeSet};

use super::sequence::{Arrival, Index};
use super::{Micros, Priority, TenantId};

/// A sequence in the queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) index: Index,
    pub(super) tokens: u32,
    /// Tokens that it may reach.
    pub(super) max_tokens: u64,
    pub(super) tenant: TenantId,
    /// The class it waits in now; ageing lowers it to 0.
    pub(super) class: Priority,
    /// When it goes up a class, unless it is in the first.
    pub(super) ages_at: Option<Micros>,
    pub(super) deadline: Option<Micros>,
    /// How many of its lane were preferred to it.
    pub(super) passed: u32,
}

/// The waiting sequences. A lane holds those of one tenant in one class, first come first; which lane is next is for others
/// to say. A sequence that loses its seat comes back with its old arrival, hence to its old place. Every operation is
/// O(log n).
#[derive(Debug, Default)]
pub(super) struct Queue {
    entries: BTreeMap<Arrival, Waiting>,
    lanes: BTreeMap<(Priority, TenantId), BTreeSet<Arrival>>,
    ageing: BTreeSet<(Micros, Arrival)>,
    deadlines: BTreeSet<(Micros, Arrival)>,
    tokens: u64,
    max_tokens: u64,
}

impl Queue {
    pub(super) fn insert(&mut self, arrival: Arrival, waiting: Waiting) {
        self.lanes.entry((waiting.class, waiting.tenant)).or_default().insert(arrival);
        self.ageing.extend(waiting.ages_at.map(|at| (at, arrival)));
        self.deadlines.extend(waiting.deadline.map(|at| (at, arrival)));
        self.tokens += u64::from(waiting.tokens);
        self.max_tokens += waiting.max_tokens;
        let before = self.entries.insert(arrival, waiting);
        debug_assert!(before.is_none(), "arrival {arrival} waits twice");
    }

    pub(super) fn get(&self, arrival: Arrival) -> Option<&Waiting> {
        self.entries.get(&arrival)
    }

    pub(super) fn remove(&mut self, arrival: Arrival) -> Option<Waiting> {
        let waiting = self.entries.remove(&arrival)?;
        let lane = (waiting.class, waiting.tenant);
        if let Some(members) = self.lanes.get_mut(&lane) {
            members.remove(&arrival);
            if members.is_empty() {
                self.lanes.remove(&lane);
            }
        }
        if let Some(at) = waiting.ages_at {
            self.ageing.remove(&(at, arrival));
        }
        if let Some(at) = waiting.deadline {
            self.deadlines.remove(&(at, arrival));
        }
        self.tokens -= u64::from(waiting.tokens);
        self.max_tokens -= waiting.max_tokens;
        Some(waiting)
    }

    /// The lanes, first class first.
    pub(super) fn lanes(&self) -> impl Iterator<Item = (Priority, TenantId, &BTreeSet<Arrival>)> {
        self.lanes.iter().map(|(&(class, tenant), lane)| (class, tenant, lane))
    }

    /// One lane, first come first.
    pub(super) fn lane(&self, class: Priority, tenant: TenantId) -> impl Iterator<Item = Arrival> + '_ {
        self.lanes.get(&(class, tenant)).into_iter().flatten().copied()
    }

    /// Another one of its lane was preferred to this one.
    pub(super) fn note_pass(&mut self, arrival: Arrival) {
        if let Some(waiting) = self.entries.get_mut(&arrival) {
            waiting.passed += 1;
        }
    }

    /// Moves everyone up whose time has come, a class for each `every` that has gone by.
    pub(super) fn age(&mut self, now: Micros, every: Micros) {
        while let Some(&(at, arrival)) = self.ageing.first().filter(|(at, _)| *at <= now) {
            let Some(mut waiting) = self.remove(arrival) else { return };
            waiting.class -= 1;
            waiting.ages_at = (waiting.class > 0).then_some(at + every);
            self.insert(arrival, waiting);
        }
    }

    /// Some sequence whose deadline has passed.
    pub(super) fn overdue(&self, now: Micros) -> Option<Index> {
        let &(_, arrival) = self.deadlines.first().filter(|(at, _)| *at <= now)?;
        self.entries.get(&arrival).map(|waiting| waiting.index)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Tokens to compute before all that wait could decode.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Tokens that all that wait may reach.
    pub(super) fn max_tokens(&self) -> u64 {
        self.max_tokens
    }

    /// All that wait, first come first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Arrival, &Waiting)> + '_ {
        self.entries.iter().map(|(&arrival, waiting)| (arrival, waiting))
    }

    /// Checks that lanes and timers hold exactly what waits.
    pub(super) fn check_integrity(&self) -> Result<(), String> {
        let listed: usize = self.lanes.values().map(BTreeSet::len).sum();
        for (arrival, waiting) in self.iter() {
            let lane = self.lanes.get(&(waiting.class, waiting.tenant));
            let timed = waiting.ages_at.is_none_or(|at| self.ageing.contains(&(at, arrival)))
                && waiting.deadline.is_none_or(|at| self.deadlines.contains(&(at, arrival)));
            if !lane.is_some_and(|lane| lane.contains(&arrival)) || !timed {
                return Err(format!("arrival {arrival} waits and is not listed: {waiting:?}"));
            }
        }
        let ages = self.iter().filter(|(_, waiting)| waiting.ages_at.is_some()).count();
        let ends = self.iter().filter(|(_, waiting)| waiting.deadline.is_some()).count();
        if (listed, ages, ends) != (self.len(), self.ageing.len(), self.deadlines.len()) {
            return Err(format!("{} wait, and lanes or timers hold others", self.len()));
        }
        Ok(())
    }
}
