//! Calls written as a Python list of calls: `[f(a=1), g(b="x")]`, as Llama 3.2 and 4, OLMo 3 and LFM 2 do.
//!
//! The arguments become JSON as they come; nothing is evaluated.

use super::expect::{Expect, Match};
use super::json::{Take, escape, is_space};
use super::python_value::PythonValue;
use super::scanner::{Form, Opener, Step};
use super::sink::Sink;

static OPENERS: [Opener; 4] = [
    Opener::marker("<|python_start|>"),
    Opener::marker("<|tool_call_start|>"),
    Opener::marker("<function_calls>"),
    Opener::bare("["),
];
const CLOSERS: &[&str] = &["<|python_end|>", "<|tool_call_end|>", "</function_calls>"];

#[derive(Debug)]
pub(super) struct Pythonic {
    state: State,
    /// Behind a marker, which has one that closes it.
    marked: bool,
    /// Inside brackets: some models leave them out behind a marker.
    listed: bool,
    name: String,
    key: String,
    begun: bool,
}

#[derive(Debug)]
enum State {
    Lead,
    /// Before a name, or in one.
    Name,
    /// Before a keyword argument or the closing parenthesis.
    Argument,
    Key,
    /// Behind a key, where only `=` may follow.
    Equals,
    Value(Box<PythonValue>),
    AfterCall(Expect),
    Trail(Expect),
}

impl Pythonic {
    pub(super) fn new() -> Self {
        let (name, key) = (String::new(), String::new());
        Self { state: State::Lead, marked: false, listed: false, name, key, begun: false }
    }

    fn goto(&mut self, state: State) -> Step {
        self.state = state;
        Step::Next
    }

    fn lead(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match c {
            '[' => {
                self.listed = true;
                self.goto(State::Name)
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
            '(' if sink.knows(&self.name) => {
                self.begun = false;
                self.goto(State::Argument)
            }
            c if is_space(c) && self.name.is_empty() => Step::Next,
            c if is_name(c, self.name.is_empty()) && self.name.len() < sink.limits().name => {
                self.name.push(c);
                Step::Next
            }
            _ => Step::Reject,
        }
    }

    fn argument(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match c {
            ')' => self.end_call(sink),
            c if is_space(c) => Step::Next,
            c if is_name(c, true) => {
                self.key.clear();
                self.key.push(c);
                self.goto(State::Key)
            }
            _ => Step::Reject,
        }
    }

    fn key(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match c {
            c if is_name(c, false) && self.key.len() < sink.limits().name => {
                self.key.push(c);
                Step::Next
            }
            c if is_space(c) => self.goto(State::Equals),
            '=' => self.equals(sink),
            _ => Step::Reject,
        }
    }

    /// From the first `key=` on it is certain that this is a call.
    fn equals(&mut self, sink: &mut Sink<'_>) -> Step {
        let before = if self.begun { ", " } else { "{" };
        if !self.begun {
            self.begun = true;
            sink.begin(&self.name);
        }
        sink.argument(&format!("{before}{}: ", escape(&self.key)));
        let limits = sink.limits();
        self.goto(State::Value(Box::new(PythonValue::new(limits.depth, limits.held))))
    }

    fn end_call(&mut self, sink: &mut Sink<'_>) -> Step {
        if self.begun {
            sink.argument("}");
        } else {
            sink.begin(&self.name);
        }
        sink.end();
        self.goto(State::AfterCall(Expect::default()))
    }

    fn after_call(&mut self, found: Match, c: char, sink: &mut Sink<'_>) -> Step {
        match found {
            Match::Partial => Step::Next,
            Match::Found(_) => Step::Close,
            Match::Other if is_space(c) => {
                sink.settle();
                Step::Next
            }
            Match::Other if c == ']' && self.listed => {
                sink.settle();
                if self.marked { self.goto(State::Trail(Expect::default())) } else { Step::Close }
            }
            Match::Other if c == ',' => {
                self.name.clear();
                self.goto(State::Name)
            }
            Match::Other if !self.listed => {
                self.name.clear();
                self.state = State::Name;
                self.name(c, sink)
            }
            Match::Other | Match::Broken => Step::Reject,
        }
    }
}

/// Whether a name may have this character, at its beginning or later.
fn is_name(c: char, first: bool) -> bool {
    c.is_alphabetic() || c == '_' || !first && (c.is_alphanumeric() || matches!(c, '.' | '-'))
}

impl Form for Pythonic {
    fn openers(&self) -> &'static [Opener] {
        &OPENERS
    }

    fn open(&mut self, opener: usize) {
        *self = Self::new();
        self.marked = opener < CLOSERS.len();
    }

    fn step(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match &mut self.state {
            State::Lead => self.lead(c, sink),
            State::Name => self.name(c, sink),
            State::Argument => self.argument(c, sink),
            State::Key => self.key(c, sink),
            State::Equals => match c {
                '=' => self.equals(sink),
                c if is_space(c) => Step::Next,
                _ => Step::Reject,
            },
            State::Value(value) => {
                let mut json = String::new();
                let take = value.step(c, &mut json);
                sink.argument(&json);
                match (take, c) {
                    (Take::More, _) => {
                        sink.settle();
                        Step::Next
                    }
                    (Take::Before, ',') => self.goto(State::Argument),
                    (Take::Before, ')') => self.end_call(sink),
                    _ => Step::Reject,
                }
            }
            State::AfterCall(expect) => {
                let closers: &[&str] = if self.marked { CLOSERS } else { &[] };
                let found = expect.step(c, closers);
                self.after_call(found, c, sink)
            }
            State::Trail(expect) => match expect.step(c, CLOSERS) {
                Match::Partial => Step::Next,
                Match::Found(_) => Step::Close,
                Match::Other if is_space(c) => {
                    sink.settle();
                    Step::Next
                }
                Match::Other | Match::Broken => Step::Reject,
            },
        }
    }
}
