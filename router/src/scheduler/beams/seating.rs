//! How a group takes its seats, shares blocks among its members, runs, and leaves.

use super::super::plan::{Admission, Plan};
use super::super::planner::Round;
use super::super::sequence::{Continuation, Epoch, Index, Seat};
use super::super::{Scheduler, Slot, Token};
use super::{Group, GroupIndex};

impl Scheduler {
    /// Seats all of a group but the leader, who is seated already. The shard is told at once, so that slots are freed as ever.
    pub(in super::super) fn seat_followers(&mut self, leader: Index, plan: &mut Plan) {
        let Some(group) = self.store[leader].group else { return };
        for place in 1..self.beams_of(group) {
            let index = self.groups[group].members[place];
            let sequence = &self.store[index];
            let Some(slot) = self.seats.take(sequence.rank(), index) else {
                debug_assert!(false, "a group was promised a seat for each beam");
                return;
            };
            self.tenants.seat(sequence.account);
            plan.admits.push(Admission { sequence: sequence.id, slot, cached_tokens: 0 });
            self.last_epoch += 1;
            self.store[index].seat = Some(member_seat(slot, self.last_epoch, sequence.known(), 0));
        }
        self.running_tokens += self.groups[group].running_tokens() - u64::from(self.groups[group].known());
    }

    /// Runs the last token of every live beam, or what there is to recompute. False when the group had to give way: nobody
    /// comes after it.
    pub(in super::super) fn continue_group(&mut self, group: GroupIndex, plan: &mut Plan, round: &mut Round) -> bool {
        if !self.groups[group].decoding {
            self.share_prompt(group);
            let ready = |&&index: &&Index| self.is_ready(group, index);
            round.prompts.extend(self.groups[group].beams.iter().filter(ready));
            return true;
        }
        if self.groups[group].sampling {
            return true;
        }
        while !self.beams_fit(group) {
            let Some(victim) = self.seats.latest() else { return false };
            let own = self.store[victim].group == Some(group);
            self.preempt(victim, round);
            if own {
                return false;
            }
        }
        for place in 0..self.groups[group].beams.len() {
            self.run(self.groups[group].beams[place], 1, plan, round);
        }
        true
    }

    /// A member that has tokens to run, and what it starts from.
    fn is_ready(&self, group: GroupIndex, index: Index) -> bool {
        let sequence = &self.store[index];
        let started = index == self.groups[group].leader() || sequence.seat.is_some_and(|seat| seat.planned > 0);
        started && sequence.is_in_prompt()
    }

    /// Whether there are blocks and tokens for one more position of every live beam.
    fn beams_fit(&self, group: GroupIndex) -> bool {
        let group = &self.groups[group];
        let needed = |&index: &Index| {
            let sequence = &self.store[index];
            self.config.blocks_for(sequence.known()) as usize - sequence.blocks.len()
        };
        let blocks: usize = group.beams.iter().map(needed).sum();
        let tokens = self.running_tokens + u64::from(group.width());
        blocks <= self.available_blocks() as usize && tokens <= self.config.token_cap()
    }

    /// Once the leader has run what the search started from, the others have it too.
    fn share_prompt(&mut self, group: GroupIndex) {
        let (leader, start) = (self.groups[group].leader(), self.groups[group].start);
        if self.store[leader].seat.is_none_or(|seat| seat.planned < start) {
            return;
        }
        for place in 1..self.groups[group].beams.len() {
            let index = self.groups[group].beams[place];
            if self.store[index].seat.is_some_and(|seat| seat.planned == 0) {
                let tokens = std::mem::take(&mut self.store[index].tokens);
                self.go_on_from(leader, index, tokens, start);
            }
        }
    }

    /// Lets a member without blocks go on from the first `written` positions of another.
    pub(super) fn go_on_from(&mut self, donor: Index, index: Index, tokens: Vec<Token>, written: u32) {
        let full = (written / self.config.block_size) as usize;
        let path = self.store[donor].path.iter().take(full).copied().collect();
        let blocks = self.store[donor].blocks[..full].to_vec();
        let partial = !written.is_multiple_of(self.config.block_size);
        let copied = self.store[donor].blocks.get(full).copied().filter(|_| partial);
        for &node in &path {
            self.cache.pin(node);
        }
        for &block in &blocks {
            self.pool.share(block);
        }
        let sequence = &mut self.store[index];
        if let Some(seat) = sequence.seat.as_mut() {
            *seat = member_seat(seat.slot, seat.epoch, tokens.len() as u32, written);
        }
        sequence.continuation = Some(Continuation { copied });
        (sequence.path, sequence.blocks, sequence.tokens) = (path, blocks, tokens);
        self.look_at_shared(index, written);
        if let (Some(block), Some(pages)) = (copied, self.pages.as_mut()) {
            pages.enter(block); // Until it is copied the donor may leave it behind.
        }
    }

    /// Tells the shard of a member that goes on from another: its slot is taken anew, with a copy of the block that is not
    /// full. `shared` of its blocks are full.
    pub(in super::super) fn announce(
        &mut self,
        index: Index,
        continuation: Continuation,
        shared: usize,
        start: u32,
        plan: &mut Plan,
    ) {
        let sequence = &self.store[index];
        let Some(seat) = sequence.seat else { return };
        plan.admits.push(Admission { sequence: sequence.id, slot: seat.slot, cached_tokens: start });
        if let Some((from, &to)) = continuation.copied.zip(sequence.blocks.get(shared)) {
            plan.copies.extend(self.pages_to_copy(from).into_iter().zip(self.pages_to_copy(to)));
        }
        self.leave_copied(index, continuation);
    }

    /// A member goes on from nobody.
    pub(in super::super) fn forget_continuation(&mut self, index: Index) {
        if let Some(continuation) = self.store[index].continuation.take() {
            self.leave_copied(index, continuation);
        }
    }

    /// The block that a member was to copy is copied, or not wanted any more.
    fn leave_copied(&mut self, index: Index, continuation: Continuation) {
        let Some((block, pages)) = continuation.copied.zip(self.pages.as_mut()) else { return };
        if !pages.leave(block) {
            return;
        }
        let members = self.store[index].group.map(|group| self.groups[group].members.as_slice()).unwrap_or_default();
        let node = members.iter().map(|&member| &self.store[member]).find_map(|member| {
            let place = member.blocks.iter().position(|&own| own == block)?;
            member.path.get(place).copied()
        });
        self.window_unwatched(block, node);
    }

    /// Takes all seats from a group. Its beams are known, and its leader has the first of them.
    pub(in super::super) fn unseat_group(&mut self, group: GroupIndex) {
        if self.store[self.groups[group].leader()].seat.is_none() {
            return;
        }
        self.running_tokens -= self.groups[group].running_tokens();
        for place in 0..self.groups[group].members.len() {
            self.forget_continuation(self.groups[group].members[place]);
        }
        for place in 0..self.groups[group].members.len() {
            let index = self.groups[group].members[place];
            self.leave_seat(index);
            self.release(index);
        }
        self.lay_out(group);
    }

    /// Gives the members of an unseated group their tokens, in the order of the beams.
    fn lay_out(&mut self, group: GroupIndex) {
        let Group { members, beams, search, start, reports, decoding, sampling } = &mut self.groups[group];
        let (start, leader) = (*start as usize, members[0]);
        let origin = beams.first().copied().unwrap_or(leader);
        let prompt = self.store[origin].tokens[..start].to_vec();
        for (place, &index) in members.iter().enumerate() {
            let beam = search.beams.get(place);
            let tokens = beam.map(|beam| [prompt.as_slice(), &beam.tokens].concat());
            self.store[index].tokens = tokens.unwrap_or_default();
        }
        self.store[leader].chain.truncate(start / self.config.block_size as usize);
        *beams = members[..search.beams.len()].to_vec();
        *reports = vec![None; beams.len()];
        (*decoding, *sampling) = (false, false);
    }

    /// Forgets a group that neither waits nor runs.
    pub(in super::super) fn drop_group(&mut self, group: GroupIndex) {
        let leader = self.groups[group].leader();
        self.tenants.leave(self.store[leader].account, self.max_tokens(leader));
        for index in self.groups.remove(group).map(|group| group.members).unwrap_or_default() {
            self.store.remove(index);
        }
    }
}

/// A seat in which `written` positions need not be run.
fn member_seat(slot: Slot, epoch: Epoch, admitted: u32, written: u32) -> Seat {
    let (planned, planned_before, pending, step) = (written, written, 0, 0);
    Seat { slot, epoch, admitted, planned, planned_before, pending, step, publishes: false, lender: None }
}
