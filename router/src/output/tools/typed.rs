//! Arguments written as text between tags, turned into JSON by the type that the tool's schema gives them.

use serde_json::Value;

use super::json::{Take, escape, escape_into};
use super::python_value::{PythonValue, literal};
use super::sink::Sink;

/// Reads one value up to its closing tag. A string is shown as it comes, other values when they are whole.
#[derive(Debug)]
pub(super) struct TypedValue {
    types: Types,
    closer: &'static str,
    /// Characters that may belong to the closing tag.
    tail: String,
    /// Whether one line break behind the opening tag and one before the closing tag are not part of the value.
    lines: bool,
    at_start: bool,
    value: String,
    as_text: bool,
}

/// What types the schema gives a value; none when it does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Types(u8);

impl Types {
    const STRING: Self = Self(1);
    const NUMBER: Self = Self(2);
    const BOOLEAN: Self = Self(4);
    const NULL: Self = Self(8);
    const ARRAY: Self = Self(16);
    const OBJECT: Self = Self(32);

    fn named(name: &str) -> Self {
        match name {
            "string" => Self::STRING,
            "number" | "integer" => Self::NUMBER,
            "boolean" => Self::BOOLEAN,
            "null" => Self::NULL,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            _ => Self::default(),
        }
    }

    fn of(value: &Value) -> Self {
        match value {
            Value::String(_) => Self::STRING,
            Value::Number(_) => Self::NUMBER,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Null => Self::NULL,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether a value is a string whatever it looks like. Without a type it is the string that it was written as.
    fn only_text(self) -> bool {
        self == Self::STRING || self == Self::default()
    }
}

impl TypedValue {
    /// Begins the argument `key` of the open call of `tool`; the first when `first`.
    pub(super) fn begin(
        (tool, key): (&str, &str),
        first: bool,
        (closer, lines): (&'static str, bool),
        sink: &mut Sink<'_>,
    ) -> Self {
        let types = sink.argument_schema(tool, key).map(types_of).unwrap_or_default();
        sink.argument(&format!("{}{}: ", if first { "{" } else { ", " }, escape(key)));
        let mut value =
            Self { types, closer, tail: String::new(), lines, at_start: true, value: String::new(), as_text: false };
        if types.only_text() {
            value.begin_text(sink);
        }
        value
    }

    fn begin_text(&mut self, sink: &mut Sink<'_>) {
        self.as_text = true;
        let mut json = String::from("\"");
        escape_into(&self.value, &mut json);
        self.value.clear();
        sink.argument(&json);
    }

    /// Takes a character; whether the closing tag is complete.
    pub(super) fn step(&mut self, c: char, sink: &mut Sink<'_>) -> bool {
        sink.settle();
        self.tail.push(c);
        while let Some(first) = self.tail.chars().next() {
            let behind_break = self.tail.strip_prefix('\n').filter(|_| self.lines);
            let tag = behind_break.unwrap_or(&self.tail);
            if tag == self.closer {
                self.end(sink);
                return true;
            }
            if self.closer.starts_with(tag) {
                return false;
            }
            self.tail.drain(..first.len_utf8());
            self.take(first, sink);
        }
        false
    }

    /// A character of the value.
    fn take(&mut self, c: char, sink: &mut Sink<'_>) {
        if std::mem::take(&mut self.at_start) && self.lines && c == '\n' {
            return;
        }
        if self.as_text {
            let mut json = String::new();
            escape_into(c.encode_utf8(&mut [0; 4]), &mut json);
            sink.argument(&json);
        } else {
            self.value.push(c);
            if self.value.len() > sink.limits().held {
                self.begin_text(sink);
            }
        }
    }

    fn end(&mut self, sink: &mut Sink<'_>) {
        if self.as_text {
            sink.argument("\"");
        } else {
            let limits = sink.limits();
            sink.argument(&convert(&self.value, self.types, limits.depth, limits.held));
        }
    }

    /// The text ended inside the value: shows what there is of it.
    pub(super) fn finish(&mut self, sink: &mut Sink<'_>) {
        for c in std::mem::take(&mut self.tail).chars() {
            self.take(c, sink);
        }
        if !self.as_text {
            sink.argument(&std::mem::take(&mut self.value));
        }
    }
}

/// Whether a value of this schema is read as text, whatever it is.
pub(super) fn is_text(schema: &Value) -> bool {
    types_of(schema).only_text()
}

/// What a schema allows, as far as it says so by `type`, `enum`, `const` or a list of alternatives.
fn types_of(schema: &Value) -> Types {
    let list = |key: &str| schema.get(key).and_then(Value::as_array).into_iter().flatten();
    match schema.get("type") {
        Some(Value::String(name)) => return Types::named(name),
        Some(Value::Array(names)) => {
            return names.iter().filter_map(Value::as_str).map(Types::named).fold(Types::default(), Types::and);
        }
        _ => {}
    }
    let values = list("enum").chain(schema.get("const")).map(Types::of);
    let choices = list("anyOf").chain(list("oneOf")).map(types_of);
    values.chain(choices).fold(Types::default(), Types::and)
}

/// JSON for a whole value that need not be a string.
fn convert(value: &str, types: Types, depth: usize, held: usize) -> String {
    let trimmed = value.trim();
    let fits = |json: &str| {
        let kind = serde_json::from_str::<Value>(json).ok().map(|value| Types::of(&value));
        kind.is_some_and(|kind| types.has(kind) || !types.has(Types::STRING))
    };
    let quoted = trimmed.starts_with('"') && types.has(Types::STRING);
    if !quoted && fits(trimmed) {
        return trimmed.to_owned();
    }
    let json = if trimmed.starts_with(['[', '{', '(']) {
        python(trimmed, depth, held)
    } else if trimmed.eq_ignore_ascii_case("true") || trimmed.eq_ignore_ascii_case("false") {
        Some(trimmed.to_ascii_lowercase())
    } else {
        Some(literal(trimmed)).filter(|json| !json.starts_with('"'))
    };
    json.filter(|json| fits(json)).unwrap_or_else(|| escape(value))
}

/// A list or object as Python writes it.
fn python(text: &str, depth: usize, held: usize) -> Option<String> {
    let mut value = PythonValue::new(depth, held);
    let mut json = String::new();
    for c in text.chars() {
        if value.step(c, &mut json) != Take::More {
            return None;
        }
    }
    // Nothing may follow the value, and it must be whole.
    let over = value.step(',', &mut String::new()) == Take::Before;
    (over && serde_json::from_str::<Value>(&json).is_ok()).then_some(json)
}
