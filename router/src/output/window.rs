//! Step-by-step decoding by the library, for decoders whose rules are not known by heart.
//!
//! Decoders look at neighbours, so a token's text is the difference between two decodings of the last few tokens:
//! with and without what is new. The window moves on with every piece that is shown, so a step's cost does not grow.

use tokenizers::Tokenizer;

use super::library_decode;
use super::utf8::REPLACEMENT;

/// A character has at most four bytes: more tokens than that without a whole character are not waiting for one.
const MOST_PENDING: usize = 4;

/// Tokens without text of their own that are kept with the one before them.
const MOST_CONTEXT: usize = 32;

/// The last tokens: `shown` of them are text already, the others may be half a character.
#[derive(Debug, Default)]
pub(crate) struct Window {
    ids: Vec<u32>,
    shown: usize,
    shown_text: String,
}

impl Window {
    /// Takes a token and gives the characters that are now whole.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> String {
        self.ids.push(token);
        let text = library_decode(tokenizer, &self.ids);
        let incomplete = text.ends_with(REPLACEMENT) && self.ids.len() - self.shown < MOST_PENDING;
        if incomplete { String::new() } else { self.show(tokenizer, &text) }
    }

    /// Whether every token is text already.
    pub(crate) fn is_empty(&self) -> bool {
        self.ids.len() == self.shown
    }

    /// What was held back.
    pub(crate) fn finish(&mut self, tokenizer: &Tokenizer) -> String {
        if self.is_empty() {
            return String::new();
        }
        let text = library_decode(tokenizer, &self.ids);
        self.show(tokenizer, &text)
    }

    fn show(&mut self, tokenizer: &Tokenizer, text: &str) -> String {
        let new = text[common_prefix(text, &self.shown_text)..].to_owned();
        let context = library_decode(tokenizer, &self.ids[self.shown..]);
        if context.is_empty() && self.ids.len() < MOST_CONTEXT {
            // Without text before it, the next token would be decoded as the first of a text.
            self.shown_text = text.to_owned();
        } else {
            self.ids.drain(..self.shown);
            self.shown_text = context;
        }
        self.shown = self.ids.len();
        new
    }
}

/// Bytes of the longest common beginning, in whole characters.
fn common_prefix(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(x, y)| x == y).map(|(x, _)| x.len_utf8()).sum()
}
