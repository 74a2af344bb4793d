//! Who is seated next, and whether there is room.
//!
//! The most urgent class comes first, in it the tenant that was served least, and of its sequences the one that came first or,
//! where that is wished, the one with the longest cached prefix. Who finds no room keeps its place, and a few others may pass;
//! then nobody does until it is seated. So everyone gets a seat as long as those that run come to an end.

use super::Scheduler;
use super::beams::Demand;
use super::plan::{Admission, Plan};
use super::planner::{Before, Round};
use super::preemption::Spared;
use super::queue::Waiting;
use super::reuse::{Shared, Start};
use super::sequence::{Arrival, Index, Seat};
use super::{Micros, Priority, SequenceId, TenantId};

/// Sequences that are looked at in one step beyond those that are seated, and of a lane for who may pass or has the longest
/// prefix.
const LOOK_AHEAD: usize = 32;

/// The first one that found no room, and how many were seated since.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocked {
    arrival: Arrival,
    passes: u32,
}

/// One that could be next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) arrival: Arrival,
    /// The first of its lane.
    head: Arrival,
}

/// Whether seating one is at the cost of another that waits: it came later and is not of a more urgent class.
fn passes(class: Priority, arrival: Arrival, other: (Priority, Arrival)) -> bool {
    class >= other.0 && arrival > other.1
}

impl Scheduler {
    /// Tells the time, an instant of the caller's clock; it never goes back. Sequences that wait go up in class as they age.
    /// Those whose deadline has passed while they wait are finished and appended to `overdue`.
    pub fn advance(&mut self, now: Micros, overdue: &mut Vec<SequenceId>) {
        self.now = self.now.max(now);
        if let Some(every) = self.config.ageing {
            self.queue.age(self.now, every);
        }
        while let Some(index) = self.queue.overdue(self.now) {
            let id = self.store[index].id;
            overdue.push(id);
            self.finish(id);
        }
    }

    /// Puts a sequence into its place in the queue.
    pub(super) fn wait(&mut self, index: Index) {
        let sequence = &self.store[index];
        let waited = self.now - sequence.enqueued;
        let (mut class, mut ages_at) = (sequence.priority, None);
        if let Some(every) = self.config.ageing {
            let risen = waited / every;
            class = u64::from(class).saturating_sub(risen) as Priority;
            ages_at = (class > 0).then_some(sequence.enqueued + (risen + 1) * every);
        }
        let (tokens, max_tokens) = (sequence.known(), self.max_tokens(index));
        let (tenant, deadline) = (sequence.tenant, sequence.deadline);
        let waiting = Waiting { index, tokens, max_tokens, tenant, class, ages_at, deadline, passed: 0 };
        self.queue.insert(sequence.arrival, waiting);
        self.tenants.queue(sequence.account);
    }

    pub(super) fn unqueue(&mut self, index: Index) {
        let sequence = &self.store[index];
        if self.queue.remove(sequence.arrival).is_some() {
            self.tenants.unqueue(sequence.account);
        }
    }

    /// Seats waiting sequences that go before `before`, all if there is none, while the step has room for them.
    pub(super) fn admit_waiting(&mut self, before: Option<Before>, plan: &mut Plan, round: &mut Round) {
        while round.budget > 0 && !round.crowded && !self.seats.is_full() && self.chunk(0, round) > 0 {
            let Some(candidate) = self.next_candidate(before, &round.skipped) else { return };
            let Some(&Waiting { index, class, .. }) = self.queue.get(candidate.arrival) else { return };
            let whole = self.store[index].whole;
            // More than the step has left is met by the next: there is room beside all streams (`fits_step`).
            let Some(start) = (whole < round.budget).then(|| self.welcome(index)).flatten() else {
                self.note_blocked(candidate.arrival, class);
                round.skipped.push(candidate.arrival);
                continue;
            };
            let Some(cached) = self.seat(index, start, plan) else { return };
            self.note_seated(candidate, class);
            let least = if cached < whole { whole + 1 } else { 1 };
            let chunk = self.chunk(cached, round).max(least);
            let mut length = self.runnable(index).min(round.budget).min(chunk);
            if self.pages.is_some() {
                // It has room to get through, though perhaps not at once: what its window leaves is to be used again.
                length = self.fits(index, length).max(1);
            }
            let booking = self.book(index, 0, length);
            self.push_segment(booking, plan, round);
        }
    }

    /// The one to be seated next, apart from those that found no room in this step.
    pub(super) fn next_candidate(&mut self, before: Option<Before>, skipped: &[Arrival]) -> Option<Candidate> {
        if skipped.len() >= LOOK_AHEAD {
            return None;
        }
        self.blocked = self.blocked.filter(|blocked| self.queue.get(blocked.arrival).is_some());
        let exhausted = self.blocked.filter(|blocked| blocked.passes >= self.config.max_passes);
        let barrier = exhausted.and_then(|blocked| Some((self.queue.get(blocked.arrival)?.class, blocked.arrival)));
        let goes_before = |class: Priority, arrival: Arrival| {
            let Some(before) = before.filter(|before| class >= before.class) else { return true };
            self.queue.get(arrival).is_some_and(|waiting| waiting.tokens < before.tokens)
        };
        let open = |class: Priority, arrival: Arrival| {
            !skipped.contains(&arrival)
                && barrier.is_none_or(|barrier| !passes(class, arrival, barrier))
                && goes_before(class, arrival)
        };
        let mut best: Option<((Priority, u64, Arrival), TenantId)> = None;
        for (class, tenant, lane) in self.queue.lanes() {
            if before.is_some_and(|before| before.ends_at(class)) || best.is_some_and(|((found, ..), _)| class > found)
            {
                break;
            }
            if let Some(&head) = lane.iter().take(LOOK_AHEAD).find(|&&arrival| open(class, arrival)) {
                let rank = (class, self.tenants.served(tenant), head);
                best = Some(best.map_or((rank, tenant), |best| best.min((rank, tenant))));
            }
        }
        let ((class, _, head), tenant) = best?;
        let lane = self.queue.lane(class, tenant).take(LOOK_AHEAD).filter(|&arrival| open(class, arrival));
        let arrival = self.longest_prefix(head, lane);
        Some(Candidate { arrival, head })
    }

    /// The one to prefer among the first of a lane.
    fn longest_prefix(&self, head: Arrival, lane: impl Iterator<Item = Arrival>) -> Arrival {
        let patient = self.queue.get(head).is_some_and(|waiting| waiting.passed < self.config.max_passes);
        if !self.config.longest_prefix_first || !patient {
            return head;
        }
        let reach = |arrival: Arrival| {
            let waiting = self.queue.get(arrival)?;
            Some(self.cache.reach(&self.store[waiting.index].chain).0)
        };
        lane.max_by_key(|&arrival| (reach(arrival), std::cmp::Reverse(arrival))).unwrap_or(head)
    }

    /// One found no room. Others must not pass it for ever, nor the one that found none before, if that goes before it.
    fn note_blocked(&mut self, arrival: Arrival, class: Priority) {
        let before = self.blocked.and_then(|blocked| Some((self.queue.get(blocked.arrival)?.class, blocked.arrival)));
        if before.is_none_or(|before| (class, arrival) < before) {
            self.blocked = Some(Blocked { arrival, passes: 0 });
        }
    }

    fn note_seated(&mut self, candidate: Candidate, class: Priority) {
        if candidate.head != candidate.arrival {
            self.queue.note_pass(candidate.head);
        }
        let Some(blocked) = self.blocked.as_mut() else { return };
        if blocked.arrival == candidate.arrival {
            self.blocked = None;
        } else if let Some(waiting) = self.queue.get(blocked.arrival) {
            blocked.passes += u32::from(passes(class, candidate.arrival, (waiting.class, blocked.arrival)));
        }
    }

    /// Whether a newcomer can get through its prompt and leave each running sequence one more block. Without that, it would
    /// be seated only to give way a few steps later. `in_use` of its blocks are cached and in the tables of others.
    pub(super) fn has_room(&self, index: Index, in_use: usize) -> bool {
        self.is_room_after(index, in_use, Spared::default())
    }

    /// The same, with a seat, when others have given back what they have.
    pub(super) fn is_room_after(&self, index: Index, in_use: usize, spared: Spared) -> bool {
        let running = self.seats.len() as u64 - u64::from(spared.seats);
        let Demand { seats, blocks, tokens } = self.demand(index);
        let grown = self.running_tokens - spared.tokens + tokens + running;
        // Window parts that it shares now it has to replace by its own as it goes on.
        let shared = in_use as u64 * u64::from(self.config.windows.map_or(1, |windows| windows.full));
        let available = u64::from(self.available() + spared.blocks) + shared;
        running + u64::from(seats) <= u64::from(self.seats.total())
            && blocks + running * u64::from(self.config.pages_per_block()) <= available
            && grown <= self.config.token_cap()
    }

    /// Seats a newcomer with the blocks that it starts from, and its followers. Returns how many positions it need not run;
    /// `None` when every slot is taken.
    fn seat(&mut self, index: Index, start: Start, plan: &mut Plan) -> Option<u32> {
        let sequence = &self.store[index];
        let (id, rank, account, admitted) = (sequence.id, sequence.rank(), sequence.account, sequence.known());
        let slot = self.seats.take(rank, index)?;
        self.unqueue(index);
        self.tenants.seat(account);
        self.last_epoch += 1;
        self.running_tokens += u64::from(admitted);
        self.running_max_tokens += self.max_tokens(index);
        let Shared { cached, lender, publishes } = self.share(index, start, plan);
        let (epoch, planned, planned_before, pending, step) = (self.last_epoch, cached, cached, 0, 0);
        self.store[index].seat =
            Some(Seat { slot, epoch, admitted, planned, planned_before, pending, step, publishes, lender });
        plan.admits.push(Admission { sequence: id, slot, cached_tokens: cached });
        self.seat_followers(index, plan);
        Some(cached)
    }
}
