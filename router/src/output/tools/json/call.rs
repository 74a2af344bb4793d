//! A call as one JSON object: `{"name": "f", "arguments": {…}}`, its keys in any order.

use super::super::sink::Sink;
use super::body::{Body, Take};
use super::is_space;
use super::span::Span;
use super::string::Decoder;

/// Reads one object from its opening brace on.
#[derive(Debug, Default)]
pub(in super::super) struct CallObject {
    state: State,
    /// Without a marker around it, an object needs arguments to be a call.
    bare: bool,
    /// Inside the value of `function`, as OpenAI's API writes calls.
    nested: bool,
    key: String,
    name: String,
    has_name: bool,
    has_arguments: bool,
    begun: bool,
    body: Body,
    /// Arguments that came before the name.
    early: String,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Start,
    Key,
    InKey(Decoder),
    Colon,
    Value,
    Name(Decoder),
    Arguments,
    Skip(Skipped),
    After,
}

/// A value that says nothing about the call.
#[derive(Debug)]
enum Skipped {
    Scalar,
    Span(Span),
}

impl CallObject {
    pub(in super::super) fn new(bare: bool) -> Self {
        Self { bare, ..Self::default() }
    }

    /// Takes a character. The call ends with its arguments; `Before` says that the brace behind them is missing.
    pub(in super::super) fn step(&mut self, c: char, sink: &mut Sink<'_>) -> Take {
        let missing = self.begun && matches!(self.state, State::After);
        match self.advance(c, sink) {
            Take::Broken if missing => Take::Before,
            take => take,
        }
    }

    fn advance(&mut self, c: char, sink: &mut Sink<'_>) -> Take {
        match &mut self.state {
            State::Start | State::Key | State::Colon | State::Value if is_space(c) => {}
            State::Start if c == '{' => self.state = State::Key,
            State::Key if c == '"' => {
                self.key.clear();
                self.state = State::InKey(Decoder::default());
            }
            State::Key if c == '}' => return self.close(sink),
            State::InKey(decoder) => {
                if decoder.step(c, &mut self.key) {
                    self.state = State::Colon;
                }
                return self.within(self.key.len(), sink);
            }
            State::Colon if c == ':' => self.state = State::Value,
            State::Value => return self.value(c, sink),
            State::Name(decoder) => {
                if decoder.step(c, &mut self.name) {
                    return self.named(sink);
                }
                return self.within(self.name.len(), sink);
            }
            State::Arguments => return self.argument(c, sink),
            State::Skip(_) => return self.skip(c, sink),
            State::After => match c {
                ',' => self.state = State::Key,
                '}' => return self.close(sink),
                c if is_space(c) && self.begun => sink.settle(),
                c if is_space(c) => {}
                _ => return Take::Broken,
            },
            _ => return Take::Broken,
        }
        Take::More
    }

    fn within(&self, length: usize, sink: &Sink<'_>) -> Take {
        if length > sink.limits().name { Take::Broken } else { Take::More }
    }

    /// The first character of a value.
    fn value(&mut self, c: char, sink: &mut Sink<'_>) -> Take {
        match (self.key.as_str(), c) {
            ("name" | "function", '"') if !self.has_name => self.state = State::Name(Decoder::default()),
            ("name", _) if !self.has_name => return Take::Broken,
            ("function", '{') if !self.has_name && !self.nested => {
                self.nested = true;
                self.state = State::Key;
            }
            // A tool's definition has its schema where a call has its arguments.
            ("parameters", _) if self.nested => return Take::Broken,
            ("arguments" | "parameters", _) if !self.has_arguments => {
                self.has_arguments = true;
                self.state = State::Arguments;
                return self.argument(c, sink);
            }
            _ => {
                let span = matches!(c, '{' | '[' | '"').then(Span::default);
                self.state = State::Skip(span.map_or(Skipped::Scalar, Skipped::Span));
                return self.skip(c, sink);
            }
        }
        Take::More
    }

    fn named(&mut self, sink: &mut Sink<'_>) -> Take {
        if !sink.knows(&self.name) {
            return Take::Broken;
        }
        self.has_name = true;
        self.state = State::After;
        if self.has_arguments {
            self.begun = true;
            sink.begin(&self.name);
            sink.argument(&std::mem::take(&mut self.early));
            sink.end();
        }
        Take::More
    }

    fn argument(&mut self, c: char, sink: &mut Sink<'_>) -> Take {
        let mut text = String::new();
        let take = self.body.step(c, &mut text);
        if take == Take::Broken {
            return take;
        }
        if self.has_name && !self.begun && (self.body.is_certain() || take == Take::Done) {
            self.begun = true;
            sink.begin(&self.name);
        }
        if self.begun {
            sink.settle();
            sink.argument(&text);
        } else {
            self.early.push_str(&text);
        }
        if take == Take::Done {
            self.state = State::After;
            if self.begun {
                sink.end();
            }
        }
        Take::More
    }

    fn skip(&mut self, c: char, sink: &mut Sink<'_>) -> Take {
        let State::Skip(skipped) = &mut self.state else { return Take::Broken };
        let over = match skipped {
            Skipped::Span(span) => span.step(c),
            Skipped::Scalar if matches!(c, ',' | '}') => {
                self.state = State::After;
                return self.advance(c, sink);
            }
            Skipped::Scalar if is_space(c) => true,
            Skipped::Scalar if c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.') => false,
            Skipped::Scalar => return Take::Broken,
        };
        if over {
            self.state = State::After;
        }
        Take::More
    }

    /// A closing brace.
    fn close(&mut self, sink: &mut Sink<'_>) -> Take {
        if std::mem::take(&mut self.nested) {
            self.state = State::After;
            return Take::More;
        }
        if !self.begun {
            if self.bare || !self.has_name {
                return Take::Broken;
            }
            sink.begin(&self.name);
            sink.end();
        }
        sink.settle();
        Take::Done
    }
}
