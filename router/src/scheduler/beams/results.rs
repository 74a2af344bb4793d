//! What a step tells of the beams of a group, and what becomes of them.

use super::super::flight::{Completed, Results, Ticket};
use super::super::reuse::Failure;
use super::super::sequence::Index;
use super::super::{Scheduler, Token};
use super::search::Branch;
use super::{FinishedBeams, GroupIndex};

impl Scheduler {
    /// Takes the most likely successors of one beam. The last report of a round decides who lives on.
    pub(in super::super) fn take_report(
        &mut self,
        group: GroupIndex,
        ticket: Ticket,
        row: usize,
        results: &Results<'_>,
        completed: &mut Completed,
    ) {
        if let Some(seat) = self.store[ticket.index].seat.as_mut() {
            seat.pending -= 1;
        }
        let members = &mut self.groups[group];
        let place = members.beams.iter().position(|&index| index == ticket.index);
        if let Some((report, top)) = place.and_then(|place| members.reports.get_mut(place)).zip(results.tops.get(row)) {
            *report = Some(top.clone());
        }
        if members.reports.iter().all(Option::is_some) {
            self.select(group, completed);
        }
    }

    fn select(&mut self, group: GroupIndex, completed: &mut Completed) {
        let members = &mut self.groups[group];
        let tops = members.reports.iter().flatten().map(Vec::as_slice);
        match members.search.advance(tops) {
            Some(branches) => self.branch(group, &branches),
            None => self.end_group(group, completed),
        }
    }

    fn end_group(&mut self, group: GroupIndex, completed: &mut Completed) {
        let sequence = self.store[self.groups[group].leader()].id;
        self.unseat_group(group);
        let hypotheses = self.groups[group].search.take_hypotheses();
        completed.beams.push(FinishedBeams { sequence, hypotheses });
        self.drop_group(group);
    }

    /// Seats the beams that live on: the first that continues a beam in its place, the others in those that became free.
    fn branch(&mut self, group: GroupIndex, branches: &[Branch]) {
        let parents = std::mem::take(&mut self.groups[group].beams);
        let is_free = |index: &&Index| {
            let place = parents.iter().position(|parent| parent == *index);
            place.is_none_or(|place| branches.iter().all(|branch| branch.parent != place))
        };
        let free: Vec<Index> = self.groups[group].members.iter().filter(is_free).copied().collect();
        for &index in &free {
            self.release(index);
            self.store[index].tokens.clear();
        }
        let mut free = free.into_iter();
        let mut beams = Vec::with_capacity(branches.len());
        for (place, &Branch { parent, .. }) in branches.iter().enumerate() {
            let stays = branches[..place].iter().all(|earlier| earlier.parent != parent);
            let parent = parents[parent];
            let index = if stays { Some(parent) } else { free.next() };
            debug_assert!(index.is_some(), "there are as many members as beams");
            beams.extend(index.filter(|&index| {
                if index != parent {
                    let tokens = self.store[parent].tokens.clone();
                    let written = tokens.len() as u32;
                    self.go_on_from(parent, index, tokens, written);
                }
                true
            }));
        }
        for (&index, branch) in beams.iter().zip(branches) {
            self.append(index, branch.token);
        }
        let members = &mut self.groups[group];
        members.reports = vec![None; beams.len()];
        (members.beams, members.decoding, members.sampling) = (beams, true, false);
    }

    /// A beam has a new last token, which is sent by id.
    fn append(&mut self, index: Index, token: Token) {
        let sequence = &mut self.store[index];
        sequence.tokens.push(token);
        let known = sequence.known();
        if let Some(seat) = sequence.seat.as_mut() {
            // What follows the prompt is not kept: beams that die would leave it behind.
            (seat.admitted, seat.publishes) = (known, false);
        }
    }

    /// A group has failed with one of its beams: nothing that any of them read or wrote is to be trusted.
    pub(in super::super) fn fail_group(&mut self, group: GroupIndex, completed: &mut Completed, failure: &mut Failure) {
        for &index in &self.groups[group].members {
            let sequence = &self.store[index];
            failure.epochs.extend(sequence.seat.map(|seat| seat.epoch));
            failure.read.extend_from_slice(&sequence.path);
        }
        completed.failed.push(self.store[self.groups[group].leader()].id);
        self.unseat_group(group);
        self.drop_group(group);
    }
}
