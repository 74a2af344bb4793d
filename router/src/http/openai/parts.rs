//! What a chat answer is taken apart into: reasoning, text and calls of tools. Streamed and whole answers are made of
//! the same parts.

use std::sync::Arc;

use rand::Rng;
use rand::distr::Alphanumeric;
use serde_json::Value;
use uuid::Uuid;

use super::answers::{AnswerMessage, CalledFunction, StopReason, ToolCall};
use super::forced;
use super::tools::{self, Calling, Choice};
use crate::http::errors::ApiError;
use crate::http::generation::{Completed, Facts, FinishReason, Step};
use crate::input::{ChatPrompt, GenerationRequest, Prompt, Reasoning};
use crate::output::Parsers;
use crate::output::reasoning::{AnswerEvent, AnswerParser, ReasoningParserKind};
use crate::output::tools::{ToolEvent, ToolLimits, ToolParserKind, ToolSet};

/// Length of ids that Mistral's chat templates take.
const MISTRAL_ID: usize = 9;

/// What to look for in the answers to one request.
#[derive(Debug, Clone)]
pub(in crate::http) struct Form {
    reasoning: Option<(ReasoningParserKind, Begin)>,
    tools: Option<(ToolParserKind, Arc<ToolSet>)>,
    first_call_only: bool,
    /// The request named the function to call.
    named: bool,
}

/// Where an answer begins.
#[derive(Debug, Clone, Copy)]
enum Begin {
    /// Where the prompt says.
    AsPrompted,
    /// Inside the reasoning of the message that it continues.
    Inside,
}

impl Form {
    /// For a request, which is told what special tokens to show and what its calls must look like; `None` when nothing is to
    /// be looked for.
    ///
    /// # Errors
    /// `Validation`, when calls cannot be written as is asked.
    pub(super) fn choose(
        request: &mut GenerationRequest,
        calling: &Calling,
        parsers: &Parsers,
    ) -> Result<Option<Self>, ApiError> {
        let Prompt::Chat(chat) = &request.prompt else { return Ok(None) };
        let offered = chat.tools.as_deref().unwrap_or_default();
        let kind = parsers.tools.as_ref().map(|parser| parser.kind);
        // A call that is forced needs a form, whether the model has one or not.
        let kind = kind.or(calling.choice.forces().then_some(ToolParserKind::Json)).filter(|_| !offered.is_empty());
        let reasoning = parsers.reasoning.as_ref().and_then(|parser| Some((parser, begin(&parser.kind, chat)?)));
        let of_tools = parsers.tools.iter().filter(|_| kind.is_some()).flat_map(|parser| parser.markers.iter());
        let of_reasoning = reasoning.iter().flat_map(|(parser, _)| parser.markers.iter());
        let shown_tokens = of_tools.chain(of_reasoning).copied().collect();
        let channels = reasoning.as_ref().is_some_and(|(parser, _)| parser.kind == ReasoningParserKind::Harmony);
        let wanted = request.parameters.grammar.take();
        if kind.is_some() {
            // Calls that are forced are all of the answer.
            if calling.choice.forces() {
                request.parameters.grammar_fields.clear();
            }
            request.parameters.grammar_fields.push("tools");
        }
        request.parameters.grammar = forced::shape(kind, offered, calling, wanted, channels)?;
        if kind.is_none() && reasoning.is_none() {
            return Ok(None);
        }
        let form = Self {
            reasoning: reasoning.map(|(parser, begin)| (parser.kind.clone(), begin)),
            tools: kind.map(|kind| (kind, Arc::new(tools::set(offered, &calling.choice)))),
            first_call_only: !calling.parallel || matches!(calling.choice, Choice::Named(_)),
            named: matches!(calling.choice, Choice::Named(_)),
        };
        request.parameters.shown_tokens = shown_tokens;
        request.parameters.reasoning = form
            .reasoning
            .as_ref()
            .map(|(kind, begin)| Reasoning { kind: kind.clone(), inside: matches!(begin, Begin::Inside) });
        Ok(Some(form))
    }

    /// Whether calls are looked for.
    pub(super) const fn finds_calls(&self) -> bool {
        self.tools.is_some()
    }

    /// For one of the answers.
    pub(in crate::http) fn parts(&self, facts: &Facts) -> Parts {
        self.parts_from(facts, 0)
    }

    /// For what follows so many calls of the same answer.
    pub(super) fn parts_from(&self, facts: &Facts, first_call: usize) -> Parts {
        let prompt = facts.prompt_text.as_deref().unwrap_or_default();
        let reasoning = self.reasoning.as_ref().map(|(kind, begin)| match begin {
            Begin::AsPrompted => kind.parser(kind.starts_inside(prompt)),
            Begin::Inside => kind.parser(true),
        });
        let counts_reasoning = reasoning.is_some();
        let kind = self.tools.as_ref().map(|(kind, _)| *kind);
        let calls = self.tools.as_ref().map(|(kind, set)| kind.parser(Some(Arc::clone(set)), ToolLimits::default()));
        Parts {
            parser: AnswerParser::new(reasoning, calls),
            counts_reasoning,
            short_ids: matches!(kind, Some(ToolParserKind::Mistral | ToolParserKind::MistralArgs)),
            named: self.named,
            first_call,
            most_calls: if self.first_call_only { 1 } else { usize::MAX },
            begun: 0,
            ended: 0,
            events: Vec::new(),
        }
    }

    /// A whole answer, why it ended, and how many of its tokens are reasoning.
    pub(in crate::http) fn message(&self, answer: &Completed) -> (AnswerMessage, StopReason, Option<usize>) {
        let mut parts = self.parts(&answer.facts);
        let mut whole = Whole::default();
        for step in &answer.steps {
            parts.step(step).into_iter().for_each(|part| whole.add(part));
        }
        (whole.message(), parts.reason(answer.finish), parts.reasoning_tokens())
    }
}

/// Where answers begin, as far as the request tells; `None` when they are beyond all reasoning.
fn begin(kind: &ReasoningParserKind, chat: &ChatPrompt) -> Option<Begin> {
    if !chat.continue_final_message {
        return Some(Begin::AsPrompted);
    }
    let content = chat.messages.last()?.get("content")?;
    let text = match content {
        Value::Array(parts) => parts.last().and_then(|part| part.get("text")).and_then(Value::as_str),
        content => content.as_str(),
    };
    kind.leaves_open(text?).then_some(Begin::Inside)
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::http) enum Part {
    /// What the model thinks.
    Reasoning(String),
    /// Text for the reader.
    Text(String),
    /// A call begins.
    Call {
        /// Number of the call.
        index: usize,
        /// A new id.
        id: String,
        /// The tool.
        name: String,
    },
    /// More of a call's arguments.
    Arguments {
        /// Number of the call.
        index: usize,
        /// The next characters.
        delta: String,
    },
    /// The call is complete.
    CallEnd {
        /// Number of the call.
        index: usize,
    },
}

/// Takes one answer apart.
#[derive(Debug)]
pub(in crate::http) struct Parts {
    parser: AnswerParser,
    counts_reasoning: bool,
    short_ids: bool,
    named: bool,
    /// Number of the first call.
    first_call: usize,
    most_calls: usize,
    /// Calls that began and calls that are complete.
    begun: usize,
    ended: usize,
    /// Kept between steps for its allocation.
    events: Vec<AnswerEvent>,
}

impl Parts {
    /// Takes the next step, whose parts these are. Every step counts, with text or without.
    pub(in crate::http) fn step(&mut self, step: &Step) -> Vec<Part> {
        let mut events = std::mem::take(&mut self.events);
        self.parser.push(&step.text, &mut events);
        if step.finish.is_some() {
            self.parser.finish(&mut events);
        }
        let parts = events.drain(..).filter_map(|event| self.part(event)).collect();
        self.events = events;
        parts
    }

    fn part(&mut self, event: AnswerEvent) -> Option<Part> {
        match event {
            AnswerEvent::Reasoning(text) => Some(Part::Reasoning(text)),
            AnswerEvent::Content(ToolEvent::Text(text)) => Some(Part::Text(text)),
            AnswerEvent::Content(ToolEvent::CallBegin { index, name }) => self.numbered(index).map(|index| {
                self.begun += 1;
                Part::Call { index, id: self.new_id(), name }
            }),
            AnswerEvent::Content(ToolEvent::Arguments { index, delta }) => {
                self.numbered(index).map(|index| Part::Arguments { index, delta })
            }
            AnswerEvent::Content(ToolEvent::CallEnd { index }) => self.numbered(index).map(|index| {
                self.ended += 1;
                Part::CallEnd { index }
            }),
        }
    }

    /// A call's number in the answer; `None` for one too many.
    fn numbered(&self, index: usize) -> Option<usize> {
        let index = self.first_call + index;
        (index < self.most_calls).then_some(index)
    }

    fn new_id(&self) -> String {
        if self.short_ids {
            return rand::rng().sample_iter(Alphanumeric).take(MISTRAL_ID).map(char::from).collect();
        }
        format!("call_{}", Uuid::new_v4().simple())
    }

    /// Why the answer ended: for its calls, when it ended by itself and every call is complete. A call that the request itself
    /// named is no reason, as in OpenAI's API.
    pub(in crate::http) fn reason(&self, finish: FinishReason) -> StopReason {
        match StopReason::from(finish) {
            StopReason::Stop if !self.named && self.begun > 0 && self.begun == self.ended => StopReason::ToolCalls,
            reason => reason,
        }
    }

    /// Whether the answer is to have tools called, also where the request named the call.
    pub(in crate::http) fn calls(&self, finish: FinishReason) -> bool {
        self.begun > 0 && self.begun == self.ended && StopReason::from(finish) == StopReason::Stop
    }

    /// Whether every call that began is complete.
    pub(super) const fn is_whole(&self) -> bool {
        self.begun == self.ended
    }

    /// Whether the answer so far ends in text, of which at most white space is held back.
    pub(super) fn is_in_text(&self) -> bool {
        self.parser.is_in_text()
    }

    /// Tokens of reasoning so far; `None` when none is looked for.
    pub(in crate::http) fn reasoning_tokens(&self) -> Option<usize> {
        self.counts_reasoning.then(|| self.parser.counts().reasoning)
    }
}

/// An answer put together from its parts.
#[derive(Debug, Default)]
struct Whole {
    reasoning: String,
    text: String,
    calls: Vec<ToolCall>,
}

impl Whole {
    fn add(&mut self, part: Part) {
        match part {
            Part::Reasoning(text) => self.reasoning.push_str(&text),
            Part::Text(text) => self.text.push_str(&text),
            Part::Call { id, name, .. } => {
                let function = CalledFunction { name, arguments: String::new() };
                self.calls.push(ToolCall { id, kind: "function", function });
            }
            Part::Arguments { index, delta } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.function.arguments.push_str(&delta);
                }
            }
            Part::CallEnd { .. } => {}
        }
    }

    fn message(self) -> AnswerMessage {
        let given = |text: String| (!text.is_empty()).then_some(text);
        AnswerMessage {
            role: "assistant",
            content: given(self.text),
            reasoning_content: given(self.reasoning),
            tool_calls: self.calls,
        }
    }
}
