//! A grammar of characters as it was read.

use super::set::Set;

/// What a rule says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Expr {
    /// One character.
    Set(Set),
    /// These characters, at least two.
    Text(String),
    /// One after the other; nothing when there are none.
    Sequence(Vec<Expr>),
    /// One of them.
    Choice(Vec<Expr>),
    /// It, so many times at least and at most.
    Repeat(Box<Expr>, u32, Option<u32>),
    /// What the rule of this number says.
    Rule(usize),
}

/// All rules, by number.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) names: Vec<String>,
    pub(super) bodies: Vec<Expr>,
    pub(super) root: usize,
}

impl Expr {
    pub(super) const fn nothing() -> Self {
        Self::Sequence(Vec::new())
    }

    pub(super) fn text(text: String) -> Self {
        let mut characters = text.chars();
        match (characters.next(), characters.next()) {
            (None, _) => Self::nothing(),
            (Some(one), None) => Self::Set(Set::one(one)),
            _ => Self::Text(text),
        }
    }

    /// One after the other; sequences in it are no parts of their own.
    pub(super) fn sequence(parts: Vec<Self>) -> Self {
        let flat = parts.into_iter().flat_map(|part| match part {
            Self::Sequence(inner) => inner,
            other => vec![other],
        });
        let mut flat: Vec<Self> = flat.collect();
        if flat.len() == 1 { flat.remove(0) } else { Self::Sequence(flat) }
    }

    pub(super) fn choice(mut alternatives: Vec<Self>) -> Self {
        if alternatives.len() == 1 { alternatives.remove(0) } else { Self::Choice(alternatives) }
    }

    pub(super) fn children(&self) -> &[Self] {
        match self {
            Self::Sequence(parts) | Self::Choice(parts) => parts,
            Self::Repeat(one, ..) => std::slice::from_ref(one),
            Self::Set(_) | Self::Text(_) | Self::Rule(_) => &[],
        }
    }

    /// Characters and what joins them.
    pub(super) fn size(&self) -> usize {
        let own = if let Self::Text(text) = self { text.len() } else { 1 };
        own + self.children().iter().map(Self::size).sum::<usize>()
    }

    /// The rules that it refers to, often the same.
    pub(super) fn references(&self, found: &mut Vec<usize>) {
        if let Self::Rule(rule) = self {
            found.push(*rule);
        }
        self.children().iter().for_each(|child| child.references(found));
    }

    pub(super) fn refers_to(&self, rule: usize) -> bool {
        *self == Self::Rule(rule) || self.children().iter().any(|child| child.refers_to(rule))
    }

    /// Whether the empty text is one of its own; for an expression without rules.
    pub(super) fn is_nullable(&self) -> bool {
        match self {
            Self::Set(_) | Self::Text(_) | Self::Rule(_) => false,
            Self::Sequence(parts) => parts.iter().all(Self::is_nullable),
            Self::Choice(parts) => parts.iter().any(Self::is_nullable),
            Self::Repeat(one, least, _) => *least == 0 || one.is_nullable(),
        }
    }
}
