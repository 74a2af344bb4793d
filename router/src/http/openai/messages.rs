//! OpenAI's messages on their way to the chat template; `input` gives them the forms that the template at hand takes.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

/// One message of a conversation. Other fields (`name`, `tool_calls`, `tool_call_id`, …) reach the chat template.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool`, or what else the template knows.
    #[schema(example = "user")]
    pub role: String,
    /// What is said; null beside tool calls.
    #[schema(value_type = Option<Content>)]
    pub content: Option<Value>,
    /// Everything else.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The content of a message.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Content {
    /// A text.
    Text(String),
    /// Parts of a text.
    Parts(Vec<Part>),
}

/// A part of a message's content.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct Part {
    /// `text`; images are not served yet.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text.
    pub text: Option<String>,
}

impl Message {
    /// Whether the model can go on where this message ends.
    #[must_use]
    pub fn can_continue(&self) -> bool {
        let calls = self.other.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
        self.role == "assistant" && self.content.is_some() && !calls
    }
}

impl Message {
    /// Puts text behind what is said.
    pub(super) fn append(&mut self, text: &str) {
        match &mut self.content {
            Some(Value::String(said)) => said.push_str(text),
            Some(Value::Array(parts)) => parts.push(json!({"type": "text", "text": text})),
            _ => self.content = Some(Value::String(text.to_owned())),
        }
    }
}

impl From<Message> for Value {
    /// The message without its nulls: templates ask whether a field is there, and a null one is. Content always is.
    fn from(message: Message) -> Self {
        let mut fields = Map::new();
        fields.insert("role".to_owned(), Value::String(message.role));
        fields.insert("content".to_owned(), message.content.unwrap_or_default());
        fields.extend(message.other.into_iter().filter(|(_, value)| !value.is_null()));
        Value::Object(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nulls_do_not_reach_the_template() {
        let message = json!({"role": "user", "content": null, "name": null, "tool_calls": null, "tool_call_id": "1"});
        let message: Message = serde_json::from_value(message).unwrap();
        assert_eq!(Value::from(message), json!({"role": "user", "content": null, "tool_call_id": "1"}));
    }
}
