//! What a model thinks, told apart from what it answers.
//!
//! Reasoning comes first, between tags, behind a phrase, or in channels; then comes content, in which `tools` looks for
//! calls. As there, a parser is a state machine over characters, so that a streamed answer and a whole one cannot
//! differ. White space that touches a tag is part of how the reasoning is written and is dropped.

mod answer;
mod channels;
mod kind;
mod tags;
#[cfg(test)]
mod tests;

pub use answer::{AnswerEvent, AnswerParser};
pub use kind::{ReasoningParserKind, UnknownReasoningParser};

/// Where reasoning begins and how it is ended, as text whose marks are tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edges {
    /// An answer that begins with any of them reasons.
    pub openings: Vec<String>,
    /// The answer begins inside the reasoning.
    pub inside: bool,
    /// Texts of which any ends the reasoning; the first that is a token does, or else the first.
    pub ends: Vec<String>,
    /// Other texts behind which there is no reasoning.
    pub closings: Vec<String>,
    /// Names of tokens without which these texts mean nothing.
    pub marks: Vec<&'static str>,
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReasoningEvent {
    /// What the model thinks.
    Reasoning(String),
    /// What the model answers, calls of tools included.
    Content(String),
}

/// How many pushes brought reasoning and how many content. With a push for each token these are tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReasoningCounts {
    /// Pushes that found or left the parser inside the reasoning; markers around it count too.
    pub reasoning: usize,
    /// All others.
    pub content: usize,
}

/// Tells reasoning from content in a text that comes in pieces.
pub trait ReasoningParser: std::fmt::Debug + Send {
    /// Takes the next characters; adds what they make certain to `out`. An empty push only counts.
    fn push(&mut self, delta: &str, out: &mut Vec<ReasoningEvent>);

    /// Takes the end of the text; adds what was held back to `out`.
    fn finish(&mut self, out: &mut Vec<ReasoningEvent>);

    /// Whether the characters so far end in content, of which none is held back.
    fn is_in_content(&self) -> bool;

    /// What came so far.
    fn counts(&self) -> ReasoningCounts;
}

/// One family's way to write reasoning, a character at a time.
trait Split: std::fmt::Debug + Send {
    fn take(&mut self, c: char, out: &mut Pieces<'_>);
    fn finish(&mut self, out: &mut Pieces<'_>);
    fn is_reasoning(&self) -> bool;
    /// All that follows is content, as it stands.
    fn is_over(&self) -> bool;
    /// What came last is content, and all of it is out.
    fn is_in_content(&self) -> bool {
        self.is_over()
    }
}

/// The parser of a family.
#[derive(Debug)]
struct Splitter<S> {
    split: S,
    counts: ReasoningCounts,
}

impl<S: Split> Splitter<S> {
    fn new(split: S) -> Self {
        Self { split, counts: ReasoningCounts::default() }
    }
}

impl<S: Split> ReasoningParser for Splitter<S> {
    fn push(&mut self, delta: &str, out: &mut Vec<ReasoningEvent>) {
        let was_reasoning = self.split.is_reasoning();
        let pieces = &mut Pieces::new(out);
        let mut rest = delta.chars();
        while !self.split.is_over() {
            let Some(c) = rest.next() else { break };
            self.split.take(c, pieces);
        }
        pieces.content(rest.as_str());
        if was_reasoning || self.split.is_reasoning() {
            self.counts.reasoning += 1;
        } else {
            self.counts.content += 1;
        }
    }

    fn finish(&mut self, out: &mut Vec<ReasoningEvent>) {
        self.split.finish(&mut Pieces::new(out));
    }

    fn is_in_content(&self) -> bool {
        self.split.is_in_content()
    }

    fn counts(&self) -> ReasoningCounts {
        self.counts
    }
}

/// Takes the pieces of one push. Neighbours of one kind become one event.
#[derive(Debug)]
struct Pieces<'a> {
    out: &'a mut Vec<ReasoningEvent>,
    floor: usize,
}

impl<'a> Pieces<'a> {
    fn new(out: &'a mut Vec<ReasoningEvent>) -> Self {
        let floor = out.len();
        Self { out, floor }
    }

    fn reasoning(&mut self, text: &str) {
        match self.out.get_mut(self.floor..).and_then(<[_]>::last_mut) {
            _ if text.is_empty() => {}
            Some(ReasoningEvent::Reasoning(last)) => last.push_str(text),
            _ => self.out.push(ReasoningEvent::Reasoning(text.to_owned())),
        }
    }

    fn content(&mut self, text: &str) {
        match self.out.get_mut(self.floor..).and_then(<[_]>::last_mut) {
            _ if text.is_empty() => {}
            Some(ReasoningEvent::Content(last)) => last.push_str(text),
            _ => self.out.push(ReasoningEvent::Content(text.to_owned())),
        }
    }
}
