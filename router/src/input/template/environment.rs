//! The template language as chat templates expect it: Jinja with the settings, filters and functions that
//! Transformers gives them, and with bounds.

use std::fmt::Write;
use std::io;

use chrono::format::{Item, StrftimeItems};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

use super::python::{JsonStyle, to_json, to_text};
use super::{generation_tags, methods};

/// Instructions that one rendering may run: a few thousand long messages, or about a second of a runaway loop.
const FUEL: u64 = 20_000_000;

/// Bytes that one rendering may write.
const MAX_OUTPUT: usize = 32 << 20;

/// The name of the only template in an environment.
const NAME: &str = "chat_template";

/// Bounds of one rendering.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) fuel: u64,
    pub(super) output: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { fuel: FUEL, output: MAX_OUTPUT }
    }
}

/// A compiled template.
#[derive(Debug)]
pub(super) struct Compiled {
    environment: Environment<'static>,
    bounds: Bounds,
}

impl Compiled {
    /// Parses a template.
    ///
    /// # Errors
    /// What does not parse, and where.
    pub(super) fn new(source: &str, bounds: Bounds) -> Result<Self, String> {
        let mut environment = environment();
        environment.set_fuel(Some(bounds.fuel));
        // Jinja reads every line break as "\n".
        let source = generation_tags::open(&source.replace("\r\n", "\n").replace('\r', "\n"));
        environment.add_template_owned(NAME, source).map_err(|error| explain(&error))?;
        Ok(Self { environment, bounds })
    }

    /// Whether this is the name of a function that every template has.
    pub(super) fn provides(&self, name: &str) -> bool {
        self.environment.globals().any(|(global, _)| global == name)
    }

    /// Renders it.
    ///
    /// # Errors
    /// One sentence: the template's own `raise_exception`, or what failed and in which line.
    pub(super) fn render(&self, variables: Value) -> Result<String, String> {
        let mut out = Bounded { bytes: Vec::new(), most: self.bounds.output };
        let rendered = self
            .environment
            .get_template(NAME)
            .and_then(|template| template.render_captured_to(variables, &mut out).map(|_| ()));
        match rendered {
            Ok(()) => String::from_utf8(out.bytes).map_err(|_| "the chat template wrote half a character".to_owned()),
            Err(error) if error.kind() == ErrorKind::WriteFailure => {
                Err(format!("the chat template wrote more than {} bytes; send less text", self.bounds.output))
            }
            Err(error) => Err(explain(&error)),
        }
    }
}

/// Raised by the template itself: the message is for the client, as it is.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn explain(error: &Error) -> String {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return message.clone();
        }
        source = cause.source();
    }
    let line = error.line().map(|line| format!(" in line {line}")).unwrap_or_default();
    let detail = error.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
    match error.kind() {
        ErrorKind::OutOfFuel => format!("the chat template ran for too long{line}; send fewer or shorter messages"),
        kind => format!("the chat template failed{line} ({kind}{detail})"),
    }
}

/// Collects output up to a bound.
struct Bounded {
    bytes: Vec<u8>,
    most: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, new: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + new.len() > self.most {
            return Err(io::Error::other("too much output"));
        }
        self.bytes.extend_from_slice(new);
        Ok(new.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_debug(false);
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, _, value| {
        let written = match value.as_str() {
            Some(text) => out.write_str(text),
            None => out.write_str(&to_text(value)?),
        };
        written.map_err(|_| Error::new(ErrorKind::WriteFailure, "too much output"))
    });
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| to_text(value));
    environment.add_test("sequence", |value: &Value| {
        // Jinja's test asks for a length and indexing, which strings and dictionaries have.
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = to_text(message)?;
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// The local time in Python's `strftime` notation.
fn strftime_now(format: &str) -> Result<String, Error> {
    let items: Vec<_> = StrftimeItems::new(format).collect();
    let mut out = String::new();
    // Some notations can be read but not written, which `to_string` would panic at.
    let written = write!(out, "{}", chrono::Local::now().format_with_items(items.iter()));
    if items.contains(&Item::Error) || written.is_err() {
        let reason = format!("`{format}` is not a time format");
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    Ok(out)
}

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`; keys keep their order.
#[allow(clippy::needless_pass_by_value)] // The engine hands keyword arguments over by value.
fn tojson(
    value: &Value,
    ensure_ascii: Option<&Value>,
    indent: Option<&Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let argument = |given: Option<&Value>, name: &str| -> Result<Option<Value>, Error> {
        let value = if let Some(value) = given { Some(value.clone()) } else { kwargs.get(name)? };
        Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let ensure_ascii = argument(ensure_ascii, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let sort_keys = argument(None, "sort_keys")?.is_some_and(|value| value.is_true());
    let indent = argument(indent, "indent")?.map(|value| indentation(&value)).transpose()?;
    let (item_separator, key_separator) = match argument(None, "separators")? {
        Some(pair) => (text_at(&pair, 0)?, text_at(&pair, 1)?),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    kwargs.assert_all_used()?;
    to_json(value, &JsonStyle { ensure_ascii, sort_keys, indent, item_separator, key_separator })
}

fn indentation(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let width = i64::try_from(value.clone())?;
    Ok(" ".repeat(usize::try_from(width.clamp(0, 64)).unwrap_or(0)))
}

fn text_at(pair: &Value, index: usize) -> Result<String, Error> {
    let item = pair.get_item_by_index(index)?;
    let text = item.as_str().map(str::to_owned);
    text.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "`separators` must be two strings"))
}
