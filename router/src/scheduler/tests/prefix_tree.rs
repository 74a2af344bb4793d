//! The prefix tree against a plain list of all cached prefixes.

use proptest::prelude::*;

use super::super::chain::Digest;
use super::super::prefix::{NodeIndex, PrefixCache, Written};
use super::super::sequence::Epoch;
use super::*;

const SIZE: usize = 2;

/// A cached prefix, as the list has it.
#[derive(Debug, Clone)]
struct Entry {
    key: u8,
    tokens: Vec<Token>,
    block: BlockId,
    writer: Epoch,
    users: u32,
    left_at: usize,
}

/// A sequence that has blocks.
#[derive(Debug)]
struct User {
    key: u8,
    tokens: Vec<Token>,
    path: Vec<NodeIndex>,
    writer: Epoch,
}

struct Pair {
    tree: PrefixCache,
    hasher: ChainHasher,
    list: Vec<Entry>,
    users: Vec<User>,
    last_block: BlockId,
    clock: usize,
}

fn cache_key(key: u8) -> CacheKey {
    CacheKey::of(&[&[key]])
}

impl Pair {
    fn new() -> Self {
        let (tree, hasher) = (PrefixCache::new(SIZE as u32, None), ChainHasher::new());
        Self { tree, hasher, list: vec![], users: vec![], last_block: 0, clock: 0 }
    }

    fn chain(&mut self, key: u8, tokens: &[Token]) -> Vec<Digest> {
        let mut chain = vec![];
        self.hasher.extend(&mut chain, &cache_key(key), tokens, SIZE);
        chain
    }

    fn entry(&mut self, key: u8, tokens: &[Token]) -> Option<&mut Entry> {
        self.list.iter_mut().find(|entry| entry.key == key && entry.tokens == tokens)
    }

    /// A sequence comes, takes what is cached and adds what it computes.
    fn enter(&mut self, key: u8, tokens: Vec<Token>) {
        let chain = self.chain(key, &tokens);
        let mut path = vec![];
        self.tree.walk(&cache_key(key), &chain, &tokens, &mut path);
        let expected: Vec<BlockId> =
            (1..=chain.len()).map_while(|blocks| self.entry(key, &tokens[..blocks * SIZE]).map(|e| e.block)).collect();
        let found: Vec<BlockId> = path.iter().map(|&node| self.tree.written(node).block).collect();
        assert_eq!(found, expected);
        let in_use = found.iter().filter(|&&block| self.list.iter().any(|e| e.block == block && e.users > 0)).count();
        assert_eq!(self.tree.reach(&chain), (found.len(), in_use));
        for (blocks, &node) in (1..).zip(&path) {
            self.tree.pin(node);
            self.entry(key, &tokens[..blocks * SIZE]).unwrap().users += 1;
        }
        self.clock += 1;
        let writer = self.clock as Epoch;
        for (place, &digest) in chain.iter().enumerate().skip(path.len()) {
            let (start, end) = (place * SIZE, (place + 1) * SIZE);
            self.last_block += 1;
            let written = Written { block: self.last_block, tenant: 0, writer, lender: None, step: 0 };
            let node = self.tree.insert(&cache_key(key), &path, digest, &tokens[start..end], written);
            path.push(node.unwrap());
            let (tokens, block) = (tokens[..end].to_vec(), self.last_block);
            self.list.push(Entry { key, tokens, block, writer, users: 1, left_at: 0 });
        }
        self.users.push(User { key, tokens, path, writer });
    }

    fn leave(&mut self, pick: usize) {
        if self.users.is_empty() {
            return;
        }
        let user = self.users.remove(pick % self.users.len());
        self.tree.tick();
        self.tree.unpin(&user.path);
        self.clock += 1;
        let clock = self.clock;
        for blocks in 1..=user.path.len() {
            // What is gone from the list was purged.
            let Some(entry) = self.entry(user.key, &user.tokens[..blocks * SIZE]) else { break };
            entry.users -= 1;
            entry.left_at = clock;
        }
    }

    /// The leaf that was left first goes.
    fn evict(&mut self) {
        let list = &self.list;
        let is_leaf = |one: &&Entry| {
            let below = |other: &Entry| other.key == one.key && other.tokens.len() > one.tokens.len();
            one.users == 0 && !list.iter().any(|other| below(other) && other.tokens.starts_with(&one.tokens))
        };
        let oldest = list.iter().filter(is_leaf).map(|entry| entry.left_at).min();
        let candidates: Vec<BlockId> =
            list.iter().filter(is_leaf).filter(|e| Some(e.left_at) == oldest).map(|e| e.block).collect();
        let evicted = self.tree.evict();
        assert!(
            evicted.map_or(candidates.is_empty(), |block| candidates.contains(&block)),
            "{evicted:?}, {candidates:?}"
        );
        self.list.retain(|entry| Some(entry.block) != evicted);
    }

    /// A writer is not to be trusted. Its users leave, as those of a failed sequence do.
    fn purge(&mut self, pick: usize) {
        let Some(writer) = (!self.users.is_empty()).then(|| self.users[pick % self.users.len()].writer) else { return };
        let doomed: Vec<Entry> = self.list.iter().filter(|entry| entry.writer == writer).cloned().collect();
        let rests =
            |entry: &Entry| doomed.iter().any(|bad| bad.key == entry.key && entry.tokens.starts_with(&bad.tokens));
        let mut expected: Vec<BlockId> = self.list.iter().filter(|e| rests(e)).map(|entry| entry.block).collect();
        let mut purged = vec![];
        self.tree.purge(|_, node| node.written.writer == writer, &mut purged);
        purged.sort_unstable();
        expected.sort_unstable();
        assert_eq!(purged, expected);
        self.list.retain(|entry| !purged.contains(&entry.block));
        self.tree.check_integrity().unwrap();
        let gone: Vec<usize> = (0..self.users.len()).rev().filter(|&user| self.users[user].writer == writer).collect();
        gone.into_iter().for_each(|user| self.leave(user));
        // Whoever still uses what is gone would be sent back by the scheduler.
        while let Some(user) = self.users.iter().position(|user| {
            let full = user.path.len() * SIZE;
            full > 0 && !self.list.iter().any(|entry| entry.key == user.key && entry.tokens == user.tokens[..full])
        }) {
            self.leave(user);
        }
    }

    fn check(&self) {
        self.tree.check_integrity().unwrap();
        assert_eq!(self.tree.len(), self.list.len());
        assert_eq!(self.tree.idle() as usize, self.list.iter().filter(|entry| entry.users == 0).count());
        for (written, users) in self.tree.blocks() {
            let entry = self.list.iter().find(|entry| entry.block == written.block).unwrap();
            assert_eq!((entry.users, entry.writer), (users, written.writer));
        }
    }
}

proptest! {
    #[test]
    fn the_tree_caches_like_a_list(
        events in prop::collection::vec((0..7_u8, any::<usize>(), 0..2_u8, prop::collection::vec(0..2_u32, 0..9)), 0..80),
    ) {
        let mut pair = Pair::new();
        for (kind, pick, key, tokens) in events {
            match kind {
                0..3 => pair.enter(key, tokens),
                3..5 => pair.leave(pick),
                5 => pair.evict(),
                _ => pair.purge(pick),
            }
            pair.check();
        }
        while !pair.users.is_empty() {
            pair.leave(0);
            pair.check();
        }
        while !pair.list.is_empty() {
            pair.evict();
            pair.check();
        }
        prop_assert_eq!(pair.tree.evict(), None);
    }
}

#[test]
fn the_same_tokens_under_another_key_or_after_others_have_another_digest() {
    let mut hasher = ChainHasher::new();
    let mut chain = |key: u8, tokens: &[Token]| {
        let mut chain = vec![];
        hasher.extend(&mut chain, &cache_key(key), tokens, SIZE);
        chain
    };
    let plain = chain(0, &[1, 2, 3, 4, 5]);
    assert_eq!(plain.len(), 2);
    assert_eq!(chain(0, &[1, 2, 3, 4]), plain);
    assert_ne!(chain(1, &[1, 2])[0], plain[0]);
    assert_ne!(chain(0, &[3, 4])[0], plain[1]);
    assert_ne!(chain(0, &[9, 2, 3, 4])[1], plain[1]);
    let mut grown = chain(0, &[1, 2]);
    let mut other = ChainHasher::new();
    other.extend(&mut grown, &cache_key(0), &[1, 2, 3, 4], SIZE);
    assert_eq!(grown[1], plain[1], "a chain goes on from its last digest");
}

#[test]
fn no_two_lists_of_parts_make_one_key() {
    let lists: [&[&[u8]]; 6] = [&[], &[b""], &[b"", b""], &[b"ab"], &[b"a", b"b"], &[b"", b"ab"]];
    let keys: std::collections::HashSet<CacheKey> = lists.iter().map(|parts| CacheKey::of(parts)).collect();
    assert_eq!(keys.len(), lists.len());
    assert!(!keys.contains(&CacheKey::default()));
}

#[test]
fn a_collision_is_a_miss() {
    let mut hasher = ChainHasher::colliding(0);
    let mut chain = vec![];
    hasher.extend(&mut chain, &cache_key(0), &[1, 2, 1, 2], SIZE);
    assert_eq!(chain[0], chain[1]);
    let mut tree = PrefixCache::new(SIZE as u32, None);
    let written = Written { block: 0, tenant: 0, writer: 1, lender: None, step: 0 };
    let node = tree.insert(&cache_key(0), &[], chain[0], &[1, 2], written).unwrap();
    assert_eq!(tree.insert(&cache_key(0), &[node], chain[1], &[1, 2], written), None);
    let found = |key, tokens: &[Token]| {
        let mut path = vec![];
        tree.walk(&cache_key(key), &chain, tokens, &mut path);
        path.len()
    };
    assert_eq!([found(0, &[1, 2, 1, 2]), found(0, &[1, 3, 1, 2]), found(1, &[1, 2, 1, 2])], [1, 0, 0]);
}
