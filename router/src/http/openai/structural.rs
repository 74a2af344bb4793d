//! Structural tags, in the two forms that clients send: structures with triggers, and a tree of formats.

use serde_json::Value;

use super::grammar::invalid;
use crate::grammar::{GrammarSource, Layout, StructuralTag, Structure, Tagged};
use crate::http::errors::ApiError;

/// A structural tag.
///
/// # Errors
/// `Validation`, naming the place that is not what it should be, or a format that is not served.
pub(super) fn source(field: &str, tag: &Value) -> Result<GrammarSource, ApiError> {
    if let Some(format) = tag.get("format") {
        return layout(&format!("{field}.format"), format).map(GrammarSource::Layout);
    }
    let structures = list(field, tag, "structures")?;
    let structure = |(index, one): (usize, &Value)| {
        let place = format!("{field}.structures[{index}]");
        let begin = text(&place, one, "begin")?.to_owned();
        let end = text(&place, one, "end")?.to_owned();
        let schema = one.get("schema").or_else(|| one.get("schema_")).unwrap_or(&Value::Null);
        if !schema.is_object() && !schema.is_boolean() {
            return Err(invalid(&format!("`{place}.schema` must be a JSON schema")));
        }
        Ok(Structure { begin, schema: schema.clone(), end })
    };
    let structures = structures.iter().enumerate().map(structure).collect::<Result<_, _>>()?;
    Ok(GrammarSource::StructuralTag(StructuralTag { structures, triggers: texts(field, tag, "triggers")? }))
}

/// One format of the tree. It came as JSON, which bounds how deeply it nests.
fn layout(place: &str, format: &Value) -> Result<Layout, ApiError> {
    match format.get("type").and_then(Value::as_str).unwrap_or_default() {
        "const_string" => Ok(Layout::text(text(place, format, "value")?)),
        "json_schema" => {
            let schema = format.get("json_schema").filter(|schema| schema.is_object() || schema.is_boolean());
            let schema = schema.ok_or_else(|| invalid(&format!("`{place}.json_schema` must be a JSON schema")))?;
            Ok(Layout::json(schema.clone()))
        }
        "regex" => Ok(Layout::Regex(text(place, format, "pattern")?.to_owned())),
        "sequence" => layouts(place, format).map(Layout::Sequence),
        "or" => layouts(place, format).map(Layout::Choice),
        "tag" => tag(place, format).map(|(begin, rest)| Layout::Sequence(vec![Layout::Text(begin), rest])),
        "triggered_tags" => {
            let tags = list(place, format, "tags")?.iter().enumerate();
            let parts = tags.map(|(index, one)| tag(&format!("{place}.tags[{index}]"), one));
            let flag = |name| format.get(name).and_then(Value::as_bool).unwrap_or_default();
            let avoided = if format.get("excludes").is_some() { texts(place, format, "excludes")? } else { Vec::new() };
            Ok(Layout::Tagged(Tagged {
                parts: parts.collect::<Result<_, _>>()?,
                triggers: texts(place, format, "triggers")?,
                avoided,
                at_least_one: flag("at_least_one"),
                only_first: flag("stop_after_first"),
                ..Tagged::default()
            }))
        }
        "any_text" => {
            Err(invalid(&format!("`{place}` is `any_text` outside a tag, which nothing ends; put it into a tag")))
        }
        other => Err(invalid(&format!(
            "`{place}.type` is `{other}`; send `const_string`, `json_schema`, `regex`, `sequence`, `or`, `tag` or `triggered_tags`"
        ))),
    }
}

fn layouts(place: &str, format: &Value) -> Result<Vec<Layout>, ApiError> {
    let elements = list(place, format, "elements")?.iter().enumerate();
    elements.map(|(index, one)| layout(&format!("{place}.elements[{index}]"), one)).collect()
}

/// How a tag begins, and the rest of it.
fn tag(place: &str, tag: &Value) -> Result<(String, Layout), ApiError> {
    let (begin, end) = (text(place, tag, "begin")?.to_owned(), text(place, tag, "end")?.to_owned());
    let content = tag.get("content").unwrap_or(&Value::Null);
    if content.get("type").and_then(Value::as_str) == Some("any_text") {
        if end.is_empty() {
            return Err(invalid(&format!("`{place}.end` is empty, so nothing ends the text; give it an end")));
        }
        return Ok((begin, Layout::Until { rules: Vec::new(), end }));
    }
    let content = layout(&format!("{place}.content"), content)?;
    Ok((begin, Layout::Sequence(vec![content, Layout::Text(end)])))
}

fn list<'a>(place: &str, from: &'a Value, name: &str) -> Result<&'a [Value], ApiError> {
    let found = from.get(name).and_then(Value::as_array);
    found.map(Vec::as_slice).ok_or_else(|| invalid(&format!("`{place}.{name}` must be a list")))
}

fn text<'a>(place: &str, from: &'a Value, name: &str) -> Result<&'a str, ApiError> {
    let found = from.get(name).and_then(Value::as_str);
    found.ok_or_else(|| invalid(&format!("`{place}.{name}` must be a string")))
}

fn texts(place: &str, from: &Value, name: &str) -> Result<Vec<String>, ApiError> {
    let texts = list(place, from, name)?.iter().map(|one| one.as_str().map(str::to_owned));
    texts.collect::<Option<_>>().ok_or_else(|| invalid(&format!("`{place}.{name}` must be a list of strings")))
}
