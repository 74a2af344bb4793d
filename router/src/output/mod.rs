//! What turns tokens into text: whole characters only, stop strings found across token edges. `parsers` names what takes a
//! text apart into reasoning, words and calls.

mod detokenizer;
pub(crate) mod joining;
pub mod parsers;
pub mod reasoning;
mod stop;
pub mod stream;
#[cfg(test)]
mod tests;
pub(crate) mod token_table;
pub mod tools;
mod utf8;
mod window;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use parsers::Parsers;
pub use stream::{Piece, TextParams, TextStream};
use tokenizers::Tokenizer;

/// The library's decoding of some tokens, special ones included. A decoder that fails or panics (a damaged
/// `tokenizer.json` can make it) gives no text, and never takes the request's task down.
pub(crate) fn library_decode(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    catch_unwind(AssertUnwindSafe(|| tokenizer.decode(ids, false))).ok().and_then(Result::ok).unwrap_or_default()
}
