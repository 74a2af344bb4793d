//! The whole of an answer: reasoning first, then calls in what is left.

use super::super::tools::{ToolEvent, ToolParser};
use super::{ReasoningCounts, ReasoningEvent, ReasoningParser};

/// What an answer is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerEvent {
    /// What the model thinks.
    Reasoning(String),
    /// Text for the reader, or part of a call.
    Content(ToolEvent),
}

/// Takes an answer apart. Without a parser for one of the two, nothing is looked for.
#[derive(Debug)]
pub struct AnswerParser {
    reasoning: Option<Box<dyn ReasoningParser>>,
    tools: Option<Box<dyn ToolParser>>,
}

impl AnswerParser {
    /// For one answer.
    pub fn new(reasoning: Option<Box<dyn ReasoningParser>>, tools: Option<Box<dyn ToolParser>>) -> Self {
        Self { reasoning, tools }
    }

    /// Takes the next characters; adds what they make certain to `out`.
    pub fn push(&mut self, delta: &str, out: &mut Vec<AnswerEvent>) {
        match &mut self.reasoning {
            Some(reasoning) => {
                let mut events = Vec::new();
                reasoning.push(delta, &mut events);
                self.pass(events, out);
            }
            None => self.content(delta, out),
        }
    }

    /// Takes the end of the answer; adds what was held back to `out`.
    pub fn finish(&mut self, out: &mut Vec<AnswerEvent>) {
        if let Some(reasoning) = &mut self.reasoning {
            let mut events = Vec::new();
            reasoning.finish(&mut events);
            self.pass(events, out);
        }
        if let Some(tools) = &mut self.tools {
            let mut events = Vec::new();
            tools.finish(&mut events);
            out.extend(events.into_iter().map(AnswerEvent::Content));
        }
    }

    /// Whether the answer so far ends in text for the reader, of which at most white space is held back.
    pub fn is_in_text(&self) -> bool {
        self.reasoning.as_ref().is_none_or(|reasoning| reasoning.is_in_content())
            && self.tools.as_ref().is_none_or(|tools| tools.is_in_text())
    }

    /// How much of the answer was reasoning.
    pub fn counts(&self) -> ReasoningCounts {
        self.reasoning.as_ref().map(|reasoning| reasoning.counts()).unwrap_or_default()
    }

    fn pass(&mut self, events: Vec<ReasoningEvent>, out: &mut Vec<AnswerEvent>) {
        for event in events {
            match event {
                ReasoningEvent::Reasoning(text) => out.push(AnswerEvent::Reasoning(text)),
                ReasoningEvent::Content(text) => self.content(&text, out),
            }
        }
    }

    fn content(&mut self, text: &str, out: &mut Vec<AnswerEvent>) {
        let mut events = Vec::new();
        match &mut self.tools {
            Some(tools) => tools.push(text, &mut events),
            None if text.is_empty() => {}
            None => events.push(ToolEvent::Text(text.to_owned())),
        }
        out.extend(events.into_iter().map(AnswerEvent::Content));
    }
}
