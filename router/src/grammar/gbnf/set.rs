//! Sets of characters.

use std::fmt::Write as _;

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

/// Characters, as ranges in order that do not touch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Set(Vec<(char, char)>);

impl Set {
    pub(super) fn new(ranges: impl IntoIterator<Item = (char, char)>) -> Self {
        let ranges = ranges.into_iter().map(|(first, last)| ClassUnicodeRange::new(first, last));
        Self::of(&ClassUnicode::new(ranges))
    }

    pub(super) fn one(character: char) -> Self {
        Self(vec![(character, character)])
    }

    pub(super) fn any() -> Self {
        Self(vec![('\0', char::MAX)])
    }

    pub(super) fn union<'a>(sets: impl IntoIterator<Item = &'a Self>) -> Self {
        Self::new(sets.into_iter().flat_map(|set| set.0.iter().copied()))
    }

    pub(super) fn negated(&self) -> Self {
        let mut class = ClassUnicode::new(self.0.iter().map(|&(first, last)| ClassUnicodeRange::new(first, last)));
        class.negate();
        Self::of(&class)
    }

    fn of(class: &ClassUnicode) -> Self {
        Self(class.iter().map(|range| (range.start(), range.end())).collect())
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether some character is in both.
    pub(super) fn meets(&self, other: &Self) -> bool {
        let (mut mine, mut theirs) = (self.0.as_slice(), other.0.as_slice());
        while let ([(first, last), rest @ ..], [(other_first, other_last), other_rest @ ..]) = (mine, theirs) {
            if first <= other_last && other_first <= last {
                return true;
            }
            if last < other_last {
                mine = rest;
            } else {
                theirs = other_rest;
            }
        }
        false
    }

    /// As a class of a regular expression.
    pub(super) fn write(&self, regex: &mut String) {
        regex.push('[');
        for &(first, last) in &self.0 {
            let _ = write!(regex, "\\x{{{:X}}}", u32::from(first));
            if last > first {
                let _ = write!(regex, "-\\x{{{:X}}}", u32::from(last));
            }
        }
        regex.push(']');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_meet_where_they_share_a_character() {
        let letters = Set::new([('a', 'f'), ('x', 'z'), ('d', 'h')]);
        assert_eq!(letters, Set(vec![('a', 'h'), ('x', 'z')]));
        for (other, meets) in [('a', true), ('h', true), ('i', false), ('w', false), ('z', true), ('é', false)] {
            assert_eq!(letters.meets(&Set::one(other)), meets, "{other}");
            assert_eq!(letters.negated().meets(&Set::one(other)), !meets, "{other}");
        }
        assert!(!letters.meets(&letters.negated()) && Set::any().meets(&letters));
        assert!(Set::any().negated().is_empty() && !Set::any().meets(&Set::new([])));
    }

    #[test]
    fn classes_are_written_by_number() {
        let mut regex = String::new();
        Set::new([(']', '^'), ('/', '/')]).write(&mut regex);
        assert_eq!(regex, r"[\x{2F}\x{5D}-\x{5E}]");
    }
}
