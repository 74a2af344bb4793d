//! A chat answer as a row of blocks (reasoning, text, calls), which is how the dialects beside OpenAI's chat tell it. Streamed and whole
//! answers are made of the same events.

use std::sync::Arc;

use super::generation::{Completed, Facts, FinishReason, Step};
use super::openai::answers::StopReason;
use super::openai::logprobs::{ChatLogprob, chat_logprob};
use super::openai::parts::{Form, Part, Parts};
use crate::input::ModelText;

/// What a block is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::http) enum Kind {
    /// What the model thinks.
    Reasoning,
    /// Text for the reader.
    Text,
    /// A call of a tool; the block's text is its arguments.
    Call {
        /// A new id.
        id: String,
        /// The tool.
        name: String,
    },
}

/// What happens to the row.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::http) enum BlockEvent {
    /// A block begins behind the others.
    Begin(Kind),
    /// It goes on; where log-probabilities are asked for, with those of the tokens of a text.
    More(Sort, String, Vec<ChatLogprob>),
    /// It is over.
    End(Sort),
}

/// The kind of a block, a call's id and name left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Sort {
    /// What the model thinks.
    Reasoning,
    /// Text for the reader.
    Text,
    /// A call of a tool.
    Call,
}

/// Makes blocks of one answer's steps.
#[derive(Debug)]
pub(in crate::http) struct Blocks {
    parts: Option<Parts>,
    open: Option<Sort>,
    /// Tells what tokens are, where they are asked for.
    model: Option<Arc<ModelText>>,
    /// Tokens whose text is not out yet.
    held: Vec<ChatLogprob>,
}

impl Blocks {
    /// For one of the answers to a request with this form.
    pub(in crate::http) fn new(form: Option<&Form>, facts: &Facts) -> Self {
        Self { parts: form.map(|form| form.parts(facts)), open: None, model: None, held: Vec::new() }
    }

    /// With the log-probabilities of the tokens of texts, if there is a model to tell them.
    pub(in crate::http) fn with_logprobs(self, model: Option<Arc<ModelText>>) -> Self {
        Self { model, ..self }
    }

    /// Takes the next step. With the last one every block ends.
    pub(in crate::http) fn step(&mut self, step: &mut Step, mut tell: impl FnMut(BlockEvent)) {
        // Special tokens are no part of a text: they end the answer, or mark what is none.
        let model = self.model.as_ref().filter(|_| !step.special);
        self.held.extend(model.map(|model| chat_logprob(step, model)));
        let thought = self.reasoning_tokens();
        match &mut self.parts {
            Some(parts) => {
                let parts = parts.step(step);
                let tells_more = parts.iter().any(|part| !matches!(part, Part::Text(_)));
                parts.into_iter().for_each(|part| self.part(part, &mut tell));
                if tells_more || self.reasoning_tokens() != thought {
                    self.held.clear();
                }
            }
            None if step.text.is_empty() => {}
            None => self.part(Part::Text(std::mem::take(&mut step.text)), &mut tell),
        }
        if step.finish.is_some() {
            self.close(&mut tell);
        }
    }

    fn part(&mut self, part: Part, tell: &mut impl FnMut(BlockEvent)) {
        let (open, more) = match part {
            Part::Reasoning(text) => (Sort::Reasoning, text),
            Part::Text(text) => (Sort::Text, text),
            Part::Call { id, name, .. } => {
                self.close(tell);
                self.open = Some(Sort::Call);
                return tell(BlockEvent::Begin(Kind::Call { id, name }));
            }
            // Calls do not overlap: the arguments are those of the call that is open.
            Part::Arguments { delta, .. } => (Sort::Call, delta),
            Part::CallEnd { .. } => return,
        };
        if self.open != Some(open) {
            self.close(tell);
            self.open = Some(open);
            tell(BlockEvent::Begin(if open == Sort::Reasoning { Kind::Reasoning } else { Kind::Text }));
        }
        let tokens = if open == Sort::Text { std::mem::take(&mut self.held) } else { Vec::new() };
        tell(BlockEvent::More(open, more, tokens));
    }

    fn close(&mut self, tell: &mut impl FnMut(BlockEvent)) {
        if let Some(open) = self.open.take() {
            tell(BlockEvent::End(open));
        }
    }

    /// Whether the answer is to have tools called, also where the request named the call.
    pub(in crate::http) fn calls(&self, finish: FinishReason) -> bool {
        self.parts.as_ref().is_some_and(|parts| parts.calls(finish))
    }

    /// Why the answer ended.
    pub(in crate::http) fn reason(&self, finish: FinishReason) -> StopReason {
        self.parts.as_ref().map_or_else(|| finish.into(), |parts| parts.reason(finish))
    }

    /// Tokens of reasoning so far; `None` when none is looked for.
    pub(in crate::http) fn reasoning_tokens(&self) -> Option<usize> {
        self.parts.as_ref().and_then(Parts::reasoning_tokens)
    }
}

/// A block that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::http) struct Block {
    pub(in crate::http) kind: Kind,
    pub(in crate::http) text: String,
}

/// A whole answer.
#[derive(Debug)]
pub(in crate::http) struct Told {
    pub(in crate::http) blocks: Vec<Block>,
    pub(in crate::http) reason: StopReason,
    /// Whether it is to have tools called.
    pub(in crate::http) calls: bool,
    /// The stop string that ended it.
    pub(in crate::http) stopped_by: Option<Box<str>>,
    pub(in crate::http) tokens: Tokens,
}

/// What an answer took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::http) struct Tokens {
    /// Of the prompt.
    pub(in crate::http) prompt: usize,
    /// Those of the prompt that were in the prefix cache.
    pub(in crate::http) cached: usize,
    /// Generated.
    pub(in crate::http) generated: usize,
    /// Those generated that are reasoning; `None` where it is not told apart.
    pub(in crate::http) reasoning: Option<usize>,
}

impl Told {
    /// Puts an answer together.
    pub(in crate::http) fn new(form: Option<&Form>, mut answer: Completed) -> Self {
        let mut row = Blocks::new(form, &answer.facts);
        let mut blocks: Vec<Block> = Vec::new();
        let mut stopped_by = None;
        for step in &mut answer.steps {
            row.step(step, |event| match event {
                BlockEvent::Begin(kind) => blocks.push(Block { kind, text: String::new() }),
                BlockEvent::More(_, more, _) => {
                    if let Some(block) = blocks.last_mut() {
                        block.text.push_str(&more);
                    }
                }
                BlockEvent::End(_) => {}
            });
            stopped_by = stopped_by.or_else(|| step.stopped_by.take());
        }
        let tokens = Tokens {
            prompt: answer.facts.input_length,
            cached: answer.cached_tokens as usize,
            generated: answer.steps.len(),
            reasoning: row.reasoning_tokens(),
        };
        let calls = row.calls(answer.finish);
        Self { blocks, reason: row.reason(answer.finish), calls, stopped_by, tokens }
    }
}
