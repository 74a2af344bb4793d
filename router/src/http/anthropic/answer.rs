//! Answers in Anthropic's shapes, whole and streamed.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::http::blocks::{Block, Kind, Tokens, Told};
use crate::http::openai::answers::StopReason;

/// Stands where Anthropic signs a model's thoughts: nothing here checks it.
pub(super) const SIGNATURE: &str = "unsigned";

/// Answer of `POST /v1/messages`.
#[derive(Debug, Serialize, ToSchema)]
pub struct AnthropicMessage {
    /// Names this answer.
    pub id: String,
    /// Always `message`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Always `assistant`.
    pub role: &'static str,
    /// The model's name.
    pub model: String,
    /// What it says.
    pub content: Vec<ContentBlock>,
    /// Why it ended; null while it has not.
    pub stop_reason: Option<AnthropicStopReason>,
    /// The stop sequence that ended it.
    pub stop_sequence: Option<String>,
    /// Counts of tokens.
    pub usage: AnthropicUsage,
}

/// A block of an answer.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = AnthropicContentBlock)]
pub enum ContentBlock {
    /// Text for the reader.
    Text {
        /// The text.
        text: String,
    },
    /// What the model thinks.
    Thinking {
        /// The thoughts.
        thinking: String,
        /// Of no meaning here.
        signature: &'static str,
    },
    /// A call of a tool.
    ToolUse {
        /// Names the call: its result repeats it as `tool_use_id`.
        id: String,
        /// One of the request's tools.
        name: String,
        /// The input; empty when the answer was cut off within it.
        #[schema(value_type = Object)]
        input: Map<String, Value>,
    },
}

/// Why an answer ended, in Anthropic's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnthropicStopReason {
    /// By itself.
    EndTurn,
    /// At the limit of tokens.
    MaxTokens,
    /// At a stop sequence.
    StopSequence,
    /// To have tools called.
    ToolUse,
}

impl AnthropicStopReason {
    pub(super) const fn new(reason: StopReason, calls: bool, stopped_by: Option<&str>) -> Self {
        match (reason, stopped_by) {
            (StopReason::Length, _) => Self::MaxTokens,
            _ if calls => Self::ToolUse,
            (_, Some(_)) => Self::StopSequence,
            (_, None) => Self::EndTurn,
        }
    }
}

/// Counts of tokens: those of the prompt are `input_tokens` and `cache_read_input_tokens` together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct AnthropicUsage {
    /// Tokens of the prompt that were computed.
    pub input_tokens: usize,
    /// Always 0: what is computed is cached without being asked, and costs nothing more.
    pub cache_creation_input_tokens: usize,
    /// Tokens of the prompt that were in the prefix cache.
    pub cache_read_input_tokens: usize,
    /// Tokens generated.
    pub output_tokens: usize,
    /// What they are; only where thoughts are told from answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens_details: Option<OutputTokensDetails>,
}

/// What the tokens generated are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = AnthropicOutputTokensDetails)]
pub struct OutputTokensDetails {
    /// Those of thoughts, the marks around them included.
    pub thinking_tokens: usize,
}

impl From<Tokens> for AnthropicUsage {
    fn from(tokens: Tokens) -> Self {
        Self {
            input_tokens: tokens.prompt.saturating_sub(tokens.cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: tokens.cached,
            output_tokens: tokens.generated,
            output_tokens_details: tokens.reasoning.map(|thinking_tokens| OutputTokensDetails { thinking_tokens }),
        }
    }
}

impl AnthropicMessage {
    /// One of which nothing is said yet.
    pub(super) fn begun(id: String, model: String, tokens: Tokens) -> Self {
        Self {
            id,
            kind: "message",
            role: "assistant",
            model,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: tokens.into(),
        }
    }

    /// A whole one.
    pub(super) fn whole(id: String, model: String, told: Told) -> Self {
        let stop_reason = AnthropicStopReason::new(told.reason, told.calls, told.stopped_by.as_deref());
        Self {
            content: told.blocks.into_iter().map(ContentBlock::from).collect(),
            stop_reason: Some(stop_reason),
            stop_sequence: told.stopped_by.map(String::from),
            ..Self::begun(id, model, told.tokens)
        }
    }
}

impl From<Block> for ContentBlock {
    fn from(block: Block) -> Self {
        match block.kind {
            Kind::Text => Self::Text { text: block.text },
            Kind::Reasoning => Self::Thinking { thinking: block.text, signature: SIGNATURE },
            Kind::Call { id, name } => {
                Self::ToolUse { id, name, input: serde_json::from_str(&block.text).unwrap_or_default() }
            }
        }
    }
}

/// One event of a streamed answer; `type` is the event's name too.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AnthropicEvent<'a> {
    /// The answer begins.
    MessageStart {
        /// It, without content.
        message: AnthropicMessage,
    },
    /// A block begins.
    ContentBlockStart {
        /// Its number.
        index: usize,
        /// It, without text.
        content_block: ContentBlock,
    },
    /// A block goes on.
    ContentBlockDelta {
        /// Its number.
        index: usize,
        /// What is new.
        delta: BlockDelta<'a>,
    },
    /// A block is over.
    ContentBlockStop {
        /// Its number.
        index: usize,
    },
    /// Why the answer ends.
    MessageDelta {
        /// What is new in the answer.
        delta: StopDelta,
        /// Counts of tokens, from the beginning.
        usage: AnthropicUsage,
    },
    /// The answer is over.
    MessageStop,
    /// The stream lives.
    Ping,
}

/// What is new in a block.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = AnthropicBlockDelta)]
pub enum BlockDelta<'a> {
    /// Of a text.
    TextDelta {
        /// New characters.
        text: &'a str,
    },
    /// Of thoughts.
    ThinkingDelta {
        /// New characters.
        thinking: &'a str,
    },
    /// Behind thoughts.
    SignatureDelta {
        /// Of no meaning here.
        signature: &'static str,
    },
    /// Of a call's input.
    InputJsonDelta {
        /// New characters.
        partial_json: &'a str,
    },
}

/// Why an answer ends.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AnthropicStopDelta)]
pub struct StopDelta {
    /// Why.
    pub stop_reason: AnthropicStopReason,
    /// The stop sequence that ended it.
    pub stop_sequence: Option<String>,
}

impl AnthropicEvent<'_> {
    /// Its name.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
            Self::Ping => "ping",
        }
    }
}
