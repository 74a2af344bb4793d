//! Calls of GLM 4.5 and later: `<tool_call>f`, then `<arg_key>a</arg_key><arg_value>…</arg_value>` for each argument.

use super::expect::{Expect, Match};
use super::json::is_space;
use super::scanner::{Form, Opener, Step};
use super::sink::Sink;
use super::typed::TypedValue;

const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";
const CALL_END: &str = "</tool_call>";

static OPENERS: [Opener; 1] = [Opener::marker("<tool_call>")];

#[derive(Debug)]
pub(super) struct Glm {
    state: State,
    name: String,
    key: String,
    begun: bool,
    first: bool,
}

#[derive(Debug)]
enum State {
    Name,
    /// Before a key or the end of the call.
    Inside(Expect),
    Key,
    /// Between a key and its value.
    Between(Expect),
    Value(Box<TypedValue>),
}

impl Glm {
    pub(super) fn new() -> Self {
        Self { state: State::Name, name: String::new(), key: String::new(), begun: false, first: true }
    }

    fn goto(&mut self, state: State) -> Step {
        self.state = state;
        Step::Next
    }

    fn name(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match c {
            '\n' if self.name.is_empty() => Step::Next,
            '\n' | '<' => {
                self.name.truncate(self.name.trim_end().len());
                if !sink.knows(&self.name) {
                    return Step::Reject;
                }
                self.state = State::Inside(Expect::default());
                if c == '<' { self.step(c, sink) } else { Step::Next }
            }
            '{' | '[' | '"' => Step::Reject,
            c if self.name.len() < sink.limits().name => {
                self.name.push(c);
                Step::Next
            }
            _ => Step::Reject,
        }
    }

    fn inside(&mut self, found: Match, c: char, sink: &mut Sink<'_>) -> Step {
        match found {
            Match::Partial => Step::Next,
            Match::Other if is_space(c) => {
                if self.begun {
                    sink.settle();
                }
                Step::Next
            }
            Match::Other | Match::Broken => Step::Reject,
            Match::Found(at) => {
                if !std::mem::replace(&mut self.begun, true) {
                    sink.begin(&self.name);
                }
                if at == 0 {
                    self.key.clear();
                    return self.goto(State::Key);
                }
                if !self.first {
                    sink.argument("}");
                }
                sink.end();
                Step::Close
            }
        }
    }

    fn key(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        self.key.push(c);
        if let Some(length) = self.key.strip_suffix(KEY_END).map(str::len) {
            self.key.truncate(length);
            return self.goto(State::Between(Expect::default()));
        }
        if self.key.len() > sink.limits().name + KEY_END.len() { Step::Reject } else { Step::Next }
    }
}

impl Form for Glm {
    fn openers(&self) -> &'static [Opener] {
        &OPENERS
    }

    fn open(&mut self, _opener: usize) {
        *self = Self::new();
    }

    fn step(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match &mut self.state {
            State::Name => self.name(c, sink),
            State::Inside(expect) => {
                let found = expect.step(c, &[KEY, CALL_END]);
                self.inside(found, c, sink)
            }
            State::Key => self.key(c, sink),
            State::Between(expect) => match expect.step(c, &[VALUE]) {
                Match::Partial => Step::Next,
                Match::Found(_) => {
                    let names = (self.name.as_str(), self.key.trim());
                    let value = TypedValue::begin(names, self.first, (VALUE_END, false), sink);
                    self.first = false;
                    self.goto(State::Value(Box::new(value)))
                }
                Match::Other if is_space(c) => Step::Next,
                Match::Other | Match::Broken => Step::Reject,
            },
            State::Value(value) => {
                if value.step(c, sink) {
                    return self.goto(State::Inside(Expect::default()));
                }
                Step::Next
            }
        }
    }

    fn finish(&mut self, sink: &mut Sink<'_>) {
        if let State::Value(value) = &mut self.state {
            value.finish(sink);
        }
    }
}
