//! Qwen3-Coder's calls: `<tool_call><function=f><parameter=a>…</parameter></function></tool_call>`.

use super::expect::{Expect, Match};
use super::json::is_space;
use super::scanner::{Form, Opener, Step};
use super::sink::Sink;
use super::typed::TypedValue;

const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";
const FUNCTION_END: &str = "</function>";
const PARAMETER_END: &str = "</parameter>";
const CALL_END: &str = "</tool_call>";

/// Some answers leave the outer tag out.
static OPENERS: [Opener; 2] = [Opener::marker("<tool_call>"), Opener::marker(FUNCTION)];

#[derive(Debug)]
pub(super) struct Xml {
    state: State,
    name: String,
    key: String,
    /// The call has an argument.
    first: bool,
}

#[derive(Debug)]
enum State {
    Lead(Expect),
    Name,
    Inside(Expect),
    Key,
    Value(Box<TypedValue>),
    Trail(Expect),
}

impl Xml {
    pub(super) fn new() -> Self {
        Self { state: State::Name, name: String::new(), key: String::new(), first: true }
    }

    fn goto(&mut self, state: State) -> Step {
        self.state = state;
        Step::Next
    }

    fn name(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match c {
            '>' => {
                let name = self.name.trim();
                if !sink.knows(name) {
                    return Step::Reject;
                }
                sink.begin(name);
                self.first = true;
                self.goto(State::Inside(Expect::default()))
            }
            c if self.name.len() < sink.limits().name => {
                self.name.push(c);
                Step::Next
            }
            _ => Step::Reject,
        }
    }

    fn key(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match c {
            '>' => {
                let names = (self.name.trim(), self.key.trim());
                let value = TypedValue::begin(names, self.first, (PARAMETER_END, true), sink);
                self.first = false;
                self.goto(State::Value(Box::new(value)))
            }
            c if self.key.len() < sink.limits().name => {
                self.key.push(c);
                Step::Next
            }
            _ => Step::Reject,
        }
    }

    fn inside(&mut self, found: Match, c: char, sink: &mut Sink<'_>) -> Step {
        match found {
            Match::Partial => Step::Next,
            Match::Found(0) => {
                self.key.clear();
                self.goto(State::Key)
            }
            Match::Found(_) => {
                if !self.first {
                    sink.argument("}");
                }
                sink.end();
                self.goto(State::Trail(Expect::default()))
            }
            Match::Other if is_space(c) => {
                sink.settle();
                Step::Next
            }
            Match::Other | Match::Broken => Step::Reject,
        }
    }
}

impl Form for Xml {
    fn openers(&self) -> &'static [Opener] {
        &OPENERS
    }

    fn open(&mut self, opener: usize) {
        *self = Self::new();
        if opener == 0 {
            self.state = State::Lead(Expect::default());
        }
    }

    fn step(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match &mut self.state {
            State::Lead(expect) => match expect.step(c, &[FUNCTION]) {
                Match::Partial => Step::Next,
                Match::Found(_) => self.goto(State::Name),
                Match::Other if is_space(c) => Step::Next,
                Match::Other | Match::Broken => Step::Reject,
            },
            State::Name => self.name(c, sink),
            State::Inside(expect) => {
                let found = expect.step(c, &[PARAMETER, FUNCTION_END]);
                self.inside(found, c, sink)
            }
            State::Key => self.key(c, sink),
            State::Value(value) => {
                if value.step(c, sink) {
                    return self.goto(State::Inside(Expect::default()));
                }
                Step::Next
            }
            State::Trail(expect) => match expect.step(c, &[CALL_END, FUNCTION]) {
                Match::Partial => Step::Next,
                Match::Found(0) => Step::Close,
                Match::Found(_) => {
                    self.name.clear();
                    self.goto(State::Name)
                }
                Match::Other if is_space(c) => {
                    sink.settle();
                    Step::Next
                }
                Match::Other | Match::Broken => Step::Reject,
            },
        }
    }

    fn finish(&mut self, sink: &mut Sink<'_>) {
        if let State::Value(value) = &mut self.state {
            value.finish(sink);
        }
    }
}
