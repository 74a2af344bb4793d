//! Grammars kept for later requests: least recently used go first.

use std::collections::HashMap;
use std::sync::Arc;

use super::compiled::CompiledGrammar;
use super::error::GrammarError;
use super::limits::GrammarLimits;

/// What became of a source; a refusal is kept too, so that a source that is costly to refuse costs it once.
pub(super) type Outcome = Result<Arc<CompiledGrammar>, GrammarError>;

/// Bytes of an entry beside its grammar.
const ENTRY: usize = 512;

#[derive(Debug)]
struct Entry {
    outcome: Outcome,
    bytes: usize,
    used: u64,
}

/// Outcomes by the hash of their source, bounded by number and bytes.
#[derive(Debug)]
pub(super) struct Cache {
    entries: HashMap<blake3::Hash, Entry>,
    bytes: usize,
    clock: u64,
    max_entries: usize,
    max_bytes: usize,
}

impl Cache {
    pub(super) fn new(limits: &GrammarLimits) -> Self {
        let (max_entries, max_bytes) = (limits.cache_entries, limits.cache_bytes);
        Self { entries: HashMap::new(), bytes: 0, clock: 0, max_entries, max_bytes }
    }

    /// The outcome of a source, if it is known. A grammar that sequences have worn out is not: it is compiled anew.
    pub(super) fn get(&mut self, key: &blake3::Hash) -> Option<Outcome> {
        let entry = self.entries.get_mut(key)?;
        if entry.outcome.as_ref().is_ok_and(|grammar| grammar.is_worn()) {
            self.remove(key);
            return None;
        }
        self.clock += 1;
        entry.used = self.clock;
        let outcome = entry.outcome.clone();
        // It has grown with the sequences that followed it.
        let bytes = size(&outcome);
        self.bytes = self.bytes - entry.bytes + bytes;
        entry.bytes = bytes;
        self.shrink();
        Some(outcome)
    }

    pub(super) fn put(&mut self, key: blake3::Hash, outcome: Outcome) {
        self.remove(&key);
        self.clock += 1;
        let bytes = size(&outcome);
        self.bytes += bytes;
        self.entries.insert(key, Entry { outcome, bytes, used: self.clock });
        self.shrink();
    }

    /// Entries and bytes.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.entries.len(), self.bytes)
    }

    fn remove(&mut self, key: &blake3::Hash) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= entry.bytes;
        }
    }

    /// There are a few hundred entries at most, so looking at all of them costs less than keeping them in order.
    fn shrink(&mut self) {
        while self.entries.len() > self.max_entries || self.bytes > self.max_bytes {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key);
            let Some(oldest) = oldest else { return };
            self.remove(&oldest);
        }
    }
}

fn size(outcome: &Outcome) -> usize {
    ENTRY + outcome.as_ref().map_or(0, |grammar| grammar.bytes())
}
