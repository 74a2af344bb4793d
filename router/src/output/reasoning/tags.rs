//! Reasoning between two texts: `<think>…</think>` and the like.
//!
//! Only the beginning of an answer can open it, so that a tag the answer talks about stays text.

use super::{Pieces, Split};

/// Most bytes of white space that may wait for a tag.
const MOST_SPACE: usize = 4 * 1024;

/// What reasoning stands between. There may be several ways to write each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tags {
    pub(super) start: Vec<String>,
    pub(super) end: Vec<String>,
    /// What ends the reasoning where the end is left out; it is itself content.
    pub(super) breaks: &'static [&'static str],
}

#[derive(Debug)]
pub(super) struct TagSplit {
    tags: Tags,
    state: State,
    space: String,
    /// Characters that may become a tag.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before all text, where reasoning may begin.
    Start,
    /// The prompt began the reasoning; the answer may begin it once more.
    Again,
    /// Behind the start, before the first character of the reasoning.
    Before,
    Inside,
    /// Behind the end, before the first character of the content.
    After,
    Content,
}

impl TagSplit {
    pub(super) fn new(tags: Tags, inside: bool) -> Self {
        let state = if inside { State::Again } else { State::Start };
        Self { tags, state, space: String::new(), held: String::new() }
    }

    /// Looks for the tag that may begin the answer.
    fn start(&mut self, c: char, out: &mut Pieces<'_>) {
        if self.held.is_empty() && c.is_whitespace() && self.space.len() < MOST_SPACE {
            self.space.push(c);
            return;
        }
        self.held.push(c);
        if self.tags.start.contains(&self.held) {
            self.held.clear();
            self.space.clear();
            self.state = State::Before;
        } else if !self.tags.start.iter().any(|tag| tag.starts_with(&self.held)) {
            let seen = std::mem::take(&mut self.space) + &std::mem::take(&mut self.held);
            if self.state == State::Start {
                self.state = State::Content;
                out.content(&seen);
            } else {
                self.state = State::Before;
                seen.chars().for_each(|c| self.take(c, out));
            }
        }
    }

    /// Looks for the end of the reasoning.
    fn inside(&mut self, c: char, out: &mut Pieces<'_>) {
        self.held.push(c);
        while let Some(first) = self.held.chars().next() {
            if self.tags.end.contains(&self.held) {
                self.held.clear();
                self.space.clear();
                self.state = State::After;
            } else if self.tags.breaks.contains(&self.held.as_str()) {
                self.space.clear();
                self.state = State::Content;
                out.content(&std::mem::take(&mut self.held));
            } else if self.may_end() {
                return;
            } else {
                self.held.drain(..first.len_utf8());
                self.show(first, out);
            }
        }
    }

    fn may_end(&self) -> bool {
        let ends = self.tags.end.iter().map(String::as_str);
        ends.chain(self.tags.breaks.iter().copied()).any(|tag| tag.starts_with(&self.held))
    }

    /// A character of the reasoning. White space waits for what follows it.
    fn show(&mut self, c: char, out: &mut Pieces<'_>) {
        if c.is_whitespace() {
            if self.state == State::Inside {
                self.space.push(c);
            }
            if self.space.len() > MOST_SPACE {
                out.reasoning(&std::mem::take(&mut self.space));
            }
            return;
        }
        self.state = State::Inside;
        out.reasoning(&std::mem::take(&mut self.space));
        out.reasoning(c.encode_utf8(&mut [0; 4]));
    }
}

impl Split for TagSplit {
    fn take(&mut self, c: char, out: &mut Pieces<'_>) {
        match self.state {
            State::Start | State::Again => self.start(c, out),
            State::Before | State::Inside => self.inside(c, out),
            State::After if c.is_whitespace() => {}
            State::After | State::Content => {
                self.state = State::Content;
                out.content(c.encode_utf8(&mut [0; 4]));
            }
        }
    }

    fn finish(&mut self, out: &mut Pieces<'_>) {
        let rest = std::mem::take(&mut self.space) + &std::mem::take(&mut self.held);
        if self.is_reasoning() {
            out.reasoning(&rest);
        } else {
            out.content(&rest);
        }
    }

    fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Again | State::Before | State::Inside)
    }

    fn is_over(&self) -> bool {
        self.state == State::Content
    }
}
