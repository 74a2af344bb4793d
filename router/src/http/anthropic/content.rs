//! Anthropic's messages and their blocks, as the chat template's messages.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::request::{cut, invalid};
use crate::http::errors::ApiError;
use crate::http::openai::messages::Message;

/// One message of a conversation.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AnthropicTurn)]
pub struct Turn {
    /// `user` or `assistant`; `system` in between is taken too.
    #[schema(example = "user")]
    pub role: String,
    /// What is said.
    pub content: Content,
}

/// A text, or blocks.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "`content` and `system` must be a string or a list of blocks")]
#[schema(as = AnthropicContent)]
pub enum Content {
    /// A text.
    Text(String),
    /// Blocks: `text`, `thinking`, `tool_use`, `tool_result`.
    #[schema(value_type = Vec<Object>)]
    Blocks(Vec<Map<String, Value>>),
}

/// Makes one message of texts that the same speaker says in a row, as Anthropic does; templates may insist on turns.
pub(super) fn combined(messages: Vec<Message>) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        let speaks =
            |message: &Message| message.other.is_empty() && matches!(message.role.as_str(), "user" | "assistant");
        if let Some(last) = out.last_mut()
            && last.role == message.role
            && speaks(last)
            && speaks(&message)
            && let (Some(Value::String(before)), Some(Value::String(more))) = (&mut last.content, &message.content)
        {
            before.push('\n');
            before.push_str(more);
            continue;
        }
        out.push(message);
    }
    out
}

/// The text of content that may hold nothing else; blocks are lines.
pub(super) fn text_of(content: Content, place: &str) -> Result<String, ApiError> {
    match content {
        Content::Text(text) => Ok(text),
        Content::Blocks(blocks) => {
            let text = |(index, block): (usize, Map<String, Value>)| {
                let place = format!("{place}[{index}]");
                readable(block, &place)?.map_err(|block| unsupported(&place, kind(&block)))
            };
            let texts = blocks.into_iter().enumerate().map(text).collect::<Result<Vec<String>, _>>()?;
            Ok(texts.join("\n"))
        }
    }
}

/// Translates one message. Results of tools are messages of their own.
pub(super) fn messages(index: usize, turn: Turn, out: &mut Vec<Message>) -> Result<(), ApiError> {
    let place = format!("messages[{index}].content");
    match turn.role.as_str() {
        "user" => user(turn.content, &place, out),
        "assistant" => assistant(turn.content, &place, out),
        "system" => {
            out.push(message("system", Some(text_of(turn.content, &place)?)));
            Ok(())
        }
        _ => Err(invalid(&format!("`messages[{index}].role` must be `user` or `assistant`"))),
    }
}

fn user(content: Content, place: &str, out: &mut Vec<Message>) -> Result<(), ApiError> {
    let blocks = match content {
        Content::Text(text) => {
            out.push(message("user", Some(text)));
            return Ok(());
        }
        Content::Blocks(blocks) => blocks,
    };
    let mut texts = Vec::new();
    let say = |texts: &mut Vec<String>, out: &mut Vec<Message>| {
        if !texts.is_empty() {
            out.push(message("user", Some(std::mem::take(texts).join("\n"))));
        }
    };
    for (index, block) in blocks.into_iter().enumerate() {
        let place = format!("{place}[{index}]");
        let mut block = match readable(block, &place)? {
            Ok(text) => {
                texts.push(text);
                continue;
            }
            Err(block) => block,
        };
        match kind(&block) {
            "tool_result" => {
                say(&mut texts, out);
                let content = block.remove("content");
                let id = text_field(block, "tool_use_id", &place)?;
                let mut result = message("tool", Some(result_text(content, &place)?));
                result.other.insert("tool_call_id".to_owned(), Value::String(id));
                out.push(result);
            }
            other => return Err(unsupported(&place, other)),
        }
    }
    say(&mut texts, out);
    Ok(())
}

/// What a block says, where it is text: said, of a document that is text, or found by a search. The block itself otherwise.
fn readable(mut block: Map<String, Value>, place: &str) -> Result<Result<String, Map<String, Value>>, ApiError> {
    let head: &[&str] = match kind(&block) {
        "text" => return text_field(block, "text", place).map(Ok),
        "document" => &["title", "context"],
        "search_result" => &["title", "source"],
        _ => return Ok(Err(block)),
    };
    let body = if kind(&block) == "document" {
        document(block.remove("source"), &format!("{place}.source"))?
    } else {
        result_text(block.remove("content"), place)?
    };
    let head = head.iter().filter_map(|name| block.get(*name)?.as_str());
    Ok(Ok(head.chain([body.as_str()]).collect::<Vec<_>>().join("\n")))
}

/// The text of a document.
fn document(source: Option<Value>, place: &str) -> Result<String, ApiError> {
    let Some(Value::Object(mut source)) = source else {
        return Err(invalid(&format!("`{place}` must be an object with a `type`")));
    };
    match kind(&source) {
        "text" => text_field(source, "data", place),
        "content" => result_text(source.remove("content"), place),
        other => Err(invalid(&format!(
            "`{place}` is of type `{}`, which cannot be read here: send the document as `text`",
            cut(other)
        ))),
    }
}

fn result_text(content: Option<Value>, place: &str) -> Result<String, ApiError> {
    let place = format!("{place}.content");
    match content {
        None | Some(Value::Null) => Ok(String::new()),
        Some(content) => {
            let content = serde_json::from_value(content)
                .map_err(|_| invalid(&format!("`{place}` must be a string or a list of blocks")))?;
            text_of(content, &place)
        }
    }
}

fn assistant(content: Content, place: &str, out: &mut Vec<Message>) -> Result<(), ApiError> {
    let blocks = match content {
        Content::Text(text) => {
            out.push(message("assistant", Some(text)));
            return Ok(());
        }
        Content::Blocks(blocks) => blocks,
    };
    let (mut texts, mut thoughts, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for (index, block) in blocks.into_iter().enumerate() {
        let place = format!("{place}[{index}]");
        match kind(&block) {
            "text" => texts.push(text_field(block, "text", &place)?),
            "thinking" => thoughts.push(text_field(block, "thinking", &place)?),
            // Another model's, which no template can read.
            "redacted_thinking" => {}
            "tool_use" => calls.push(call(block, &place)?),
            other => return Err(unsupported(&place, other)),
        }
    }
    let mut said = message("assistant", (!texts.is_empty()).then(|| texts.join("\n")));
    if !thoughts.is_empty() {
        said.other.insert("reasoning_content".to_owned(), Value::String(thoughts.join("\n")));
    }
    if !calls.is_empty() {
        said.other.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    out.push(said);
    Ok(())
}

fn call(mut block: Map<String, Value>, place: &str) -> Result<Value, ApiError> {
    let name = block.remove("name").unwrap_or_default();
    let input = block.remove("input").unwrap_or_else(|| json!({}));
    if !name.is_string() || !input.is_object() {
        return Err(invalid(&format!("`{place}` must have a `name` and an object as `input`")));
    }
    let id = text_field(block, "id", place)?;
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": input.to_string()}}))
}

fn message(role: &str, content: Option<String>) -> Message {
    Message { role: role.to_owned(), content: content.map(Value::String), other: Map::new() }
}

fn kind(block: &Map<String, Value>) -> &str {
    block.get("type").and_then(Value::as_str).unwrap_or("unknown")
}

fn text_field(mut block: Map<String, Value>, field: &str, place: &str) -> Result<String, ApiError> {
    match block.remove(field) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(invalid(&format!("`{place}.{field}` must be a string"))),
    }
}

fn unsupported(place: &str, kind: &str) -> ApiError {
    invalid(&format!(
        "`{place}` is a block of type `{}`, which is not served here: send `text`, and results of tools from the user",
        cut(kind)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(turns: Value) -> Result<Vec<Value>, String> {
        let turns: Vec<Turn> = serde_json::from_value(turns).unwrap();
        let mut out = Vec::new();
        for (index, turn) in turns.into_iter().enumerate() {
            messages(index, turn, &mut out).map_err(|error| error.to_string())?;
        }
        Ok(combined(out).into_iter().map(Value::from).collect())
    }

    #[test]
    fn a_conversation_with_tools_and_thoughts() {
        let turns = json!([
            {"role": "user", "content": "What time"},
            {"role": "user", "content": "is it?"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "I have a clock.", "signature": "x"},
                {"type": "redacted_thinking", "data": "…"},
                {"type": "text", "text": "One moment."},
                {"type": "tool_use", "id": "c1", "name": "clock", "input": {"zone": "CET"}},
                {"type": "tool_use", "id": "c2", "name": "clock", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [
                    {"type": "text", "text": "12:00"}, {"type": "text", "text": "noon"},
                ]},
                {"type": "tool_result", "tool_use_id": "c2", "is_error": true},
                {"type": "text", "text": "Well?", "cache_control": {"type": "ephemeral"}},
                {"type": "document", "title": "Clocks", "source": {"type": "text", "media_type": "text/plain", "data": "Tick."},
                 "citations": {"enabled": true}},
                {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "Tock."}]}},
                {"type": "search_result", "title": "Time", "source": "https://time.example", "content": [
                    {"type": "text", "text": "It flies."},
                ]},
            ]},
        ]);
        let call = |id: &str, arguments: &str| {
            let function = json!({"name": "clock", "arguments": arguments});
            json!({"id": id, "type": "function", "function": function})
        };
        let expected = vec![
            json!({"role": "user", "content": "What time\nis it?"}),
            json!({"role": "assistant", "content": "One moment.", "reasoning_content": "I have a clock.",
                   "tool_calls": [call("c1", r#"{"zone":"CET"}"#), call("c2", "{}")]}),
            json!({"role": "tool", "content": "12:00\nnoon", "tool_call_id": "c1"}),
            json!({"role": "tool", "content": "", "tool_call_id": "c2"}),
            json!({"role": "user", "content": "Well?\nClocks\nTick.\nTock.\nTime\nhttps://time.example\nIt flies."}),
        ];
        assert_eq!(translated(turns), Ok(expected));
    }

    #[test]
    fn what_cannot_be_told_the_model_is_named() {
        for (turn, place) in [
            (json!({"role": "bot", "content": "x"}), "`messages[0].role`"),
            (json!({"role": "user", "content": [{"type": "image", "source": {}}]}), "`messages[0].content[0]`"),
            (json!({"role": "user", "content": [{"type": "text"}]}), "`messages[0].content[0].text`"),
            (json!({"role": "user", "content": [{"type": "tool_result"}]}), "`messages[0].content[0].tool_use_id`"),
            (
                json!({"role": "user", "content": [
                    {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}}]}),
                "`messages[0].content[0].source`",
            ),
            (json!({"role": "user", "content": [{"type": "document"}]}), "`messages[0].content[0].source`"),
            (
                json!({"role": "user", "content": [{"type": "search_result", "content": [{"type": "image"}]}]}),
                "`messages[0].content[0].content[0]`",
            ),
            (
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": 1}]}),
                "`messages[0].content[0].content`",
            ),
            (
                json!({"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image"}]}]}),
                "`messages[0].content[0].content[0]`",
            ),
            (json!({"role": "assistant", "content": [{"type": "server_tool_use"}]}), "`messages[0].content[0]`"),
            (
                json!({"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": []}]}),
                "`messages[0].content[0]`",
            ),
        ] {
            let error = translated(json!([turn])).unwrap_err();
            assert!(error.starts_with("Input validation error: ") && error.contains(place), "{turn}: {error}");
        }
    }
}
