//! GBNF, the form of EBNF that llama.cpp's users write: `name ::= ...`, beginning with the rule `root`. A grammar of characters,
//! without terminals.
//!
//! `llguidance` reads the longest text that a terminal matches and never takes back what it has read. A grammar of characters
//! knows no such thing, so every character would have to be a terminal of its own, and a mask would have to follow each
//! character of each token through the parser. [`terminals`] finds the longest parts that may be terminals nevertheless,
//! because nothing that stands behind them can be taken for more of them; the rest goes character by character.

mod check;
mod follow;
mod loops;
mod overlap;
mod read;
mod rules;
mod set;
mod terminals;
mod write;

use super::error::GrammarError;
use super::limits::GrammarLimits;

/// Whether a grammar is written in this form: some line begins a rule with `name ::=`, which no line of Lark does.
pub(super) fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim_start();
        let name = line.find(|character| !read::is_name(character)).unwrap_or(line.len());
        name > 0 && line[name..].trim_start().starts_with("::=")
    })
}

/// The grammar as Lark.
///
/// # Errors
/// `Invalid` for what does not parse, lacks a rule or never ends; `Unsupported` for what is refused by name; `TooComplex` over a
/// limit.
pub(super) fn lower(text: &str, limits: &GrammarLimits) -> Result<String, GrammarError> {
    let mut rules = read::read(text, limits)?;
    check::check(&rules, limits)?;
    loops::unroll(&mut rules);
    Ok(write::lark(&terminals::plan(&rules)))
}
