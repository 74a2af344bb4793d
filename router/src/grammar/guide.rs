//! What a sequence is to follow: a compiled grammar, and where in the answer it begins.

use std::sync::Arc;

use super::compiled::CompiledGrammar;
use super::matcher::Matcher;
use super::thinking::Marker;

/// A grammar for the sequences of one request. Cheap to clone; each sequence makes its own [`Matcher`] of it.
#[derive(Debug, Clone)]
pub struct Guide {
    grammar: Arc<CompiledGrammar>,
    /// What ends the thinking that comes before.
    marker: Option<Marker>,
}

impl Guide {
    /// A grammar that an answer follows from its beginning on, or from the marker on.
    #[must_use]
    pub const fn new(grammar: Arc<CompiledGrammar>, marker: Option<Marker>) -> Self {
        Self { grammar, marker }
    }

    /// A sequence at its beginning.
    #[must_use]
    pub fn matcher(&self) -> Matcher {
        match &self.marker {
            Some(marker) => self.grammar.matcher_after(marker.clone()),
            None => self.grammar.matcher(),
        }
    }

    /// The same number for all that share an automaton, and so its lock.
    #[must_use]
    pub fn key(&self) -> usize {
        Arc::as_ptr(&self.grammar).addr()
    }
}
