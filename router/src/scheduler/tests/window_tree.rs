//! The prefix tree with window parts against a plain list of all cached prefixes.

use proptest::prelude::*;

use super::super::chain::Digest;
use super::super::prefix::{Evicted, NodeIndex, PrefixCache, Written};
use super::super::sequence::Epoch;
use super::*;

const SIZE: usize = 2;

/// A block's window part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// So many look at it.
    Watched(u32),
    /// The last one went on then.
    Left(usize),
    Gone,
}

/// A cached prefix, as the list has it.
#[derive(Debug, Clone)]
struct Entry {
    key: u8,
    tokens: Vec<Token>,
    block: BlockId,
    writer: Epoch,
    users: u32,
    left_at: usize,
    part: Part,
}

/// A sequence that has blocks, and looks at those from `behind` on.
#[derive(Debug)]
struct User {
    key: u8,
    tokens: Vec<Token>,
    path: Vec<NodeIndex>,
    writer: Epoch,
    behind: usize,
}

struct Pair {
    tree: PrefixCache,
    hasher: ChainHasher,
    list: Vec<Entry>,
    users: Vec<User>,
    last_block: BlockId,
    tail: usize,
    ticks: usize,
    writers: Epoch,
}

fn cache_key(key: u8) -> CacheKey {
    CacheKey::of(&[&[key]])
}

impl Pair {
    fn new(tail: usize) -> Self {
        let (tree, hasher) = (PrefixCache::new(SIZE as u32, Some(tail)), ChainHasher::new());
        Self { tree, hasher, list: vec![], users: vec![], last_block: 0, tail, ticks: 0, writers: 0 }
    }

    fn entry(&mut self, key: u8, tokens: &[Token]) -> Option<&mut Entry> {
        self.list.iter_mut().find(|entry| entry.key == key && entry.tokens == tokens)
    }

    /// Blocks and window parts of what is cached of a text, from its start on.
    fn cached(&self, key: u8, tokens: &[Token]) -> Vec<Entry> {
        let prefixes = tokens.chunks_exact(SIZE).zip(1..).map(|(_, blocks)| &tokens[..blocks * SIZE]);
        let found = prefixes.map_while(|prefix| self.list.iter().find(|e| e.key == key && e.tokens == prefix));
        found.cloned().collect()
    }

    /// The most of these after which every window part is there that a window reaches.
    fn usable(&self, cached: &[Entry]) -> usize {
        let goes_on = |&blocks: &usize| {
            cached[blocks.saturating_sub(self.tail)..blocks].iter().all(|entry| entry.part != Part::Gone)
        };
        (0..=cached.len()).rev().find(goes_on).unwrap()
    }

    /// A sequence comes, takes what is cached and adds what it computes.
    fn enter(&mut self, key: u8, tokens: Vec<Token>) {
        let mut chain: Vec<Digest> = vec![];
        self.hasher.extend(&mut chain, &cache_key(key), &tokens, SIZE);
        let cached = self.cached(key, &tokens);
        let taken = self.usable(&cached);
        let in_use = cached[..taken].iter().filter(|entry| entry.users > 0).count();
        assert_eq!(self.tree.reach(&chain), (taken, in_use));
        let mut path = vec![];
        self.tree.walk(&cache_key(key), &chain, &tokens, &mut path);
        let found: Vec<BlockId> = path.iter().map(|&node| self.tree.written(node).block).collect();
        assert_eq!(found, cached.iter().map(|entry| entry.block).collect::<Vec<_>>());
        assert_eq!(self.tree.usable(path.iter().copied()), taken);
        path.truncate(taken);
        let behind = taken.saturating_sub(self.tail);
        for (place, &node) in path.iter().enumerate() {
            self.tree.pin(node);
            let entry = self.entry(key, &tokens[..(place + 1) * SIZE]).unwrap();
            entry.users += 1;
            if place >= behind {
                let watchers = if let Part::Watched(watchers) = entry.part { watchers } else { 0 };
                entry.part = Part::Watched(watchers + 1);
                self.tree.window_entered(node);
            }
        }
        self.writers += 1;
        let writer = self.writers;
        while path.len() < chain.len() && self.add(key, &tokens, &chain, &mut path, writer) {}
        self.users.push(User { key, tokens, path, writer, behind });
    }

    /// What is computed takes the place of a block that nobody uses. Behind one that is in use nothing is added.
    fn add(&mut self, key: u8, tokens: &[Token], chain: &[Digest], path: &mut Vec<NodeIndex>, writer: Epoch) -> bool {
        let (start, end, digest) = (path.len() * SIZE, (path.len() + 1) * SIZE, chain[path.len()]);
        self.last_block += 1;
        let block = self.last_block;
        let written = Written { block, tenant: 0, writer, lender: None, step: 0 };
        let inserted = self.tree.insert(&cache_key(key), path, digest, &tokens[start..end], written);
        let known = self.entry(key, &tokens[..end]).cloned();
        assert_eq!(inserted.is_some(), known.is_none());
        let node = match known {
            None => {
                let (tokens, part) = (tokens[..end].to_vec(), Part::Watched(1));
                self.list.push(Entry { key, tokens, block, writer, users: 1, left_at: 0, part });
                inserted.unwrap()
            }
            Some(old) => {
                let renewed = self.tree.renew(&cache_key(key), path, &digest, &tokens[start..end], written);
                assert_eq!(renewed.map(|(_, block)| block), (old.users == 0).then_some(old.block));
                let Some((node, _)) = renewed else { return false };
                let entry = self.entry(key, &tokens[..end]).unwrap();
                (entry.block, entry.writer, entry.users, entry.part) = (block, writer, 1, Part::Watched(1));
                node
            }
        };
        path.push(node);
        true
    }

    fn tick(&mut self) {
        self.tree.tick();
        self.ticks += 1;
    }

    /// A sequence goes on: it looks at so many blocks less.
    fn go_on(&mut self, pick: usize, blocks: usize) {
        if !self.users.is_empty() {
            self.tick();
            let user = pick % self.users.len();
            self.look_from(user, self.users[user].behind + blocks);
        }
    }

    fn look_from(&mut self, user: usize, first: usize) {
        let User { key, ref tokens, ref path, behind, .. } = self.users[user];
        let (first, tokens, path, ticks) = (first.min(path.len()), tokens.clone(), path.clone(), self.ticks);
        for place in behind..first {
            // What is gone from the list was purged.
            let Some(entry) = self.entry(key, &tokens[..(place + 1) * SIZE]) else { break };
            let Part::Watched(watchers) = entry.part else { panic!("nobody looks at {entry:?}") };
            entry.part = if watchers > 1 { Part::Watched(watchers - 1) } else { Part::Left(ticks) };
            if watchers == 1 {
                assert!(self.tree.is_in_tree(path[place]));
                self.tree.window_left(path[place]);
            }
        }
        self.users[user].behind = behind.max(first);
    }

    fn leave(&mut self, pick: usize) {
        if self.users.is_empty() {
            return;
        }
        self.tick();
        let pick = pick % self.users.len();
        self.look_from(pick, usize::MAX);
        let user = self.users.remove(pick);
        self.tree.unpin(&user.path);
        let ticks = self.ticks;
        for blocks in 1..=user.path.len() {
            let Some(entry) = self.entry(user.key, &user.tokens[..blocks * SIZE]) else { break };
            entry.users -= 1;
            entry.left_at = ticks;
        }
    }

    /// What was left first goes: a leaf, or a window part that was left before every leaf.
    fn evict(&mut self) -> bool {
        let list = &self.list;
        let is_leaf = |one: &&Entry| {
            let below = |other: &Entry| other.key == one.key && other.tokens.len() > one.tokens.len();
            one.users == 0 && !list.iter().any(|other| below(other) && other.tokens.starts_with(&one.tokens))
        };
        let left = |entry: &Entry| if let Part::Left(at) = entry.part { Some(at) } else { None };
        let leaf = list.iter().filter(is_leaf).map(|entry| entry.left_at).min();
        let part = list.iter().filter_map(left).min().filter(|&part| leaf.is_none_or(|leaf| part < leaf));
        let evicted = self.tree.evict_oldest();
        match evicted {
            None => assert_eq!((leaf, part), (None, None)),
            Some(Evicted::Window(block)) => {
                let entry = list.iter().find(|entry| entry.block == block).unwrap();
                assert!(part.is_some() && left(entry) == part, "{entry:?}, {part:?}");
            }
            Some(Evicted::Block(block)) => {
                let entry = list.iter().find(|entry| entry.block == block).unwrap();
                assert!(part.is_none() && is_leaf(&entry) && Some(entry.left_at) == leaf, "{entry:?}, {leaf:?}");
            }
        }
        match evicted {
            Some(Evicted::Block(block)) => self.list.retain(|entry| entry.block != block),
            Some(Evicted::Window(block)) => {
                self.list.iter_mut().filter(|entry| entry.block == block).for_each(|entry| entry.part = Part::Gone);
            }
            None => {}
        }
        evicted.is_some()
    }

    /// A writer is not to be trusted. Its users leave, and whoever still uses what is gone.
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
        let in_list = |user: &User, list: &[Entry]| {
            let full = &user.tokens[..user.path.len() * SIZE];
            full.is_empty() || list.iter().any(|entry| entry.key == user.key && entry.tokens == full)
        };
        while let Some(user) = self.users.iter().position(|user| user.writer == writer || !in_list(user, &self.list)) {
            self.leave(user);
        }
    }

    fn check(&self) {
        self.tree.check_integrity().unwrap();
        let count = |wanted: fn(&Entry) -> bool| self.list.iter().filter(|entry| wanted(entry)).count();
        assert_eq!(self.tree.len(), self.list.len());
        assert_eq!(self.tree.idle() as usize, count(|entry| entry.users == 0));
        assert_eq!(self.tree.idle_windows() as usize, count(|entry| matches!(entry.part, Part::Left(_))));
        assert_eq!(self.tree.windows_there() as usize, count(|entry| entry.part != Part::Gone));
        for (written, (there, idle)) in self.tree.windows() {
            let entry = self.list.iter().find(|entry| entry.block == written.block).unwrap();
            assert_eq!(entry.writer, written.writer);
            assert_eq!((there, idle), (entry.part != Part::Gone, matches!(entry.part, Part::Left(_))));
        }
    }
}

proptest! {
    #[test]
    fn the_tree_with_windows_caches_like_a_list(
        tail in 1..4_usize,
        events in prop::collection::vec((0..10_u8, any::<usize>(), 0..2_u8, prop::collection::vec(0..2_u32, 0..11)), 0..80),
    ) {
        let mut pair = Pair::new(tail);
        for (kind, pick, key, tokens) in events {
            match kind {
                0..4 => pair.enter(key, tokens),
                4..6 => pair.leave(pick),
                6..8 => pair.go_on(pick, tokens.len() % 4),
                8 => drop(pair.evict()),
                _ => pair.purge(pick),
            }
            pair.check();
        }
        while !pair.users.is_empty() {
            pair.leave(0);
            pair.check();
        }
        while pair.evict() {
            pair.check();
        }
        prop_assert!(pair.list.is_empty());
    }
}
