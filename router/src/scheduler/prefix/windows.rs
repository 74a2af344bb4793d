//! Window parts of cached blocks: which are there, and which is given up next.
//!
//! Nodes are given up leaf by leaf, window parts wherever they stand, also those of nodes in use: who has moved on needs them
//! no more. Both age alike. A prompt goes on where the window parts before are there.

use super::super::{BlockId, Token};
use super::leaves::Leaf;
use super::{CacheKey, Digest, Kind, NodeIndex, PrefixCache, Written};

/// The window part of a node's block. Without windows it is in use for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Window {
    /// In somebody's window.
    InUse,
    /// In nobody's, since then; so many had been given up by then.
    Idle {
        left_at: u64,
        evictions: u64,
    },
    Gone,
}

/// What the cache gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Evicted {
    Block(BlockId),
    /// Of this block the window part.
    Window(BlockId),
}

impl PrefixCache {
    /// Time goes on: what is left from now on was left later.
    pub(in super::super) fn tick(&mut self) {
        self.clock += 1;
    }

    /// Window parts in nobody's window.
    pub(in super::super) fn idle_windows(&self) -> u32 {
        self.windows.len() as u32
    }

    /// Window parts that are there.
    pub(in super::super) fn windows_there(&self) -> u64 {
        self.windows.blocks()
    }

    pub(in super::super) fn is_in_tree(&self, node: NodeIndex) -> bool {
        self.nodes[node as usize].kind == Kind::Block
    }

    fn idle_window(&self, index: NodeIndex) -> Option<Leaf> {
        let node = &self.nodes[index as usize];
        match node.window {
            Window::Idle { left_at, .. } => Some(Leaf { tenant: node.written.tenant, left_at, node: index }),
            Window::InUse | Window::Gone => None,
        }
    }

    /// Nobody looks at the window part of a node any more.
    pub(in super::super) fn window_left(&mut self, index: NodeIndex) {
        let idle = Window::Idle { left_at: self.clock, evictions: self.window_evictions };
        self.nodes[index as usize].window = idle;
        if let Some(leaf) = self.idle_window(index) {
            self.windows.insert(leaf);
        }
    }

    /// Somebody looks at the window part of a node, which is there.
    pub(in super::super) fn window_entered(&mut self, index: NodeIndex) {
        if let Some(leaf) = self.idle_window(index) {
            self.windows.remove(leaf);
        }
        self.nodes[index as usize].window = Window::InUse;
    }

    /// The block of a new node has no window part any more.
    pub(in super::super) fn window_gone(&mut self, index: NodeIndex) {
        self.forget_window(index);
        self.nodes[index as usize].window = Window::Gone;
    }

    /// A node leaves the tree, or its window part does.
    pub(super) fn forget_window(&mut self, index: NodeIndex) {
        if let Some(leaf) = self.idle_window(index) {
            self.windows.remove(leaf);
        }
        let node = &self.nodes[index as usize];
        if self.tail.is_some() && node.window != Window::Gone {
            self.windows.remove_block(node.written.tenant);
        }
    }

    /// How many of these nodes, one below the other from a root on, a prompt may take: the most after which all window
    /// parts are there that a window reaches.
    pub(in super::super) fn usable(&self, path: impl Iterator<Item = NodeIndex>) -> usize {
        let (tail, mut there, mut usable) = (self.tail.unwrap_or(0), 0, 0);
        for (place, node) in path.enumerate() {
            there = if self.nodes[node as usize].window == Window::Gone { 0 } else { there + 1 };
            if there >= tail.min(place + 1) {
                usable = place + 1;
            }
        }
        usable
    }

    /// Gives up a leaf, or a window part that was left before.
    pub(in super::super) fn evict_oldest(&mut self) -> Option<Evicted> {
        let (nodes, evictions) = (&self.nodes, self.window_evictions);
        let since = |node: NodeIndex| match nodes[node as usize].window {
            Window::Idle { evictions: then, .. } => evictions - then,
            Window::InUse | Window::Gone => 0,
        };
        let window = self.windows.next(since);
        match window.filter(|window| self.next_leaf().is_none_or(|leaf| window.left_at < leaf.left_at)) {
            Some(window) => {
                self.window_gone(window.node);
                self.window_evictions += 1;
                Some(Evicted::Window(self.written(window.node).block))
            }
            None => self.evict().map(Evicted::Block),
        }
    }

    /// Puts a block with the same tokens in the place of one that nobody uses, pinned by its writer, and returns the old one.
    /// `None` when somebody does, or it is another node's place.
    pub(in super::super) fn renew(
        &mut self,
        key: &CacheKey,
        path: &[NodeIndex],
        digest: &Digest,
        tokens: &[Token],
        written: Written,
    ) -> Option<(NodeIndex, BlockId)> {
        let parent = *path.last().or_else(|| self.roots.get(key))?;
        let index = self.child(parent, digest, tokens).filter(|&node| self.is_idle(node))?;
        self.pin(index);
        self.forget_window(index);
        let old = std::mem::replace(&mut self.nodes[index as usize].written, written);
        self.nodes[index as usize].window = Window::InUse;
        self.leaves.remove_block(old.tenant);
        self.leaves.add_block(written.tenant);
        self.windows.add_block(written.tenant);
        Some((index, old.block))
    }

    /// The blocks in the tree: whether their window parts are there, and in nobody's window.
    pub(in super::super) fn windows(&self) -> impl Iterator<Item = (Written, (bool, bool))> + '_ {
        let nodes = self.nodes.iter().filter(|node| node.kind == Kind::Block);
        nodes.map(|node| (node.written, (node.window != Window::Gone, matches!(node.window, Window::Idle { .. }))))
    }

    /// Checks that the window parts in nobody's window are listed, each once.
    pub(super) fn check_windows(&self) -> Result<(), String> {
        self.windows.check_integrity()?;
        let blocks = (0..).zip(&self.nodes).filter(|(_, node)| node.kind == Kind::Block);
        let idle: Vec<Leaf> = blocks.clone().filter_map(|(index, _)| self.idle_window(index)).collect();
        let there = blocks.filter(|(_, node)| self.tail.is_some() && node.window != Window::Gone).count() as u64;
        let listed = idle.iter().all(|&leaf| self.windows.contains(leaf)) && idle.len() == self.windows.len();
        if listed && there == self.windows.blocks() {
            Ok(())
        } else {
            Err(format!("{} window parts are idle of {there}: {:?}", idle.len(), self.windows))
        }
    }
}
