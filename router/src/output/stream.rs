//! The text of one sequence as its tokens arrive.

use std::sync::Arc;

use super::detokenizer::Detokenizer;
use super::stop::{Released, StopFinder};
use crate::input::ModelText;

/// How a sequence's tokens become text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextParams {
    /// Strings that end the text, none empty.
    pub stop: Vec<String>,
    /// Whether the stop string stays in the text.
    pub include_stop: bool,
    /// Whether special tokens are left out.
    pub skip_special_tokens: bool,
    /// Special tokens that are not left out all the same.
    pub shown_tokens: Arc<[u32]>,
    /// Tokens from the first on whose text is not searched for stop strings.
    pub unsearched_tokens: u32,
    /// Whether the text continues another one. Some tokenizers write a space before a text's first word and drop it
    /// when decoding; a continuation keeps it.
    pub continues_text: bool,
}

impl Default for TextParams {
    fn default() -> Self {
        Self {
            stop: Vec::new(),
            include_stop: false,
            skip_special_tokens: true,
            shown_tokens: Arc::default(),
            unsearched_tokens: 0,
            continues_text: false,
        }
    }
}

/// What a token adds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Piece {
    /// Characters that are now safe to show; may be empty.
    pub text: String,
    /// Whether a stop string is complete: the request ends here.
    pub stopped: bool,
}

/// Detokenizer and stop strings of one sequence.
#[derive(Debug)]
pub struct TextStream {
    detokenizer: Detokenizer,
    stop: StopFinder,
    unsearched_tokens: u32,
}

impl TextStream {
    /// A stream without text so far.
    #[must_use]
    pub fn new(model: Arc<ModelText>, params: TextParams) -> Self {
        let detokenizer = Detokenizer::new(model, &params);
        let stop = StopFinder::new(params.stop, params.include_stop);
        Self { detokenizer, stop, unsearched_tokens: params.unsearched_tokens }
    }

    /// Takes the next token. After a stop string is complete, more tokens add nothing.
    pub fn push(&mut self, token: u32) -> Piece {
        let text = self.detokenizer.push(token);
        if self.unsearched_tokens > 0 {
            self.unsearched_tokens -= 1;
            return Piece { text, stopped: false };
        }
        let Released { text, stopped } = self.stop.push(text);
        Piece { text, stopped }
    }

    /// The stop string that ended the text.
    #[must_use]
    pub fn stopped_by(&self) -> Option<&str> {
        self.stop.found()
    }

    /// Whether all characters of the tokens so far were shown: none waits for the rest of itself or of a stop string.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        self.detokenizer.is_clear() && self.stop.is_clear()
    }

    /// What was held back, when the sequence ends without a stop string. An incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let Released { mut text, stopped } = self.stop.push(self.detokenizer.finish());
        if !stopped {
            text.push_str(&self.stop.finish());
        }
        text
    }
}
