//! A shard in a few lines: it holds a hash of the context where the real one holds keys and values, and samples from it, so
//! that whatever reads a wrong page gives a wrong token. It reads as far back as the windows of its groups of layers reach.

use std::collections::{HashMap, HashSet};

use super::toy::Toy;
use super::*;

/// Key and value of a position depend on all tokens up to it: so does this.
pub(super) fn extend(context: u64, token: Token) -> u64 {
    let mut mixed = (context ^ u64::from(token)).wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// The token that follows a context.
fn sample(context: u64, position: u32) -> Token {
    (extend(context, position) % 1_000_003) as Token
}

/// Content depends on the cache key too. A third of the sequences has its own.
pub(super) fn seed(id: SequenceId) -> u64 {
    u64::from(id.is_multiple_of(3))
}

pub(super) fn key(id: SequenceId) -> CacheKey {
    CacheKey::of(&[b"tenant", &seed(id).to_le_bytes()])
}

/// Key and value of the last of these tokens.
pub(super) fn context(seed: u64, tokens: &[Token]) -> u64 {
    tokens.iter().fold(seed, |context, &token| extend(context, token))
}

/// What a sequence that runs alone generates after `tokens`, until `max_len`.
pub(super) fn continuation(seed: u64, tokens: &[Token], max_len: u32) -> Vec<Token> {
    let mut context = context(seed, tokens);
    let mut output = Vec::new();
    for position in tokens.len() as u32..max_len {
        let token = sample(context, position);
        output.push(token);
        context = extend(context, token);
    }
    output
}

#[derive(Debug)]
struct Occupied {
    sequence: SequenceId,
    /// By group.
    tables: Vec<Vec<PageId>>,
    /// The first position that it runs in this step or, without a segment, could run next.
    next: u32,
    tokens: Vec<Token>,
    sampled: Option<Token>,
    /// It has failed: all it writes is poison.
    broken: bool,
    /// It has read poison.
    poisoned: bool,
}

/// Context and position, or poison.
pub(super) type Content = Option<(u64, u32)>;

/// Memory per page and offset, and the sequences that sit in slots.
#[derive(Debug)]
pub(super) struct ModelShard {
    config: SchedulerConfig,
    /// Windows of the groups.
    groups: Vec<Option<u32>>,
    memory: HashMap<(PageId, u32), Content>,
    slots: HashMap<Slot, Occupied>,
    /// Of whom the most likely tokens are wanted, how many, and how likely they are.
    pub(super) reporting: HashMap<SequenceId, (usize, Toy)>,
}

/// The columns of a `Done`.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) slots: Vec<Slot>,
    pub(super) counts: Vec<u32>,
    pub(super) tokens: Vec<Token>,
    pub(super) tops: Vec<Vec<(Token, f32)>>,
}

impl ModelShard {
    pub(super) fn new(config: SchedulerConfig) -> Self {
        let groups = config.windows.map_or(vec![None], |Windows { span, full, windowed }| {
            (0..full).map(|_| None).chain((0..windowed).map(|_| Some(span))).collect()
        });
        Self { config, groups, memory: HashMap::new(), slots: HashMap::new(), reporting: HashMap::new() }
    }

    pub(super) fn content(&self, block: PageId, offset: u32) -> Option<Content> {
        self.memory.get(&(block, offset)).copied()
    }

    /// Runs a step. Slots in `failing` fail in it and produce nothing of sense from then on. `prefixes` are the cached tokens
    /// of the admitted.
    pub(super) fn run(&mut self, plan: &Plan, prefixes: &[Vec<Token>], failing: &[Slot]) -> Report {
        for (Admission { sequence, slot, .. }, prefix) in plan.admits.iter().zip(prefixes) {
            assert!(!plan.freed.contains(slot), "slot {slot} is freed and taken");
            let (tables, next) = (vec![vec![]; self.groups.len()], prefix.len() as u32);
            let (sampled, broken, poisoned) = (None, false, false);
            let tokens = prefix.clone();
            let occupied = Occupied { sequence: *sequence, tables, next, tokens, sampled, broken, poisoned };
            self.slots.insert(*slot, occupied);
        }
        for slot in &plan.freed {
            assert!(self.slots.remove(slot).is_some(), "slot {slot} was freed and nobody sat there");
        }
        self.copy(plan);
        self.append_blocks(plan);
        let mut report = Report::default();
        for segment in &plan.segments {
            let broken = &mut self.slots.get_mut(&segment.slot).expect("a segment without an occupant").broken;
            *broken |= failing.contains(&segment.slot);
            let token = self.run_segment(plan, segment);
            if segment.sample && !failing.contains(&segment.slot) {
                report.slots.push(segment.slot);
                report.counts.push(1);
                report.tokens.push(token);
                report.tops.push(self.top(segment));
            }
        }
        for segment in &plan.segments {
            if let Some(occupied) = self.slots.get_mut(&segment.slot) {
                occupied.next = segment.start + segment.length;
            }
        }
        report
    }

    /// All are read before any is written.
    fn copy(&mut self, plan: &Plan) {
        let targets: HashSet<PageId> = plan.copies.iter().map(|&(_, to)| to).collect();
        assert_eq!(targets.len(), plan.copies.len(), "two copies go to one block");
        let sources: Vec<Vec<Option<Content>>> = plan
            .copies
            .iter()
            .map(|&(from, _)| (0..self.config.block_size).map(|offset| self.content(from, offset)).collect())
            .collect();
        for (&(from, to), contents) in plan.copies.iter().zip(sources) {
            assert_ne!(from, to);
            for (offset, content) in (0..).zip(contents) {
                match content {
                    Some(content) => self.memory.insert((to, offset), content),
                    None => self.memory.remove(&(to, offset)),
                };
            }
        }
    }

    /// Where the pages begin in a table that a token at `position`, or one after it, may read.
    fn reached(&self, group: usize, position: u32) -> usize {
        let first = self.groups[group].map_or(0, |span| (position + 1).saturating_sub(span));
        (first / self.config.block_size) as usize
    }

    /// A page is in the tables of a slot at most once, as far as they may be read.
    fn append_blocks(&mut self, plan: &Plan) {
        for segment in &plan.segments {
            let occupied = self.slots.get_mut(&segment.slot).expect("a segment without an occupant");
            let pages = plan.blocks_of(segment);
            assert!(pages.len().is_multiple_of(self.groups.len()), "a block without a page for each group");
            for block in pages.chunks_exact(self.groups.len()) {
                for (table, &page) in occupied.tables.iter_mut().zip(block) {
                    table.push(page);
                }
            }
            occupied.next = segment.start;
        }
        for occupied in self.slots.values() {
            let mut seen = HashSet::new();
            for (group, table) in occupied.tables.iter().enumerate() {
                for page in table.iter().skip(self.reached(group, occupied.next)) {
                    assert!(*page < self.config.num_blocks, "page {page} does not exist");
                    assert!(seen.insert(*page), "page {page} is twice in a table");
                }
            }
        }
    }

    fn run_segment(&mut self, plan: &Plan, segment: &Segment) -> Token {
        self.check_alone(segment);
        let occupied = self.slots.get_mut(&segment.slot).expect("a segment without an occupant");
        assert_eq!(occupied.sequence, segment.sequence, "slot {} runs another's segment", segment.slot);
        let (memory, size) = (&mut self.memory, self.config.block_size);
        let place = |table: &[PageId], position: u32| (table[(position / size) as usize], position % size);
        if occupied.broken {
            for table in &occupied.tables {
                for position in segment.start..segment.start + segment.length {
                    memory.insert(place(table, position), None);
                }
            }
            return 0;
        }
        let mut tokens = Vec::new();
        if segment.last {
            tokens.push(occupied.sampled.expect("a segment goes on from a token that was not sampled"));
        }
        tokens.extend_from_slice(plan.tokens_of(segment));
        assert_eq!(tokens.len(), segment.length as usize);
        assert_eq!(occupied.tokens.len(), segment.start as usize, "positions are left out or run twice");

        let mut context = seed(occupied.sequence);
        for (position, &token) in (0..).zip(&occupied.tokens) {
            context = extend(context, token);
            for (table, span) in occupied.tables.iter().zip(&self.groups) {
                if span.is_some_and(|span| position + span <= segment.start) {
                    continue;
                }
                let found = memory.get(&place(table, position)).copied();
                occupied.poisoned |= found == Some(None);
                let expected = Some(Some((context, position)));
                let lost = found != expected && !occupied.poisoned;
                assert!(!lost, "sequence {} lost position {position}: {found:?}, {expected:?}", occupied.sequence);
            }
        }
        for (position, &token) in (segment.start..).zip(&tokens) {
            context = extend(context, token);
            let content = (!occupied.poisoned).then_some((context, position));
            for table in &occupied.tables {
                memory.insert(place(table, position), content);
            }
        }
        occupied.tokens.extend(tokens);
        let token = sample(context, segment.start + segment.length) + Token::from(occupied.poisoned);
        if segment.sample {
            occupied.sampled = Some(token);
        }
        token
    }

    /// The most likely tokens after a segment, if they are wanted.
    fn top(&self, segment: &Segment) -> Vec<(Token, f32)> {
        let Some((count, toy)) = self.reporting.get(&segment.sequence) else { return vec![] };
        let occupied = &self.slots[&segment.slot];
        let context = context(seed(occupied.sequence), &occupied.tokens);
        toy.top(context + u64::from(occupied.poisoned), *count)
    }

    /// What is written belongs to nobody else's table.
    fn check_alone(&self, segment: &Segment) {
        let size = self.config.block_size;
        let written = segment.start / size..(segment.start + segment.length).div_ceil(size);
        let tables = &self.slots[&segment.slot].tables;
        let own: Vec<PageId> =
            tables.iter().flat_map(|table| &table[written.start as usize..written.end as usize]).copied().collect();
        for (slot, occupied) in self.slots.iter().filter(|(slot, _)| **slot != segment.slot) {
            for (group, table) in occupied.tables.iter().enumerate() {
                let shared = table.iter().skip(self.reached(group, occupied.next)).find(|page| own.contains(page));
                assert!(shared.is_none(), "{shared:?} is written and read by slot {slot}");
            }
        }
    }
}
