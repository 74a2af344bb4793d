//! Why an input was refused.

/// Why an input was refused; each sentence says what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// A rule of `validation` is broken.
    #[error("Input validation error: {0}")]
    Validation(String),
    /// The prompt has more tokens than there is room for.
    #[error("Input validation error: {0}")]
    TooLong(String),
    /// The chat template is missing, damaged, or refuses these messages.
    #[error("Template error: {0}")]
    Template(String),
    /// All validation workers are busy and their queue is full.
    #[error("the server has too many requests waiting for validation; try again later")]
    Overloaded,
    /// The server is at fault.
    #[error("the server could not validate this request: {0}")]
    Internal(String),
}

/// A `Validation` error.
pub(crate) fn invalid(sentence: impl Into<String>) -> InputError {
    InputError::Validation(sentence.into())
}
