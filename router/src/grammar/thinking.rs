//! Thinking before the answer: text is free until a marker has been written.

use super::vocabulary::Vocabulary;

/// How an answer may think before its grammar begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Thoughts {
    /// Tokens of these names open the thinking, where the answer begins outside of it. An answer that begins with anything
    /// else does not think.
    pub starts: Vec<String>,
    /// The answer begins inside the thinking.
    pub inside: bool,
    /// Texts that end the thinking.
    pub ends: Vec<String>,
    /// Special tokens that may be used while thinking.
    pub specials: Vec<String>,
}

/// What ends the thinking, and what begins it where that is open: a text like `</think>`, spelled by any tokens, or the token
/// of that name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// As tokens write them: special ones with the trie's mark and their name.
    ends: Vec<Vec<u8>>,
    /// Tokens that one who thinks may use beside all with text.
    specials: Vec<u32>,
    /// Tokens that open the thinking; empty where it has begun.
    starts: Vec<u32>,
}

impl Marker {
    /// The marker of a model whose answers begin inside the thinking. `None` for an empty text.
    #[must_use]
    pub fn new(text: &str, vocabulary: &Vocabulary) -> Option<Self> {
        let thoughts = Thoughts { inside: true, ends: vec![text.to_owned()], ..Thoughts::default() };
        Self::of(&thoughts, vocabulary)
    }

    /// The marker of such thoughts; `None` when there is nothing to wait for.
    #[must_use]
    pub fn of(thoughts: &Thoughts, vocabulary: &Vocabulary) -> Option<Self> {
        let tokens = |names: &[String]| names.iter().filter_map(|name| vocabulary.named(name)).collect::<Vec<u32>>();
        let starts = if thoughts.inside { Vec::new() } else { tokens(&thoughts.starts) };
        let ends: Vec<Vec<u8>> = thoughts
            .ends
            .iter()
            .filter(|end| !end.is_empty())
            .map(|end| {
                let names = thoughts.specials.iter().filter(|name| vocabulary.special(name).is_some());
                let marked = |text: String, name: &String| text.replace(name.as_str(), &format!("\u{0}{name}"));
                // The trie's mark is no character; no name has this one.
                names
                    .fold(end.clone(), marked)
                    .bytes()
                    .map(|byte| if byte == 0 { Vocabulary::MARK } else { byte })
                    .collect()
            })
            .collect();
        let of_ends = thoughts.ends.iter().filter_map(|end| vocabulary.special(end));
        let specials = tokens(&thoughts.specials).into_iter().chain(of_ends).collect();
        let waits = !ends.is_empty() && (thoughts.inside || !starts.is_empty());
        waits.then_some(Self { ends, specials, starts })
    }
}

/// Where a sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before its first token, which may open the thinking or be the answer's.
    Open,
    Thinking,
    Answering,
}

/// A sequence that still thinks, or has, or never did.
#[derive(Debug, Clone)]
pub(super) struct Thinking {
    marker: Marker,
    /// The tokens so far, so that some can be taken back.
    tokens: Vec<u32>,
    state: State,
}

impl Thinking {
    pub(super) fn new(marker: Marker) -> Self {
        let state = if marker.starts.is_empty() { State::Thinking } else { State::Open };
        Self { marker, tokens: Vec::new(), state }
    }

    /// Special tokens that may come while it thinks.
    pub(super) fn specials(&self) -> &[u32] {
        &self.marker.specials
    }

    /// Tokens that may begin the thinking here.
    pub(super) fn starts(&self) -> &[u32] {
        if self.state == State::Open { &self.marker.starts } else { &[] }
    }

    /// Whether the text is free.
    pub(super) fn is_thinking(&self) -> bool {
        self.state == State::Thinking
    }

    /// Takes a token; false when it belongs to the answer. What follows the marker in the token that completes it still
    /// belongs to the thinking.
    pub(super) fn advance(&mut self, token: u32, vocabulary: &Vocabulary) -> bool {
        let opens = self.starts().contains(&token);
        match self.state {
            State::Answering => return false,
            State::Open if !opens => {
                self.state = State::Answering;
                return false;
            }
            State::Open => self.state = State::Thinking,
            State::Thinking => {}
        }
        self.tokens.push(token);
        if self.ends_with_marker(vocabulary) {
            self.state = State::Answering;
        }
        true
    }

    /// Takes back `count` tokens, of which none came after the thinking; false when there were fewer.
    pub(super) fn rollback(&mut self, count: usize) -> bool {
        let Some(left) = self.tokens.len().checked_sub(count) else { return false };
        self.tokens.truncate(left);
        if left == 0 && !self.marker.starts.is_empty() {
            self.state = State::Open;
        }
        true
    }

    /// Whether a marker ends inside the last token: an earlier end would have been seen.
    fn ends_with_marker(&self, vocabulary: &Vocabulary) -> bool {
        let Some((&last, before)) = self.tokens.split_last() else { return false };
        let last = vocabulary.written(last);
        let reach = self.marker.ends.iter().map(Vec::len).max().unwrap_or_default().saturating_sub(1);
        let mut tail: Vec<u8> = last.iter().rev().copied().collect();
        for &token in before.iter().rev() {
            if tail.len() >= last.len() + reach {
                break;
            }
            tail.extend(vocabulary.written(token).iter().rev());
        }
        tail.truncate(last.len() + reach);
        tail.reverse();
        let ends = |end: &Vec<u8>| tail.windows(end.len()).rposition(|window| window == end);
        self.marker.ends.iter().any(|end| ends(end).is_some_and(|place| place + end.len() > tail.len() - last.len()))
    }
}
