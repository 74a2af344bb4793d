//! Who gives way: the last by rank for want of blocks, and less urgent ones to one that finds no room.
//!
//! The rank is fixed for life: the class, then the deadline (who has the most time left gives way first, and who has no
//! deadline has all the time there is), then the arrival. The first by rank is never disturbed for want of blocks while
//! another runs. For one of a more urgent class a sequence gives way `max_passes` times and no more. Hence everything ends.

use super::Scheduler;
use super::planner::Round;
use super::reuse::Foothold;
use super::sequence::Index;

/// Running sequences that one newcomer may disturb.
const MAX_VICTIMS: usize = 8;

/// What is given back when some leave their seats.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Spared {
    pub(super) seats: u32,
    pub(super) blocks: u32,
    pub(super) tokens: u64,
}

impl Scheduler {
    /// Makes way for the next one that waits, if it is more urgent than some that run and finds no room. Nobody is disturbed
    /// unless that makes room enough.
    pub(super) fn make_way(&mut self, round: &mut Round) {
        for victim in self.urgent_newcomer().map(|newcomer| self.victims(newcomer)).unwrap_or_default() {
            if self.store[victim].seat.is_none() {
                continue; // Its group has given way with another member.
            }
            let waits_as = self.representative(victim);
            let sequence = &mut self.store[waits_as];
            sequence.yielded += 1;
            round.skipped.push(sequence.arrival);
            self.send_back(victim);
            self.preemptions += 1;
        }
    }

    /// The next one that waits, if it is of a more urgent class than the last of those that run.
    fn urgent_newcomer(&mut self) -> Option<Index> {
        let last = self.store[self.seats.latest()?].priority;
        let (most_urgent, ..) = self.queue.lanes().next()?;
        if self.config.max_passes == 0 || most_urgent >= last {
            return None;
        }
        let candidate = self.next_candidate(None, &[])?;
        let index = self.queue.get(candidate.arrival)?.index;
        // Its rank tells whether it would keep what it takes: a class that it has reached by waiting would not.
        (self.store[index].priority < last).then_some(index)
    }

    /// The fewest of the last by rank that make room for a newcomer; none if it has room, or if all would not do.
    fn victims(&mut self, newcomer: Index) -> Vec<Index> {
        let Some(foothold) = self.foothold(newcomer) else { return Vec::new() };
        if self.is_room_after(newcomer, foothold.in_use, Spared::default()) {
            return Vec::new();
        }
        let (priority, max_passes) = (self.store[newcomer].priority, self.config.max_passes);
        let less_urgent = self.seats.iter().rev().take_while(|&index| self.store[index].priority > priority);
        let disturbable = less_urgent.filter(|&index| self.store[self.representative(index)].yielded < max_passes);
        let mut spared = Spared::default();
        let mut victims = Vec::new();
        for victim in disturbable.take(MAX_VICTIMS) {
            victims.push(victim);
            spared.seats += 1;
            spared.blocks += self.blocks_spared(victim, newcomer, foothold);
            spared.tokens += u64::from(self.store[victim].length());
            if self.is_room_after(newcomer, foothold.in_use, spared) {
                return victims;
            }
        }
        Vec::new()
    }

    /// Blocks that a newcomer could have if a running sequence left: those that nobody else uses, and not those that the
    /// newcomer shares with it.
    fn blocks_spared(&self, victim: Index, newcomer: Index, foothold: Foothold) -> u32 {
        let (sequence, wanted) = (&self.store[victim], &self.store[newcomer].chain);
        if self.pages.is_some() {
            let keeps = |place| place < foothold.in_use && sequence.chain.get(place) == wanted.get(place);
            return self.pages_spared(victim, keeps);
        }
        let spared = |&(place, &block): &(usize, &u32)| match sequence.path.get(place) {
            Some(&node) => {
                let shared = place < foothold.in_use && sequence.chain.get(place) == wanted.get(place);
                self.cache.users(node) == 1 && !shared
            }
            None => self.pool.references(block) == 1,
        };
        sequence.blocks.iter().enumerate().filter(spared).count() as u32
    }

    /// Takes a seat away for want of blocks. What the sequence's steps in flight sample is dropped when it arrives, and
    /// sampled again after recomputing: a sample depends on seed and position alone.
    pub(super) fn preempt(&mut self, victim: Index, round: &mut Round) {
        self.send_back(victim);
        self.preemptions += 1;
        round.crowded = true;
    }

    /// Unseats a sequence, or its group, to wait in its old place. Does nothing when it has no seat.
    pub(super) fn send_back(&mut self, index: Index) {
        if self.store[index].seat.is_none() {
            return;
        }
        match self.store[index].group {
            Some(group) => self.unseat_group(group),
            None => self.unseat(index),
        }
        self.wait(self.representative(index));
    }
}
