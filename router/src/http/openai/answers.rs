//! Answer bodies of OpenAI's routes. Those of streams borrow: one is written for each token.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::async_tools::AsyncToolsEvent;
use super::logprobs::{ChatLogprobs, CompletionLogprobs, PromptLogprobs};
use crate::http::generation::{Completed, FinishReason};
use crate::settings::Settings;

/// What every part of an answer repeats.
#[derive(Debug, Clone)]
pub struct Head {
    /// A new id.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name, as the client put it.
    pub model: String,
    /// The version that answers.
    pub system_fingerprint: String,
}

impl Head {
    /// A new answer; `prefix` tells the routes' ids apart.
    #[must_use]
    pub fn new(prefix: &str, model: Option<String>, settings: &Settings) -> Self {
        Self {
            id: format!("{prefix}-{}", Uuid::new_v4().simple()),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            model: model.filter(|name| name != "tgi").unwrap_or_else(|| settings.model_id.clone()),
            system_fingerprint: format!("{}-native", settings.version),
        }
    }
}

/// Why a text ended, in OpenAI's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = OpenAiFinishReason)]
pub enum StopReason {
    /// By itself, or at a stop string.
    Stop,
    /// At the limit of tokens.
    Length,
    /// To have tools called: there are calls, and each is complete.
    ToolCalls,
}

impl From<FinishReason> for StopReason {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Length => Self::Length,
            FinishReason::EosToken | FinishReason::StopSequence => Self::Stop,
        }
    }
}

/// Counts of tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Usage {
    /// Tokens of the prompts.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub completion_tokens: usize,
    /// Both.
    pub total_tokens: usize,
    /// What became of the prompts' tokens.
    pub prompt_tokens_details: PromptTokensDetails,
    /// What the tokens generated are; only where reasoning is told from answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

/// What became of the tokens of prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Those that were in the prefix cache and not computed again.
    pub cached_tokens: usize,
}

/// What the tokens generated are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct CompletionTokensDetails {
    /// Those of reasoning, the marks around it included.
    pub reasoning_tokens: usize,
}

impl Usage {
    /// Tokens of prompts, those of them that were cached, and tokens generated.
    #[must_use]
    pub const fn new(prompt_tokens: usize, cached_tokens: usize, completion_tokens: usize) -> Self {
        let prompt_tokens_details = PromptTokensDetails { cached_tokens };
        let total_tokens = prompt_tokens + completion_tokens;
        Self { prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details, completion_tokens_details: None }
    }

    /// With the tokens of reasoning, where they are counted.
    #[must_use]
    pub fn with_reasoning(self, tokens: Option<usize>) -> Self {
        let completion_tokens_details = tokens.map(|reasoning_tokens| CompletionTokensDetails { reasoning_tokens });
        Self { completion_tokens_details, ..self }
    }

    /// Of whole sequences. A prompt counts once, however many continue it.
    #[must_use]
    pub fn of(all: &[Completed]) -> Self {
        let prompts = || all.iter().filter(|one| one.facts.choice == 0);
        let prompt = prompts().map(|one| one.facts.input_length).sum();
        let cached = prompts().map(|one| one.cached_tokens as usize).sum();
        Self::new(prompt, cached, all.iter().map(|one| one.steps.len()).sum())
    }
}

/// Answer of `POST /v1/chat/completions`.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatCompletion {
    /// Names this answer.
    pub id: String,
    /// Always `chat.completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// The version that answers.
    pub system_fingerprint: String,
    /// The answers, `n` of them.
    pub choices: Vec<ChatChoice>,
    /// Counts of tokens.
    pub usage: Usage,
    /// Log-probabilities of the prompt, when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// The prompt's tokens, when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// One answer to a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatChoice {
    /// Its number.
    pub index: usize,
    /// The message.
    pub message: AnswerMessage,
    /// Log-probabilities, when asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// Why it ended.
    pub finish_reason: StopReason,
    /// Its tokens, when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// The model's message.
#[derive(Debug, Serialize, ToSchema)]
pub struct AnswerMessage {
    /// Always `assistant`.
    pub role: &'static str,
    /// The text; null when there is none beside reasoning or calls.
    pub content: Option<String>,
    /// What the model thought.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The calls that it makes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

impl AnswerMessage {
    /// A message of text alone.
    pub(in crate::http) fn text(text: String) -> Self {
        Self { role: "assistant", content: Some(text), reasoning_content: None, tool_calls: Vec::new() }
    }
}

/// A call of a tool.
#[derive(Debug, Serialize, ToSchema)]
pub struct ToolCall {
    /// Names the call: the tool's message repeats it as `tool_call_id`.
    pub id: String,
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// What is called.
    pub function: CalledFunction,
}

/// What a call calls.
#[derive(Debug, Serialize, ToSchema)]
pub struct CalledFunction {
    /// One of the request's tools.
    pub name: String,
    /// JSON as the model wrote it: to be parsed and checked before it is used. Cut off when the answer was.
    pub arguments: String,
}

/// One event of a streamed conversation.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatCompletionChunk<'a> {
    /// Names this answer.
    pub id: &'a str,
    /// Always `chat.completion.chunk`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name.
    pub model: &'a str,
    /// The version that answers.
    pub system_fingerprint: &'a str,
    /// What is new; empty in the chunk that counts tokens.
    pub choices: &'a [ChatChunkChoice<'a>],
    /// Counts of tokens, in the last chunk or in all of them when asked for.
    pub usage: Option<Usage>,
    /// The prompt's tokens, in the first chunk when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// What became of a call, in chunks of their own, with `async_tools`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub async_tools: Option<&'a AsyncToolsEvent>,
}

/// What is new in an answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatChunkChoice<'a> {
    /// The answer's number.
    pub index: usize,
    /// What is new in the message.
    pub delta: Delta<'a>,
    /// Log-probabilities of the tokens since the last chunk, when asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// In the last chunk with choices.
    pub finish_reason: Option<StopReason>,
    /// The tokens since the last chunk, when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// What is new in a message.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Delta<'a> {
    /// In the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// New characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
    /// New characters of what the model thinks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    /// What is new in a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[ToolCallDelta<'a>; 1]>,
}

/// What is new in a call: its id, type and name first, then its arguments.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct ToolCallDelta<'a> {
    /// The call's number.
    pub index: usize,
    /// In the call's first delta.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'a str>,
    /// `function`, in the call's first delta.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// What is new in what is called.
    pub function: FunctionDelta<'a>,
}

/// What is new in what is called.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct FunctionDelta<'a> {
    /// In the call's first delta.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// New characters.
    pub arguments: &'a str,
}

/// Answer of `POST /v1/completions`.
#[derive(Debug, Serialize, ToSchema)]
pub struct Completion {
    /// Names this answer.
    pub id: String,
    /// Always `text_completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// The version that answers.
    pub system_fingerprint: String,
    /// `n` for each prompt, in the order of the prompts.
    pub choices: Vec<CompletionChoice>,
    /// Counts of tokens over all prompts.
    pub usage: Usage,
}

/// One completed prompt.
#[derive(Debug, Serialize, ToSchema)]
pub struct CompletionChoice {
    /// Its number.
    pub index: usize,
    /// The text.
    pub text: String,
    /// Log-probabilities, when asked for.
    pub logprobs: Option<CompletionLogprobs>,
    /// Why it ended.
    pub finish_reason: StopReason,
    /// Log-probabilities of the prompt, when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// The prompt's tokens, when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// The text's tokens, when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// One event of streamed completions.
#[derive(Debug, Serialize, ToSchema)]
pub struct CompletionChunk<'a> {
    /// Names this answer.
    pub id: &'a str,
    /// Always `text_completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name.
    pub model: &'a str,
    /// The version that answers.
    pub system_fingerprint: &'a str,
    /// What is new; empty in the chunk that counts tokens.
    pub choices: &'a [CompletionChunkChoice<'a>],
    /// A completion's counts in its last chunk, the prompt with the first one; with `include_usage`, those of all prompts in one more chunk instead.
    pub usage: Option<Usage>,
}

/// What is new in a completion.
#[derive(Debug, Serialize, ToSchema)]
pub struct CompletionChunkChoice<'a> {
    /// The completion's number.
    pub index: usize,
    /// New characters.
    pub text: Cow<'a, str>,
    /// Log-probabilities of the tokens since the last chunk, when asked for.
    pub logprobs: Option<CompletionLogprobs>,
    /// In the completion's last chunk.
    pub finish_reason: Option<StopReason>,
    /// The prompt's tokens, in the completion's first chunk when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// The tokens since the last chunk, when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}
