//! Stop strings in a text that arrives in pieces.
//!
//! Each stop string is matched by its own Knuth-Morris-Pratt automaton over bytes: the state is how much of it the
//! text ends with, which is also how much may not be shown yet. Work is linear in text times stop strings. Bytes are
//! enough: in UTF-8 a whole character never matches inside another one.

/// Finds the stop string that is complete first; of two that end together, the longer.
#[derive(Debug)]
pub(crate) struct StopFinder {
    automata: Vec<Automaton>,
    include_stop: bool,
    /// The end of the text so far that may be the beginning of a stop string.
    held: String,
    stopped: bool,
    /// Which one was complete.
    found: Option<usize>,
}

/// What `StopFinder::push` lets out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) text: String,
    pub(crate) stopped: bool,
}

impl StopFinder {
    /// Empty stop strings match nothing.
    pub(crate) fn new(stop: Vec<String>, include_stop: bool) -> Self {
        let automata = stop.into_iter().filter(|s| !s.is_empty()).map(Automaton::new).collect();
        Self { automata, include_stop, held: String::new(), stopped: false, found: None }
    }

    /// The stop string that was complete.
    pub(crate) fn found(&self) -> Option<&str> {
        std::str::from_utf8(&self.automata.get(self.found?)?.stop).ok()
    }

    /// Takes the next characters and gives those that are safe to show.
    pub(crate) fn push(&mut self, new: String) -> Released {
        if self.stopped {
            return Released { text: String::new(), stopped: true };
        }
        if self.automata.is_empty() || new.is_empty() {
            return Released { text: new, stopped: false };
        }
        if let Some((end, length)) = self.scan(&new) {
            self.stopped = true;
            return Released { text: self.cut(new, end, length), stopped: true };
        }
        Released { text: if self.include_stop { new } else { self.hold_back(new) }, stopped: false }
    }

    /// Whether nothing is held back.
    pub(crate) fn is_clear(&self) -> bool {
        self.held.is_empty()
    }

    /// What was held back, when the text ends without a stop string.
    pub(crate) fn finish(&mut self) -> String {
        self.stopped = true;
        std::mem::take(&mut self.held)
    }

    /// Where in `new` the first complete stop string ends, and its length.
    fn scan(&mut self, new: &str) -> Option<(usize, usize)> {
        for (index, byte) in new.bytes().enumerate() {
            let mut longest = 0;
            for (number, automaton) in self.automata.iter_mut().enumerate() {
                if automaton.step(byte) && automaton.stop.len() > longest {
                    longest = automaton.stop.len();
                    self.found = Some(number);
                }
            }
            if longest > 0 {
                return Some((index + 1, longest));
            }
        }
        None
    }

    /// The text up to the stop string that ends at `end` of `new`, or including it.
    fn cut(&mut self, mut new: String, end: usize, length: usize) -> String {
        new.truncate(end);
        if self.include_stop {
            return new;
        }
        let mut text = std::mem::take(&mut self.held);
        text.push_str(&new);
        text.truncate(text.len().saturating_sub(length));
        text
    }

    /// Shows all but the longest possible beginning of a stop string.
    fn hold_back(&mut self, new: String) -> String {
        let hold = self.automata.iter().map(|automaton| automaton.matched).max().unwrap_or(0);
        let mut text = new;
        if !self.held.is_empty() {
            self.held.push_str(&text);
            text = std::mem::take(&mut self.held);
        }
        if hold > 0 {
            self.held = text.split_off(text.len() - hold);
        }
        text
    }
}

/// One stop string and how much of it the text ends with.
#[derive(Debug)]
struct Automaton {
    stop: Vec<u8>,
    /// For each length of a matched beginning: the longest shorter one that the text then ends with too.
    fallback: Vec<usize>,
    matched: usize,
}

impl Automaton {
    fn new(stop: String) -> Self {
        let stop = stop.into_bytes();
        let mut automaton = Self { fallback: vec![0; stop.len() + 1], stop, matched: 0 };
        for length in 2..=automaton.stop.len() {
            let byte = automaton.stop[length - 1];
            automaton.matched = automaton.next(byte);
            automaton.fallback[length] = automaton.matched;
        }
        automaton.matched = 0;
        automaton
    }

    /// The length matched after one more byte. While building it reads only fallbacks that are there already.
    fn next(&self, byte: u8) -> usize {
        let mut matched = self.matched;
        while matched > 0 && self.stop.get(matched) != Some(&byte) {
            matched = self.fallback[matched];
        }
        matched + usize::from(self.stop[matched] == byte)
    }

    /// Takes a byte; whether the stop string is complete.
    fn step(&mut self, byte: u8) -> bool {
        self.matched = self.next(byte);
        self.matched == self.stop.len()
    }
}
