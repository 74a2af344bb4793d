//! Tells text from what may be a call.
//!
//! Text is shown as soon as it cannot be the beginning of an opener. From an opener on, the family's `Form` reads; what
//! it read is held until the form is certain of a call. When it is not one, the held text is shown up to the last
//! place in it where another call may begin, and read again from there. That place lies behind every earlier one,
//! so no character is read more than a few times.

use super::sink::{Calls, Sink};
use super::{ToolEvent, ToolParser};

/// Where an opener counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Wherever it stands.
    Anywhere,
    /// Only before all text, or between the last call and the text that follows it.
    Start,
    /// Only as the first thing of a line.
    Line,
}

/// What a call may begin with. No opener holds white space, and none is the beginning of another.
#[derive(Debug)]
pub(super) struct Opener {
    pub(super) text: &'static str,
    place: Place,
    /// The opener is itself the first character of the call.
    inclusive: bool,
}

impl Opener {
    /// A marker that only calls have.
    pub(super) const fn marker(text: &'static str) -> Self {
        Self { text, place: Place::Anywhere, inclusive: false }
    }

    /// A character that begins a call when no text stands before it.
    pub(super) const fn bare(text: &'static str) -> Self {
        Self { text, place: Place::Start, inclusive: true }
    }

    /// A marker that opens a call at the beginning of a line.
    pub(super) const fn line(text: &'static str) -> Self {
        Self { text, place: Place::Line, inclusive: false }
    }
}

/// What a form says to a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Taken; more is needed.
    Next,
    /// Taken; the calls are over and text follows.
    Close,
    /// What was read since the last settled character is text.
    Reject,
}

/// One family's way to write calls, from behind an opener on.
pub(super) trait Form: std::fmt::Debug + Send {
    /// What a call may begin with.
    fn openers(&self) -> &'static [Opener];

    /// Starts anew behind the opener of that number.
    fn open(&mut self, opener: usize);

    /// Takes a character.
    fn step(&mut self, c: char, sink: &mut Sink<'_>) -> Step;

    /// The text ended here. Adds what the form holds of an open call's arguments.
    fn finish(&mut self, _sink: &mut Sink<'_>) {}
}

/// The parser of a family.
#[derive(Debug)]
pub(super) struct Scanner<F> {
    form: F,
    calls: Calls,
    state: State,
}

#[derive(Debug)]
struct State {
    in_call: bool,
    /// A call was certain since the opener.
    committed: bool,
    /// White space that a call may still swallow.
    space: String,
    /// Characters that are not yet known to be text.
    held: String,
    /// No text since the beginning or since the last call.
    fresh: bool,
    /// The last call is only followed by white space.
    after_call: bool,
    line_start: bool,
}

impl<F: Form> Scanner<F> {
    pub(super) fn new(form: F, calls: Calls) -> Self {
        let state = State {
            in_call: false,
            committed: false,
            space: String::new(),
            held: String::new(),
            fresh: true,
            after_call: false,
            line_start: true,
        };
        Self { form, calls, state }
    }
}

impl<F: Form> ToolParser for Scanner<F> {
    fn push(&mut self, delta: &str, out: &mut Vec<ToolEvent>) {
        let sink = &mut Sink::new(&mut self.calls, out);
        let mut rest = delta;
        while let Some(c) = rest.chars().next() {
            let plain = self.state.plain(rest, self.form.openers());
            if plain > 0 {
                work::count(plain);
                self.state.show(&rest[..plain], sink);
                rest = &rest[plain..];
            } else {
                self.state.take(c, &mut self.form, sink);
                rest = &rest[c.len_utf8()..];
            }
        }
    }

    fn finish(&mut self, out: &mut Vec<ToolEvent>) {
        let sink = &mut Sink::new(&mut self.calls, out);
        if self.state.in_call {
            self.form.finish(sink);
            if sink.take_settled() {
                self.state.held.clear();
            }
        }
        self.state.in_call = false;
        let held = std::mem::take(&mut self.state.held);
        self.state.show(&held, sink);
        sink.abandon();
    }

    fn is_in_text(&self) -> bool {
        !self.state.in_call && self.state.held.is_empty()
    }
}

impl State {
    /// How many bytes at the beginning of `text` are certainly text.
    fn plain(&self, text: &str, openers: &[Opener]) -> usize {
        if self.in_call || !self.held.is_empty() {
            return 0;
        }
        let special = |c: char| c.is_whitespace() || openers.iter().any(|opener| opener.text.starts_with(c));
        text.find(special).unwrap_or(text.len())
    }

    fn take<F: Form>(&mut self, c: char, form: &mut F, sink: &mut Sink<'_>) {
        work::count(1);
        if self.in_call {
            self.held.push(c);
            self.feed(c, form, sink);
        } else {
            self.scan(c, form, sink);
        }
    }

    /// A character of text, or of an opener.
    fn scan<F: Form>(&mut self, c: char, form: &mut F, sink: &mut Sink<'_>) {
        if c.is_whitespace() {
            if !self.held.is_empty() {
                let held = std::mem::take(&mut self.held);
                self.show(&held, sink);
            }
            return self.hold_space(c, sink);
        }
        self.held.push(c);
        while let Some(first) = self.held.chars().next() {
            work::count(1);
            let mut possible = form.openers().iter().enumerate().filter(|(_, opener)| self.may_open(opener));
            match possible.next() {
                Some((index, opener)) if opener.text.len() == self.held.len() => {
                    return self.open(index, opener.inclusive.then_some(c), form, sink);
                }
                Some(_) => return,
                None => {
                    self.show(first.encode_utf8(&mut [0; 4]), sink);
                    self.held.drain(..first.len_utf8());
                }
            }
        }
    }

    /// Whether the held characters may become that opener, where they stand.
    fn may_open(&self, opener: &Opener) -> bool {
        let placed = match opener.place {
            Place::Anywhere => true,
            Place::Start => self.fresh,
            Place::Line => self.line_start,
        };
        placed && opener.text.starts_with(&self.held)
    }

    fn hold_space(&mut self, c: char, sink: &mut Sink<'_>) {
        self.line_start |= c == '\n';
        if self.after_call {
            return;
        }
        self.space.push(c);
        if self.space.len() > sink.limits().held {
            sink.text(&std::mem::take(&mut self.space));
        }
    }

    /// Shows text, and the white space before it.
    fn show(&mut self, text: &str, sink: &mut Sink<'_>) {
        sink.text(&std::mem::take(&mut self.space));
        sink.text(text);
        if !text.is_empty() {
            self.fresh = false;
            self.after_call = false;
            self.line_start = text.ends_with('\n');
        }
    }

    fn open<F: Form>(&mut self, index: usize, first: Option<char>, form: &mut F, sink: &mut Sink<'_>) {
        self.in_call = true;
        self.committed = false;
        form.open(index);
        if let Some(first) = first {
            self.feed(first, form, sink);
        }
    }

    /// Gives the last of the held characters to the form.
    fn feed<F: Form>(&mut self, c: char, form: &mut F, sink: &mut Sink<'_>) {
        let step = form.step(c, sink);
        if sink.take_settled() && step != Step::Reject {
            self.commit();
        }
        match step {
            Step::Next if self.held.len() <= sink.limits().held => {}
            Step::Next | Step::Reject => self.reject(form, sink),
            Step::Close => {
                self.commit();
                self.in_call = false;
            }
        }
    }

    fn commit(&mut self) {
        self.committed = true;
        self.held.clear();
        self.space.clear();
        self.fresh = true;
        self.after_call = true;
        self.line_start = true;
    }

    /// What is held is no call. It is read again from where one may begin.
    fn reject<F: Form>(&mut self, form: &mut F, sink: &mut Sink<'_>) {
        sink.abandon();
        self.in_call = false;
        let held = std::mem::take(&mut self.held);
        work::count(held.len());
        let from = if self.committed { 0 } else { held.chars().next().map_or(0, char::len_utf8) };
        let again = restart(&held, from, form.openers());
        let text = held[..again].trim_end();
        if !text.is_empty() {
            self.show(text, sink);
        }
        // White space behind it may touch the next call.
        held[text.len()..again].chars().for_each(|c| self.hold_space(c, sink));
        held[again..].chars().for_each(|c| self.take(c, form, sink));
    }
}

/// Where in `held`, not before `from`, the last opener begins, or what may become one at the end.
fn restart(held: &str, from: usize, openers: &[Opener]) -> usize {
    let tail = &held[from..];
    let complete = openers.iter().filter_map(|opener| match opener.place {
        Place::Start => (from == 0 && tail.starts_with(opener.text)).then_some(0),
        Place::Anywhere | Place::Line => tail.rfind(opener.text),
    });
    let longest = openers.iter().map(|opener| opener.text.len()).max().unwrap_or(0);
    let partial = || {
        let beginnings = tail.char_indices().map(|(at, _)| at);
        beginnings
            .skip_while(|at| tail.len() - at > longest)
            .find(|&at| openers.iter().any(|opener| opener.text.starts_with(&tail[at..])))
    };
    complete.max().or_else(partial).map_or(held.len(), |at| from + at)
}

/// How often characters are looked at: tests hold it to a multiple of the text's length.
mod work {
    #[cfg(test)]
    thread_local! {
        pub(in super::super) static WORK: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    #[cfg(test)]
    pub(super) fn count(steps: usize) {
        WORK.with(|work| work.set(work.get() + steps));
    }

    #[cfg(not(test))]
    pub(super) fn count(_steps: usize) {}
}
#[cfg(test)]
pub(super) use work::WORK;
