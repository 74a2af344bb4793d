//! Tool calls out of a model's text, as it comes.
//!
//! Each family of models writes calls in its own form. A parser is a state machine over characters: what it knows
//! depends on the characters it took and never on how they were cut into deltas, so a streamed answer and a whole one
//! cannot differ. `scanner` tells text from what may be a call, a `Form` knows one family's way to write calls, and
//! `sink` turns what it finds into events.
//!
//! Text that turns out not to be a call comes back as text, whole. White space that touches a call is part of how the
//! call is written and is dropped.
//!
//! A server finds its model's `ToolParserKind` once, by name or from the chat template, and lets the kind's `markers`
//! through when it drops special tokens. Each answer has a parser of its own. Where a grammar forces calls,
//! `forced_format` says how to write them.

mod deepseek;
mod expect;
mod forced;
mod glm;
pub(super) mod harmony;
pub(super) mod json;
mod json_form;
mod kind;
mod limits;
mod mistral;
mod python_value;
mod pythonic;
mod scanner;
mod sink;
#[cfg(test)]
mod tests;
mod tool_set;
mod typed;
mod xml;

pub use forced::{FieldValue, ForcedBody, ForcedCall, ForcedField, ForcedFormat, Openings};
pub use kind::{ToolParserKind, UnknownToolParser};
pub use limits::ToolLimits;
pub use tool_set::{Tool, ToolSet};

/// What a model's answer is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolEvent {
    /// Text for the reader.
    Text(String),
    /// A call of a tool begins. Calls are numbered from 0 in the order they come; they never overlap.
    CallBegin {
        /// Number of the call.
        index: usize,
        /// Name of the tool.
        name: String,
    },
    /// More of a call's arguments. All deltas of a call that ends are together one JSON text.
    Arguments {
        /// Number of the call.
        index: usize,
        /// The next characters.
        delta: String,
    },
    /// The call is complete. A call that the end of the text or broken syntax cuts off has no such event.
    CallEnd {
        /// Number of the call.
        index: usize,
    },
}

/// Finds calls in a text that comes in pieces.
pub trait ToolParser: std::fmt::Debug + Send {
    /// Takes the next characters; adds what they make certain to `out`.
    fn push(&mut self, delta: &str, out: &mut Vec<ToolEvent>);

    /// Takes the end of the text; adds what was held back to `out`.
    fn finish(&mut self, out: &mut Vec<ToolEvent>);

    /// Whether the characters so far end in text, of which at most white space is held back.
    fn is_in_text(&self) -> bool;
}
