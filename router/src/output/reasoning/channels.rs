//! The channels of gpt-oss: `analysis` is reasoning, `final` is content, and messages to functions are left as they
//! are for the parser of calls.
//!
//! Format: <https://github.com/openai/harmony/blob/main/docs/format.md>. A line break stands for the border between
//! two messages of one kind.

use super::super::tools::harmony::{CALL, CHANNEL, END, MESSAGE, RETURN, START, recipient};
use super::super::tools::json::Span;
use super::{Edges, Pieces, Split};

/// How the analysis of an answer to this prompt is ended: its message is, and one of the final channel begins. It is over where a
/// message to the reader or to a function begins. `None` where the prompt has begun such a message.
pub(super) fn edges(prompt: &str) -> Option<Edges> {
    let begun = prompt.rsplit_once(START).map_or("", |(_, begun)| begun);
    let inside = match begun.rsplit_once(MESSAGE) {
        Some((header, text)) if !text.contains(END) => {
            if kind_of(header) != Kind::Reasoning {
                return None;
            }
            true
        }
        _ => false,
    };
    let analysis = format!("{CHANNEL}analysis");
    Some(Edges {
        openings: if inside { Vec::new() } else { vec![format!("{analysis}{MESSAGE}")] },
        inside,
        ends: vec![format!("{END}{START}assistant{CHANNEL}final{MESSAGE}")],
        closings: vec![
            format!("{CHANNEL}final"),
            format!("{CHANNEL}commentary"),
            format!("{analysis} to"),
            format!("{START}assistant to"),
        ],
        marks: vec![START, CHANNEL, MESSAGE, END],
    })
}

/// Most bytes of a message's header.
const MOST_HEADER: usize = 512;

#[derive(Debug)]
pub(super) struct ChannelSplit {
    state: State,
    /// Characters that may become a marker, or the header so far.
    held: String,
    kind: Kind,
    /// Something of that kind was shown last, in a message that is over.
    shown: Option<Kind>,
}

#[derive(Debug)]
enum State {
    /// Before a message.
    Between,
    Header,
    /// The arguments of a call, which may hold what looks like a marker.
    Arguments(Span),
    Message,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Content,
    /// A call: passed on with its markers.
    Call,
}

impl ChannelSplit {
    pub(super) fn new() -> Self {
        Self { state: State::Between, held: String::new(), kind: Kind::Reasoning, shown: None }
    }

    /// Text with markers in it.
    fn scan(&mut self, c: char, out: &mut Pieces<'_>) {
        self.held.push(c);
        while let Some(first) = self.held.chars().next() {
            match self.held.as_str() {
                START | CHANNEL => {
                    self.state = State::Header;
                    return;
                }
                END | RETURN | CALL => {
                    if self.kind == Kind::Call {
                        out.content(&self.held);
                    }
                    self.held.clear();
                    self.state = State::Between;
                }
                held if [START, CHANNEL, END, RETURN, CALL].iter().any(|marker| marker.starts_with(held)) => return,
                _ => {
                    self.held.drain(..first.len_utf8());
                    self.show(first, out);
                }
            }
        }
    }

    fn show(&mut self, c: char, out: &mut Pieces<'_>) {
        if matches!(self.state, State::Between) {
            if c.is_whitespace() {
                return;
            }
            // Text without a header is an answer.
            self.begin(Kind::Content, out);
        }
        let mut buffer = [0; 4];
        let text = &*c.encode_utf8(&mut buffer);
        match self.kind {
            Kind::Reasoning => out.reasoning(text),
            Kind::Content | Kind::Call => out.content(text),
        }
        self.shown = Some(self.kind);
    }

    fn begin(&mut self, kind: Kind, out: &mut Pieces<'_>) {
        self.kind = kind;
        self.state = State::Message;
        match kind {
            _ if self.shown != Some(kind) => {}
            Kind::Reasoning => out.reasoning("\n"),
            Kind::Content => out.content("\n"),
            Kind::Call => {}
        }
    }

    fn header(&mut self, c: char, out: &mut Pieces<'_>) {
        self.held.push(c);
        if self.held.ends_with(END) {
            // No message came behind it.
            self.held.clear();
            self.state = State::Between;
        } else if self.held.len() > MOST_HEADER {
            let held = std::mem::take(&mut self.held);
            self.begin(Kind::Content, out);
            out.content(&held);
        } else if self.held.ends_with(MESSAGE) {
            let header = std::mem::take(&mut self.held);
            let kind = kind_of(&header);
            self.begin(kind, out);
            if kind == Kind::Call {
                self.state = State::Arguments(Span::default());
                self.shown = Some(kind);
                out.content(&header);
            }
        }
    }
}

/// What a message is, by its header.
fn kind_of(header: &str) -> Kind {
    let channel = header.split_once(CHANNEL).map_or("", |(_, behind)| behind);
    let analysis = channel.trim_start().starts_with("analysis");
    match recipient(header) {
        Some(name) if name.starts_with("functions.") || !analysis => Kind::Call,
        _ if analysis => Kind::Reasoning,
        _ => Kind::Content,
    }
}

impl Split for ChannelSplit {
    fn take(&mut self, c: char, out: &mut Pieces<'_>) {
        match &mut self.state {
            State::Between | State::Message => self.scan(c, out),
            State::Header => self.header(c, out),
            State::Arguments(span) => {
                if c == '<' && span.is_outside() {
                    self.state = State::Message;
                    return self.scan(c, out);
                }
                span.step(c);
                out.content(c.encode_utf8(&mut [0; 4]));
            }
        }
    }

    fn finish(&mut self, out: &mut Pieces<'_>) {
        let held = std::mem::take(&mut self.held);
        match self.kind {
            Kind::Reasoning if matches!(self.state, State::Message) => out.reasoning(&held),
            _ => out.content(&held),
        }
    }

    fn is_reasoning(&self) -> bool {
        self.kind == Kind::Reasoning
    }

    fn is_over(&self) -> bool {
        false
    }

    fn is_in_content(&self) -> bool {
        matches!(self.state, State::Message) && self.kind == Kind::Content && self.held.is_empty()
    }
}
