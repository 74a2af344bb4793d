//! Python methods that `minijinja-contrib` does not have and that chat templates call.

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

/// Calls a Python method of a string, list or dictionary.
pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let own = match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => string(text, method, args),
        (ValueKind::Seq, _) => list(value, method, args),
        (ValueKind::Map, _) if method == "copy" => from_args(args).map(|()| Some(value.clone())),
        _ => Ok(None),
    }?;
    own.map_or_else(|| pycompat::unknown_method_callback(state, value, method, args), Ok)
}

fn string(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let one = || from_args::<(&str,)>(args).map(|(argument,)| argument);
    let value = match method {
        "removeprefix" => Value::from(text.strip_prefix(one()?).unwrap_or(text)),
        "removesuffix" => Value::from(text.strip_suffix(one()?).unwrap_or(text)),
        "partition" => {
            let separator = one()?;
            let (before, after) = text.split_once(separator).ok_or(()).map_or((text, None), |(a, b)| (a, Some(b)));
            parts([before, after.map_or("", |_| separator), after.unwrap_or("")])
        }
        "rpartition" => {
            let separator = one()?;
            let (before, after) = text.rsplit_once(separator).ok_or(()).map_or((None, text), |(a, b)| (Some(a), b));
            parts([before.unwrap_or(""), before.map_or("", |_| separator), after])
        }
        "rsplit" => rsplit(text, args)?,
        "index" => {
            let found = text.find(one()?).ok_or_else(|| missing("substring"))?;
            Value::from(text[..found].chars().count())
        }
        _ => return Ok(None),
    };
    Ok(Some(value))
}

fn parts(parts: [&str; 3]) -> Value {
    Value::from(Tuple::from(parts.map(Value::from)))
}

/// `rsplit(separator=None, maxsplit=-1)`: like `split`, counted from the right.
fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let mut found = Vec::new();
    let mut rest = if separator.is_some() { text } else { text.trim_end() };
    while found.len() < most {
        let split = match separator {
            Some(separator) => rest.rsplit_once(separator),
            None => rest.rsplit_once(char::is_whitespace).map(|(before, after)| (before.trim_end(), after)),
        };
        let Some((before, after)) = split else { break };
        found.push(after);
        rest = before;
    }
    if separator.is_some() || !rest.is_empty() {
        found.push(rest);
    }
    Ok(found.into_iter().rev().map(Value::from).collect())
}

fn list(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "copy" => from_args(args).map(|()| Some(value.clone())),
        "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            for (index, item) in value.try_iter()?.checked().enumerate() {
                if item? == *wanted {
                    return Ok(Some(Value::from(index)));
                }
            }
            Err(missing("item"))
        }
        _ => Ok(None),
    }
}

fn missing(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{what} not found"))
}
