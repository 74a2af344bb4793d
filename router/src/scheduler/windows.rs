//! Layers with a sliding window keep only their window.
//!
//! A seated sequence looks at the window parts (`pages`) of its blocks from `behind` on: those that the window of its next
//! token reaches, and those after. Before a step is planned, every sequence lets go of what its window has left. Steps run in
//! order, so such pages may be used by that very step.
//!
//! The prefix cache keeps window parts as long as it can: each ages from when the last one looked at it. A prompt goes on
//! after k cached blocks if the window parts before that point are there, as far as a window reaches. Whoever has to compute
//! a block again whose window part is gone renews the block in the cache, unless somebody is using it.

use super::prefix::{Evicted, NodeIndex};
use super::sequence::{Index, Sequence};
use super::{BlockId, NO_PAGE, PageId, Scheduler};

/// Blocks in the prefix cache for each page there is: where all layers have windows, most blocks of a long prompt are a name
/// and nothing else.
const NAMES_PER_PAGE: u64 = 8;

impl Scheduler {
    /// The first block that the window of a token at `position` reaches.
    pub(super) fn first_in_window(&self, position: u32) -> usize {
        let windows = self.config.windows;
        windows.map_or(0, |windows| (position + 1).saturating_sub(windows.span) / self.config.block_size) as usize
    }

    /// Every seated sequence lets go of what its window has left.
    pub(super) fn leave_behind(&mut self) {
        self.cache.tick();
        for place in 0..self.seats.len() {
            let Some(index) = self.seats.at(place) else { return };
            let Some(seat) = self.store[index].seat else { continue };
            let blocks = self.store[index].blocks.len();
            self.look_from(index, self.first_in_window(seat.planned).min(blocks));
        }
    }

    /// Nobody looks at a window part any more; `node` is where its block is in the cache, if it was put there.
    pub(super) fn window_unwatched(&mut self, block: BlockId, node: Option<NodeIndex>) {
        match node.filter(|&node| self.cache.is_in_tree(node)) {
            Some(node) => self.cache.window_left(node),
            None => self.pages.iter_mut().for_each(|pages| pages.drop_window(block)),
        }
    }

    /// A sequence looks at the window parts of its blocks from this one on, and no longer at those before.
    pub(super) fn look_from(&mut self, index: Index, first: usize) {
        for place in self.store[index].behind..first {
            let (block, node) = (self.store[index].blocks[place], self.store[index].path.get(place).copied());
            if self.pages.as_mut().is_some_and(|pages| pages.leave(block)) {
                self.window_unwatched(block, node);
            }
        }
        let sequence = &mut self.store[index];
        sequence.behind = sequence.behind.max(first);
    }

    /// A sequence that has been given the blocks of its first positions looks at what the window at `position` reaches.
    pub(super) fn look_at_shared(&mut self, index: Index, position: u32) {
        let first = self.first_in_window(position);
        let Some(pages) = self.pages.as_mut() else { return };
        let sequence = &mut self.store[index];
        sequence.behind = first.min(sequence.blocks.len());
        for place in sequence.behind..sequence.blocks.len() {
            if let (true, Some(&node)) = (pages.enter(sequence.blocks[place]), sequence.path.get(place)) {
                self.cache.window_entered(node);
            }
        }
    }

    /// Whether another one can go on at `position` of a sequence: all that the window of the block there
    /// reaches.
    pub(super) fn can_look_back(&self, donor: Index, position: u32) -> bool {
        let Some(pages) = &self.pages else { return true };
        let start = position / self.config.block_size * self.config.block_size;
        let reached = self.first_in_window(start)..self.config.blocks_for(position) as usize;
        let blocks = self.store[donor].blocks.get(reached);
        blocks.is_some_and(|blocks| blocks.iter().all(|&block| pages.is_held(block)))
    }

    /// Tokens that a sequence runs from where it stands before it stops to be shared. The first of several beams stops where
    /// they part: their windows end there.
    pub(super) fn runnable(&self, index: Index) -> u32 {
        let sequence = &self.store[index];
        let planned = sequence.seat.map_or(0, |seat| seat.planned);
        let parts = sequence.group.filter(|_| self.pages.is_some()).map(|group| self.start_of(group));
        match parts.filter(|&parts| planned < parts) {
            Some(parts) => sequence.runnable().min(parts - planned),
            None => sequence.runnable(),
        }
    }

    /// Known tokens of a newcomer that it need not run if they are cached: all but the last, and of beams all but the
    /// last of those that they have in common.
    pub(super) fn reusable_tokens(&self, index: Index) -> usize {
        let sequence = &self.store[index];
        let most = sequence.tokens.len() - 1;
        let parts = sequence.group.filter(|_| self.pages.is_some()).map(|group| self.start_of(group) as usize);
        parts.map_or(most, |parts| most.min(parts - 1))
    }

    /// Pages that could be had: free ones, and those of what is cached and in nobody's table or window.
    pub(super) fn pages_available(&self, free: u32) -> u32 {
        let Some(windows) = self.config.windows else { return free };
        free + self.cache.idle() * windows.full + self.cache.idle_windows() * windows.windowed
    }

    /// A block with all its pages, in place of what was left first in the cache if need be.
    pub(super) fn furnish(&mut self) -> Option<BlockId> {
        while self.pages.as_ref()?.free() < self.config.pages_per_block() {
            match self.cache.evict_oldest()? {
                Evicted::Block(block) => self.release_block(block),
                Evicted::Window(block) => self.pages.as_mut()?.drop_window(block),
            }
        }
        let block = self.pool.allocate()?;
        self.pages.as_mut()?.furnish(block);
        Some(block)
    }

    /// One reference less to a block.
    pub(super) fn release_block(&mut self, block: BlockId) {
        if self.pool.release(block)
            && let Some(pages) = self.pages.as_mut()
        {
            pages.clear(block);
        }
    }

    /// A block has left the cache and may be in tables still: nobody keeps a window part that no window reaches.
    pub(super) fn release_purged(&mut self, block: BlockId) {
        self.release_block(block);
        if let Some(pages) = self.pages.as_mut().filter(|pages| pages.users(block) == 0) {
            pages.drop_window(block);
        }
    }

    /// Makes room for another block in the cache, where blocks cost nothing. False when there is none.
    pub(super) fn has_room_for_name(&mut self) -> bool {
        let Some(pages) = &self.pages else { return true };
        let most = NAMES_PER_PAGE * u64::from(self.config.num_blocks);
        if pages.windows().full > 0 || (self.cache.len() as u64) < most {
            return true;
        }
        match self.cache.evict() {
            Some(block) => {
                self.release_block(block);
                true
            }
            None => false,
        }
    }

    /// Pages of a block that are there, to be copied from.
    pub(super) fn pages_to_copy(&self, block: BlockId) -> Vec<PageId> {
        match &self.pages {
            Some(pages) => [pages.full(block), pages.window(block)].concat(),
            None => vec![block],
        }
    }

    /// What the shard is told of a sequence's blocks from `held` on: pages, block by block.
    pub(super) fn tell_pages(&self, sequence: &Sequence, held: usize, told: &mut Vec<PageId>) {
        let Some(pages) = &self.pages else {
            told.extend_from_slice(&sequence.blocks[held..]);
            return;
        };
        for (place, &block) in sequence.blocks.iter().enumerate().skip(held) {
            told.extend_from_slice(pages.full(block));
            if place >= sequence.behind {
                told.extend_from_slice(pages.window(block));
            } else {
                told.extend(std::iter::repeat_n(NO_PAGE, pages.windows().windowed as usize));
            }
        }
    }

    /// Pages that would be free if a sequence left, as far as nobody else uses them; `keeps` says which of its blocks
    /// somebody wants to keep.
    pub(super) fn pages_spared(&self, victim: Index, keeps: impl Fn(usize) -> bool) -> u32 {
        let sequence = &self.store[victim];
        let Some(pages) = &self.pages else { return 0 };
        let windows = pages.windows();
        let of_block = |(place, &block): (usize, &BlockId)| {
            let own = match sequence.path.get(place) {
                Some(&node) => self.cache.users(node) == 1,
                None => self.pool.references(block) == 1,
            };
            let window = place >= sequence.behind && pages.users(block) == 1;
            u32::from(own) * windows.full + u32::from(window) * windows.windowed
        };
        sequence.blocks.iter().enumerate().filter(|&(place, _)| !keeps(place)).map(of_block).sum()
    }

    /// Checks that each window part counts those that look at it, and is there as long as it should.
    pub(super) fn check_windows(&self) -> Result<(), String> {
        let Some(pages) = &self.pages else { return Ok(()) };
        let handed_out = self.pool.handed_out() as usize;
        pages.check_integrity((0..handed_out as u32).filter(|&block| self.pool.references(block) > 0))?;
        let mut users = vec![0; handed_out];
        for (_, sequence) in self.store.iter() {
            let copied = sequence.continuation.and_then(|continuation| continuation.copied);
            sequence.blocks.iter().skip(sequence.behind).chain(&copied).for_each(|&block| users[block as usize] += 1);
            let planned = sequence.seat.map_or(0, |seat| seat.planned);
            if sequence.behind > self.first_in_window(planned) {
                return Err(format!("sequence {} has let go of {} blocks", sequence.id, sequence.behind));
            }
        }
        let mut cached = vec![None; handed_out];
        for (written, there) in self.cache.windows() {
            cached[written.block as usize] = Some(there);
        }
        for (block, (&users, cached)) in (0..).zip(users.iter().zip(cached)) {
            let (found, held) = (pages.users(block), pages.is_held(block));
            let expected = cached.map_or(users > 0, |(there, _)| there);
            let idle = cached.is_some_and(|(there, idle)| idle != (there && users == 0));
            if found != users || held != expected || (users > 0 && !held) || idle {
                return Err(format!("window part of block {block}: {found} look at it of {users}, {held}, {cached:?}"));
            }
        }
        Ok(())
    }
}
