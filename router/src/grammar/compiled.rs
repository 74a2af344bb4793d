//! A grammar that is ready to be followed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use llguidance::TokenParser;
use llguidance::earley::regexvec::LexerStats;

use super::error::{GrammarError, MatchError};
use super::limits::GrammarLimits;
use super::matcher::{Matcher, is_panic};
use super::source::GrammarSource;
use super::thinking::Marker;
use super::vocabulary::Vocabulary;

/// What rules and symbols are taken to hold beside the automaton, in bytes for each byte of the source. An estimate: the
/// library counts its automaton only.
const RULES_PER_SOURCE_BYTE: usize = 16;
/// Longest sentence that is passed on.
const LONGEST_REASON: usize = 300;

/// A compiled grammar, shared by all sequences that follow it. Its automaton grows while they do, under one lock that is
/// held while a mask is computed.
pub struct CompiledGrammar {
    vocabulary: Arc<Vocabulary>,
    template: TokenParser,
    source_bytes: usize,
    max_states: usize,
}

impl std::fmt::Debug for CompiledGrammar {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("CompiledGrammar").field("source_bytes", &self.source_bytes).finish_non_exhaustive()
    }
}

impl CompiledGrammar {
    /// Compiles a source, and tries its first step: what can match nothing is refused here.
    ///
    /// # Errors
    /// All of [`GrammarError`] but `Overloaded`.
    pub(super) fn compile(
        source: &GrammarSource,
        vocabulary: &Arc<Vocabulary>,
        limits: &GrammarLimits,
    ) -> Result<Self, GrammarError> {
        let grammar = source.lower(vocabulary, limits)?;
        let mut template = vocabulary.factory().create_parser(grammar).map_err(|error| refusal(&error.to_string()))?;
        template.bias_computer = vocabulary.parts();
        let compiled = Self {
            vocabulary: Arc::clone(vocabulary),
            template,
            source_bytes: source.bytes(),
            max_states: limits.max_states,
        };
        compiled.try_out(limits.compile_timeout)?;
        Ok(compiled)
    }

    /// Takes the first step. What is forced there is found before any fuel is counted, so it has a time instead.
    fn try_out(&self, patience: Duration) -> Result<(), GrammarError> {
        let mut parser = self.template.clone();
        let running = parser.enable_cancellation();
        let mut matcher = Matcher::new(Arc::clone(&self.vocabulary), parser, None);
        let mut mask = vec![0; self.vocabulary.mask_words()];
        let filled = watched(patience, || running.cancel(), || matcher.fill_mask(&mut mask))?;
        match filled {
            _ if running.is_cancelled() => Err(GrammarError::slow(patience)),
            Ok(()) if mask.iter().any(|&word| word != 0) => Ok(()),
            Ok(()) | Err(MatchError::DeadEnd) => {
                Err(GrammarError::Invalid("no text of this model can match the grammar; loosen it".to_owned()))
            }
            Err(MatchError::Failed) => Err(given_up()),
            Err(error) => Err(GrammarError::TooComplex(error.to_string())),
        }
    }

    /// A sequence at its beginning.
    #[must_use]
    pub fn matcher(&self) -> Matcher {
        Matcher::new(Arc::clone(&self.vocabulary), self.template.clone(), None)
    }

    /// A sequence that thinks first: its text is free until the marker has been written, and follows the grammar then.
    #[must_use]
    pub fn matcher_after(&self, marker: Marker) -> Matcher {
        Matcher::new(Arc::clone(&self.vocabulary), self.template.clone(), Some(marker))
    }

    /// Bytes that it holds now, about.
    pub(super) fn bytes(&self) -> usize {
        self.stats().map_or(0, |stats| stats.num_bytes) + RULES_PER_SOURCE_BYTE * self.source_bytes
    }

    /// Whether its automaton has grown so far, or failed, that the next sequence had better start with a new one.
    pub(super) fn is_worn(&self) -> bool {
        self.stats().is_none_or(|stats| stats.error || stats.num_states > self.max_states / 2)
    }

    /// `None` when the automaton's lock is poisoned, which asking for its numbers would turn into a panic of ours.
    fn stats(&self) -> Option<LexerStats> {
        catch_unwind(AssertUnwindSafe(|| self.template.parser.lexer_stats())).ok()
    }
}

/// Works, and calls `stop` from a thread of its own when that takes longer than `patience`.
fn watched<T>(patience: Duration, stop: impl FnOnce() + Send, work: impl FnOnce() -> T) -> Result<T, GrammarError> {
    let (working, waiting) = mpsc::channel::<()>();
    let watch = move || {
        if waiting.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Timeout) {
            stop();
        }
    };
    thread::scope(|scope| {
        let watcher = thread::Builder::new().name("grammar-watch".to_owned()).spawn_scoped(scope, watch);
        watcher.map_err(|error| GrammarError::Internal(error.to_string()))?;
        // The watcher ends when this is dropped, also by a panic.
        let _working = working;
        Ok(work())
    })
}

/// The library panicked. Known of alternatives in the groups of a terminal, which are the client's text as it stands.
fn given_up() -> GrammarError {
    tracing::warn!("the library of grammars gave one up");
    let sentence = "the compiler fails on alternatives in a regular expression of it; write its groups as `(?:...)`";
    GrammarError::Unsupported(sentence.to_owned())
}

/// What `llguidance` said, as one sentence of ours.
fn refusal(reason: &str) -> GrammarError {
    let line = reason.lines().next().unwrap_or_default().trim();
    let sentence: String = line.chars().take(LONGEST_REASON).collect();
    if is_panic(line) {
        return given_up();
    }
    if line.contains("oneOf constraints are not supported") {
        let sentence = "`oneOf` whose branches may overlap cannot be enforced; use `anyOf`, or give each branch a \
                        required property with a `const` of its own";
        return GrammarError::Unsupported(sentence.to_owned());
    }
    if line.contains("Unable to determine if regex is empty") {
        let sentence = "the patterns of a string are too complex together; use simpler ones";
        return GrammarError::TooComplex(sentence.to_owned());
    }
    let costs = ["too large", "too big", "fuel", "limit", "exceeded", "too complex", "too many", "stack level"];
    if costs.iter().any(|cost| line.contains(cost)) {
        return GrammarError::TooComplex(format!("{sentence}; use a simpler grammar"));
    }
    let unsupported = ["Unimplemented keys", "Unknown format", "not supported", "only supported", "are not disjoint"];
    if unsupported.iter().any(|mark| line.contains(mark)) {
        return GrammarError::Unsupported(format!("{sentence}; remove it"));
    }
    GrammarError::Invalid(sentence)
}
