//! Checks of the tree, for tests.

#[cfg(test)]
use super::{CacheKey, Token};
use super::{Kind, PrefixCache, Written};

impl PrefixCache {
    /// The blocks in the tree with their users.
    pub(in super::super) fn blocks(&self) -> impl Iterator<Item = (Written, u32)> + '_ {
        self.nodes.iter().filter(|node| node.kind == Kind::Block).map(|node| (node.written, node.users))
    }

    /// Checks links, users and lists; the first broken one, in words.
    pub(in super::super) fn check_integrity(&self) -> Result<(), String> {
        self.leaves.check_integrity()?;
        self.check_windows()?;
        let (mut idle, mut leaves, mut linked, mut vacant) = (0, 0, 0, 0);
        for (index, node) in (0..).zip(&self.nodes) {
            let mut previous = None;
            for child in self.children(index) {
                let below = &self.nodes[child as usize];
                let crowded = matches!(node.kind, Kind::Block) && below.users > node.users;
                if below.parent != Some(index) || below.previous != previous || below.kind != Kind::Block || crowded {
                    return Err(format!("node {index} has a strange child: {child}, {below:?}"));
                }
                previous = Some(child);
                linked += 1;
            }
            let found = node.digest.as_ref().and_then(|digest| self.by_digest.get(digest));
            let right = match node.kind {
                Kind::Block => found == Some(&index) && node.parent.is_some(),
                Kind::Root(key) => self.roots.get(&key) == Some(&index) && node.first_child.is_some(),
                Kind::Detached => node.users > 0 && node.parent.is_none() && node.first_child.is_none(),
                Kind::Vacant => self.vacant.contains(&index) && node.users == 0 && node.first_child.is_none(),
            };
            if !right || node.is_idle_leaf() != self.leaves.contains(node.leaf(index)) {
                return Err(format!("node {index} is out of place: {node:?}"));
            }
            idle += u32::from(node.kind == Kind::Block && node.users == 0);
            leaves += usize::from(node.is_idle_leaf());
            vacant += usize::from(node.kind == Kind::Vacant);
        }
        let counts = (idle, leaves, linked, vacant);
        if counts != (self.idle, self.leaves.len(), self.by_digest.len(), self.vacant.len()) {
            return Err(format!("{counts:?} idle nodes, leaves, children and vacant places are not what is booked"));
        }
        Ok(())
    }
}

#[cfg(test)]
impl PrefixCache {
    /// Everything in the tree: key, all tokens up to the end of a block, and the block.
    pub(in super::super) fn contents(&self) -> Vec<(CacheKey, Vec<Token>, Written)> {
        let mut contents = Vec::new();
        let mut open: Vec<_> = self.roots.iter().map(|(&key, &root)| (key, Vec::new(), root)).collect();
        while let Some((key, tokens, parent)) = open.pop() {
            for node in self.children(parent) {
                let tokens = [tokens.as_slice(), self.tokens_of(node)].concat();
                contents.push((key, tokens.clone(), self.written(node)));
                open.push((key, tokens, node));
            }
        }
        contents
    }
}
