//! The prefix cache: a radix tree over blocks.
//!
//! A node is a full block: its tokens follow those of its parent, and a root stands for a cache key. Nodes are found by the
//! digest of all tokens up to their end; a hit counts only if parent and tokens are the very same, so that a collision of
//! digests costs a miss and nothing else.
//!
//! - The cache holds one reference to the block of each node. Each seated sequence pins the nodes whose blocks are in its
//!   table, always from the root on: no node has more users than its parent.
//! - Nodes without users are idle. Their blocks count as free: `evict` gives up a leaf, in general the one that was left
//!   first (`leaves`).
//! - A node that is not to be trusted leaves the tree at once, with all below it; while pinned it stays as a mere name.

mod integrity;
mod leaves;
mod windows;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::chain::{CacheKey, Digest, DigestHasher};
use super::sequence::Epoch;
use super::{BlockId, StepId, TenantId, Token};
use leaves::{Leaf, Leaves};
pub(super) use windows::Evicted;
use windows::Window;

/// Place of a node.
pub(super) type NodeIndex = u32;

/// Children that are looked at for a block that begins with the same tokens: a popular prefix has any number of them.
const PARTIAL_CANDIDATES: usize = 16;

/// Where a node is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Vacant,
    Root(CacheKey),
    Block,
    /// Out of the tree, and pinned.
    Detached,
}

/// What a block holds and who wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) block: BlockId,
    /// For whom.
    pub(super) tenant: TenantId,
    /// The seating that wrote it.
    pub(super) writer: Epoch,
    /// Who had given the writer something that this may rest on.
    pub(super) lender: Option<Epoch>,
    /// It is written once this step is done.
    pub(super) step: StepId,
}

#[derive(Debug)]
pub(super) struct Node {
    kind: Kind,
    digest: Option<Digest>,
    parent: Option<NodeIndex>,
    first_child: Option<NodeIndex>,
    next: Option<NodeIndex>,
    previous: Option<NodeIndex>,
    users: u32,
    /// When its last user left.
    left_at: u64,
    /// Blocks that had been given up by then.
    evictions: u64,
    window: Window,
    pub(super) written: Written,
}

impl Node {
    fn new(kind: Kind, written: Written) -> Self {
        let (digest, parent, first_child, next, previous) = (None, None, None, None, None);
        let (users, left_at, evictions, window) = (0, 0, 0, Window::InUse);
        Self { kind, digest, parent, first_child, next, previous, users, left_at, evictions, window, written }
    }

    /// Its place among the leaves.
    fn leaf(&self, node: NodeIndex) -> Leaf {
        Leaf { tenant: self.written.tenant, left_at: self.left_at, node }
    }

    fn is_idle_leaf(&self) -> bool {
        self.kind == Kind::Block && self.users == 0 && self.first_child.is_none()
    }
}

/// A cached block of which a part can be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Partial {
    pub(super) written: Written,
    /// Its first tokens that are the wanted ones; at least one.
    pub(super) tokens: u32,
}

/// The tree. It counts users and names blocks; references to blocks are the caller's to take and give back.
#[derive(Debug)]
pub(super) struct PrefixCache {
    block_size: usize,
    nodes: Vec<Node>,
    /// Tokens of all nodes, `block_size` each.
    tokens: Vec<Token>,
    vacant: Vec<NodeIndex>,
    by_digest: HashMap<Digest, NodeIndex, BuildHasherDefault<DigestHasher>>,
    roots: HashMap<CacheKey, NodeIndex>,
    /// Idle nodes without children.
    leaves: Leaves,
    idle: u32,
    /// Blocks that a window reaches back from the start of another; `None` without windows.
    tail: Option<usize>,
    /// Window parts in nobody's window, and how many of each tenant there are.
    windows: Leaves,
    window_evictions: u64,
    clock: u64,
    evictions: u64,
}

impl PrefixCache {
    pub(super) fn new(block_size: u32, tail: Option<usize>) -> Self {
        Self {
            tail,
            windows: Leaves::default(),
            window_evictions: 0,
            block_size: block_size as usize,
            nodes: Vec::new(),
            tokens: Vec::new(),
            vacant: Vec::new(),
            by_digest: HashMap::default(),
            roots: HashMap::new(),
            leaves: Leaves::default(),
            idle: 0,
            clock: 0,
            evictions: 0,
        }
    }

    /// The same, with so many blocks given up before.
    pub(super) fn counting_from(self, evictions: u64) -> Self {
        Self { evictions, ..self }
    }

    /// Blocks in the tree.
    pub(super) fn len(&self) -> usize {
        self.by_digest.len()
    }

    /// Blocks of the tree that nobody uses.
    pub(super) fn idle(&self) -> u32 {
        self.idle
    }

    /// Blocks given up, since the start.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions + self.window_evictions
    }

    pub(super) fn written(&self, node: NodeIndex) -> Written {
        self.nodes[node as usize].written
    }

    /// Sequences that have a node's block in their tables.
    pub(super) fn users(&self, node: NodeIndex) -> u32 {
        self.nodes[node as usize].users
    }

    pub(super) fn is_idle(&self, node: NodeIndex) -> bool {
        self.nodes[node as usize].users == 0
    }

    /// How many blocks of a chain are cached, and how many of them are in use: a guess by digest alone, in O(log n) without
    /// windows. It is right unless digests collide.
    pub(super) fn reach(&self, chain: &[Digest]) -> (usize, usize) {
        let node = |digest: &Digest| self.by_digest.get(digest);
        let cached = match self.tail {
            Some(_) => self.usable(chain.iter().map_while(|digest| node(digest).copied())),
            None => chain.partition_point(|digest| node(digest).is_some()),
        };
        let in_use = chain[..cached].partition_point(|digest| node(digest).is_some_and(|&node| !self.is_idle(node)));
        (cached, in_use)
    }

    /// Appends to `path` the nodes of the first blocks of `tokens`, as far as they are cached.
    pub(super) fn walk(&self, key: &CacheKey, chain: &[Digest], tokens: &[Token], path: &mut Vec<NodeIndex>) {
        let Some(&root) = self.roots.get(key) else { return };
        let mut parent = root;
        for (digest, block) in chain.iter().zip(tokens.chunks_exact(self.block_size)) {
            let Some(node) = self.child(parent, digest, block) else { return };
            path.push(node);
            parent = node;
        }
    }

    fn child(&self, parent: NodeIndex, digest: &Digest, tokens: &[Token]) -> Option<NodeIndex> {
        let &node = self.by_digest.get(digest)?;
        (self.nodes[node as usize].parent == Some(parent) && self.tokens_of(node) == tokens).then_some(node)
    }

    /// The block after the last node of a path that begins with the most of `wanted`, among those written before a step.
    pub(super) fn partial(
        &self,
        key: &CacheKey,
        path: &[NodeIndex],
        wanted: &[Token],
        before: StepId,
    ) -> Option<Partial> {
        let parent = path.last().or_else(|| self.roots.get(key))?;
        let mut best: Option<Partial> = None;
        for node in self.children(*parent).take(PARTIAL_CANDIDATES) {
            let tokens = self.tokens_of(node).iter().zip(wanted).take_while(|(one, other)| one == other).count() as u32;
            let written = self.written(node);
            let is_there = self.nodes[node as usize].window != Window::Gone;
            if is_there && written.step < before && tokens > best.map_or(0, |best| best.tokens) {
                best = Some(Partial { written, tokens });
            }
        }
        best
    }

    /// Children, the latest first.
    fn children(&self, parent: NodeIndex) -> impl Iterator<Item = NodeIndex> + '_ {
        let first = self.nodes[parent as usize].first_child;
        std::iter::successors(first, |&node| self.nodes[node as usize].next)
    }

    fn tokens_of(&self, node: NodeIndex) -> &[Token] {
        let start = node as usize * self.block_size;
        &self.tokens[start..start + self.block_size]
    }

    /// Puts a block into the tree below the last node of a path, pinned by the sequence that wrote it. `None` when its place
    /// is taken, or the path is no longer in the tree.
    pub(super) fn insert(
        &mut self,
        key: &CacheKey,
        path: &[NodeIndex],
        digest: Digest,
        tokens: &[Token],
        written: Written,
    ) -> Option<NodeIndex> {
        if self.by_digest.contains_key(&digest) {
            return None;
        }
        let parent = match path.last() {
            Some(&last) if self.nodes[last as usize].kind == Kind::Detached => return None,
            Some(&last) => last,
            None => self.root(key),
        };
        let node = self.occupy(Node { digest: Some(digest), users: 1, ..Node::new(Kind::Block, written) });
        let start = node as usize * self.block_size;
        self.tokens[start..start + self.block_size].copy_from_slice(tokens);
        self.by_digest.insert(digest, node);
        self.leaves.add_block(written.tenant);
        if self.tail.is_some() {
            self.windows.add_block(written.tenant);
        }
        self.link(parent, node);
        Some(node)
    }

    fn root(&mut self, key: &CacheKey) -> NodeIndex {
        if let Some(&root) = self.roots.get(key) {
            return root;
        }
        let nothing = Written { block: BlockId::MAX, tenant: 0, writer: 0, lender: None, step: 0 };
        let root = self.occupy(Node::new(Kind::Root(*key), nothing));
        self.roots.insert(*key, root);
        root
    }

    fn occupy(&mut self, node: Node) -> NodeIndex {
        if let Some(index) = self.vacant.pop() {
            self.nodes[index as usize] = node;
            return index;
        }
        self.nodes.push(node);
        self.tokens.resize(self.nodes.len() * self.block_size, 0);
        (self.nodes.len() - 1) as NodeIndex
    }

    fn vacate(&mut self, index: NodeIndex) {
        self.nodes[index as usize].kind = Kind::Vacant;
        self.vacant.push(index);
    }

    fn link(&mut self, parent: NodeIndex, node: NodeIndex) {
        let sibling = self.nodes[parent as usize].first_child.replace(node);
        if let Some(sibling) = sibling {
            self.nodes[sibling as usize].previous = Some(node);
        }
        let linked = &mut self.nodes[node as usize];
        (linked.parent, linked.next) = (Some(parent), sibling);
    }

    /// Takes a node from its parent, which is returned.
    fn unlink(&mut self, index: NodeIndex) -> Option<NodeIndex> {
        let node = &mut self.nodes[index as usize];
        let (parent, previous, next) = (node.parent.take(), node.previous.take(), node.next.take());
        if let Some(next) = next {
            self.nodes[next as usize].previous = previous;
        }
        match (previous, parent) {
            (Some(previous), _) => self.nodes[previous as usize].next = next,
            (None, Some(parent)) => self.nodes[parent as usize].first_child = next,
            (None, None) => {}
        }
        parent
    }

    /// One more user.
    pub(super) fn pin(&mut self, index: NodeIndex) {
        let node = &mut self.nodes[index as usize];
        if node.users == 0 {
            self.leaves.remove(node.leaf(index));
            self.idle -= 1;
        }
        node.users += 1;
    }

    /// A sequence leaves its path.
    pub(super) fn unpin(&mut self, path: &[NodeIndex]) {
        for &index in path.iter().rev() {
            let node = &mut self.nodes[index as usize];
            node.users -= 1;
            if node.users > 0 {
                continue;
            }
            if node.kind == Kind::Detached {
                self.vacate(index);
                continue;
            }
            (node.left_at, node.evictions) = (self.clock, self.evictions);
            self.idle += 1;
            if node.is_idle_leaf() {
                self.leaves.insert(node.leaf(index));
            }
        }
    }

    /// Gives up a leaf: its block is the caller's to release.
    pub(super) fn evict(&mut self) -> Option<BlockId> {
        let leaf = self.next_leaf()?;
        self.leaves.remove(leaf);
        self.evictions += 1;
        self.idle -= 1;
        Some(self.drop_leaf(leaf.node))
    }

    fn next_leaf(&self) -> Option<Leaf> {
        self.leaves.next(|node| self.evictions - self.nodes[node as usize].evictions)
    }

    /// Removes an idle node without children that is no longer among the leaves.
    fn drop_leaf(&mut self, index: NodeIndex) -> BlockId {
        self.forget_window(index);
        let parent = self.unlink(index);
        let node = &self.nodes[index as usize];
        let Written { block, tenant, .. } = node.written;
        self.leaves.remove_block(tenant);
        if let Some(digest) = node.digest {
            self.by_digest.remove(&digest);
        }
        self.vacate(index);
        if let Some(parent) = parent {
            self.lost_child(parent);
        }
        block
    }

    /// A node that has lost its last child becomes a leaf, a root goes.
    fn lost_child(&mut self, index: NodeIndex) {
        let node = &self.nodes[index as usize];
        if node.first_child.is_some() {
            return;
        }
        if node.is_idle_leaf() {
            self.leaves.insert(node.leaf(index));
        } else if let Kind::Root(key) = node.kind {
            self.roots.remove(&key);
            self.vacate(index);
        }
    }

    /// Takes every node for which `suspect` holds out of the tree, with all below it. Their blocks are appended to `blocks`,
    /// for the caller to release. Costs as much as there are nodes.
    pub(super) fn purge(&mut self, suspect: impl Fn(NodeIndex, &Node) -> bool, blocks: &mut Vec<BlockId>) {
        let mut doomed: Vec<NodeIndex> = (0..)
            .zip(&self.nodes)
            .filter(|(index, node)| node.kind == Kind::Block && suspect(*index, node))
            .map(|(index, _)| index)
            .collect();
        while let Some(index) = doomed.pop() {
            if self.nodes[index as usize].kind == Kind::Block {
                doomed.extend(self.children(index));
                blocks.push(self.detach(index));
            }
        }
    }

    fn detach(&mut self, index: NodeIndex) -> BlockId {
        self.forget_window(index);
        let parent = self.unlink(index);
        let children: Vec<NodeIndex> = self.children(index).collect();
        for child in children {
            self.unlink(child);
        }
        let node = &mut self.nodes[index as usize];
        let (Written { block, tenant, .. }, idle) = (node.written, node.users == 0);
        self.leaves.remove_block(tenant);
        node.kind = Kind::Detached;
        if let Some(digest) = node.digest.take() {
            self.by_digest.remove(&digest);
        }
        if idle {
            self.leaves.remove(self.nodes[index as usize].leaf(index));
            self.idle -= 1;
            self.vacate(index);
        }
        if let Some(parent) = parent {
            self.lost_child(parent);
        }
        block
    }
}
