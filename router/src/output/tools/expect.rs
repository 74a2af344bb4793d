//! Fixed texts that must come next, a character at a time.

/// How much of one of some texts has come.
#[derive(Debug, Default)]
pub(super) struct Expect {
    matched: String,
}

/// What a character does to the texts that may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Match {
    /// One or more of them may still come.
    Partial,
    /// The one of this number is complete.
    Found(usize),
    /// None of them begins with it.
    Other,
    /// One of them had begun and does not go on with it.
    Broken,
}

impl Expect {
    /// Takes a character. The texts stay the same until they are found or broken; then it starts anew.
    pub(super) fn step(&mut self, c: char, texts: &[&str]) -> Match {
        let begun = !self.matched.is_empty();
        self.matched.push(c);
        let found = texts.iter().position(|text| *text == self.matched);
        if found.is_none() && texts.iter().any(|text| text.starts_with(&self.matched)) {
            return Match::Partial;
        }
        self.matched.clear();
        match found {
            Some(index) => Match::Found(index),
            None if begun => Match::Broken,
            None => Match::Other,
        }
    }
}
