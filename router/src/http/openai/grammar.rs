//! What a request asks its answer to look like: OpenAI's `response_format`, vLLM's fields and TGI's `grammar`, all
//! translated into one source.

use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::structural;
use crate::grammar::{GrammarSource, Layout};
use crate::http::errors::ApiError;
use crate::http::native::grammar::Grammar;

/// What vLLM's clients ask for in one field.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct StructuredOutputs {
    /// JSON of this schema, an object or its text.
    pub json: Option<Value>,
    /// Any JSON object.
    pub json_object: Option<bool>,
    /// Text that this regular expression matches from end to end.
    pub regex: Option<String>,
    /// One of these strings.
    pub choice: Option<Vec<String>>,
    /// Text of this grammar, in Lark or GBNF (EBNF whose rules are written `name ::= ...`).
    pub grammar: Option<String>,
    /// Free text with structured parts in it, an object or its text.
    pub structural_tag: Option<Value>,
    /// A regular expression for what may stand between two parts of the JSON.
    pub whitespace_pattern: Option<String>,
    /// Whether nothing at all may stand there.
    pub disable_any_whitespace: Option<bool>,
    /// With true, `additionalProperties` must be false in the schema itself.
    pub disable_additional_properties: Option<bool>,
}

/// Where a dialect has what a chat calls `response_format`: the names that its errors use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormatPlace {
    /// The field.
    pub field: &'static str,
    /// The schema in it.
    pub schema: &'static str,
}

impl Default for FormatPlace {
    fn default() -> Self {
        Self { field: "response_format", schema: "response_format.json_schema.schema" }
    }
}

/// The fields that can ask for a shape.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Asked<'a> {
    pub response_format: Option<&'a Value>,
    pub format_place: FormatPlace,
    pub structured_outputs: Option<&'a StructuredOutputs>,
    pub grammar: Option<&'a Grammar>,
    pub guided_json: Option<&'a Value>,
    pub guided_regex: Option<&'a str>,
    pub guided_choice: Option<&'a [String]>,
    pub guided_grammar: Option<&'a str>,
    pub guided_whitespace_pattern: Option<&'a str>,
}

/// The one shape that is asked for, and the field that asks.
///
/// # Errors
/// `Validation`, when a field is not what it should be or two fields ask.
pub(super) fn source(asked: &Asked<'_>) -> Result<Option<(&'static str, GrammarSource)>, ApiError> {
    let mut found: Vec<(&'static str, GrammarSource)> = Vec::new();
    let mut add = |field, source: Option<GrammarSource>| found.extend(source.map(|source| (field, source)));
    let place = asked.format_place;
    add(place.field, asked.response_format.map(|format| response_format(place, format)).transpose()?.flatten());
    let mut spacing = asked.guided_whitespace_pattern;
    if let Some(outputs) = asked.structured_outputs {
        of_outputs(outputs)?.into_iter().for_each(|(field, source)| add(field, Some(source)));
        spacing = spacing.or(outputs.spacing()?);
    }
    add("grammar", asked.grammar.map(|grammar| grammar.clone().source("grammar")).transpose()?);
    add("guided_json", asked.guided_json.map(|schema| json_schema("guided_json", schema)).transpose()?.flatten());
    add("guided_regex", asked.guided_regex.map(|regex| GrammarSource::Regex(regex.to_owned())));
    add("guided_choice", asked.guided_choice.map(|choices| GrammarSource::Choice(choices.to_vec())));
    add("guided_grammar", asked.guided_grammar.map(|text| GrammarSource::grammar(text.to_owned())));
    if let [(one, _), (other, _), ..] = found.as_slice() {
        return Err(invalid(&format!("`{one}` and `{other}` both ask for a shape of the answer; send one of them")));
    }
    match (found.pop(), spacing) {
        (Some((field, source)), Some(spacing)) => Ok(Some((field, spaced(source, spacing)?))),
        (None, Some(_)) => {
            Err(invalid("white space between parts of JSON is set, but no JSON is asked for; leave it out"))
        }
        (found, None) => Ok(found),
    }
}

fn response_format(place: FormatPlace, format: &Value) -> Result<Option<GrammarSource>, ApiError> {
    let field = place.field;
    match kind(format) {
        _ if format.is_null() => Ok(None),
        "text" => Ok(None),
        "json" | "json_object" | "json_schema" | "regex" if format.get("value").is_some() => {
            // TGI's own form.
            let grammar = serde_json::from_value::<Grammar>(format.clone());
            let grammar = grammar.map_err(|error| invalid(&format!("`{field}` is not readable: {error}")))?;
            grammar.source(field).map(Some)
        }
        "json_object" => Ok(Some(GrammarSource::JsonObject)),
        "json_schema" => {
            let named = format.get("json_schema").filter(|named| named.is_object());
            match named.map(|named| named.get("schema").unwrap_or(&Value::Null)) {
                None => Err(invalid(&format!("`{field}.json_schema` must be an object with a `name` and a `schema`"))),
                Some(Value::Null) => Ok(Some(GrammarSource::JsonObject)),
                Some(schema) => json_schema(place.schema, schema),
            }
        }
        "regex" => match format.get("pattern").and_then(Value::as_str) {
            Some(regex) => Ok(Some(GrammarSource::Regex(regex.to_owned()))),
            None => Err(invalid(&format!("`{field}.pattern` must be a regular expression: a string"))),
        },
        "grammar" => match format.get("grammar").and_then(Value::as_str) {
            Some(text) => Ok(Some(GrammarSource::grammar(text.to_owned()))),
            None => Err(invalid(&format!("`{field}.grammar` must be a grammar in Lark or GBNF: a string"))),
        },
        "structural_tag" => structural::source(field, format).map(Some),
        other => Err(invalid(&format!(
            "`{field}.type` is `{other}`; send `text`, `json_object`, `json_schema`, `regex`, `grammar` or `structural_tag`"
        ))),
    }
}

fn kind(format: &Value) -> &str {
    format.get("type").and_then(Value::as_str).unwrap_or_default()
}

impl StructuredOutputs {
    fn spacing(&self) -> Result<Option<&str>, ApiError> {
        match (self.disable_any_whitespace, &self.whitespace_pattern) {
            (Some(true), Some(_)) => Err(invalid(
                "`whitespace_pattern` and `disable_any_whitespace` contradict each other; send one of them",
            )),
            (Some(true), None) => Ok(Some("")),
            (_, pattern) => Ok(pattern.as_deref()),
        }
    }
}

fn of_outputs(outputs: &StructuredOutputs) -> Result<Vec<(&'static str, GrammarSource)>, ApiError> {
    if outputs.disable_additional_properties == Some(true) {
        return Err(ApiError::Unsupported {
            field: "structured_outputs.disable_additional_properties",
            remedy: "write `\"additionalProperties\": false` into the schema",
        });
    }
    let mut found = Vec::new();
    let mut add = |field, source: Option<GrammarSource>| found.extend(source.map(|source| (field, source)));
    let json = outputs.json.as_ref().map(|schema| json_schema("structured_outputs.json", schema));
    add("structured_outputs.json", json.transpose()?.flatten());
    let object = outputs.json_object.unwrap_or_default();
    add("structured_outputs.json_object", object.then_some(GrammarSource::JsonObject));
    add("structured_outputs.regex", outputs.regex.clone().map(GrammarSource::Regex));
    add("structured_outputs.choice", outputs.choice.clone().map(GrammarSource::Choice));
    add("structured_outputs.grammar", outputs.grammar.clone().map(GrammarSource::grammar));
    let tag = outputs.structural_tag.as_ref().filter(|tag| !tag.is_null());
    let tag = tag.map(|tag| structural::source("structured_outputs.structural_tag", &parsed("structural_tag", tag)?));
    add("structured_outputs.structural_tag", tag.transpose()?);
    Ok(found)
}

/// A schema, or the text of one.
fn json_schema(field: &'static str, schema: &Value) -> Result<Option<GrammarSource>, ApiError> {
    let schema = parsed(field, schema)?;
    match schema {
        Value::Null => Ok(None),
        Value::Object(_) | Value::Bool(_) => Ok(Some(GrammarSource::JsonSchema(schema))),
        _ => Err(invalid(&format!("`{field}` must be a JSON schema: an object, or its text"))),
    }
}

/// JSON, also where a client sends its text.
fn parsed(field: &str, value: &Value) -> Result<Value, ApiError> {
    match value {
        Value::String(text) => {
            serde_json::from_str(text).map_err(|error| invalid(&format!("`{field}` is not valid JSON: {error}")))
        }
        value => Ok(value.clone()),
    }
}

/// The source with another rule for white space.
fn spaced(source: GrammarSource, spacing: &str) -> Result<GrammarSource, ApiError> {
    let schema = match source {
        GrammarSource::JsonSchema(schema) => schema,
        GrammarSource::JsonObject => json!({"type": "object"}),
        _ => return Err(invalid("white space between parts of JSON is set, but no JSON is asked for; leave it out")),
    };
    Ok(GrammarSource::Layout(Layout::Json { schema, spacing: Some(spacing.to_owned()) }))
}

pub(super) fn invalid(sentence: &str) -> ApiError {
    ApiError::Validation(format!("Input validation error: {sentence}"))
}
