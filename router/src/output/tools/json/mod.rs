//! JSON as models write it, a character at a time.

mod body;
mod call;
mod span;
mod string;

pub(super) use body::{Body, Take};
pub(super) use call::CallObject;
pub(in super::super) use span::Span;
pub(super) use string::{escape, escape_into};

/// White space between the parts of JSON.
pub(super) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}
