//! The arguments of a call, written as JSON.

use super::super::sink::Sink;
use super::is_space;
use super::span::Span;
use super::string::Decoder;

/// What a character is to the part that reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Take {
    /// Taken; more is needed.
    More,
    /// Taken, and the last.
    Done,
    /// The part was over before this character, which was not taken.
    Before,
    /// It cannot be what was expected.
    Broken,
}

/// An object is passed on as it is written. Some models write the object into a string, which is taken apart; null
/// means no arguments.
#[derive(Debug, Default)]
pub(in super::super) enum Body {
    #[default]
    Start,
    Object(Span),
    Text(Decoder),
    Null(usize),
}

impl Body {
    /// Takes a character; adds the characters of the arguments that it makes certain to `into`.
    pub(super) fn step(&mut self, c: char, into: &mut String) -> Take {
        match self {
            Self::Start => self.start(c, into),
            Self::Object(span) => {
                into.push(c);
                if span.step(c) { Take::Done } else { Take::More }
            }
            Self::Text(decoder) => {
                if decoder.step(c, into) {
                    Take::Done
                } else {
                    Take::More
                }
            }
            Self::Null(matched) => {
                *matched += 1;
                match "null".chars().nth(*matched) {
                    Some(expected) if expected != c => Take::Broken,
                    _ if *matched == 3 => Take::Done,
                    _ => Take::More,
                }
            }
        }
    }

    fn start(&mut self, c: char, into: &mut String) -> Take {
        match c {
            '{' => {
                let mut span = Span::default();
                span.step(c);
                *self = Self::Object(span);
                into.push(c);
            }
            '"' => *self = Self::Text(Decoder::default()),
            'n' => *self = Self::Null(0),
            c if is_space(c) => {}
            _ => return Take::Broken,
        }
        Take::More
    }

    /// Whether it is certain that these are arguments.
    pub(super) fn is_certain(&self) -> bool {
        matches!(self, Self::Object(_) | Self::Text(_))
    }

    /// Takes a character of the arguments of `name`, whose call begins as soon as it is certain and ends with them.
    pub(in super::super) fn step_call(&mut self, c: char, name: &str, sink: &mut Sink<'_>) -> Take {
        let was_certain = self.is_certain();
        let mut text = String::new();
        let take = self.step(c, &mut text);
        if take == Take::Broken {
            return take;
        }
        if !was_certain && (self.is_certain() || take == Take::Done) {
            sink.begin(name);
        }
        if self.is_certain() {
            // An escape that has only begun is settled too: it cannot become text.
            sink.settle();
        }
        sink.argument(&text);
        if take == Take::Done {
            sink.end();
        }
        take
    }
}
