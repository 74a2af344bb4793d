//! DeepSeek's calls, as V3 and R1 write them (a kind, the name, fenced JSON) and as V3.1 does (name and JSON).

use super::expect::{Expect, Match};
use super::json::{Body, Take, is_space};
use super::scanner::{Form, Opener, Step};
use super::sink::Sink;

pub(super) const CALLS_BEGIN: &str = "<｜tool▁calls▁begin｜>";
pub(super) const CALLS_END: &str = "<｜tool▁calls▁end｜>";
pub(super) const CALL_BEGIN: &str = "<｜tool▁call▁begin｜>";
pub(super) const CALL_END: &str = "<｜tool▁call▁end｜>";
pub(super) const SEPARATOR: &str = "<｜tool▁sep｜>";

static OPENERS: [Opener; 2] = [Opener::marker(CALLS_BEGIN), Opener::marker(CALL_BEGIN)];

#[derive(Debug)]
pub(super) struct DeepSeek {
    state: State,
    /// What stands before the separator: the name, or the kind `function`.
    head: String,
    name: String,
    called: bool,
}

#[derive(Debug)]
enum State {
    /// Between calls.
    Outer(Expect),
    Head,
    Separator(Expect),
    /// Behind the separator: arguments, or a name.
    Behind,
    Name,
    /// Between the name and its arguments, which stand in fenced code.
    Fence,
    Body(Body),
    AfterBody(Expect),
}

impl DeepSeek {
    pub(super) fn new() -> Self {
        Self { state: State::Head, head: String::new(), name: String::new(), called: false }
    }

    fn goto(&mut self, state: State) -> Step {
        self.state = state;
        Step::Next
    }

    fn head(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        if c == '<' {
            let mut expect = Expect::default();
            expect.step(c, &[SEPARATOR]);
            return self.goto(State::Separator(expect));
        }
        if self.head.len() >= sink.limits().name {
            return Step::Reject;
        }
        self.head.push(c);
        Step::Next
    }

    fn behind(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match c {
            '{' => {
                self.name = self.head.trim().to_owned();
                self.body(c, sink)
            }
            c if is_space(c) => Step::Next,
            c if self.head.trim() == "function" => {
                self.name.clear();
                self.name.push(c);
                self.goto(State::Name)
            }
            _ => Step::Reject,
        }
    }

    fn name(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match c {
            '\n' | '`' => self.goto(State::Fence),
            '{' => self.body(c, sink),
            c if self.name.len() < sink.limits().name => {
                self.name.push(c);
                Step::Next
            }
            _ => Step::Reject,
        }
    }

    fn body(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        self.name.truncate(self.name.trim_end().len());
        if !sink.knows(&self.name) {
            return Step::Reject;
        }
        self.state = State::Body(Body::default());
        self.step(c, sink)
    }

    fn outer(&mut self, found: Match, c: char, sink: &mut Sink<'_>) -> Step {
        match found {
            Match::Partial => Step::Next,
            Match::Found(0) => {
                self.head.clear();
                self.goto(State::Head)
            }
            Match::Found(_) if self.called => Step::Close,
            Match::Other if is_space(c) => {
                if self.called {
                    sink.settle();
                }
                Step::Next
            }
            Match::Found(_) | Match::Other | Match::Broken => Step::Reject,
        }
    }

    fn after_body(&mut self, found: Match, c: char, sink: &mut Sink<'_>) -> Step {
        match found {
            Match::Partial => Step::Next,
            Match::Found(0) => {
                sink.settle();
                self.goto(State::Outer(Expect::default()))
            }
            // The end of the call is missing.
            Match::Found(1) => Step::Close,
            Match::Found(_) => {
                self.head.clear();
                self.goto(State::Head)
            }
            Match::Other if is_space(c) || c == '`' => {
                sink.settle();
                Step::Next
            }
            Match::Other | Match::Broken => Step::Reject,
        }
    }
}

impl Form for DeepSeek {
    fn openers(&self) -> &'static [Opener] {
        &OPENERS
    }

    fn open(&mut self, opener: usize) {
        *self = Self::new();
        if opener == 0 {
            self.state = State::Outer(Expect::default());
        }
    }

    fn step(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match &mut self.state {
            State::Outer(expect) => {
                let found = expect.step(c, &[CALL_BEGIN, CALLS_END]);
                self.outer(found, c, sink)
            }
            State::Head => self.head(c, sink),
            State::Separator(expect) => match expect.step(c, &[SEPARATOR]) {
                Match::Partial => Step::Next,
                Match::Found(_) => self.goto(State::Behind),
                Match::Other | Match::Broken => Step::Reject,
            },
            State::Behind => self.behind(c, sink),
            State::Name => self.name(c, sink),
            State::Fence => match c {
                '{' => self.body(c, sink),
                '`' | 'j' | 's' | 'o' | 'n' => Step::Next,
                c if is_space(c) => Step::Next,
                _ => Step::Reject,
            },
            State::Body(body) => match body.step_call(c, &self.name, sink) {
                Take::More => Step::Next,
                Take::Done => {
                    self.called = true;
                    self.goto(State::AfterBody(Expect::default()))
                }
                Take::Before | Take::Broken => Step::Reject,
            },
            State::AfterBody(expect) => {
                let found = expect.step(c, &[CALL_END, CALLS_END, CALL_BEGIN]);
                self.after_body(found, c, sink)
            }
        }
    }
}
