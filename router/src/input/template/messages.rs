//! Messages as a template takes them.
//!
//! Clients write content as a string or as a list of parts, call arguments as JSON text, and nothing as null; each
//! template is written for some of these forms only.

use serde_json::{Map, Value, json};

use crate::input::error::{InputError, invalid};

/// What forms of content a template takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentForm {
    /// Strings; a list would be printed as such.
    Text,
    /// Lists of parts only.
    Parts,
    /// Both.
    Either,
}

/// How a template wants its messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub(super) content: ContentForm,
    /// Whether it asks if content is none; otherwise it would print `None`.
    pub(super) tests_for_none: bool,
    /// Whether it has a use for messages of the developer's; otherwise they are the system's, as they were before OpenAI renamed
    /// them.
    pub(super) knows_developers: bool,
}

/// The role that newer clients of OpenAI's give to what `system` was.
pub(super) const DEVELOPER: &str = "developer";

/// Messages ready for a template.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Messages {
    pub(super) list: Vec<Value>,
    /// Whether arguments of tool calls were parsed; templates from before that custom want them as text.
    pub(super) parsed_arguments: bool,
}

/// Adapts messages to a template.
///
/// # Errors
/// `Validation`, when one is no message or has content other than text.
pub(super) fn adapt(messages: &[Value], style: Style, parse_arguments: bool) -> Result<Messages, InputError> {
    if messages.is_empty() {
        return Err(invalid("`messages` must have at least one message"));
    }
    let mut parsed_arguments = false;
    let mut list = Vec::with_capacity(messages.len());
    for message in messages {
        let Some(fields) = message.as_object().filter(|fields| fields.get("role").is_some_and(Value::is_string)) else {
            return Err(invalid("each of `messages` must be an object with a `role`"));
        };
        let mut fields = fields.clone();
        let content = content(fields.remove("content").unwrap_or_default(), style)?;
        fields.insert("content".to_owned(), content);
        if !style.knows_developers && fields.get("role").is_some_and(|role| role == DEVELOPER) {
            fields.insert("role".to_owned(), Value::from("system"));
        }
        share_reasoning(&mut fields);
        if parse_arguments {
            parsed_arguments |= parse_call_arguments(&mut fields);
        }
        list.push(Value::Object(fields));
    }
    Ok(Messages { list, parsed_arguments })
}

fn content(content: Value, style: Style) -> Result<Value, InputError> {
    match content {
        Value::Null if style.tests_for_none => Ok(Value::Null),
        Value::Null => Ok(written(String::new(), style.content)),
        Value::String(text) => Ok(written(text, style.content)),
        Value::Array(parts) => {
            let parts: Vec<Value> = parts.into_iter().map(refusal_as_text).collect();
            let texts = parts.iter().map(part_text).collect::<Result<Vec<_>, _>>()?;
            Ok(if style.content == ContentForm::Text { Value::String(texts.concat()) } else { Value::Array(parts) })
        }
        _ => Err(invalid("`content` of a message must be a string or a list of parts")),
    }
}

fn written(text: String, form: ContentForm) -> Value {
    if form == ContentForm::Parts { json!([{"type": "text", "text": text}]) } else { Value::String(text) }
}

/// What OpenAI's models write instead of an answer is text to any other.
fn refusal_as_text(part: Value) -> Value {
    match part.get("refusal").filter(|_| part["type"] == "refusal") {
        Some(Value::String(text)) => json!({"type": "text", "text": text}),
        _ => part,
    }
}

fn part_text(part: &Value) -> Result<&str, InputError> {
    let kind = part["type"].as_str().unwrap_or("unknown");
    match part["text"].as_str() {
        Some(text) if kind == "text" => Ok(text),
        _ => Err(invalid(format!(
            "this model takes text only: remove content parts of type `{kind}` or turn them into `text` parts"
        ))),
    }
}

/// Reasoning goes by several names; templates read one of them.
fn share_reasoning(fields: &mut Map<String, Value>) {
    let names = ["reasoning_content", "thinking", "reasoning"];
    let given = names.iter().find_map(|name| fields.get(*name).filter(|value| !value.is_null())).cloned();
    if let Some(reasoning) = given {
        fields.entry("thinking").or_insert_with(|| reasoning.clone());
        fields.insert("reasoning_content".to_owned(), reasoning);
    }
}

/// Turns the arguments of tool calls from JSON text into objects; whether there were any.
fn parse_call_arguments(fields: &mut Map<String, Value>) -> bool {
    let Some(calls) = fields.get_mut("tool_calls").and_then(Value::as_array_mut) else { return false };
    let mut parsed = false;
    for arguments in calls.iter_mut().filter_map(|call| call.pointer_mut("/function/arguments")) {
        let object = arguments.as_str().and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
        if let Some(object) = object {
            *arguments = Value::Object(object);
            parsed = true;
        }
    }
    parsed
}

/// Whether a template's source compares content with none.
pub(super) fn tests_for_none(source: &str) -> bool {
    source.match_indices("content").any(|(start, word)| {
        let after = source[start + word.len()..].trim_start_matches(['\'', '"', ']', ')', ' ']);
        let compared = ["is", "==", "!="].iter().find_map(|operator| after.strip_prefix(operator));
        let operand = compared.map(str::trim_start).unwrap_or_default();
        let operand = operand.strip_prefix("not ").map_or(operand, str::trim_start);
        operand.get(..4).is_some_and(|word| word.eq_ignore_ascii_case("none"))
    })
}

/// Text that marks where the last message ends; it is cut off again, with what the template writes after it.
const END_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Marks the end of the last message's text; gives the text before.
///
/// # Errors
/// `Validation`, when the last message has no text.
pub(super) fn mark_end(messages: &mut [Value]) -> Result<String, InputError> {
    let text = messages.last_mut().and_then(last_text);
    let Some(text) = text else {
        return Err(invalid("`continue_final_message` needs a last message with text to continue"));
    };
    let before = text.clone();
    text.push_str(END_TAG);
    Ok(before)
}

fn last_text(message: &mut Value) -> Option<&mut String> {
    let text = match message.get_mut("content")? {
        Value::Array(parts) => parts.iter_mut().rev().find_map(|part| part.get_mut("text"))?,
        content => content,
    };
    if let Value::String(text) = text { Some(text) } else { None }
}

/// Cuts what the template wrote after the marked end. When the template trimmed the message, so is the result.
///
/// # Errors
/// `Template`, when the last message did not come through.
pub(super) fn cut_at_end(mut rendered: String, last: &str) -> Result<String, InputError> {
    let Some(end) = rendered.rfind(END_TAG.trim_end()).filter(|_| rendered.contains(last.trim())) else {
        let reason =
            "the chat template leaves out or changes the last message, so `continue_final_message` cannot work";
        return Err(InputError::Template(reason.to_owned()));
    };
    let kept_spaces = rendered[end..].starts_with(END_TAG);
    rendered.truncate(end);
    if !kept_spaces {
        rendered.truncate(rendered.trim_end().len());
    }
    Ok(rendered)
}
