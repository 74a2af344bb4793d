//! Python literals turned into JSON, a character at a time.
//!
//! Nothing is evaluated. What is no literal (a bare word, a sum) becomes a string of its own text.

use super::json::{Take, escape, escape_into, is_space};

/// Reads one value; what follows it is not taken.
#[derive(Debug)]
pub(super) struct PythonValue {
    stack: Vec<Container>,
    state: State,
    depth: usize,
    /// Bytes a value that is no string may hold before it is shown as text.
    held: usize,
}

#[derive(Debug)]
struct Container {
    kind: Kind,
    items: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    List,
    Tuple,
    /// At a key, or at the value behind one.
    Dict {
        key: bool,
    },
}

#[derive(Debug)]
enum State {
    Start,
    /// Quotes that open a string, so far.
    Quotes {
        quote: char,
        count: u8,
        raw: bool,
    },
    Text {
        quote: char,
        triple: bool,
        raw: bool,
        escape: Escape,
        closing: u8,
    },
    Word {
        text: String,
        nested: usize,
        quote: Option<char>,
        shown: bool,
    },
    After,
}

#[derive(Debug, Default)]
enum Escape {
    #[default]
    None,
    Begun,
    /// Digits still to come, and the code so far.
    Code {
        left: u8,
        code: u32,
    },
}

impl PythonValue {
    pub(super) fn new(depth: usize, held: usize) -> Self {
        Self { stack: Vec::new(), state: State::Start, depth, held }
    }

    /// Takes a character; adds the JSON that it makes certain to `into`. A value is over `Before` a character.
    pub(super) fn step(&mut self, c: char, into: &mut String) -> Take {
        match &mut self.state {
            State::Start if is_space(c) => Take::More,
            State::Start => self.start(c, into),
            State::Quotes { .. } => self.quotes(c, into),
            State::Text { .. } => self.text(c, into),
            State::Word { .. } => self.word(c, into),
            State::After => self.after(c, into),
        }
    }

    fn goto(&mut self, state: State) -> Take {
        self.state = state;
        Take::More
    }

    fn start(&mut self, c: char, into: &mut String) -> Take {
        if matches!(c, ']' | ')' | '}') && !self.stack.is_empty() {
            return self.close(c, into);
        }
        if matches!(c, ',' | ':' | '=' | ']' | ')' | '}') {
            return Take::Broken;
        }
        self.separate(into);
        match c {
            // Keys of JSON are strings.
            '[' | '(' | '{' if self.at_key() => return Take::Broken,
            '[' => return self.open(Kind::List, '[', into),
            '(' => return self.open(Kind::Tuple, '[', into),
            '{' => return self.open(Kind::Dict { key: true }, '{', into),
            '"' | '\'' => self.state = State::Quotes { quote: c, count: 1, raw: false },
            c => {
                self.state = State::Word { text: String::new(), nested: 0, quote: None, shown: false };
                return self.word(c, into);
            }
        }
        Take::More
    }

    fn at_key(&self) -> bool {
        self.stack.last().is_some_and(|top| top.kind == Kind::Dict { key: true })
    }

    /// Writes what stands between the last item and the next one.
    fn separate(&mut self, into: &mut String) {
        if let Some(top) = self.stack.last_mut() {
            match top.kind {
                Kind::Dict { key: false } => into.push_str(": "),
                _ if top.items > 0 => into.push_str(", "),
                _ => {}
            }
            top.items += 1;
        }
    }

    fn open(&mut self, kind: Kind, bracket: char, into: &mut String) -> Take {
        if self.stack.len() >= self.depth {
            return Take::Broken;
        }
        self.stack.push(Container { kind, items: 0 });
        into.push(bracket);
        self.goto(State::Start)
    }

    fn close(&mut self, c: char, into: &mut String) -> Take {
        let Some(top) = self.stack.pop() else { return Take::Broken };
        match (top.kind, c) {
            (Kind::List, ']') | (Kind::Tuple, ')') => into.push(']'),
            (Kind::Dict { key: true }, '}') => into.push('}'),
            _ => return Take::Broken,
        }
        self.goto(State::After)
    }

    /// Behind a value.
    fn after(&mut self, c: char, into: &mut String) -> Take {
        let Some(top) = self.stack.last_mut() else {
            return if is_space(c) { Take::More } else { Take::Before };
        };
        match (&mut top.kind, c) {
            (_, c) if is_space(c) => Take::More,
            (Kind::Dict { key: key @ true }, ':') => {
                *key = false;
                self.goto(State::Start)
            }
            (Kind::Dict { key: true }, _) => Take::Broken,
            (Kind::Dict { key }, ',') => {
                *key = true;
                self.goto(State::Start)
            }
            (Kind::Dict { key }, '}') => {
                *key = true;
                self.close(c, into)
            }
            (Kind::List | Kind::Tuple, ',') => self.goto(State::Start),
            _ => self.close(c, into),
        }
    }

    /// One quote opens a string, two are an empty one, three open a string that may hold quotes.
    fn quotes(&mut self, c: char, into: &mut String) -> Take {
        let State::Quotes { quote, count, raw } = self.state else { return Take::Broken };
        match (count, c == quote) {
            (1, true) => return self.goto(State::Quotes { quote, count: 2, raw }),
            (2, false) => {
                into.push_str("\"\"");
                self.state = State::After;
                return self.after(c, into);
            }
            _ => {}
        }
        into.push('"');
        self.state = State::Text { quote, triple: count == 2, raw, escape: Escape::None, closing: 0 };
        if count == 2 { Take::More } else { self.text(c, into) }
    }

    fn text(&mut self, c: char, into: &mut String) -> Take {
        let State::Text { quote, triple, raw, escape, closing } = &mut self.state else { return Take::Broken };
        match std::mem::take(escape) {
            Escape::Begun => *escape = unescape(c, *raw, into),
            Escape::Code { left, code } => match c.to_digit(16) {
                Some(digit) if left > 1 => *escape = Escape::Code { left: left - 1, code: (code << 4) | digit },
                Some(digit) => push(char::from_u32((code << 4) | digit), into),
                None => {
                    push(None, into);
                    return self.text(c, into);
                }
            },
            Escape::None if c == *quote => {
                *closing += 1;
                if !*triple || *closing == 3 {
                    into.push('"');
                    return self.goto(State::After);
                }
            }
            Escape::None => {
                for _ in 0..std::mem::take(closing) {
                    push(Some(*quote), into);
                }
                if c == '\\' {
                    *escape = Escape::Begun;
                } else {
                    push(Some(c), into);
                }
            }
        }
        Take::More
    }

    /// A value without quotes: a number, a constant, or something that is no literal.
    fn word(&mut self, c: char, into: &mut String) -> Take {
        let at_key = self.at_key();
        let State::Word { text, nested, quote, shown } = &mut self.state else { return Take::Broken };
        match (*quote, c) {
            (Some(open), c) if c == open => *quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') if is_prefix(text) => {
                let raw = text.contains(['r', 'R']);
                return self.goto(State::Quotes { quote: c, count: 1, raw });
            }
            (None, '"' | '\'') => *quote = Some(c),
            (None, '(' | '[' | '{') => *nested += 1,
            (None, ')' | ']' | '}') if *nested > 0 => *nested -= 1,
            (None, ',' | ')' | ']' | '}') if *nested == 0 => return self.end_word(c, into),
            (None, ':') if at_key && *nested == 0 => return self.end_word(c, into),
            _ => {}
        }
        if *shown {
            push(Some(c), into);
        } else {
            text.push(c);
            if text.len() > self.held {
                *shown = true;
                into.push('"');
                escape_into(text, into);
            }
        }
        Take::More
    }

    fn end_word(&mut self, c: char, into: &mut String) -> Take {
        let at_key = self.at_key();
        match &self.state {
            State::Word { shown: true, .. } => into.push('"'),
            State::Word { text, .. } if at_key => into.push_str(&escape(text.trim())),
            State::Word { text, .. } => into.push_str(&literal(text.trim())),
            _ => {}
        }
        self.state = State::After;
        self.after(c, into)
    }
}

fn push(c: Option<char>, into: &mut String) {
    escape_into(c.unwrap_or(char::REPLACEMENT_CHARACTER).encode_utf8(&mut [0; 4]), into);
}

/// What may stand before a string's quotes.
fn is_prefix(word: &str) -> bool {
    word.len() <= 2
        && word.chars().all(|c| matches!(c, 'r' | 'R' | 'b' | 'B' | 'f' | 'F' | 'u' | 'U'))
        && !word.is_empty()
}

/// The character behind a backslash.
fn unescape(c: char, raw: bool, into: &mut String) -> Escape {
    let plain = match c {
        _ if raw => {
            push(Some('\\'), into);
            c
        }
        'x' => return Escape::Code { left: 2, code: 0 },
        'u' => return Escape::Code { left: 4, code: 0 },
        'U' => return Escape::Code { left: 8, code: 0 },
        '\n' => return Escape::None,
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'a' => '\u{7}',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'v' => '\u{b}',
        '0' => '\0',
        '\\' | '\'' | '"' => c,
        other => {
            push(Some('\\'), into);
            other
        }
    };
    push(Some(plain), into);
    Escape::None
}

/// JSON for a word: a constant or number as such, all else as a string.
pub(super) fn literal(word: &str) -> String {
    match word {
        "True" | "true" => "true".to_owned(),
        "False" | "false" => "false".to_owned(),
        "None" | "null" => "null".to_owned(),
        word if is_number(word) => word.to_owned(),
        word => number(word).unwrap_or_else(|| escape(word)),
    }
}

fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c == '-' || c.is_ascii_digit())
        && serde_json::from_str::<serde_json::Number>(word).is_ok()
}

/// Numbers that Python writes in ways JSON does not know.
fn number(word: &str) -> Option<String> {
    if !word.starts_with(|c: char| matches!(c, '+' | '-' | '.') || c.is_ascii_digit()) {
        return None;
    }
    let plain: String = word.trim_start_matches('+').chars().filter(|c| *c != '_').collect();
    if let Some(hex) = plain.strip_prefix("0x") {
        return i64::from_str_radix(hex, 16).ok().map(|number| number.to_string());
    }
    if let Ok(whole) = plain.parse::<i64>() {
        return Some(whole.to_string());
    }
    let real = plain.parse::<f64>().ok()?;
    serde_json::Number::from_f64(real).map(|number| number.to_string())
}
