//! KV blocks of the modelled policies: reference counts, and a hash per full block so that prompts that begin alike share.
//!
//! A free block keeps its content until it is taken for something else; the one left longest goes first.

use std::collections::{BTreeSet, HashMap};

use textgen_router::scheduler::Token;

pub(super) type Block = u32;

/// Stands for all tokens up to the end of a block. Sixty-four bits: fit for a simulation, not for a server.
pub(super) type Name = u64;

/// Names of the first full blocks of a text.
pub(super) fn names<'a>(tokens: impl Iterator<Item = &'a Token>, block_size: u32) -> Vec<Name> {
    let (mut names, mut name, mut filled) = (Vec::new(), 0x9e37_79b9_7f4a_7c15, 0);
    for &token in tokens {
        name = mix(name ^ (u64::from(token) + 1));
        filled += 1;
        if filled == block_size {
            names.push(name);
            filled = 0;
        }
    }
    names
}

/// The finalizer of splitmix64 (Steele et al., OOPSLA 2014).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    users: u32,
    name: Option<Name>,
    left_at: u64,
}

#[derive(Debug)]
pub(super) struct Blocks {
    states: Vec<State>,
    /// Without users, the one left longest first.
    free: BTreeSet<(u64, Block)>,
    by_name: HashMap<Name, Block>,
    clock: u64,
}

impl Blocks {
    pub(super) fn new(total: u32) -> Self {
        let free = (0..total).map(|block| (0, block)).collect();
        Self { states: vec![State::default(); total as usize], free, by_name: HashMap::new(), clock: 0 }
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// How many of the first of `names` are there.
    pub(super) fn reach(&self, names: &[Name]) -> usize {
        names.iter().take_while(|name| self.by_name.contains_key(name)).count()
    }

    /// How many of these, which are there, nobody uses.
    pub(super) fn idle(&self, names: &[Name]) -> usize {
        names
            .iter()
            .filter(|name| self.by_name.get(name).is_some_and(|&block| self.states[block as usize].users == 0))
            .count()
    }

    /// One more user of a block that is there.
    pub(super) fn share(&mut self, name: Name) -> Option<Block> {
        let block = *self.by_name.get(&name)?;
        let state = &mut self.states[block as usize];
        if state.users == 0 {
            self.free.remove(&(state.left_at, block));
        }
        state.users += 1;
        Some(block)
    }

    /// A block for new content.
    pub(super) fn take(&mut self) -> Option<Block> {
        let (_, block) = self.free.pop_first()?;
        let state = &mut self.states[block as usize];
        if let Some(name) = state.name.take() {
            self.by_name.remove(&name);
        }
        state.users = 1;
        Some(block)
    }

    /// The block is full. What another block holds already is not named again.
    pub(super) fn name(&mut self, block: Block, name: Name) {
        if let std::collections::hash_map::Entry::Vacant(entry) = self.by_name.entry(name) {
            entry.insert(block);
            self.states[block as usize].name = Some(name);
        }
    }

    /// A sequence leaves its blocks; the last ones are given up first.
    pub(super) fn leave(&mut self, blocks: &mut Vec<Block>) {
        while let Some(block) = blocks.pop() {
            self.clock += 1;
            let state = &mut self.states[block as usize];
            state.users -= 1;
            if state.users == 0 {
                // What has no name serves nobody: it goes before all that has.
                state.left_at = if state.name.is_some() { self.clock } else { 0 };
                self.free.insert((state.left_at, block));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_for_all_that_came_before() {
        let (one, other) = ([1, 2, 3, 4, 5], [9, 2, 3, 4, 5]);
        let (one, other) = (names(one.iter(), 2), names(other.iter(), 2));
        assert_eq!(one.len(), 2);
        assert!(one[0] != other[0] && one[1] != other[1]);
        assert_eq!(names([1, 2, 3].iter(), 2), one[..1]);
    }

    #[test]
    fn what_was_left_last_stays_longest() {
        let mut blocks = Blocks::new(3);
        let text = names([1, 2, 3].iter(), 1);
        let mut table: Vec<Block> = text.iter().map(|_| blocks.take().unwrap()).collect();
        for (&block, &name) in table.iter().zip(&text) {
            blocks.name(block, name);
        }
        assert_eq!((blocks.free(), blocks.reach(&text), blocks.idle(&text)), (0, 3, 0));
        blocks.leave(&mut table);
        assert_eq!((blocks.free(), blocks.reach(&text), blocks.idle(&text)), (3, 3, 3));
        // The end of a text goes before its beginning.
        let taken = blocks.take().unwrap();
        assert_eq!(blocks.reach(&text), 2);
        assert!(blocks.share(text[0]).is_some_and(|block| block != taken));
        assert_eq!(blocks.free(), 1);
        assert!(blocks.share(text[2]).is_none());
    }
}
