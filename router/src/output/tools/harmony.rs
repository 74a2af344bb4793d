//! Calls of gpt-oss: messages to `functions.NAME`, as the harmony format writes them.
//!
//! Messages to nobody are text here, markers included: the reasoning parser for this format takes those apart, and
//! leaves calls as they are.

use super::expect::{Expect, Match};
use super::json::{Body, Take, is_space};
use super::scanner::{Form, Opener, Step};
use super::sink::Sink;

pub(in super::super) const START: &str = "<|start|>";
pub(in super::super) const CHANNEL: &str = "<|channel|>";
pub(in super::super) const MESSAGE: &str = "<|message|>";
pub(in super::super) const END: &str = "<|end|>";
pub(in super::super) const CALL: &str = "<|call|>";
pub(in super::super) const RETURN: &str = "<|return|>";
pub(in super::super) const CONSTRAIN: &str = "<|constrain|>";

/// Special tokens that carry the format.
pub(in super::super) const MARKERS: &[&str] = &[START, CHANNEL, MESSAGE, END, CALL, RETURN, CONSTRAIN];

/// Most bytes of a message's header besides the name in it.
const MOST_HEADER: usize = 256;

static OPENERS: [Opener; 2] = [Opener::marker(START), Opener::marker(CHANNEL)];

#[derive(Debug)]
pub(super) struct Harmony {
    state: State,
    /// The header begins with the role, not with the channel.
    has_role: bool,
    /// The header has its channel.
    has_channel: bool,
    header: String,
    name: String,
}

#[derive(Debug)]
enum State {
    Header,
    Body(Body),
    AfterBody(Expect),
}

impl Harmony {
    pub(super) fn new() -> Self {
        Self { state: State::Header, has_role: true, has_channel: false, header: String::new(), name: String::new() }
    }

    fn header(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        self.header.push(c);
        if self.is_anew() {
            return Step::Reject;
        }
        if !self.header.ends_with(MESSAGE) {
            let most = MOST_HEADER + sink.limits().name;
            return if self.header.len() > most { Step::Reject } else { Step::Next };
        }
        if self.has_role && !self.header.starts_with("assistant") {
            return Step::Reject;
        }
        let Some(recipient) = recipient(&self.header) else { return Step::Reject };
        let function = recipient.strip_prefix("functions.");
        if function.is_none() && !sink.lists_tools() {
            // The format's own tools are not ours to call.
            return Step::Reject;
        }
        self.name = function.unwrap_or(recipient).to_owned();
        if !sink.knows(&self.name) {
            return Step::Reject;
        }
        self.state = State::Body(Body::default());
        Step::Next
    }

    /// Whether another header begins inside this one, which then is none.
    fn is_anew(&mut self) -> bool {
        self.header.ends_with(START) || self.header.ends_with(CHANNEL) && std::mem::replace(&mut self.has_channel, true)
    }
}

/// What stands before the arguments of a call.
pub(super) fn call_header(name: &str) -> String {
    format!("{CHANNEL}commentary to=functions.{name} {CONSTRAIN}json{MESSAGE}")
}

/// Whom a header addresses: `to=NAME`, behind the role or behind the channel.
pub(in super::super) fn recipient(header: &str) -> Option<&str> {
    let (_, behind) = header.split_once("to=")?;
    let name = behind.split(|c: char| c.is_whitespace() || c == '<').next()?;
    (!name.is_empty()).then_some(name)
}

impl Form for Harmony {
    fn openers(&self) -> &'static [Opener] {
        &OPENERS
    }

    fn open(&mut self, opener: usize) {
        *self = Self::new();
        self.has_role = opener == 0;
        self.has_channel = opener == 1;
    }

    fn step(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match &mut self.state {
            State::Header => self.header(c, sink),
            State::Body(body) => match body.step_call(c, &self.name, sink) {
                Take::More => Step::Next,
                Take::Done => {
                    self.state = State::AfterBody(Expect::default());
                    Step::Next
                }
                Take::Before | Take::Broken => Step::Reject,
            },
            State::AfterBody(expect) => match expect.step(c, &[CALL, END]) {
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
