//! Writes random calls the way each family does.

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::super::{FieldValue, ForcedBody, ForcedCall};
use super::{KINDS, ToolParserKind as Kind, tools};

/// Where this family's calls only count at the beginning, no text may stand before them.
pub(super) fn needs_start(kind: Kind) -> bool {
    matches!(kind, Kind::Llama3Json | Kind::Pythonic | Kind::Json)
}

/// A call to be written: tool and arguments.
pub(super) type Call = (&'static str, Map<String, Value>);

/// Ways to write one JSON value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Style {
    Compact,
    Pretty,
    Ascii,
}

/// An answer: text, calls, text.
#[derive(Debug, Clone)]
pub(super) struct Conversation {
    pub(super) kind: Kind,
    pub(super) before: String,
    pub(super) calls: Vec<Call>,
    pub(super) after: String,
    pub(super) style: Style,
}

/// Pieces that look like markers, whole or cut.
pub(super) fn lookalike() -> impl Strategy<Value = String> {
    let markers: Vec<&'static str> = KINDS
        .iter()
        .flat_map(|kind| kind.markers())
        .copied()
        .chain([
            "{",
            "[",
            "\"",
            "</",
            "<|",
            "{\"name\": ",
            "\"arguments\"",
            "functools",
            "<function=",
            "</function>",
            "\\",
            "to=",
        ])
        .collect();
    (prop::sample::select(markers), any::<prop::sample::Index>()).prop_map(|(marker, cut)| {
        let ends: Vec<_> = marker.char_indices().map(|(at, c)| at + c.len_utf8()).collect();
        marker[..*cut.get(&ends)].to_owned()
    })
}

/// Text that is no call: words, spaces, look-alikes. It begins and ends with a word.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof!["[a-zé🌍.]{1,5}", "[ \n\t]{1,2}", lookalike()];
    (prop::collection::vec(piece, 0..6), "[ \n]{0,2}", "[ \n]{0,2}")
        .prop_map(|(pieces, lead, trail)| format!("{lead}Then {} so{trail}", pieces.concat()))
}

fn string() -> impl Strategy<Value = String> {
    let piece = prop_oneof!["[a-z \n\t\"'\\\\]{0,6}", "\\PC{0,3}", lookalike(), "[\u{1}-\u{1f}]{0,2}"];
    prop::collection::vec(piece, 0..4).prop_map(|pieces| {
        // What ends a value between tags cannot stand in one.
        pieces.concat().replace("</parameter>", "<parameter>").replace("</arg_value>", "<arg_value>")
    })
}

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<i32>().prop_map(|number| Value::from(f64::from(number) / 4.0)),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf =
        prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from), number(), string().prop_map(Value::from),];
    leaf.prop_recursive(3, 12, 3, |inner| prop_oneof![array(inner.clone()), object(inner)])
}

fn array(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    prop::collection::vec(inner, 0..3).prop_map(Value::from)
}

fn object(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    prop::collection::vec((string(), inner), 0..3).prop_map(|items| Value::from(Map::from_iter(items)))
}

fn call() -> impl Strategy<Value = Call> {
    let typed = (
        string().prop_map(Value::from),
        prop::option::of(number()),
        prop::option::of(any::<bool>().prop_map(Value::from)),
        prop::option::of(object(value())),
        prop::option::of(array(value())),
        prop::option::of("[a-z]{5,9}".prop_map(Value::from)),
        prop::option::of(prop_oneof![Just(Value::Null), number(), array(value()), object(value())]),
    );
    let typed = typed.prop_map(|(s, n, b, o, a, m, x)| {
        let given = [("s", Some(s)), ("n", n), ("b", b), ("o", o), ("a", a), ("m", m), ("x", x)];
        let given = given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        ("typed", given.collect())
    });
    prop_oneof![3 => typed, 1 => Just(("ping", Map::new()))]
}

pub(super) fn conversation(kind: Kind) -> impl Strategy<Value = Conversation> {
    let style = prop::sample::select(vec![Style::Compact, Style::Pretty, Style::Ascii]);
    let most = if kind == Kind::Harmony { 2 } else { 4 };
    (prop::option::of(text()), prop::collection::vec(call(), 0..most), prop::option::of(text()), style).prop_map(
        move |(before, calls, after, style)| {
            let before = before.filter(|_| calls.is_empty() || !needs_start(kind)).unwrap_or_default();
            Conversation { kind, before, calls, after: after.unwrap_or_default(), style }
        },
    )
}

impl Conversation {
    /// The text a model would write.
    pub(super) fn written(&self) -> String {
        if self.calls.is_empty() {
            return format!("{}{}", self.before, self.after);
        }
        let format = self.kind.forced_format(&tools());
        let one = |(name, arguments): &Call| {
            let form = format.calls.iter().find(|call| call.name == *name).unwrap();
            self.write_call(form, arguments)
        };
        let calls: Vec<_> = self.calls.iter().map(one).collect();
        [&self.before, &format.begin, &calls.join(&format.between), &format.end, &self.after]
            .map(String::as_str)
            .concat()
    }

    /// What of it is text: all but the calls and the white space around them.
    pub(super) fn text(&self) -> String {
        if self.calls.is_empty() {
            return format!("{}{}", self.before, self.after);
        }
        format!("{}{}", self.before.trim_end(), self.after.trim_start())
    }

    /// The arguments as they stand in the text, where the family writes JSON.
    pub(super) fn verbatim(&self, arguments: &Map<String, Value>) -> String {
        json_text(&Value::from(arguments.clone()), self.style)
    }

    fn write_call(&self, form: &ForcedCall, arguments: &Map<String, Value>) -> String {
        let body = match &form.body {
            ForcedBody::Json(_) => self.verbatim(arguments),
            ForcedBody::Fields { fields, between } => {
                let pairs = arguments.iter().map(|(key, value)| {
                    let field = fields.iter().find(|field| field.name == *key).unwrap();
                    let value = match (&field.value, value) {
                        (FieldValue::Text(_), Value::String(text)) => text.clone(),
                        (FieldValue::Json(_), value) if self.kind == Kind::Pythonic => python_text(value, self.style),
                        // A string where other types may stand is written without quotes.
                        (_, Value::String(text)) => text.clone(),
                        (_, value) => json_text(value, self.style),
                    };
                    format!("{}{value}{}", field.begin, field.end)
                });
                pairs.collect::<Vec<_>>().join(between)
            }
        };
        format!("{}{body}{}", form.begin, form.end)
    }
}

fn json_text(value: &Value, style: Style) -> String {
    match style {
        Style::Compact => value.to_string(),
        Style::Pretty => serde_json::to_string_pretty(value).unwrap(),
        Style::Ascii => {
            let mut ascii = String::new();
            for c in value.to_string().chars() {
                if c.is_ascii() {
                    ascii.push(c);
                } else {
                    let units =
                        c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04X}")).collect::<String>();
                    ascii.push_str(&units);
                }
            }
            ascii
        }
    }
}

/// As Python's `repr` writes it; the style chooses quotes.
fn python_text(value: &Value, style: Style) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => python_string(text, style),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| python_text(item, style)).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(items) => {
            let pair = |(key, value): (&String, &Value)| {
                format!("{}: {}", python_string(key, style), python_text(value, style))
            };
            format!("{{{}}}", items.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
    }
}

fn python_string(text: &str, style: Style) -> String {
    let (open, ascii) = match style {
        Style::Compact => ("'", false),
        Style::Pretty => ("\"\"\"", false),
        Style::Ascii => ("\"", true),
    };
    let mut written = open.to_owned();
    for c in text.chars() {
        match c {
            '\\' | '\'' | '"' => written.extend(['\\', c]),
            '\n' => written.push_str("\\n"),
            c if c < ' ' => written.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if ascii && !c.is_ascii() => written.push_str(&format!("\\U{:08x}", u32::from(c))),
            c => written.push(c),
        }
    }
    written + open
}
