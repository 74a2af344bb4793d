//! The response object and its events.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::items::new_id;
use super::request::Echo;
use crate::http::blocks::{Kind, Tokens};
use crate::http::errors::ApiError;
use crate::http::openai::logprobs::ChatLogprob;

/// A response.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ResponseObject {
    /// Names it.
    pub id: String,
    /// Always `response`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created_at: u64,
    /// When it was complete.
    pub completed_at: Option<u64>,
    /// How far it is.
    pub status: Status,
    /// Always false.
    pub background: bool,
    /// Why it failed.
    pub error: Option<ResponseFault>,
    /// Why it is incomplete.
    pub incomplete_details: Option<IncompleteDetails>,
    /// What the model was told beforehand.
    pub instructions: Option<String>,
    /// The limit that was asked for.
    pub max_output_tokens: Option<u32>,
    /// The request's own.
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
    /// The model's name.
    pub model: String,
    /// What it says.
    pub output: Vec<OutputItem>,
    /// Whether there may be several calls.
    pub parallel_tool_calls: bool,
    /// The response before.
    pub previous_response_id: Option<String>,
    /// How it thinks.
    #[schema(value_type = Object)]
    pub reasoning: Value,
    /// Whether it can be asked for again.
    pub store: bool,
    /// How it drew.
    pub temperature: f32,
    /// The form of its text.
    #[schema(value_type = Object)]
    pub text: Value,
    /// Whether tools had to be called.
    pub tool_choice: Value,
    /// The tools.
    #[schema(value_type = Vec<Object>)]
    pub tools: Vec<Value>,
    /// How it drew.
    pub top_p: f32,
    /// Alternatives that were asked for with each token.
    pub top_logprobs: u32,
    /// Whether what does not fit is cut off (`auto`) or refused (`disabled`).
    pub truncation: &'static str,
    /// Counts of tokens, at the end.
    pub usage: Option<ResponseUsage>,
}

/// How far a response or an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ResponseStatus)]
pub enum Status {
    /// It is being written.
    InProgress,
    /// It is whole.
    Completed,
    /// It was cut off.
    Incomplete,
    /// It broke off.
    Failed,
}

/// Why a response failed.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ResponseFault {
    /// `server_error`.
    pub code: &'static str,
    /// What went wrong and what to change.
    pub message: String,
}

/// Why a response is incomplete.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = ResponseIncompleteDetails)]
pub struct IncompleteDetails {
    /// Always `max_output_tokens`.
    pub reason: &'static str,
}

/// An item of a response.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = ResponseOutputItem)]
pub enum OutputItem {
    /// Text for the reader.
    Message {
        /// Names it.
        id: String,
        /// How far it is.
        status: Status,
        /// Always `assistant`.
        role: &'static str,
        /// Its text.
        content: Vec<OutputPart>,
    },
    /// What the model thinks.
    Reasoning {
        /// Names it.
        id: String,
        /// How far it is.
        status: Status,
        /// Always empty.
        #[schema(value_type = Vec<Object>)]
        summary: [(); 0],
        /// The thoughts.
        content: Vec<OutputPart>,
    },
    /// A call of a tool.
    FunctionCall {
        /// Names the item.
        id: String,
        /// How far it is.
        status: Status,
        /// Names the call: its result repeats it.
        call_id: String,
        /// One of the request's tools.
        name: String,
        /// JSON as the model wrote it.
        arguments: String,
    },
}

/// A part of an item.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = ResponseOutputPart)]
pub enum OutputPart {
    /// Of a message.
    OutputText {
        /// The text.
        text: String,
        /// Always empty.
        #[schema(value_type = Vec<Object>)]
        annotations: [(); 0],
        /// Its tokens, when asked for.
        logprobs: Vec<ChatLogprob>,
    },
    /// Of reasoning.
    ReasoningText {
        /// The thoughts.
        text: String,
    },
}

/// Counts of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct ResponseUsage {
    /// Of the prompt.
    pub input_tokens: usize,
    /// What became of them.
    pub input_tokens_details: InputTokensDetails,
    /// Generated.
    pub output_tokens: usize,
    /// What they are.
    pub output_tokens_details: OutputTokensDetails,
    /// Both.
    pub total_tokens: usize,
}

/// What became of the tokens of the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ResponseInputTokensDetails)]
pub struct InputTokensDetails {
    /// Those that were in the prefix cache.
    pub cached_tokens: usize,
    /// Always 0: what is computed is cached without being asked, and costs nothing more.
    pub cache_write_tokens: usize,
}

/// What the tokens generated are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ResponseOutputTokensDetails)]
pub struct OutputTokensDetails {
    /// Those of reasoning; 0 where it is not told apart.
    pub reasoning_tokens: usize,
}

impl From<Tokens> for ResponseUsage {
    fn from(tokens: Tokens) -> Self {
        Self {
            input_tokens: tokens.prompt,
            input_tokens_details: InputTokensDetails { cached_tokens: tokens.cached, cache_write_tokens: 0 },
            output_tokens: tokens.generated,
            output_tokens_details: OutputTokensDetails { reasoning_tokens: tokens.reasoning.unwrap_or(0) },
            total_tokens: tokens.prompt + tokens.generated,
        }
    }
}

impl ResponseObject {
    /// One that has only begun.
    pub(super) fn begun(model: String, store: bool, echo: Echo) -> Self {
        let format = echo.text_format.unwrap_or_else(|| json!({"type": "text"}));
        Self {
            id: new_id("resp"),
            object: "response",
            created_at: seconds(),
            completed_at: None,
            status: Status::InProgress,
            background: false,
            error: None,
            incomplete_details: None,
            instructions: echo.instructions,
            max_output_tokens: echo.max_output_tokens,
            metadata: echo.metadata,
            model,
            output: Vec::new(),
            parallel_tool_calls: echo.parallel_tool_calls.unwrap_or(true),
            previous_response_id: echo.previous_response_id,
            reasoning: json!({"effort": echo.effort, "summary": echo.summary}),
            store,
            temperature: echo.temperature.unwrap_or(1.0),
            text: match echo.verbosity {
                Some(verbosity) => json!({"format": format, "verbosity": verbosity}),
                None => json!({"format": format}),
            },
            tool_choice: echo.tool_choice.filter(|choice| !choice.is_null()).unwrap_or_else(|| "auto".into()),
            tools: echo.tools,
            top_p: echo.top_p.unwrap_or(1.0),
            top_logprobs: echo.top_logprobs,
            truncation: if echo.truncates { "auto" } else { "disabled" },
            usage: None,
        }
    }

    /// It is over.
    pub(super) fn end(&mut self, cut_off: bool, tokens: Tokens) {
        self.usage = Some(tokens.into());
        if cut_off {
            self.status = Status::Incomplete;
            self.incomplete_details = Some(IncompleteDetails { reason: "max_output_tokens" });
        } else {
            self.status = Status::Completed;
            self.completed_at = Some(seconds());
        }
    }

    /// It broke off.
    pub(super) fn fail(&mut self, error: &ApiError) {
        self.status = Status::Failed;
        self.error = Some(ResponseFault { code: "server_error", message: error.to_string() });
    }
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl OutputItem {
    /// One of which nothing is said yet.
    pub(super) fn begun(kind: Kind) -> Self {
        let status = Status::InProgress;
        match kind {
            Kind::Text => Self::Message { id: new_id("msg"), status, role: "assistant", content: Vec::new() },
            Kind::Reasoning => Self::Reasoning { id: new_id("rs"), status, summary: [], content: Vec::new() },
            Kind::Call { id, name } => {
                Self::FunctionCall { id: new_id("fc"), status, call_id: id, name, arguments: String::new() }
            }
        }
    }

    pub(super) fn id(&self) -> &str {
        match self {
            Self::Message { id, .. } | Self::Reasoning { id, .. } | Self::FunctionCall { id, .. } => id,
        }
    }

    /// The part that its text is; `None` of a call.
    pub(super) fn part(&self, text: String, logprobs: Vec<ChatLogprob>) -> Option<OutputPart> {
        match self {
            Self::Message { .. } => Some(OutputPart::OutputText { text, annotations: [], logprobs }),
            Self::Reasoning { .. } => Some(OutputPart::ReasoningText { text }),
            Self::FunctionCall { .. } => None,
        }
    }

    /// It is over, with all of its text.
    pub(super) fn finish(&mut self, text: String, logprobs: Vec<ChatLogprob>, end: Status) {
        match self {
            Self::Message { status, content, .. } => {
                *status = end;
                content.push(OutputPart::OutputText { text, annotations: [], logprobs });
            }
            Self::Reasoning { status, content, .. } => {
                *status = end;
                content.push(OutputPart::ReasoningText { text });
            }
            Self::FunctionCall { status, arguments, .. } => {
                *status = end;
                *arguments = text;
            }
        }
    }
}

/// An event of a streamed response; `type` is the event's name too.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub struct ResponseEvent<'a> {
    /// What happens.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The event's number.
    pub sequence_number: u64,
    /// The response, at its beginning and its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<&'a ResponseObject>,
    /// The item's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_index: Option<usize>,
    /// The item's name, within it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item_id: Option<&'a str>,
    /// The part's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_index: Option<usize>,
    /// The item, at its beginning and its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<&'a OutputItem>,
    /// The part, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<&'a OutputPart>,
    /// New characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delta: Option<&'a str>,
    /// All characters, at the end of a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<&'a str>,
    /// All characters, at the end of a call's arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<&'a str>,
    /// The tokens of the characters, in events of a message's text; empty unless asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<&'a [ChatLogprob]>,
}

impl<'a> ResponseEvent<'a> {
    /// An event that says nothing else yet.
    pub(super) const fn new(kind: &'static str) -> Self {
        Self {
            kind,
            sequence_number: 0,
            response: None,
            output_index: None,
            item_id: None,
            content_index: None,
            item: None,
            part: None,
            delta: None,
            text: None,
            arguments: None,
            logprobs: None,
        }
    }
}
