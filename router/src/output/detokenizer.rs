//! Text of a growing sequence of tokens, a token at a time, whole characters only.
//!
//! All pieces together are what the tokenizer's own decoder gives for all tokens at once, with one exception: when a
//! run of byte tokens spells good characters and then bad bytes, that decoder turns the whole run into U+FFFD, and a
//! stream that has shown the good characters keeps them.

use std::sync::Arc;

use super::joining::{Joining, StartRule};
use super::stream::TextParams;
use super::token_table::Entry;
use super::utf8::Carry;
use super::window::Window;
use crate::input::ModelText;

/// The detokenizer of one sequence.
#[derive(Debug)]
pub(crate) struct Detokenizer {
    model: Arc<ModelText>,
    skip_special_tokens: bool,
    shown_tokens: Arc<[u32]>,
    state: State,
}

#[derive(Debug)]
enum State {
    Bytes(Carry),
    Pieces { carry: Carry, start: StartRule },
    Library(Window),
}

impl Detokenizer {
    /// With `continues_text` the space before the first word stays, because the text follows another one.
    pub(crate) fn new(model: Arc<ModelText>, params: &TextParams) -> Self {
        let state = match model.joining() {
            Joining::Bytes => State::Bytes(Carry::default()),
            Joining::Pieces(pieces) => {
                let start = if params.continues_text { StartRule::Keep } else { pieces.start };
                State::Pieces { carry: Carry::default(), start }
            }
            Joining::Library => State::Library(Window::default()),
        };
        let shown_tokens = Arc::clone(&params.shown_tokens);
        Self { model, skip_special_tokens: params.skip_special_tokens, shown_tokens, state }
    }

    /// Takes a token and gives the characters that are now whole.
    pub(crate) fn push(&mut self, token: u32) -> String {
        let table = self.model.table();
        if self.skip_special_tokens && table.is_special(token) && !self.shown_tokens.contains(&token) {
            return String::new();
        }
        match (&mut self.state, table.get(token)) {
            (_, Entry::Unknown) => String::new(),
            (State::Library(window), _) => window.push(self.model.tokenizer(), token),
            (State::Bytes(carry), Entry::Text(bytes)) => carry.push(bytes),
            // `Joining::Bytes` has no byte tokens; they would be bytes like any other.
            (State::Bytes(carry), Entry::Byte(byte)) => carry.push(&[byte]),
            (State::Pieces { carry, start }, Entry::Byte(byte)) => {
                let mut text = String::new();
                carry.push_byte(byte, &mut text);
                strip_start(start, text)
            }
            (State::Pieces { carry, start }, Entry::Text(bytes)) => {
                if *start == StartRule::DropMarks {
                    *start = StartRule::Keep;
                    return super::library_decode(self.model.tokenizer(), &[token]);
                }
                let mut text = String::with_capacity(bytes.len());
                carry.finish_bytes(&mut text);
                text.push_str(&String::from_utf8_lossy(bytes));
                strip_start(start, text)
            }
        }
    }

    /// Whether nothing is held back.
    pub(crate) fn is_clear(&self) -> bool {
        match &self.state {
            State::Bytes(carry) | State::Pieces { carry, .. } => carry.is_empty(),
            State::Library(window) => window.is_empty(),
        }
    }

    /// What was held back; bytes that never became a character are U+FFFD.
    pub(crate) fn finish(&mut self) -> String {
        match &mut self.state {
            State::Bytes(carry) => carry.finish(),
            State::Pieces { carry, start } => {
                let mut text = String::new();
                carry.finish_bytes(&mut text);
                strip_start(start, text)
            }
            State::Library(window) => window.finish(self.model.tokenizer()),
        }
    }
}

/// Drops what may still be dropped at the start of the text.
fn strip_start(start: &mut StartRule, mut text: String) -> String {
    while let StartRule::Strip(content, most) = *start {
        if text.is_empty() {
            break;
        }
        *start = if most > 0 && text.starts_with(content) {
            text.drain(..content.len_utf8());
            StartRule::Strip(content, most - 1)
        } else {
            StartRule::Keep
        };
    }
    text
}
