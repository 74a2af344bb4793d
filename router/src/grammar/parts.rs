//! Masks in part. Inside a string nearly every token of text may come next: that is known at once, and the few that may come
//! beside these (the end of the string, escapes) take a walk over the vocabulary. Who takes the likeliest token rarely needs to
//! know of those.

use std::cell::Cell;
use std::sync::Arc;

use llguidance::derivre::Regex;
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use toktrie::{SimpleVob, TokTrie};

use super::error::GrammarError;

/// Among the library's slices of a vocabulary the one whose tokens are up to 30 characters that stand for themselves in a string.
const SLICE: usize = 2;
/// What looking whether a state takes all of the slice may cost, in the library's fuel: as the library allows itself.
const BUDGET: u64 = 1000;

/// What the mask that this thread computes next may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    Whole,
    Part,
    /// It was one.
    Granted,
}

thread_local! {
    // The library calls through its own state, which has no room for a wish.
    static WISH: Cell<Wish> = const { Cell::new(Wish::Whole) };
}

/// Computes a mask, all of it or, if a part will do, perhaps that; whether it was a part.
pub(super) fn computing<T>(part: bool, compute: impl FnOnce() -> T) -> (T, bool) {
    WISH.set(if part { Wish::Part } else { Wish::Whole });
    let computed = compute();
    (computed, WISH.replace(Wish::Whole) == Wish::Granted)
}

/// Computes masks as the library does, and parts of them.
pub(super) struct Parts {
    whole: Arc<SlicedBiasComputer>,
    slice: SimpleVob,
}

impl Parts {
    pub(super) fn new(whole: Arc<SlicedBiasComputer>) -> Result<Self, GrammarError> {
        let failed = |reason: String| GrammarError::Internal(reason);
        let slices = SlicedBiasComputer::json_slices();
        let slice = slices.get(SLICE).ok_or_else(|| failed("the library's slices are others".to_owned()))?;
        let mut text = Regex::new(slice).map_err(|error| failed(error.to_string()))?;
        let trie = whole.trie();
        let mut slice = trie.alloc_token_set();
        for token in 0..u32::try_from(trie.vocab_size()).unwrap_or(u32::MAX) {
            let word = trie.token(token);
            if !word.is_empty() && text.is_match_bytes(word) {
                slice.allow_token(token);
            }
        }
        Ok(Self { whole, slice })
    }

    /// Whether all of the slice may come next.
    fn is_allowed(rec: &mut ParserRecognizer<'_>) -> bool {
        let state = rec.lexer_state();
        let lexer = rec.lexer_mut();
        lexer.subsume_possible(state) && lexer.check_subsume(state, SLICE, BUDGET, None).unwrap_or(false)
    }
}

impl BiasComputer for Parts {
    fn compute_bias(&self, rec: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        if start.is_empty() && WISH.get() == Wish::Part && Self::is_allowed(rec) {
            WISH.set(Wish::Granted);
            return self.slice.clone();
        }
        self.whole.compute_bias(rec, start)
    }

    fn trie(&self) -> &TokTrie {
        self.whole.trie()
    }
}
