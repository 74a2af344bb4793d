//! Calls written as JSON objects, alone or in an array, with or without markers around them.
//!
//! Hermes, Qwen, Granite, Llama 3, Phi-4 and what has no form of its own differ only in the markers.

use super::expect::{Expect, Match};
use super::json::{CallObject, Take, is_space};
use super::scanner::{Form, Opener, Step};
use super::sink::Sink;

/// How a family frames its objects.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) openers: &'static [Opener],
    /// How many openers, counted from the first, only calls have. Behind others an object without arguments is no call.
    pub(super) markers: usize,
    /// Number of the opener that a word may follow in its line, as in fenced code.
    pub(super) fence: Option<usize>,
    pub(super) array: bool,
    pub(super) object: bool,
    /// Between objects that stand in no array.
    pub(super) separator: Option<char>,
    /// What may follow the calls and goes with them.
    pub(super) closers: &'static [&'static str],
}

/// Reads the calls behind an opener.
#[derive(Debug)]
pub(super) struct JsonForm {
    frame: &'static Frame,
    state: State,
    in_array: bool,
    bare: bool,
    closers: &'static [&'static str],
}

#[derive(Debug)]
enum State {
    /// The rest of the line that opens fenced code.
    Fence,
    Lead,
    Object(Box<CallObject>),
    /// Behind an object of an array.
    Between,
    /// Before an object: the first of an array, or one behind a comma or separator.
    Another {
        first: bool,
    },
    Trail {
        expect: Expect,
        /// Brackets too many have come.
        stray: bool,
    },
}

impl JsonForm {
    pub(super) fn new(frame: &'static Frame) -> Self {
        Self { frame, state: State::Lead, in_array: false, bare: false, closers: frame.closers }
    }

    fn object(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        let mut object = Box::new(CallObject::new(self.bare));
        object.step(c, sink);
        self.state = State::Object(object);
        Step::Next
    }

    fn lead(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match c {
            '{' if self.frame.object => self.object(c, sink),
            '[' if self.frame.array => {
                self.in_array = true;
                self.state = State::Another { first: true };
                Step::Next
            }
            c if is_space(c) => Step::Next,
            _ => Step::Reject,
        }
    }

    /// The object is over.
    fn after_object(&mut self) -> Step {
        if self.in_array {
            self.state = State::Between;
            return Step::Next;
        }
        self.trail()
    }

    fn trail(&mut self) -> Step {
        if self.closers.is_empty() && self.frame.separator.is_none() {
            return Step::Close;
        }
        self.state = State::Trail { expect: Expect::default(), stray: false };
        Step::Next
    }

    fn between(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match c {
            ',' => self.state = State::Another { first: false },
            ']' => return self.end_array(sink),
            c if is_space(c) => sink.settle(),
            _ => return Step::Reject,
        }
        Step::Next
    }

    fn end_array(&mut self, sink: &mut Sink<'_>) -> Step {
        sink.settle();
        self.in_array = false;
        self.trail()
    }

    /// Behind the calls. Some models close more brackets than they opened, or write several objects with nothing
    /// between them.
    fn trailing(&mut self, found: Match, stray: bool, c: char, sink: &mut Sink<'_>) -> Step {
        match found {
            Match::Found(_) => return Step::Close,
            Match::Partial => {}
            Match::Other if is_space(c) => {
                if !stray {
                    sink.settle();
                }
            }
            Match::Other if Some(c) == self.frame.separator => self.state = State::Another { first: false },
            Match::Other if c == '{' && self.frame.object => return self.object(c, sink),
            Match::Other if matches!(c, '}' | ']') && !self.closers.is_empty() => {
                self.state = State::Trail { expect: Expect::default(), stray: true };
            }
            Match::Other | Match::Broken => return Step::Reject,
        }
        Step::Next
    }
}

impl Form for JsonForm {
    fn openers(&self) -> &'static [Opener] {
        self.frame.openers
    }

    fn open(&mut self, opener: usize) {
        let fenced = self.frame.fence == Some(opener);
        self.state = if fenced { State::Fence } else { State::Lead };
        self.in_array = false;
        self.bare = opener >= self.frame.markers;
        self.closers = if self.bare && !fenced { &[] } else { self.frame.closers };
    }

    fn step(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match &mut self.state {
            State::Fence if c.is_alphanumeric() || c == '_' => Step::Next,
            State::Fence | State::Lead => {
                self.state = State::Lead;
                self.lead(c, sink)
            }
            State::Object(object) => match object.step(c, sink) {
                Take::More => Step::Next,
                Take::Done => self.after_object(),
                Take::Before => match self.after_object() {
                    Step::Next => self.step(c, sink),
                    _ => Step::Reject,
                },
                Take::Broken => Step::Reject,
            },
            State::Between => self.between(c, sink),
            State::Another { first } => match c {
                '{' => self.object(c, sink),
                ']' if self.in_array && !*first => self.end_array(sink),
                c if is_space(c) => Step::Next,
                _ => Step::Reject,
            },
            State::Trail { expect, stray } => {
                let (found, stray) = (expect.step(c, self.closers), *stray);
                self.trailing(found, stray, c, sink)
            }
        }
    }
}
