//! Why a grammar cannot be had, or a sequence cannot go on under one.

use std::time::Duration;

/// Why a grammar was refused; each sentence says what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The source is not what it claims to be.
    #[error("{0}")]
    Invalid(String),
    /// The source asks for something that cannot be enforced; it is named, never ignored.
    #[error("{0}")]
    Unsupported(String),
    /// A limit of [`super::GrammarLimits`] is exceeded.
    #[error("{0}")]
    TooComplex(String),
    /// The server was started without grammars.
    #[error(
        "grammars are switched off on this server; leave the grammar out, or start it without \
         --disable-grammar-support"
    )]
    Disabled,
    /// All compiler threads are busy and their queue is full.
    #[error("the server has too many grammars waiting to be compiled; try again later")]
    Overloaded,
    /// The server is at fault.
    #[error("the server could not compile this grammar: {0}")]
    Internal(String),
}

impl GrammarError {
    /// A grammar that takes longer than this.
    pub(super) fn slow(patience: Duration) -> Self {
        let patience = patience.as_millis();
        Self::TooComplex(format!("the grammar takes longer than {patience} ms to compile; use a simpler one"))
    }
}

/// Why a sequence cannot go on under its grammar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MatchError {
    /// The token is not one that the mask allowed.
    #[error("token {0} does not follow the grammar")]
    Rejected(u32),
    /// Finding the next tokens exceeds what one step may cost.
    #[error("the grammar is too complex to follow: {0}; use a simpler one")]
    TooComplex(String),
    /// No token can follow, and the answer is not whole: the tokenizer cannot spell what the grammar wants.
    #[error("the grammar allows no token of this model here; use a simpler one")]
    DeadEnd,
    /// The library that follows grammars failed on this one. What it said is for the log: it may quote the client.
    #[error("the server's follower of grammars failed on this one; write the grammar differently, or report it")]
    Failed,
    /// Whoever followed the sequence is gone.
    #[error("the server lost the state of the grammar")]
    Lost,
    /// More tokens were to be taken back than the grammar has seen.
    #[error("{0} tokens cannot be taken back: fewer were given")]
    Rollback(usize),
}
