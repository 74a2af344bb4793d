//! Structured output: what a request wants its answer to look like, compiled off the hot path, and the state of one sequence
//! under it. Built on `llguidance`; nothing here knows HTTP, the scheduler or a shard.
//!
//! [`GrammarSource`] is what a client stated, checked. A [`Compiler`] turns it into a [`CompiledGrammar`] on its own
//! threads, under a deadline, and keeps it for the next request. A [`Matcher`] follows one sequence: which tokens
//! may come next, which must, and when the answer is whole. [`Grammars`] is what a server has of all this, and a [`Guide`] what
//! it makes for a request.

mod cache;
mod compiled;
mod compiler;
mod disjoint;
mod error;
mod gbnf;
mod guide;
mod lark;
mod layout;
mod limits;
mod matcher;
mod parts;
mod pattern;
mod schema;
mod service;
mod source;
mod structural;
#[cfg(test)]
pub(crate) mod tests;
mod thinking;
mod vocabulary;

pub use compiled::CompiledGrammar;
pub use compiler::Compiler;
pub use error::{GrammarError, MatchError};
pub use guide::Guide;
pub use layout::{Layout, Tagged};
pub use limits::GrammarLimits;
pub use matcher::Matcher;
pub use service::Grammars;
pub use source::GrammarSource;
pub use structural::{StructuralTag, Structure};
pub use thinking::{Marker, Thoughts};
pub use vocabulary::Vocabulary;
