//! Values as Python writes them: `json.dumps` for the `tojson` filter, `repr` for what a template prints. Models were
//! trained on those very characters, so `{"a": 1}` may not become `{"a":1}`.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Values nested deeper than this are refused; a template that builds them is broken.
const MAX_DEPTH: usize = 200;

/// The arguments of Python's `json.dumps` that chat templates use.
#[derive(Debug, Clone)]
pub(super) struct JsonStyle {
    pub(super) ensure_ascii: bool,
    pub(super) sort_keys: bool,
    /// What one level is indented by; everything on one line when `None`.
    pub(super) indent: Option<String>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
}

/// `json.dumps(value)`.
pub(super) fn to_json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut out = String::new();
    json(&mut out, value, style, 0)?;
    Ok(out)
}

fn json(out: &mut String, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
    check_depth(depth)?;
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value, ["NaN", "Infinity", "-Infinity"])),
        ValueKind::String => json_string(out, value.as_str().unwrap_or_default(), style.ensure_ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
            json_items(out, '[', ']', &items, style, depth, |out, item| json(out, item, style, depth + 1))?;
        }
        ValueKind::Map => {
            let mut keys = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
            if style.sort_keys {
                keys.sort();
            }
            json_items(out, '{', '}', &keys, style, depth, |out, key| {
                json_key(out, key, style)?;
                out.push_str(&style.key_separator);
                json(out, &value.get_item(key)?, style, depth + 1)
            })?;
        }
        kind => return Err(cannot(&format!("a value of type {kind} cannot be written as JSON"))),
    }
    Ok(())
}

fn json_items(
    out: &mut String,
    open: char,
    close: char,
    items: &[Value],
    style: &JsonStyle,
    depth: usize,
    mut write: impl FnMut(&mut String, &Value) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(out, style, depth + 1);
        write(out, item)?;
    }
    if !items.is_empty() {
        new_line(out, style, depth);
    }
    out.push(close);
    Ok(())
}

fn new_line(out: &mut String, style: &JsonStyle, depth: usize) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        out.extend(std::iter::repeat_n(indent.as_str(), depth));
    }
}

fn json_key(out: &mut String, key: &Value, style: &JsonStyle) -> Result<(), Error> {
    let name = match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
            let mut name = String::new();
            json(&mut name, key, style, 0)?;
            name
        }
        kind => return Err(cannot(&format!("a key of type {kind} cannot be written as JSON"))),
    };
    json_string(out, &name, style.ensure_ascii);
    Ok(())
}

fn json_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ensure_ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// `str(value)`: strings as they are, everything else as `repr`.
pub(super) fn to_text(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    match value.as_str() {
        Some(text) => out.push_str(text),
        None if value.is_undefined() => {}
        None => repr(&mut out, value, 0)?,
    }
    Ok(out)
}

fn repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    check_depth(depth)?;
    match value.kind() {
        ValueKind::Number => out.push_str(&number(value, ["nan", "inf", "-inf"])),
        ValueKind::String => repr_string(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
            let tuple = value.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(out, item, depth + 1)?;
            }
            out.push_str(if tuple && items.len() == 1 { "," } else { "" });
            out.push(if tuple { ')' } else { ']' });
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.checked().enumerate() {
                let key = key?;
                out.push_str(if index > 0 { ", " } else { "" });
                repr(out, &key, depth + 1)?;
                out.push_str(": ");
                repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

fn repr_string(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// A number as Python's `repr` writes it; `special` is how not-a-number and the infinities are spelled.
fn number(value: &Value, special: [&str; 3]) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(float) if float.is_nan() => special[0].to_owned(),
        Ok(float) if float.is_infinite() => special[if float > 0.0 { 1 } else { 2 }].to_owned(),
        Ok(float) => finite(float),
        Err(_) => value.to_string(),
    }
}

/// The shortest digits that read back as the same number; with an exponent below 1e-4 and from 1e16 on.
fn finite(float: f64) -> String {
    let scientific = format!("{float:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let fixed = format!("{float}");
    if fixed.contains('.') { fixed } else { format!("{fixed}.0") }
}

fn check_depth(depth: usize) -> Result<(), Error> {
    if depth < MAX_DEPTH { Ok(()) } else { Err(cannot("a value is nested too deeply")) }
}

fn cannot(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.to_owned())
}
