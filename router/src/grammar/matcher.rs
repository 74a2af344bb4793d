//! One sequence under its grammar: which tokens may come next, which must, and whether the answer is whole.

use std::sync::Arc;

use llguidance::api::StopReason;
use llguidance::{Matcher as Inner, TokenParser};

use super::error::MatchError;
use super::parts::computing;
use super::thinking::{Marker, Thinking};
use super::vocabulary::{SPELLED_AHEAD, Vocabulary};

/// The state of one sequence. All of its work may take up to some milliseconds, so it is done on threads for it, never
/// between two steps.
pub struct Matcher {
    vocabulary: Arc<Vocabulary>,
    inner: Inner,
    thinking: Option<Thinking>,
    /// The end of the sequence, once it has come.
    ended: Option<u32>,
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The inner state would print the answer so far.
        formatter.debug_struct("Matcher").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Matcher {
    pub(super) fn new(vocabulary: Arc<Vocabulary>, parser: TokenParser, marker: Option<Marker>) -> Self {
        Self { vocabulary, inner: Inner::new(Ok(parser)), thinking: marker.map(Thinking::new), ended: None }
    }

    /// Sets the bits of the tokens that may come next, [`Vocabulary::mask_words`] words; the bits of rows that are no token
    /// are 0. Tokens that end a sequence are allowed exactly when the answer is whole, and alone when nothing else can follow.
    /// Thinking may use every token with text, and cannot end the sequence.
    ///
    /// # Errors
    /// `TooComplex`, `DeadEnd` and `Failed`.
    pub fn fill_mask(&mut self, words: &mut [u32]) -> Result<(), MatchError> {
        self.fill(words, false).map(|_| ())
    }

    /// The same where a part will do: sets bits of tokens that may come next, and tells whether others may come too. It gives a
    /// part where that is found much sooner.
    ///
    /// # Errors
    /// As of [`Matcher::fill_mask`].
    pub fn fill_part(&mut self, words: &mut [u32]) -> Result<bool, MatchError> {
        self.fill(words, true)
    }

    /// Whether the bits are a part of the mask, which they may be if a `part` will do.
    fn fill(&mut self, words: &mut [u32], part: bool) -> Result<bool, MatchError> {
        if self.is_thinking() {
            self.vocabulary.write_mask(self.vocabulary.free_mask(), words);
            allow(self.thinking.as_ref().map(Thinking::specials), words);
            return Ok(false);
        }
        let (mask, partly) = computing(part, || self.inner.compute_mask_or_eos());
        if partly {
            // The library keeps it for the mask of this state.
            self.inner.invalidate_bias_cache();
        }
        let mask = mask.map_err(|_| self.failure())?;
        self.vocabulary.write_mask(mask.as_slice(), words);
        allow(self.thinking.as_ref().map(Thinking::starts), words);
        Ok(partly)
    }

    /// Takes the token that was sampled or forced.
    ///
    /// # Errors
    /// `Rejected` for one that the mask did not allow; the state is as before then. `TooComplex` and `Failed`.
    pub fn advance(&mut self, token: u32) -> Result<(), MatchError> {
        let is_eos = self.vocabulary.is_eos(token);
        if self.ended.is_some() || !self.vocabulary.knows(token) || (is_eos && !self.is_accepting()) {
            return Err(MatchError::Rejected(token));
        }
        if is_eos {
            self.ended = Some(token);
            return Ok(());
        }
        if self.thinking.as_mut().is_some_and(|thinking| thinking.advance(token, &self.vocabulary)) {
            return Ok(());
        }
        match self.inner.try_consume_tokens(&[token]) {
            Ok(1) => Ok(()),
            Ok(_) => Err(MatchError::Rejected(token)),
            Err(_) => Err(self.failure()),
        }
    }

    /// Whether the answer would be whole if it ended here.
    pub fn is_accepting(&mut self) -> bool {
        self.ended.is_some()
            || (!self.is_thinking() && (self.is_exhausted() || self.inner.is_accepting().unwrap_or(false)))
    }

    /// Whether the answer is whole and nothing can follow but an end: the sequence may be finished without sampling one.
    #[must_use]
    pub fn must_stop(&self) -> bool {
        self.ended.is_some() || (!self.is_thinking() && self.is_exhausted())
    }

    /// Whether the text is still free.
    #[must_use]
    pub fn is_thinking(&self) -> bool {
        self.thinking.as_ref().is_some_and(Thinking::is_thinking)
    }

    /// Tokens that must come next, whatever is sampled; often none. They are not taken: [`Matcher::advance`] takes them.
    ///
    /// What is guaranteed: each of them is allowed by the grammar after those before it. Together they spell a beginning of the
    /// only text that can follow. They are what the tokenizer makes of that text after the last token; where the end of the
    /// forced text could be spelled together with what comes behind it, its last tokens are left out, so that the model keeps
    /// the choice. The mask allows only the first of them, so sampling and jumping spell alike. What is not: the tokenizer looks
    /// at the text from the last token on, not at all of it, and at most 4,096 bytes ahead.
    pub fn forced(&mut self) -> Vec<u32> {
        let may_think = self.thinking.as_ref().is_some_and(|thinking| !thinking.starts().is_empty());
        if self.must_stop() || self.is_thinking() || may_think {
            return Vec::new();
        }
        let mut tokens = self.inner.compute_ff_tokens();
        let mut bytes = 0;
        let near = tokens.iter().take_while(|&&token| {
            bytes += self.vocabulary.bytes_of(token).len();
            bytes <= SPELLED_AHEAD / 2
        });
        tokens.truncate(near.count());
        let valid = self.inner.validate_tokens(&tokens).unwrap_or(0);
        tokens.truncate(valid);
        tokens
    }

    /// A second sequence that goes on from here, independent of the first.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self {
            vocabulary: Arc::clone(&self.vocabulary),
            inner: self.inner.clone(),
            thinking: self.thinking.clone(),
            ended: self.ended,
        }
    }

    /// Takes back the last `count` tokens (of a draft that was not accepted).
    ///
    /// # Errors
    /// `Rollback` when there were fewer, or when they reach from the answer back into the thinking; `TooComplex`.
    pub fn rollback(&mut self, count: usize) -> Result<(), MatchError> {
        let of_end = usize::from(count > 0 && self.ended.is_some());
        let rest = count - of_end;
        if self.is_thinking() {
            let enough = self.thinking.as_mut().is_some_and(|thinking| thinking.rollback(rest));
            return if enough { Ok(()) } else { Err(MatchError::Rollback(count)) };
        }
        let mut fresh = self.inner.clone();
        fresh.rollback(rest).map_err(|_| MatchError::Rollback(count))?;
        self.inner = fresh;
        if of_end == 1 {
            self.ended = None;
        }
        Ok(())
    }

    fn is_exhausted(&self) -> bool {
        matches!(self.inner.stop_reason(), StopReason::NoExtension | StopReason::EndOfSentence)
    }

    fn failure(&self) -> MatchError {
        let reason = self.inner.get_error().unwrap_or_default();
        let line = reason.lines().next().unwrap_or_default();
        // The library keeps of a failed state its sentence alone, which is the reason's name here.
        if line == StopReason::NoExtensionBias.to_string() {
            return MatchError::DeadEnd;
        }
        if is_panic(line) {
            tracing::warn!("the library of grammars gave one up while it was followed");
            return MatchError::Failed;
        }
        MatchError::TooComplex(line.chars().take(200).collect())
    }
}

/// Whether this is how the library tells of a panic of its own, which it catches: no fault of what was asked for, and nothing that
/// less of it would mend.
pub(super) fn is_panic(reason: &str) -> bool {
    reason.starts_with("panic")
}

/// Sets the bits of some tokens more.
fn allow(tokens: Option<&[u32]>, words: &mut [u32]) {
    for &token in tokens.unwrap_or_default() {
        if let Some(word) = words.get_mut(token as usize / 32) {
            *word |= 1 << (token % 32);
        }
    }
}
