//! Checks of groups, for tests.

use super::super::Scheduler;
use super::super::sequence::Index;
use super::Group;

impl Scheduler {
    /// Tokens of the groups that are seated.
    pub(in super::super) fn beam_tokens(&self) -> u64 {
        let seated = self.groups.iter().filter(|(_, group)| self.store[group.leader()].seat.is_some());
        seated.map(|(_, group)| group.running_tokens()).sum()
    }

    /// A group is seated as one, and its beams have the tokens of the search.
    pub(in super::super) fn check_groups(&self) -> Result<(), String> {
        for (index, group) in self.groups.iter() {
            let own = |&member: &Index| self.store[member].group == Some(index);
            if !group.members.iter().all(own) || group.beams.len() != group.search.beams.len() {
                return Err(format!("group {index} has other members or beams: {group:?}"));
            }
            self.check_members(group).map_err(|broken| format!("group {index}: {broken}"))?;
        }
        let members: usize = self.groups.iter().map(|(_, group)| group.members.len()).sum();
        let grouped = self.store.iter().filter(|(_, sequence)| sequence.group.is_some()).count();
        if members != grouped { Err(format!("{grouped} sequences are in groups of {members}")) } else { Ok(()) }
    }

    fn check_members(&self, group: &Group) -> Result<(), String> {
        let seated = group.members.iter().filter(|&&member| self.store[member].seat.is_some()).count();
        if seated != 0 && seated != group.members.len() {
            return Err(format!("{seated} of {} are seated", group.members.len()));
        }
        for (&member, beam) in group.beams.iter().zip(&group.search.beams) {
            let sequence = &self.store[member];
            if sequence.known() != group.known() || !sequence.tokens.ends_with(&beam.tokens) {
                return Err(format!("{:?} is not what the search has: {:?}", sequence.tokens, beam.tokens));
            }
            let copied = sequence.continuation.and_then(|continuation| continuation.copied);
            let held = |block| group.members.iter().any(|&other| self.store[other].blocks.contains(&block));
            if copied.is_some_and(|block| !held(block)) {
                return Err(format!("block {copied:?} is to be copied and nobody has it"));
            }
        }
        let idle = group.members.iter().filter(|member| !group.beams.contains(member));
        let mut idle = idle.map(|&member| &self.store[member]);
        match idle.find(|sequence| !sequence.tokens.is_empty() || !sequence.blocks.is_empty()) {
            Some(sequence) => Err(format!("{:?} are left to no beam", sequence.tokens)),
            None => Ok(()),
        }
    }
}
