//! Mistral's calls: `[TOOL_CALLS]` with an array of objects, or `[TOOL_CALLS]name[ARGS]{…}` for each call.
//!
//! Between name and arguments some versions write `[CALL_ID]` with an id of their own, some write nothing.

use super::expect::{Expect, Match};
use super::json::{Body, Take, is_space};
use super::json_form::{Frame, JsonForm};
use super::scanner::{Form, Opener, Step};
use super::sink::Sink;

static ARRAY: Frame = Frame {
    openers: &[Opener::marker("[TOOL_CALLS]")],
    markers: 1,
    fence: None,
    array: true,
    object: true,
    separator: None,
    closers: &[],
};

/// What may follow the name in brackets.
const TAGS: &[&str] = &["[ARGS]", "[CALL_ID]"];
const ARGS: usize = 0;

#[derive(Debug)]
pub(super) struct Mistral {
    state: State,
    name: String,
}

#[derive(Debug)]
enum State {
    Lead,
    Array(Box<JsonForm>),
    Name,
    Tag(Expect),
    CallId,
    Body(Body),
}

impl Mistral {
    pub(super) fn new() -> Self {
        Self { state: State::Lead, name: String::new() }
    }

    fn lead(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match c {
            '[' | '{' => {
                let mut array = Box::new(JsonForm::new(&ARRAY));
                array.open(0);
                let step = array.step(c, sink);
                self.state = State::Array(array);
                step
            }
            c if is_space(c) => Step::Next,
            c => {
                self.state = State::Name;
                self.name(c, sink)
            }
        }
    }

    fn name(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match c {
            '[' => self.tag(c, sink),
            '{' => self.body(c, sink),
            c if is_part(c) && self.name.len() < sink.limits().name => {
                self.name.push(c);
                Step::Next
            }
            _ => Step::Reject,
        }
    }

    fn tag(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        if !sink.knows(&self.name) {
            return Step::Reject;
        }
        let mut expect = Expect::default();
        expect.step(c, TAGS);
        self.state = State::Tag(expect);
        Step::Next
    }

    fn body(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        if !sink.knows(&self.name) {
            return Step::Reject;
        }
        self.state = State::Body(Body::default());
        self.step(c, sink)
    }
}

/// Whether names and ids have this character.
fn is_part(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/')
}

impl Form for Mistral {
    fn openers(&self) -> &'static [Opener] {
        ARRAY.openers
    }

    fn open(&mut self, _opener: usize) {
        *self = Self::new();
    }

    fn step(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match &mut self.state {
            State::Lead => self.lead(c, sink),
            State::Array(array) => array.step(c, sink),
            State::Name => self.name(c, sink),
            State::Tag(expect) => match expect.step(c, TAGS) {
                Match::Partial => Step::Next,
                Match::Found(ARGS) => {
                    self.state = State::Body(Body::default());
                    Step::Next
                }
                Match::Found(_) => {
                    self.state = State::CallId;
                    Step::Next
                }
                Match::Other | Match::Broken => Step::Reject,
            },
            State::CallId => match c {
                '[' => self.tag(c, sink),
                '{' => self.body(c, sink),
                c if is_part(c) => Step::Next,
                _ => Step::Reject,
            },
            State::Body(body) => match body.step_call(c, &self.name, sink) {
                Take::More => Step::Next,
                Take::Done => Step::Close,
                Take::Before | Take::Broken => Step::Reject,
            },
        }
    }
}
