//! Body of `POST /v1/responses`, and its translation.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::invalid;
use super::items::{self, complete};
use crate::http::anthropic::request::thinking_switches;
use crate::http::errors::ApiError;
use crate::http::openai::grammar::FormatPlace;
use crate::http::openai::sampling::Seed;
use crate::http::openai::types::ChatRequest;

/// Body of `POST /v1/responses` and `POST /v1/responses/input_tokens`. Fields not listed here are ignored.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct ResponsesRequest {
    /// Any name is accepted and repeated in the answer.
    pub model: Option<String>,
    /// What is said: a text of the user's, or items.
    pub input: Option<Input>,
    /// What the model is told beforehand; not passed on by `previous_response_id`.
    pub instructions: Option<String>,
    /// The response that this one goes on from; it must be stored.
    pub previous_response_id: Option<String>,
    /// Whether to keep the response for later; true when left out.
    pub store: Option<bool>,
    /// Whether to stream the answer.
    pub stream: Option<bool>,
    /// Tokens to generate at most; as many as fit when left out.
    #[schema(minimum = 1)]
    pub max_output_tokens: Option<u32>,
    /// Divides the logits; 0 takes the most likely token.
    #[schema(minimum = 0.0)]
    pub temperature: Option<f32>,
    /// Draw among the most likely tokens of this total probability.
    #[schema(exclusive_minimum = 0.0, maximum = 1.0)]
    pub top_p: Option<f32>,
    /// Draw among so many of the most likely tokens; ours.
    #[schema(minimum = -1)]
    pub top_k: Option<i32>,
    /// Makes the draws repeatable; ours.
    pub seed: Option<Seed>,
    /// Class of urgency: 0 goes first and is the default; ours.
    #[schema(minimum = 0, maximum = 3)]
    pub priority: Option<i64>,
    /// Only requests with the same salt (and the same API key) share cached prefixes; ours.
    #[schema(max_length = 256)]
    pub cache_salt: Option<String>,
    /// Functions that the model may call; other tools are not served.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, `{"type": "function", "name": …}`, or `{"type": "allowed_tools", "mode": …, "tools": …}`.
    pub tool_choice: Option<Value>,
    /// With false only the first call of an answer is returned.
    pub parallel_tool_calls: Option<bool>,
    /// The form of the text.
    pub text: Option<TextConfig>,
    /// How the model thinks.
    pub reasoning: Option<ReasoningConfig>,
    /// Repeated in the answer.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
    /// `disabled`: what does not fit is refused. `auto`: only as many of the prompt's last tokens are kept as are allowed, and the
    /// answer is cut to what fits beside them.
    pub truncation: Option<String>,
    /// What to tell beside the output: `message.output_text.logprobs`, and `reasoning.encrypted_content`, which is empty.
    pub include: Option<Vec<String>>,
    /// Alternatives to report with each token of the text, whose log-probabilities are reported then.
    #[schema(maximum = 20)]
    pub top_logprobs: Option<u32>,
    /// Not served.
    pub background: Option<Value>,
    /// Not served: send `previous_response_id`.
    pub conversation: Option<Value>,
    /// Not served: send the prompt itself.
    pub prompt: Option<Value>,
    /// Not served: tools run where the client is.
    pub max_tool_calls: Option<Value>,
    /// Not served.
    pub context_management: Option<Value>,
    /// Not served.
    pub moderation: Option<Value>,
}

/// What is said.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "`input` must be a string or a list of items")]
#[schema(as = ResponsesInput)]
pub enum Input {
    /// A message of the user's.
    Text(String),
    /// Items: messages, reasoning, `function_call`, `function_call_output`.
    #[schema(value_type = Vec<Object>)]
    Items(Vec<Value>),
}

/// The form of the text.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[schema(as = ResponsesText)]
pub struct TextConfig {
    /// `{"type": "text"}`, `{"type": "json_object"}` or `{"type": "json_schema", "name": …, "schema": …}`.
    #[schema(value_type = Option<Object>)]
    pub format: Option<Value>,
    /// A variable for the chat template.
    pub verbosity: Option<String>,
}

/// How the model thinks.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[schema(as = ResponsesReasoning)]
pub struct ReasoningConfig {
    /// `none` switches it off; `low`, `medium`, `high` and others are for the chat template.
    pub effort: Option<String>,
    /// Thoughts are told whole in `content`, never in short.
    pub summary: Option<String>,
}

/// A request taken apart: what to generate, and what its answer repeats and keeps.
pub(super) struct Translated {
    pub(super) chat: ChatRequest,
    /// Items of this request.
    pub(super) input: Vec<Value>,
    pub(super) echo: Echo,
}

/// What an answer repeats of its request.
#[derive(Debug, Clone, Default)]
pub(super) struct Echo {
    pub(super) instructions: Option<String>,
    pub(super) previous_response_id: Option<String>,
    pub(super) max_output_tokens: Option<u32>,
    pub(super) temperature: Option<f32>,
    pub(super) top_p: Option<f32>,
    pub(super) tools: Vec<Value>,
    pub(super) tool_choice: Option<Value>,
    pub(super) parallel_tool_calls: Option<bool>,
    pub(super) text_format: Option<Value>,
    pub(super) verbosity: Option<String>,
    pub(super) effort: Option<String>,
    pub(super) summary: Option<String>,
    pub(super) metadata: Map<String, Value>,
    pub(super) top_logprobs: u32,
    pub(super) truncates: bool,
}

impl ResponsesRequest {
    /// Whether the answer is streamed.
    #[must_use]
    pub fn streamed(&self) -> bool {
        self.stream.unwrap_or_default()
    }

    /// Whether the answer is kept.
    #[must_use]
    pub fn stored(&self) -> bool {
        self.store.unwrap_or(true)
    }

    /// Whether the text's tokens are told.
    #[must_use]
    pub fn wants_logprobs(&self) -> bool {
        let asks = |what: &String| what == "message.output_text.logprobs";
        self.include.as_ref().is_some_and(|include| include.iter().any(asks))
            || self.top_logprobs.is_some_and(|count| count > 0)
    }

    /// `context`: the items of the responses before.
    ///
    /// # Errors
    /// What is wrong with the request, or not served.
    pub(super) fn translate(self, context: Vec<Value>) -> Result<Translated, ApiError> {
        self.check()?;
        let logprobs = self.wants_logprobs();
        let input: Vec<Value> = match self.input {
            None => Vec::new(),
            Some(Input::Text(text)) => vec![json!({"role": "user", "content": text})],
            Some(Input::Items(items)) => items,
        };
        if input.is_empty() && context.is_empty() {
            return Err(invalid("`input` holds nothing; send a text or at least one item"));
        }
        // Places are told of the request's own items.
        let own = items::messages(self.instructions.clone(), input.clone())?;
        let messages = if context.is_empty() {
            own
        } else {
            items::messages(self.instructions.clone(), context.into_iter().chain(input.clone()).collect())?
        };
        let truncates = self.truncation.as_deref() == Some("auto");
        let (text, reasoning) = (self.text.unwrap_or_default(), self.reasoning.unwrap_or_default());
        let echo = Echo {
            instructions: self.instructions,
            previous_response_id: self.previous_response_id,
            max_output_tokens: self.max_output_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            tools: self.tools.clone().unwrap_or_default(),
            tool_choice: self.tool_choice.clone(),
            parallel_tool_calls: self.parallel_tool_calls,
            text_format: text.format.clone(),
            verbosity: text.verbosity.clone(),
            effort: reasoning.effort.clone(),
            summary: reasoning.summary,
            metadata: self.metadata.unwrap_or_default(),
            top_logprobs: self.top_logprobs.unwrap_or(0),
            truncates,
        };
        let tools = self.tools.map(|tools| tools.into_iter().enumerate().map(tool).collect()).transpose()?;
        let chat = ChatRequest {
            messages,
            model: self.model,
            max_completion_tokens: self.max_output_tokens,
            truncate_prompt_tokens: truncates.then_some(-1),
            cut_to_fit: truncates,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            seed: self.seed,
            priority: self.priority,
            cache_salt: self.cache_salt,
            stream: self.stream,
            tools,
            tool_choice: self.tool_choice.map(choice).transpose()?,
            parallel_tool_calls: self.parallel_tool_calls,
            logprobs: Some(logprobs),
            top_logprobs: self.top_logprobs,
            response_format: text.format.map(response_format).transpose()?,
            format_place: FormatPlace { field: "text.format", schema: "text.format.schema" },
            chat_template_kwargs: switches(reasoning.effort, text.verbosity),
            // The answer is an item of its own, also after one of the assistant's.
            add_generation_prompt: Some(true),
            continue_final_message: Some(false),
            ..ChatRequest::default()
        };
        Ok(Translated { chat, input: input.into_iter().map(complete).collect(), echo })
    }

    fn check(&self) -> Result<(), ApiError> {
        let asks = |value: &Option<Value>| {
            value.as_ref().is_some_and(|value| !value.is_null() && *value != Value::Bool(false))
        };
        for (field, value, remedy) in [
            ("background", &self.background, "leave it out and stream the answer"),
            ("conversation", &self.conversation, "send `previous_response_id`"),
            ("prompt", &self.prompt, "send the prompt's text as `instructions`"),
            ("max_tool_calls", &self.max_tool_calls, "leave it out"),
            ("context_management", &self.context_management, "leave it out"),
            ("moderation", &self.moderation, "leave it out"),
        ] {
            if asks(value) {
                return Err(ApiError::Unsupported { field, remedy });
            }
        }
        match self.truncation.as_deref() {
            None | Some("auto" | "disabled") => Ok(()),
            Some(_) => Err(invalid("`truncation` must be `auto` or `disabled`")),
        }
    }
}

/// Chat's form of a flat tool.
fn tool((index, tool): (usize, Value)) -> Result<Value, ApiError> {
    let Value::Object(mut tool) = tool else {
        return Err(invalid(&format!(
            "`tools[{index}]` must be an object like `{{\"type\": \"function\", \"name\": …}}`"
        )));
    };
    if tool.remove("type").is_none_or(|kind| kind != "function") {
        return Err(invalid(&format!("`tools[{index}].type` must be `function`; other tools are not served here")));
    }
    tool.retain(|name, value| {
        matches!(name.as_str(), "name" | "description" | "parameters" | "strict") && !value.is_null()
    });
    Ok(json!({"type": "function", "function": tool}))
}

fn choice(choice: Value) -> Result<Value, ApiError> {
    match &choice {
        Value::Null | Value::String(_) => Ok(choice),
        Value::Object(fields) if fields.get("type").is_some_and(|kind| kind == "function") => {
            Ok(json!({"type": "function", "function": {"name": fields.get("name")}}))
        }
        Value::Object(fields) if fields.get("type").is_some_and(|kind| kind == "allowed_tools") => {
            let tools = fields.get("tools").and_then(Value::as_array).cloned().unwrap_or_default();
            let tools = tools.into_iter().enumerate().map(tool).collect::<Result<Vec<Value>, _>>()?;
            Ok(json!({"type": "allowed_tools", "allowed_tools": {"mode": fields.get("mode"), "tools": tools}}))
        }
        _ => Err(invalid(
            "`tool_choice` must be `auto`, `none`, `required`, or an object of type `function` or `allowed_tools`",
        )),
    }
}

/// Chat's form of the text's.
fn response_format(format: Value) -> Result<Value, ApiError> {
    match format["type"].as_str() {
        Some("text" | "json_object") => Ok(format),
        Some("json_schema") => {
            let Value::Object(mut fields) = format else { return Ok(Value::Null) };
            fields.remove("type");
            Ok(json!({"type": "json_schema", "json_schema": fields}))
        }
        _ => Err(invalid("`text.format.type` must be `text`, `json_object` or `json_schema`")),
    }
}

fn switches(effort: Option<String>, verbosity: Option<String>) -> Option<Map<String, Value>> {
    let mut switches = match effort.as_deref() {
        None => Map::new(),
        Some("none") => thinking_switches(false),
        Some(_) => thinking_switches(true),
    };
    let levels = [("reasoning_effort", effort.filter(|effort| effort != "none")), ("verbosity", verbosity)];
    let levels = levels.into_iter().filter_map(|(name, level)| Some((name.to_owned(), Value::String(level?))));
    switches.extend(levels);
    Some(switches).filter(|switches| !switches.is_empty())
}
