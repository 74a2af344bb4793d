//! Pages, for models with sliding windows: what a block is made of.
//!
//! A block stands for a run of positions. It has a page for each group of layers, all of one size and from one pool, so that
//! nobody guesses beforehand how much goes to windows. The pages of groups with a window are its *window part*: they are given
//! back when nobody's window reaches them any more, and the block lives on without. A window part that nobody looks at is
//! there only while its block is in the prefix cache.

use super::config::Windows;
use super::{BlockId, PageId};

/// The window part of a block.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    held: bool,
    /// Sequences whose window reaches it, or did when they were planned last.
    users: u32,
}

/// Pages of all blocks. Every operation takes constant time.
#[derive(Debug)]
pub(super) struct PagePool {
    windows: Windows,
    total: u32,
    /// Pages that were handed out once; those beyond are untouched.
    touched: u32,
    returned: Vec<PageId>,
    /// By block: pages of the full groups, then those of the window part.
    pages: Vec<PageId>,
    /// By block.
    parts: Vec<Part>,
}

impl PagePool {
    pub(super) fn new(total: u32, windows: Windows) -> Self {
        Self { windows, total, touched: 0, returned: Vec::new(), pages: Vec::new(), parts: Vec::new() }
    }

    pub(super) fn windows(&self) -> Windows {
        self.windows
    }

    pub(super) fn free(&self) -> u32 {
        self.total - self.touched + self.returned.len() as u32
    }

    fn per_block(&self) -> usize {
        (self.windows.full + self.windows.windowed) as usize
    }

    /// Gives a new block its pages, of which there must be enough; its window part has one user.
    pub(super) fn furnish(&mut self, block: BlockId) {
        let (place, count) = (block as usize, self.per_block());
        if self.parts.len() <= place {
            self.parts.resize(place + 1, Part::default());
            self.pages.resize((place + 1) * count, 0);
        }
        for page in place * count..(place + 1) * count {
            self.pages[page] = self.take();
        }
        self.parts[place] = Part { held: true, users: 1 };
    }

    fn take(&mut self) -> PageId {
        self.returned.pop().unwrap_or_else(|| {
            debug_assert!(self.touched < self.total, "a page was promised");
            self.touched += 1;
            self.touched - 1
        })
    }

    /// Takes back what a block has left, which is free.
    pub(super) fn clear(&mut self, block: BlockId) {
        self.drop_window(block);
        self.parts[block as usize] = Part::default();
        let first = block as usize * self.per_block();
        self.returned.extend_from_slice(&self.pages[first..first + self.windows.full as usize]);
    }

    /// Takes back the window part of a block, if it is there.
    pub(super) fn drop_window(&mut self, block: BlockId) {
        let count = self.per_block();
        if std::mem::take(&mut self.parts[block as usize].held) {
            let first = block as usize * count;
            self.returned.extend_from_slice(&self.pages[first + self.windows.full as usize..first + count]);
        }
    }

    /// One more looks at a window part. True for the first.
    pub(super) fn enter(&mut self, block: BlockId) -> bool {
        let part = &mut self.parts[block as usize];
        debug_assert!(part.held, "block {block} has no window part to look at");
        part.users += 1;
        part.users == 1
    }

    /// One less does. True for the last.
    pub(super) fn leave(&mut self, block: BlockId) -> bool {
        let part = &mut self.parts[block as usize];
        part.users -= 1;
        part.users == 0
    }

    pub(super) fn is_held(&self, block: BlockId) -> bool {
        self.parts.get(block as usize).is_some_and(|part| part.held)
    }

    pub(super) fn users(&self, block: BlockId) -> u32 {
        self.parts.get(block as usize).map_or(0, |part| part.users)
    }

    /// Pages of the full groups.
    pub(super) fn full(&self, block: BlockId) -> &[PageId] {
        let first = block as usize * self.per_block();
        &self.pages[first..first + self.windows.full as usize]
    }

    /// Pages of the window part, whether or not it is there.
    pub(super) fn window(&self, block: BlockId) -> &[PageId] {
        let first = block as usize * self.per_block();
        &self.pages[first + self.windows.full as usize..first + self.per_block()]
    }

    /// Checks that each page is free or belongs to one of the `blocks` that are in use.
    pub(super) fn check_integrity(&self, blocks: impl Iterator<Item = BlockId>) -> Result<(), String> {
        let mut listed = vec![0; self.touched as usize];
        for block in blocks {
            let window = if self.is_held(block) { self.window(block) } else { &[] };
            self.full(block).iter().chain(window).for_each(|&page| listed[page as usize] += 1);
        }
        self.returned.iter().for_each(|&page| listed[page as usize] += 1);
        match listed.iter().position(|&times| times != 1) {
            Some(page) => Err(format!("page {page} is listed {} times", listed[page])),
            None => Ok(()),
        }
    }
}
