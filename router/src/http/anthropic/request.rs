//! Body of Anthropic's routes, and its translation.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::content::{Content, Turn, combined, messages, text_of};
use crate::http::errors::ApiError;
use crate::http::native::types::StopStrings;
use crate::http::openai::grammar::FormatPlace;
use crate::http::openai::messages::Message;
use crate::http::openai::types::ChatRequest;

/// Body of `POST /v1/messages` and `POST /v1/messages/count_tokens`. Fields not listed here are ignored.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct MessagesRequest {
    /// Any name is accepted and repeated in the answer.
    pub model: Option<String>,
    /// Tokens to generate at most; only counting does without.
    #[schema(minimum = 1)]
    pub max_tokens: Option<u32>,
    /// The conversation so far. A last message of the assistant's is continued.
    pub messages: Vec<Turn>,
    /// What the model is told beforehand.
    pub system: Option<Content>,
    /// Strings that end the text, and are not part of it.
    pub stop_sequences: Option<Vec<String>>,
    /// Whether to stream the answer.
    pub stream: Option<bool>,
    /// Divides the logits; 0 takes the most likely token.
    #[schema(minimum = 0.0)]
    pub temperature: Option<f32>,
    /// Draw among the most likely tokens of this total probability.
    #[schema(exclusive_minimum = 0.0, maximum = 1.0)]
    pub top_p: Option<f32>,
    /// Draw among so many of the most likely tokens.
    #[schema(minimum = 0)]
    pub top_k: Option<i32>,
    /// Functions that the model may call.
    pub tools: Option<Vec<AnthropicTool>>,
    /// Whether and what it calls.
    pub tool_choice: Option<AnthropicToolChoice>,
    /// Whether it thinks before it answers, where the chat template has a switch for it.
    pub thinking: Option<Thinking>,
    /// The form of the answer, and how much effort goes into it.
    pub output_config: Option<OutputConfig>,
    /// Not served: tools run where the client is.
    pub container: Option<Value>,
    /// Not served: tools run where the client is.
    pub mcp_servers: Option<Value>,
}

/// A function that the model may call.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct AnthropicTool {
    /// `custom`, or left out; Anthropic's own tools are not served.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Its name.
    pub name: String,
    /// What it does, for the model.
    pub description: Option<String>,
    /// JSON schema of its input.
    #[schema(value_type = Option<Object>)]
    pub input_schema: Option<Value>,
    /// Whether the input must be valid against the schema.
    pub strict: Option<bool>,
}

/// Whether and what the model calls.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct AnthropicToolChoice {
    /// `auto`, `any`, `tool` or `none`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The tool to call, with `tool`.
    pub name: Option<String>,
    /// With true only the first call of an answer is returned.
    pub disable_parallel_tool_use: Option<bool>,
}

/// Whether the model thinks.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AnthropicThinking)]
pub struct Thinking {
    /// `enabled`, `adaptive` or `disabled`.
    #[serde(rename = "type")]
    pub kind: String,
    /// With `enabled`, tokens to think at most: then the answer begins.
    #[schema(minimum = 0)]
    pub budget_tokens: Option<u32>,
}

/// The form of an answer.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AnthropicOutputConfig)]
pub struct OutputConfig {
    /// `{"type": "json_schema", "schema": …}`.
    #[schema(value_type = Option<Object>)]
    pub format: Option<Value>,
    /// `low`, `medium`, `high`, or what else the chat template knows.
    pub effort: Option<String>,
}

impl MessagesRequest {
    /// Whether the answer is streamed.
    #[must_use]
    pub fn streamed(&self) -> bool {
        self.stream.unwrap_or_default()
    }

    /// The request to generate.
    ///
    /// # Errors
    /// What is wrong with it, or not served.
    pub fn into_chat(self) -> Result<ChatRequest, ApiError> {
        if self.max_tokens.is_none() {
            return Err(invalid("`max_tokens` is missing; say how many tokens the answer may have"));
        }
        self.into_counted()
    }

    /// The request whose prompt is counted, which needs no limit.
    ///
    /// # Errors
    /// Those of `into_chat`.
    pub fn into_counted(self) -> Result<ChatRequest, ApiError> {
        for (field, value) in [("container", &self.container), ("mcp_servers", &self.mcp_servers)] {
            if value.as_ref().is_some_and(|value| !value.is_null() && !is_empty(value)) {
                return Err(ApiError::Unsupported { field, remedy: "leave it out" });
            }
        }
        let parallel = self.tool_choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use);
        let tools = self.tools.map(|tools| tools.into_iter().enumerate().map(tool).collect()).transpose()?;
        let (format, effort) = self.output_config.map(|config| (config.format, config.effort)).unwrap_or_default();
        Ok(ChatRequest {
            messages: conversation(self.system, self.messages)?,
            model: self.model,
            max_tokens: self.max_tokens,
            cut_to_fit: true,
            stop: self.stop_sequences.map(StopStrings::Several),
            stream: self.stream,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            tools,
            tool_choice: self.tool_choice.map(choice).transpose()?,
            parallel_tool_calls: parallel.map(|disabled| !disabled),
            chat_template_kwargs: switches(self.thinking.as_ref(), effort)?,
            thinking_budget: self
                .thinking
                .filter(|thinking| thinking.kind == "enabled")
                .and_then(|on| on.budget_tokens),
            // Any model may be asked to think; one that does not has nothing to bound.
            lenient_budget: true,
            response_format: format.map(response_format).transpose()?,
            format_place: FormatPlace { field: "output_config.format", schema: "output_config.format.schema" },
            ..ChatRequest::default()
        })
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

fn conversation(system: Option<Content>, turns: Vec<Turn>) -> Result<Vec<Message>, ApiError> {
    let mut all = Vec::with_capacity(turns.len() + 1);
    if let Some(system) = system {
        let text = text_of(system, "system")?;
        all.push(Message { role: "system".to_owned(), content: Some(Value::String(text)), other: Map::new() });
    }
    for (index, turn) in turns.into_iter().enumerate() {
        messages(index, turn, &mut all)?;
    }
    Ok(combined(all))
}

fn tool((index, tool): (usize, AnthropicTool)) -> Result<Value, ApiError> {
    if let Some(kind) = tool.kind.filter(|kind| kind != "custom") {
        return Err(invalid(&format!(
            "`tools[{index}].type` is `{}`, which runs at Anthropic's; send tools of type `custom` only",
            cut(&kind)
        )));
    }
    let mut function = Map::from_iter([("name".to_owned(), Value::String(tool.name))]);
    let optional = [
        ("description", tool.description.map(Value::String)),
        ("parameters", tool.input_schema),
        ("strict", tool.strict.map(Value::Bool)),
    ];
    function.extend(optional.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    Ok(json!({"type": "function", "function": function}))
}

fn choice(choice: AnthropicToolChoice) -> Result<Value, ApiError> {
    match (choice.kind.as_str(), choice.name) {
        ("auto", _) => Ok("auto".into()),
        ("none", _) => Ok("none".into()),
        ("any", _) => Ok("required".into()),
        ("tool", Some(name)) => Ok(json!({"type": "function", "function": {"name": name}})),
        ("tool", None) => Err(invalid("`tool_choice.name` is missing; name the tool to call")),
        _ => Err(invalid("`tool_choice.type` must be `auto`, `any`, `tool` or `none`")),
    }
}

/// The variables by which chat templates switch thinking; each family has its own name for it.
pub(in crate::http) fn thinking_switches(on: bool) -> Map<String, Value> {
    ["enable_thinking", "thinking"].into_iter().map(|name| (name.to_owned(), Value::Bool(on))).collect()
}

fn switches(thinking: Option<&Thinking>, effort: Option<String>) -> Result<Option<Map<String, Value>>, ApiError> {
    let mut switches = match thinking.map(|thinking| thinking.kind.as_str()) {
        None => Map::new(),
        Some("enabled" | "adaptive") => thinking_switches(true),
        Some("disabled") => thinking_switches(false),
        Some(_) => return Err(invalid("`thinking.type` must be `enabled`, `adaptive` or `disabled`")),
    };
    switches.extend(effort.map(|effort| ("reasoning_effort".to_owned(), Value::String(effort))));
    Ok(Some(switches).filter(|switches| !switches.is_empty()))
}

/// OpenAI's form of Anthropic's.
fn response_format(mut format: Value) -> Result<Value, ApiError> {
    let is_schema = format["type"] == "json_schema";
    match format.get_mut("schema").map(Value::take).filter(|_| is_schema) {
        Some(schema) => {
            let schema = json!({"name": "output", "strict": true, "schema": schema});
            Ok(json!({"type": "json_schema", "json_schema": schema}))
        }
        None => Err(invalid("`output_config.format` must be `{\"type\": \"json_schema\", \"schema\": …}`")),
    }
}

/// A sentence about the body.
pub(super) fn invalid(sentence: &str) -> ApiError {
    ApiError::Validation(format!("Input validation error: {sentence}"))
}

/// As much of a client's word as a sentence has room for.
pub(super) fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}
