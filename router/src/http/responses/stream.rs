//! One response on its way: the events of a stream, and the object that they make. A whole answer is the same without the
//! events.

use std::sync::Arc;

use super::answer::{OutputItem, ResponseEvent, ResponseObject, Status};
use super::keeping::Keeping;
use crate::http::blocks::{BlockEvent, Blocks, Kind, Sort, Tokens};
use crate::http::errors::{ApiError, Dialect};
use crate::http::generation::{Facts, Step};
use crate::http::openai::answers::StopReason;
use crate::http::openai::logprobs::ChatLogprob;
use crate::http::openai::parts::Form;
use crate::http::sse::{Events, Translate};
use crate::input::ModelText;

pub(super) struct Telling {
    response: ResponseObject,
    blocks: Blocks,
    tokens: Tokens,
    /// Text of the item that is open, and its tokens where they are told.
    text: String,
    logprobs: Vec<ChatLogprob>,
    /// Whether a limit ends the answer.
    cut_off: bool,
    keeping: Option<Keeping>,
    /// Number of the next event.
    next: u64,
}

impl Telling {
    pub(super) fn new(response: ResponseObject, form: Option<&Form>, facts: &Facts, keeping: Option<Keeping>) -> Self {
        let tokens = Tokens { prompt: facts.input_length, ..Tokens::default() };
        Self {
            response,
            blocks: Blocks::new(form, facts),
            tokens,
            text: String::new(),
            logprobs: Vec::new(),
            cut_off: false,
            keeping,
            next: 0,
        }
    }

    /// The same with the log-probabilities of tokens, if there is a model to tell them.
    pub(super) fn with_logprobs(self, model: Option<Arc<ModelText>>) -> Self {
        Self { blocks: self.blocks.with_logprobs(model), ..self }
    }

    /// Takes a step in; `events` where there is a stream.
    pub(super) fn take(&mut self, mut step: Step, mut events: Option<&mut Events>) {
        self.tokens.generated += 1;
        if self.tokens.generated == 1 {
            self.tokens.cached = step.cached_tokens as usize;
            self.tell_of_response("response.created", events.as_deref_mut());
            self.tell_of_response("response.in_progress", events.as_deref_mut());
        }
        // Whether the last item is whole depends on why the answer ends.
        self.cut_off = step.finish.is_some_and(|finish| StopReason::from(finish) == StopReason::Length);
        let mut told = Vec::new();
        self.blocks.step(&mut step, |event| told.push(event));
        let last = told.len();
        for (number, event) in told.into_iter().enumerate() {
            let end = if self.cut_off && number + 1 == last { Status::Incomplete } else { Status::Completed };
            self.on(event, end, events.as_deref_mut());
        }
    }

    /// The response is over: what is told last, and kept.
    pub(super) fn finish(mut self, events: Option<&mut Events>) -> ResponseObject {
        self.close(events);
        self.response
    }

    fn close(&mut self, events: Option<&mut Events>) {
        self.tokens.reasoning = self.blocks.reasoning_tokens();
        self.response.end(self.cut_off, self.tokens);
        if let Some(keeping) = self.keeping.take() {
            keeping.keep(&self.response);
        }
        self.tell_of_response(if self.cut_off { "response.incomplete" } else { "response.completed" }, events);
    }

    fn on(&mut self, event: BlockEvent, end: Status, events: Option<&mut Events>) {
        match event {
            BlockEvent::Begin(kind) => self.begin(kind, events),
            BlockEvent::More(sort, more, mut tokens) => {
                if let Some(events) = events {
                    let delta = ResponseEvent::new(names(sort).0);
                    self.push(ResponseEvent { delta: Some(&more), logprobs: Some(&tokens), ..delta }, sort, events);
                }
                self.text.push_str(&more);
                self.logprobs.append(&mut tokens);
            }
            BlockEvent::End(sort) => self.end_item(sort, end, events),
        }
    }

    fn begin(&mut self, kind: Kind, events: Option<&mut Events>) {
        self.text.clear();
        self.response.output.push(OutputItem::begun(kind));
        let (Some(events), Some(item)) = (events, self.response.output.last()) else { return };
        let output_index = Some(self.response.output.len() - 1);
        let added =
            ResponseEvent { output_index, item: Some(item), ..ResponseEvent::new("response.output_item.added") };
        push(&mut self.next, added, events);
        if let Some(part) = item.part(String::new(), Vec::new()) {
            let added = ResponseEvent {
                output_index,
                item_id: Some(item.id()),
                content_index: Some(0),
                part: Some(&part),
                ..ResponseEvent::new("response.content_part.added")
            };
            push(&mut self.next, added, events);
        }
    }

    fn end_item(&mut self, sort: Sort, end: Status, mut events: Option<&mut Events>) {
        let (text, logprobs) = (std::mem::take(&mut self.text), std::mem::take(&mut self.logprobs));
        if let Some(events) = events.as_deref_mut() {
            let mut done = ResponseEvent { logprobs: Some(&logprobs), ..ResponseEvent::new(names(sort).1) };
            *(if sort == Sort::Call { &mut done.arguments } else { &mut done.text }) = Some(&text);
            self.push(done, sort, events);
        }
        let output_index = self.response.output.len().checked_sub(1);
        let Some(item) = self.response.output.last_mut() else { return };
        let part = if events.is_some() { item.part(text.clone(), logprobs.clone()) } else { None };
        item.finish(text, logprobs, end);
        let Some(events) = events else { return };
        if let Some(part) = &part {
            let done = ResponseEvent {
                output_index,
                item_id: Some(item.id()),
                content_index: Some(0),
                part: Some(part),
                ..ResponseEvent::new("response.content_part.done")
            };
            push(&mut self.next, done, events);
        }
        let done = ResponseEvent { output_index, item: Some(item), ..ResponseEvent::new("response.output_item.done") };
        push(&mut self.next, done, events);
    }

    /// An event within the item that is open.
    fn push(&mut self, event: ResponseEvent<'_>, sort: Sort, events: &mut Events) {
        let Some(item) = self.response.output.last() else { return };
        let event = ResponseEvent {
            output_index: self.response.output.len().checked_sub(1),
            item_id: Some(item.id()),
            content_index: (sort != Sort::Call).then_some(0),
            logprobs: event.logprobs.filter(|_| sort == Sort::Text),
            ..event
        };
        push(&mut self.next, event, events);
    }

    fn tell_of_response(&mut self, kind: &'static str, events: Option<&mut Events>) {
        if let Some(events) = events {
            push(&mut self.next, ResponseEvent { response: Some(&self.response), ..ResponseEvent::new(kind) }, events);
        }
    }
}

/// The events in which a text grows and ends.
const fn names(sort: Sort) -> (&'static str, &'static str) {
    match sort {
        Sort::Text => ("response.output_text.delta", "response.output_text.done"),
        Sort::Reasoning => ("response.reasoning_text.delta", "response.reasoning_text.done"),
        Sort::Call => ("response.function_call_arguments.delta", "response.function_call_arguments.done"),
    }
}

fn push(next: &mut u64, event: ResponseEvent<'_>, events: &mut Events) {
    let event = ResponseEvent { sequence_number: *next, ..event };
    *next += 1;
    events.push_named(event.kind, &event);
}

impl Translate for Telling {
    const DIALECT: Dialect = Dialect::OpenAi;

    fn step(&mut self, _: usize, step: Step, events: &mut Events) {
        self.take(step, Some(events));
    }

    fn end(&mut self, events: &mut Events) {
        self.close(Some(events));
    }

    fn fail(&mut self, error: &ApiError, events: &mut Events) {
        self.response.fail(error);
        self.tell_of_response("response.failed", Some(events));
    }
}
