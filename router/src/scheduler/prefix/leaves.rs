//! Which cached block is given up next: in general the one that was left first, but a tenant with more than an even share of
//! the cache gives up its own first. So nobody's flood of prompts takes what others come back to. Among many tenants an even
//! share is less than one long conversation, which is no flood: less than a part in [`MOST_SHARES`] never counts as too much.
//!
//! What nobody has come back to while the cache was filled anew [`TURNOVERS`] times over is protected no more.

use std::collections::{BTreeSet, HashMap};

use super::super::TenantId;
use super::NodeIndex;

/// See above.
const TURNOVERS: u64 = 2;
/// See above.
const MOST_SHARES: u64 = 8;

/// A node that could be given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leaf {
    pub(super) tenant: TenantId,
    pub(super) left_at: u64,
    pub(super) node: NodeIndex,
}

#[derive(Debug, Default)]
struct Owner {
    /// Its blocks in the tree.
    blocks: u32,
    /// Those that could be given up, the longest left first.
    leaves: BTreeSet<(u64, NodeIndex)>,
}

/// Idle nodes without children. Every operation is O(log n).
#[derive(Debug, Default)]
pub(super) struct Leaves {
    /// The longest left first; with the blocks that had been given up when it was left.
    all: BTreeSet<(u64, NodeIndex, TenantId)>,
    owners: HashMap<TenantId, Owner>,
    /// Owners of leaves by the blocks that they have in the tree.
    largest: BTreeSet<(u32, TenantId)>,
    blocks: u64,
}

impl Leaves {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Blocks in the tree.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(super) fn contains(&self, leaf: Leaf) -> bool {
        self.all.contains(&(leaf.left_at, leaf.node, leaf.tenant))
    }

    pub(super) fn insert(&mut self, leaf: Leaf) {
        self.all.insert((leaf.left_at, leaf.node, leaf.tenant));
        self.change(leaf.tenant, |owner| {
            owner.leaves.insert((leaf.left_at, leaf.node));
        });
    }

    /// Does nothing when it is not among the leaves.
    pub(super) fn remove(&mut self, leaf: Leaf) {
        if self.all.remove(&(leaf.left_at, leaf.node, leaf.tenant)) {
            self.change(leaf.tenant, |owner| {
                owner.leaves.remove(&(leaf.left_at, leaf.node));
            });
        }
    }

    /// A block of a tenant enters the tree.
    pub(super) fn add_block(&mut self, tenant: TenantId) {
        self.blocks += 1;
        self.change(tenant, |owner| owner.blocks += 1);
    }

    /// A block of a tenant has left the tree.
    pub(super) fn remove_block(&mut self, tenant: TenantId) {
        self.blocks -= 1;
        self.change(tenant, |owner| owner.blocks -= 1);
    }

    /// The leaf to give up next. `turned_over` says of a leaf how many blocks were given up since it was left.
    pub(super) fn next(&self, turned_over: impl Fn(NodeIndex) -> u64) -> Option<Leaf> {
        let &(left_at, node, tenant) = self.all.first()?;
        let oldest = Leaf { tenant, left_at, node };
        if turned_over(node) >= TURNOVERS * self.blocks {
            return Some(oldest);
        }
        let shares = (self.owners.len() as u64).min(MOST_SHARES);
        let over_share = |&&(blocks, _): &&(u32, TenantId)| u64::from(blocks) * shares > self.blocks;
        let largest = self.largest.last().filter(over_share).map(|&(_, tenant)| tenant);
        let own = largest.and_then(|tenant| Some((tenant, *self.owners.get(&tenant)?.leaves.first()?)));
        Some(own.map_or(oldest, |(tenant, (left_at, node))| Leaf { tenant, left_at, node }))
    }

    fn change(&mut self, tenant: TenantId, change: impl FnOnce(&mut Owner)) {
        let owner = self.owners.entry(tenant).or_default();
        if !owner.leaves.is_empty() {
            self.largest.remove(&(owner.blocks, tenant));
        }
        change(owner);
        if !owner.leaves.is_empty() {
            self.largest.insert((owner.blocks, tenant));
        } else if owner.blocks == 0 {
            self.owners.remove(&tenant);
        }
    }

    /// Checks that the lists of all owners are what all have together.
    pub(super) fn check_integrity(&self) -> Result<(), String> {
        let leaves: usize = self.owners.values().map(|owner| owner.leaves.len()).sum();
        let blocks: u64 = self.owners.values().map(|owner| u64::from(owner.blocks)).sum();
        let with_leaves = self.owners.values().filter(|owner| !owner.leaves.is_empty()).count();
        let ranked = |(tenant, owner): (&TenantId, &Owner)| {
            owner.leaves.is_empty() || self.largest.contains(&(owner.blocks, *tenant))
        };
        let listed = (leaves, blocks, with_leaves) == (self.all.len(), self.blocks, self.largest.len());
        if listed && self.owners.iter().all(ranked) {
            Ok(())
        } else {
            Err(format!("leaves are out of order: {self:?}"))
        }
    }
}
