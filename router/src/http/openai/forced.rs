//! Calls as a grammar writes them, in the form of the model's own family: an answer made of calls alone, or text in which
//! every call is one of the tools offered and has arguments that are valid.

use serde_json::{Map, Value, json};

use super::grammar::invalid;
use super::tools::{self, Calling, Choice};
use crate::grammar::{GrammarSource, Layout, Tagged};
use crate::http::errors::ApiError;
use crate::output::tools::{
    FieldValue, ForcedBody, ForcedCall, ForcedField, ForcedFormat, Tool, ToolParserKind, ToolSet,
};

/// Keywords of a schema that an object of named arguments, written one by one, can follow.
const BY_FIELD: [&str; 13] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "$schema",
    "$id",
    "$comment",
];
/// How gpt-oss writes what it thinks, what ends that, and how it begins the answer.
const ANALYSIS: &str = "<|channel|>analysis<|message|>";
const AFTER_ANALYSIS: &str = "<|end|><|start|>assistant";
const FINAL: &str = "<|channel|>final<|message|>";
/// Alternatives within alternatives that are told apart.
const MOST_HOPS: usize = 8;
/// Bytes that definitions may take when each argument needs its own copy of them.
const MOST_BYTES: usize = 1 << 20;

/// What an answer must look like, where it must look like something: calls, text of the shape that is `wanted`, or either.
/// `channels`: the model writes its answers in channels, as gpt-oss does.
///
/// # Errors
/// `Validation`, when calls of this kind cannot be held to what is asked.
pub(super) fn shape(
    kind: Option<ToolParserKind>,
    offered: &[Value],
    calling: &Calling,
    wanted: Option<GrammarSource>,
    channels: bool,
) -> Result<Option<GrammarSource>, ApiError> {
    let wanted = match wanted {
        Some(wanted) if channels => {
            Some(GrammarSource::Layout(Layout::Sequence(vec![Layout::text(FINAL), as_layout(wanted)?])))
        }
        wanted => wanted,
    };
    let shape = match kind {
        Some(kind) => with_tools(kind, offered, calling, wanted)?,
        None => wanted,
    };
    match shape {
        Some(shape) if channels => {
            let thought = Layout::Until { rules: Vec::new(), end: AFTER_ANALYSIS.to_owned() };
            let analysis = Layout::Optional(Box::new(Layout::Sequence(vec![Layout::text(ANALYSIS), thought])));
            Ok(Some(GrammarSource::Layout(Layout::Sequence(vec![analysis, as_layout(shape)?]))))
        }
        shape => Ok(shape),
    }
}

fn with_tools(
    kind: ToolParserKind,
    offered: &[Value],
    calling: &Calling,
    wanted: Option<GrammarSource>,
) -> Result<Option<GrammarSource>, ApiError> {
    let several = calling.parallel && !matches!(calling.choice, Choice::Named(_));
    let strictness = |tool: &Tool| tools::strictness(offered, &tool.name);
    let allowed = tools::set(offered, &calling.choice);
    // A request that says that a schema is not to be kept gets any object, where the family writes JSON.
    let held_to = |strict: fn(Option<bool>) -> bool| -> ToolSet {
        let loose = |tool: &Tool| Tool { name: tool.name.clone(), parameters: json!({"type": "object"}) };
        let keeps = |tool: &Tool| strict(strictness(tool)) || kind.writes_fields();
        allowed.iter().map(|tool| if keeps(tool) { tool.clone() } else { loose(tool) }).collect()
    };
    let layout = match wanted {
        _ if calling.choice.forces() => only_calls(kind, &held_to(|strict| strict != Some(false)), several)?,
        Some(wanted) => {
            if kind.openings().is_some_and(|openings| !openings.bare.is_empty()) {
                return Err(invalid(
                    "this model writes calls without a marker, so that they cannot be told from text of a given shape; \
                     send `\"tool_choice\": \"none\"` or `\"required\"`, or ask for no shape",
                ));
            }
            let calls = only_calls(kind, &held_to(|strict| strict != Some(false)), several)?;
            Layout::Choice(vec![calls, as_layout(wanted)?])
        }
        None if allowed.iter().any(|tool| strictness(tool) == Some(true)) => {
            match text_and_calls(kind, &held_to(|strict| strict == Some(true)), several)? {
                Some(layout) => layout,
                None => return Ok(None),
            }
        }
        None => return Ok(None),
    };
    Ok(Some(GrammarSource::Layout(layout)))
}

/// An answer that is calls and nothing else: one, or several.
///
/// # Errors
/// `Validation`, when a family writes arguments one by one and the schema asks for more than that can hold.
fn only_calls(kind: ToolParserKind, tools: &ToolSet, several: bool) -> Result<Layout, ApiError> {
    let format = kind.forced_format(tools);
    let (begin, several) = (format.begin.clone(), several && format.several);
    Ok(Layout::Sequence(vec![Layout::Text(begin), list(format, tools, several)?]))
}

/// Text with such calls in it, where the model wants some; `None` for a family whose answers are more than text and calls.
///
/// # Errors
/// As [`only_calls`].
fn text_and_calls(kind: ToolParserKind, tools: &ToolSet, several: bool) -> Result<Option<Layout>, ApiError> {
    let Some(openings) = kind.openings() else { return Ok(None) };
    let avoided: Vec<String> = openings.others.iter().map(|text| (*text).to_owned()).collect();
    let not_first = openings.bare.to_owned();
    let Some(marker) = openings.marker else {
        let text = Layout::Optional(Box::new(Layout::Free { avoided, not_first }));
        return Ok(Some(Layout::Choice(vec![only_calls(kind, tools, several)?, text])));
    };
    let format = kind.forced_format(tools);
    let parts = if format.begin.starts_with(marker) {
        vec![(format.begin.clone(), list(format, tools, several)?)]
    } else {
        calls(format, tools)?
    };
    let triggers = vec![marker.to_owned()];
    Ok(Some(Layout::Tagged(Tagged { parts, triggers, avoided, not_first, only_first: !several, ..Tagged::default() })))
}

/// Calls and the end behind them.
fn list(format: ForcedFormat, tools: &ToolSet, several: bool) -> Result<Layout, ApiError> {
    let (end, between) = (format.end.clone(), format.between.clone());
    let calls = calls(format, tools)?.into_iter();
    let call = Layout::Choice(calls.map(|(begin, rest)| Layout::Sequence(vec![Layout::Text(begin), rest])).collect());
    let calls = if several { Layout::Several { one: Box::new(call), between } } else { call };
    Ok(Layout::Sequence(vec![calls, Layout::Text(end)]))
}

/// A shape as a part of another one.
fn as_layout(shape: GrammarSource) -> Result<Layout, ApiError> {
    match shape {
        GrammarSource::JsonSchema(schema) => Ok(Layout::json(schema)),
        GrammarSource::JsonObject => Ok(Layout::json(json!({"type": "object"}))),
        GrammarSource::Regex(regex) => Ok(Layout::Regex(regex)),
        GrammarSource::Choice(choices) => Ok(Layout::OneOf(choices)),
        GrammarSource::Layout(layout) => Ok(layout),
        GrammarSource::Lark(_) | GrammarSource::Gbnf(_) | GrammarSource::StructuralTag(_) => Err(invalid(
            "a context-free grammar or a structural tag cannot stand beside calls of tools or in a channel; send \
             `\"tool_choice\": \"none\"`, or ask for JSON, a regular expression or a choice",
        )),
    }
}

/// How each call begins, and the rest of it.
fn calls(format: ForcedFormat, tools: &ToolSet) -> Result<Vec<(String, Layout)>, ApiError> {
    let mut budget = MOST_BYTES;
    format.calls.into_iter().zip(tools.iter()).map(|(one, tool)| call(one, tool, &mut budget)).collect()
}

fn call(call: ForcedCall, tool: &Tool, budget: &mut usize) -> Result<(String, Layout), ApiError> {
    let body = match call.body {
        ForcedBody::Json(schema) => Layout::json(schema),
        ForcedBody::Fields { fields, between } => {
            check_by_field(tool)?;
            let field = |field| by_field(field, tool, budget);
            Layout::Fields {
                fields: fields.into_iter().map(field).collect::<Result<_, _>>()?,
                between: between.to_owned(),
            }
        }
    };
    Ok((call.begin, Layout::Sequence(vec![body, Layout::Text(call.end)])))
}

/// Whether a schema says nothing of an object but what its named arguments are.
fn check_by_field(tool: &Tool) -> Result<(), ApiError> {
    let (name, schema) = (&tool.name, tool.arguments());
    let keywords = schema.as_object().into_iter().flat_map(Map::keys);
    if let Some(keyword) = keywords.map(String::as_str).find(|keyword| !BY_FIELD.contains(keyword)) {
        return Err(invalid(&format!(
            "the parameters of the tool `{name}` use `{keyword}`, and this model writes arguments one by one; name them under `properties`"
        )));
    }
    let named = |argument: &str| schema.get("properties").is_some_and(|properties| properties.get(argument).is_some());
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    match required.into_iter().find(|argument| !named(argument)) {
        Some(argument) => Err(invalid(&format!(
            "the tool `{name}` requires the argument `{argument}`, and its `properties` do not describe it; add it"
        ))),
        None => Ok(()),
    }
}

/// One argument: whether it is required, and how it is written.
fn by_field(field: ForcedField, tool: &Tool, budget: &mut usize) -> Result<(bool, Layout), ApiError> {
    let value = match field.value {
        FieldValue::Text(schema) => text_value(&schema, "", field.end),
        FieldValue::Json(schema) if field.end.is_empty() => json_value(&schema, tool, budget)?,
        FieldValue::Json(schema) => {
            let mut branches = Vec::new();
            spread(&schema, tool, MOST_HOPS, &mut branches);
            tagged_value(&branches, field.end, tool, budget)?
        }
    };
    Ok((field.required, Layout::Sequence(vec![Layout::Text(field.begin), value])))
}

/// A value between tags that may be a string, which is written without quotes, or something else, which is JSON.
fn tagged_value(branches: &[Value], end: &str, tool: &Tool, budget: &mut usize) -> Result<Layout, ApiError> {
    let kind = |branch: &Value| branch.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    // What would be read as one of the other types, the text does not begin with.
    let not_first: String = branches
        .iter()
        .map(|branch| match kind(branch).as_str() {
            "array" | "object" => r"\[{(",
            "integer" | "number" => "0-9+.-",
            _ => "",
        })
        .collect();
    let value = |branch: &Value| match branch.get("const") {
        Some(Value::String(text)) => Ok(Layout::Sequence(vec![Layout::text(text.clone()), Layout::text(end)])),
        Some(value) => Ok(Layout::Text(format!("{value}{end}"))),
        None if kind(branch) == "string" => Ok(text_value(branch, &not_first, end)),
        None => Ok(Layout::Sequence(vec![json_value(branch, tool, budget)?, Layout::text(end)])),
    };
    branches.iter().map(value).collect::<Result<_, _>>().map(Layout::Choice)
}

/// The alternatives of a schema, each with one type or one value.
fn spread(schema: &Value, tool: &Tool, hops: usize, into: &mut Vec<Value>) {
    let schema = tool.followed(schema);
    let list = |keyword: &str| schema.get(keyword).and_then(Value::as_array).map(Vec::as_slice);
    if let Some(values) = list("enum") {
        into.extend(values.iter().map(|value| json!({"const": value})));
    } else if let (Some(alternatives), 1..) = (list("anyOf").or_else(|| list("oneOf")), hops) {
        alternatives.iter().for_each(|alternative| spread(alternative, tool, hops - 1, into));
    } else if let Some(types) = list("type") {
        for kind in types {
            let mut one = schema.clone();
            one["type"] = kind.clone();
            into.push(one);
        }
    } else {
        into.push(schema.clone());
    }
}

/// A string between tags, and the closing tag.
fn text_value(schema: &Value, not_first: &str, end: &str) -> Layout {
    let values = schema.get("enum").and_then(Value::as_array).map(Vec::as_slice);
    let values = values.or_else(|| schema.get("const").map(std::slice::from_ref));
    if let Some(values) = values {
        let one = |value: &Value| Layout::text(value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        return Layout::Sequence(vec![Layout::Choice(values.iter().map(one).collect()), Layout::text(end)]);
    }
    let mut rules = Vec::new();
    if !not_first.is_empty() {
        rules.push(format!(r"(?s:[^\s{not_first}].*)?"));
    }
    let length = |keyword| schema.get(keyword).and_then(Value::as_u64);
    if let (least @ Some(_), most) | (least, most @ Some(_)) = (length("minLength"), length("maxLength")) {
        let most = most.map(|most| most.to_string()).unwrap_or_default();
        rules.push(format!("(?s:.{{{},{most}}})", least.unwrap_or(0)));
    }
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
        let (pattern, before) = pattern.strip_prefix('^').map_or((pattern, "(?s:.*)"), |rest| (rest, ""));
        let escapes = |rest: &str| rest.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 1;
        let anchored = pattern.strip_suffix('$').filter(|rest| !escapes(rest));
        let (pattern, behind) = anchored.map_or((pattern, "(?s:.*)"), |rest| (rest, ""));
        rules.push(format!("{before}(?:{pattern}){behind}"));
    }
    Layout::Until { rules, end: end.to_owned() }
}

/// JSON of one argument. Its schema may refer to definitions of the whole.
fn json_value(schema: &Value, tool: &Tool, budget: &mut usize) -> Result<Layout, ApiError> {
    let mut schema = schema.clone();
    if let Value::Object(keywords) = &mut schema {
        for definitions in ["$defs", "definitions"] {
            if let Some(defined) = tool.parameters.get(definitions) {
                let bytes = defined.to_string().len();
                *budget = budget.checked_sub(bytes).ok_or_else(|| {
                    invalid(&format!(
                        "the definitions in the parameters of the tool `{}` are too large; shorten them",
                        tool.name
                    ))
                })?;
                keywords.entry(definitions).or_insert_with(|| defined.clone());
            }
        }
    }
    Ok(Layout::json(schema))
}
