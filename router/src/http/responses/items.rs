//! Input items, as the chat template's messages.

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::invalid;
use crate::http::errors::ApiError;
use crate::http::openai::messages::Message;

/// Translates the items of a conversation.
///
/// # Errors
/// The place and what is wrong there.
pub(super) fn messages(instructions: Option<String>, items: Vec<Value>) -> Result<Vec<Message>, ApiError> {
    let mut told = Conversation::default();
    if let Some(text) = instructions {
        told.say("system", text);
    }
    for (index, item) in items.into_iter().enumerate() {
        told.item(index, item)?;
    }
    told.flush();
    Ok(told.messages)
}

/// An item with all that a reader of stored items expects of it.
pub(super) fn complete(item: Value) -> Value {
    let Value::Object(mut item) = item else { return item };
    let kind = item.get("type").and_then(Value::as_str).unwrap_or("message").to_owned();
    if kind == "message" {
        let part = if item.get("role").is_some_and(|role| role == "assistant") { "output_text" } else { "input_text" };
        if let Some(Value::String(text)) = item.get("content") {
            let content = json!([{"type": part, "text": text}]);
            item.insert("content".to_owned(), content);
        }
    }
    if !item.get("id").is_some_and(Value::is_string) {
        item.insert("id".to_owned(), Value::String(new_id(prefix(&kind))));
    }
    item.insert("type".to_owned(), Value::String(kind));
    Value::Object(item)
}

fn prefix(kind: &str) -> &'static str {
    match kind {
        "message" => "msg",
        "reasoning" => "rs",
        "function_call" => "fc",
        "function_call_output" => "fco",
        _ => "item",
    }
}

/// A new id.
pub(super) fn new_id(prefix: &str) -> String {
    format!("{prefix}_{}", Uuid::new_v4().simple())
}

#[derive(Default)]
struct Conversation {
    messages: Vec<Message>,
    /// What the assistant says, which comes in several items.
    said: Option<Said>,
}

#[derive(Default)]
struct Said {
    thoughts: Vec<String>,
    text: Option<String>,
    calls: Vec<Value>,
}

impl Conversation {
    fn item(&mut self, index: usize, item: Value) -> Result<(), ApiError> {
        let place = format!("input[{index}]");
        let Value::Object(mut item) = item else {
            return Err(invalid(&format!("`{place}` must be an object with a `type`")));
        };
        let kind = item.get("type").and_then(Value::as_str).unwrap_or("message").to_owned();
        match kind.as_str() {
            "message" => {
                let content = text(item.remove("content"), &format!("{place}.content"))?;
                match item.get("role").and_then(Value::as_str) {
                    Some("assistant") => {
                        if self.said.as_ref().is_some_and(|said| said.text.is_some() || !said.calls.is_empty()) {
                            self.flush();
                        }
                        self.said.get_or_insert_default().text = Some(content);
                    }
                    Some("user") => self.say("user", content),
                    // Templates know one name for who sets the rules.
                    Some("system" | "developer") => self.say("system", content),
                    _ => {
                        let roles = "`user`, `assistant`, `system` or `developer`";
                        return Err(invalid(&format!("`{place}.role` must be {roles}")));
                    }
                }
            }
            "reasoning" => {
                let given =
                    item.remove("content").filter(|content| content.as_array().is_some_and(|parts| !parts.is_empty()));
                let thoughts = text(given.or_else(|| item.remove("summary")), &format!("{place}.content"))?;
                if self.said.as_ref().is_some_and(|said| said.text.is_some() || !said.calls.is_empty()) {
                    self.flush();
                }
                let said = self.said.get_or_insert_default();
                said.thoughts.extend(Some(thoughts).filter(|thoughts| !thoughts.is_empty()));
            }
            "function_call" => {
                let id = field(&mut item, "call_id", &place)?;
                let name = field(&mut item, "name", &place)?;
                let arguments = field(&mut item, "arguments", &place)?;
                let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
                self.said.get_or_insert_default().calls.push(call);
            }
            "function_call_output" => {
                let id = field(&mut item, "call_id", &place)?;
                let content = text(item.remove("output"), &format!("{place}.output"))?;
                self.flush();
                let other = Map::from_iter([("tool_call_id".to_owned(), Value::String(id))]);
                self.messages.push(Message { role: "tool".to_owned(), content: Some(Value::String(content)), other });
            }
            other => {
                let other: String = other.chars().take(64).collect();
                return Err(invalid(&format!(
                    "`{place}` is an item of type `{other}`, which is not served here: send messages, reasoning, \
                     `function_call` and `function_call_output`"
                )));
            }
        }
        Ok(())
    }

    /// A message of someone else's. What sets the rules at the beginning is one message: some templates take no more.
    fn say(&mut self, role: &str, text: String) {
        self.flush();
        if let [only] = self.messages.as_mut_slice()
            && role == "system"
            && only.role == role
            && let Some(Value::String(before)) = &mut only.content
        {
            before.push_str("\n\n");
            before.push_str(&text);
            return;
        }
        let content = Some(Value::String(text));
        self.messages.push(Message { role: role.to_owned(), content, other: Map::new() });
    }

    fn flush(&mut self) {
        let Some(said) = self.said.take() else { return };
        let mut other = Map::new();
        if !said.thoughts.is_empty() {
            other.insert("reasoning_content".to_owned(), Value::String(said.thoughts.join("\n")));
        }
        if !said.calls.is_empty() {
            other.insert("tool_calls".to_owned(), Value::Array(said.calls));
        }
        self.messages.push(Message { role: "assistant".to_owned(), content: said.text.map(Value::String), other });
    }
}

/// A text, or the texts of parts.
fn text(content: Option<Value>, place: &str) -> Result<String, ApiError> {
    match content {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(parts)) => {
            let part = |(index, mut part): (usize, Value)| {
                let kind = part["type"].as_str().unwrap_or("unknown");
                let name = match kind {
                    "input_text" | "output_text" | "text" | "reasoning_text" | "summary_text" => "text",
                    "refusal" => "refusal",
                    other => {
                        let other: String = other.chars().take(64).collect();
                        return Err(invalid(&format!(
                            "`{place}[{index}]` is of type `{other}`, and this model takes text only: remove it"
                        )));
                    }
                };
                match part.get_mut(name).map(Value::take) {
                    Some(Value::String(text)) => Ok(text),
                    _ => Err(invalid(&format!("`{place}[{index}].{name}` must be a string"))),
                }
            };
            parts.into_iter().enumerate().map(part).collect()
        }
        Some(_) => Err(invalid(&format!("`{place}` must be a string or a list of parts"))),
    }
}

fn field(item: &mut Map<String, Value>, name: &str, place: &str) -> Result<String, ApiError> {
    match item.remove(name) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(invalid(&format!("`{place}.{name}` must be a string"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(instructions: Option<&str>, items: Value) -> Result<Vec<Value>, String> {
        let Value::Array(items) = items else { panic!("a list") };
        let messages = messages(instructions.map(str::to_owned), items).map_err(|error| error.to_string())?;
        Ok(messages.into_iter().map(Value::from).collect())
    }

    #[test]
    fn what_the_assistant_did_is_one_message() {
        let items = json!([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "What "}, {"type": "input_text", "text": "time?"}]},
            {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "A clock."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hm.", "annotations": []}]},
            {"type": "function_call", "call_id": "c1", "name": "clock", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "clock", "arguments": "{\"x\":1}"},
            {"type": "function_call_output", "call_id": "c1", "output": "12:00"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "13:00"}]},
            {"type": "message", "role": "assistant", "content": "Noon."},
            {"role": "assistant", "content": "Or one."},
        ]);
        let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "clock", "arguments": arguments}});
        let expected = vec![
            json!({"role": "system", "content": "You help.\n\nBe brief."}),
            json!({"role": "user", "content": "What time?"}),
            json!({"role": "assistant", "content": "Hm.", "reasoning_content": "A clock.",
                   "tool_calls": [call("c1", "{}"), call("c2", "{\"x\":1}")]}),
            json!({"role": "tool", "content": "12:00", "tool_call_id": "c1"}),
            json!({"role": "tool", "content": "13:00", "tool_call_id": "c2"}),
            json!({"role": "assistant", "content": "Noon."}),
            json!({"role": "assistant", "content": "Or one."}),
        ];
        assert_eq!(told(Some("You help."), items), Ok(expected));
    }

    #[test]
    fn what_is_not_served_is_named() {
        for (item, place) in [
            (json!("hi"), "`input[0]`"),
            (json!({"role": "bot", "content": "x"}), "`input[0].role`"),
            (json!({"role": "user", "content": [{"type": "input_image"}]}), "`input[0].content[0]`"),
            (json!({"role": "user", "content": [{"type": "input_text"}]}), "`input[0].content[0].text`"),
            (json!({"role": "user", "content": 1}), "`input[0].content`"),
            (json!({"type": "web_search_call"}), "`web_search_call`"),
            (json!({"type": "function_call", "call_id": "c", "name": "f"}), "`input[0].arguments`"),
            (json!({"type": "function_call_output", "output": "x"}), "`input[0].call_id`"),
        ] {
            let error = told(None, json!([item])).unwrap_err();
            assert!(error.starts_with("Input validation error: ") && error.contains(place), "{item}: {error}");
        }
    }

    #[test]
    fn stored_items_are_complete() {
        let item = complete(json!({"role": "user", "content": "hi"}));
        assert!(item["id"].as_str().unwrap().starts_with("msg_"));
        assert_eq!(item["content"], json!([{"type": "input_text", "text": "hi"}]));
        assert_eq!(item["type"], "message");
        let call = json!({"type": "function_call", "id": "x", "call_id": "c", "name": "f", "arguments": ""});
        assert_eq!(complete(call.clone()), call);
    }
}
