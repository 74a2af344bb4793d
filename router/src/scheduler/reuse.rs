//! How sequences use the prefix cache: what a newcomer starts from, what a step adds, what a failure takes away.
//!
//! - A block enters the cache as soon as a step that fills it is planned and its tokens are known. Steps run in order, so
//!   whoever is seated by a later step may read it. A newcomer that could read what the very step is to write waits for the
//!   next one: that costs less than computing the same twice.
//! - The last known token is always run again: something has to be sampled after it. A prompt whose log-probabilities are
//!   still to be reported is run in full.
//! - Of the block after the last full hit a part may be copied. A block with more than one reference is never written.
//! - When a sequence fails, nothing stays in the cache that it read or wrote, or that rests on this, and whoever read what it
//!   wrote starts over.

use super::fork::Kin;
use super::plan::Plan;
use super::prefix::{Node, NodeIndex, Partial, Written};
use super::sequence::{Epoch, Index};
use super::{BlockId, Scheduler, StepId};

/// Copying a block for a smaller part of it than this is not worth it.
const MIN_COPIED_SHARE: u32 = 4;

/// What a newcomer could start from, by a guess at what is cached.
#[derive(Debug, Clone, Copy)]
pub(super) struct Foothold {
    /// Full blocks that are cached.
    cached: usize,
    /// Full blocks that it would share with those that run.
    pub(super) in_use: usize,
    donor: Option<Index>,
}

/// What a newcomer starts from.
#[derive(Debug)]
pub(super) struct Start {
    /// Cached nodes of its first blocks.
    path: Vec<NodeIndex>,
    /// A relative whose blocks it shares, beyond the path too.
    donor: Option<Index>,
}

/// What a newcomer was given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shared {
    /// Positions that it need not run.
    pub(super) cached: u32,
    pub(super) lender: Option<Epoch>,
    pub(super) publishes: bool,
}

/// What failed in a step.
#[derive(Debug, Default)]
pub(super) struct Failure {
    /// The seatings.
    pub(super) epochs: Vec<Epoch>,
    /// Cached nodes in the tables of those that were not over.
    pub(super) read: Vec<NodeIndex>,
}

impl Scheduler {
    /// Blocks that a sequence could get: free ones, and cached ones that nobody uses.
    pub(super) fn available(&self) -> u32 {
        match &self.pages {
            Some(pages) => self.pages_available(pages.free()),
            None => self.pool.free() + self.cache.idle(),
        }
    }

    /// The same in blocks with all their pages.
    pub(super) fn available_blocks(&self) -> u32 {
        match &self.pages {
            Some(_) => self.available() / self.config.pages_per_block(),
            None => self.available(),
        }
    }

    /// Blocks in the cache, or what of their pages is there.
    pub(super) fn cached_pages(&self) -> u32 {
        let blocks = self.cache.len() as u32;
        let Some(windows) = self.config.windows else { return blocks };
        blocks * windows.full + self.cache.windows_there() as u32 * windows.windowed
    }

    /// A block of its own for a sequence, if need be in place of the cached one that was left first.
    pub(super) fn allocate(&mut self) -> Option<BlockId> {
        if self.pages.is_some() {
            return self.furnish();
        }
        if self.pool.free() == 0 {
            let block = self.cache.evict()?;
            self.pool.release(block);
        }
        self.pool.allocate()
    }

    /// Full blocks of a newcomer that it may take from the cache.
    fn reusable(&mut self, index: Index) -> usize {
        let most = self.reusable_tokens(index);
        let sequence = &mut self.store[index];
        if !self.config.prefix_caching || sequence.is_to_be_scored() {
            return 0;
        }
        let size = self.config.block_size as usize;
        self.hasher.extend(&mut sequence.chain, &sequence.key, &sequence.tokens, size);
        most / size
    }

    /// Whether so many cached blocks are of use: what is run at once is there to the last or not at all.
    fn holds_whole(&self, index: Index, blocks: usize) -> bool {
        blocks as u64 * u64::from(self.config.block_size) >= u64::from(self.store[index].whole)
    }

    /// What a newcomer could start from; `None` when a relative is at it, and the next step may know more.
    pub(super) fn foothold(&mut self, index: Index) -> Option<Foothold> {
        let reusable = self.reusable(index);
        let (mut cached, mut in_use) = self.cache.reach(&self.store[index].chain[..reusable]);
        if !self.holds_whole(index, cached) {
            (cached, in_use) = (0, 0);
        }
        let shared = (self.shareable(index) / self.config.block_size) as usize;
        match self.kin(index) {
            Kin::Later => None,
            Kin::Ready(donor) if shared >= cached && self.can_look_back(donor, self.shareable(index)) => {
                Some(Foothold { cached, in_use: shared, donor: Some(donor) })
            }
            _ => Some(Foothold { cached, in_use, donor: None }),
        }
    }

    /// What a newcomer starts from; `None` when it is not to be seated in this step.
    pub(super) fn welcome(&mut self, index: Index) -> Option<Start> {
        let Foothold { cached, in_use, donor } = self.foothold(index)?;
        if !self.has_room(index, in_use) {
            return None;
        }
        let mut path = std::mem::take(&mut self.store[index].path);
        if let Some(donor) = donor {
            path.extend(self.store[donor].path.iter().take(in_use));
            return Some(Start { path, donor: Some(donor) });
        }
        let reusable = self.reusable(index);
        let sequence = &self.store[index];
        self.cache.walk(&sequence.key, &sequence.chain[..reusable], &sequence.tokens, &mut path);
        if !self.holds_whole(index, path.len()) {
            path.clear();
        }
        let is_written_now = |&node: &NodeIndex| self.cache.written(node).step > self.last_step;
        let being_written = match &self.pages {
            Some(_) => path.iter().any(is_written_now), // Blocks before the last may have been renewed.
            None => path.last().is_some_and(is_written_now),
        };
        if self.pages.is_some() {
            path.truncate(self.cache.usable(path.iter().copied()));
        }
        let in_use =
            if path.len() == cached { in_use } else { path.partition_point(|&node| !self.cache.is_idle(node)) };
        if being_written || !self.has_room(index, in_use) {
            path.clear();
            self.store[index].path = path;
            return None;
        }
        Some(Start { path, donor: None })
    }

    /// Gives a newcomer the blocks that it starts from, and a copy of what it can use of the next.
    pub(super) fn share(&mut self, index: Index, start: Start, plan: &mut Plan) -> Shared {
        let size = self.config.block_size;
        let mut shared = Shared { cached: 0, lender: None, publishes: self.config.prefix_caching };
        for &node in &start.path {
            self.cache.pin(node);
        }
        let blocks: Vec<BlockId> = match start.donor {
            Some(donor) => self.store[donor].blocks[..(self.shareable(index) / size) as usize].to_vec(),
            None => start.path.iter().map(|&node| self.cache.written(node).block).collect(),
        };
        for &block in &blocks {
            self.pool.share(block);
        }
        // A block that is shared and not in the cache must not enter it as this one's own.
        shared.publishes &= start.path.len() == blocks.len();
        shared.cached = blocks.len() as u32 * size;
        let sequence = &mut self.store[index];
        sequence.blocks.extend(blocks);
        sequence.path = start.path;
        self.look_at_shared(index, shared.cached);
        let partial = match start.donor {
            Some(donor) => self.rest_of_prompt(index, donor),
            None => self.partial(index, shared.cached as usize),
        };
        if let Some(partial) = partial {
            self.copy_part(index, partial, &mut shared, plan);
        }
        let donor = start.donor.and_then(|donor| self.store[donor].seat).map(|seat| seat.epoch);
        shared.lender = donor.or(partial.map(|partial| partial.written.writer));
        self.queried_tokens += u64::from(self.store[index].known());
        self.hit_tokens += u64::from(shared.cached);
        shared
    }

    fn copy_part(&mut self, index: Index, partial: Partial, shared: &mut Shared, plan: &mut Plan) {
        let sources = self.pages_to_copy(partial.written.block);
        let Some(block) = self.allocate() else { return };
        self.store[index].blocks.push(block);
        shared.cached += partial.tokens;
        // A page may be the very one, just given up by the cache.
        let copies = sources.into_iter().zip(self.pages_to_copy(block));
        plan.copies.extend(copies.filter(|(from, to)| from != to));
    }

    /// The part of a relative's block in which the shared prompt ends.
    fn rest_of_prompt(&self, index: Index, donor: Index) -> Option<Partial> {
        let (shared, size) = (self.shareable(index), self.config.block_size);
        let (&block, seat) = self.store[donor].blocks.get((shared / size) as usize).zip(self.store[donor].seat)?;
        let written = Written { block, tenant: 0, writer: seat.epoch, lender: None, step: 0 };
        (shared % size > 0).then_some(Partial { written, tokens: shared % size })
    }

    fn partial(&self, index: Index, cached: usize) -> Option<Partial> {
        let sequence = &self.store[index];
        if !self.config.prefix_caching || sequence.is_to_be_scored() || cached < sequence.whole as usize {
            return None;
        }
        let wanted = sequence.tokens.get(cached..self.reusable_tokens(index))?;
        let partial = self.cache.partial(&sequence.key, &sequence.path, wanted, self.last_step + 1)?;
        (partial.tokens * MIN_COPIED_SHARE >= self.config.block_size).then_some(partial)
    }

    /// Puts the blocks of a sequence into the cache that are full, with all tokens known, and written by a step up to `step`.
    pub(super) fn publish(&mut self, index: Index, step: StepId) {
        let sequence = &mut self.store[index];
        let Some(seat) = sequence.seat.as_mut().filter(|seat| seat.publishes) else { return };
        let size = self.config.block_size as usize;
        let full = sequence.tokens.len().min(seat.planned as usize) / size;
        if sequence.path.len() >= full {
            return;
        }
        self.hasher.extend(&mut sequence.chain, &sequence.key, &sequence.tokens, size);
        while self.store[index].path.len() < full {
            if !self.publish_next(index, step) {
                // Another one has computed the same; what follows could only hang on its blocks.
                if let Some(seat) = self.store[index].seat.as_mut() {
                    seat.publishes = false;
                }
                return;
            }
        }
    }

    /// Puts the block after those of its path into the cache.
    fn publish_next(&mut self, index: Index, step: StepId) -> bool {
        if !self.has_room_for_name() {
            return false;
        }
        let sequence = &mut self.store[index];
        let Some(seat) = sequence.seat else { return false };
        let (place, size) = (sequence.path.len(), self.config.block_size as usize);
        let (block, tenant) = (sequence.blocks[place], sequence.tenant);
        let written = Written { block, tenant, writer: seat.epoch, lender: seat.lender, step };
        let (digest, tokens) = (sequence.chain[place], &sequence.tokens[place * size..(place + 1) * size]);
        let inserted = self.cache.insert(&sequence.key, &sequence.path, digest, tokens, written);
        let node = match inserted {
            None if self.pages.is_some() => {
                let renewed = self.cache.renew(&sequence.key, &sequence.path, &digest, tokens, written);
                renewed.map(|(node, old)| {
                    self.release_block(old);
                    node
                })
            }
            inserted => inserted,
        };
        let Some(node) = node else { return false };
        if self.pages.as_ref().is_some_and(|pages| !pages.is_held(block)) {
            self.cache.window_gone(node);
        }
        self.pool.share(block);
        self.store[index].path.push(node);
        true
    }

    /// Nothing that a failed seating read or wrote stays in the cache, and whoever rests on what it wrote is sent back to
    /// start over.
    pub(super) fn distrust(&mut self, failure: Failure) {
        let Failure { mut epochs, read } = failure;
        if epochs.is_empty() {
            return;
        }
        let mut misled = Vec::new();
        while let Some(index) = self.seats.iter().find(|&index| self.rests_on(index, &epochs)) {
            epochs.extend(self.store[index].seat.map(|seat| seat.epoch));
            misled.push(index);
        }
        let suspect = |index, node: &Node| {
            let Written { writer, lender, .. } = node.written;
            let lent = lender.is_some_and(|lender| epochs.contains(&lender));
            lent || epochs.contains(&writer) || read.contains(&index)
        };
        self.purge_cache(suspect);
        for index in misled {
            self.send_back(index);
        }
    }

    fn rests_on(&self, index: Index, failed: &[Epoch]) -> bool {
        let sequence = &self.store[index];
        let Some(seat) = sequence.seat.filter(|seat| !failed.contains(&seat.epoch)) else { return false };
        let from_failed = |&node: &NodeIndex| failed.contains(&self.cache.written(node).writer);
        seat.lender.is_some_and(|epoch| failed.contains(&epoch)) || sequence.path.iter().any(from_failed)
    }

    /// Empties the cache.
    pub(super) fn clear_cache(&mut self) {
        self.purge_cache(|_, _| true);
    }

    fn purge_cache(&mut self, suspect: impl Fn(NodeIndex, &Node) -> bool) {
        let mut blocks = Vec::new();
        self.cache.purge(suspect, &mut blocks);
        for block in blocks {
            self.release_purged(block);
        }
    }
}
