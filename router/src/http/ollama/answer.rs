//! Answers in Ollama's shapes. A stream's lines and a whole answer are made by the same steps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{SecondsFormat, Utc};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::http::blocks::{BlockEvent, Blocks, Kind, Sort, Tokens};
use crate::http::errors::{ApiError, Dialect, OllamaErrorResponse};
use crate::http::generation::{Facts, Step};
use crate::http::openai::answers::StopReason;
use crate::http::openai::logprobs::ChatLogprob;
use crate::http::openai::parts::Form;
use crate::http::sse::{Events, Translate};
use crate::input::ModelText;

/// A line of `POST /api/chat` or `POST /api/generate`, or the whole answer.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct OllamaAnswer {
    /// The model's name.
    pub model: String,
    /// When this was written.
    pub created_at: String,
    /// What is new in the message, on `/api/chat`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<OllamaAnswerMessage>,
    /// New characters, on `/api/generate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// New characters of what the model thinks, on `/api/generate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// The tokens of the new characters of the answer itself, when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<ChatLogprob>>,
    /// Whether this is the end.
    pub done: bool,
    /// Why it is: `stop`, `length`, or `load` when nothing was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_reason: Option<&'static str>,
    /// What it took.
    #[serde(flatten)]
    pub cost: Option<OllamaCost>,
}

/// What an answer took; times are nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct OllamaCost {
    /// From the call to the last token.
    pub total_duration: u64,
    /// Always 0: the model is there before requests are.
    pub load_duration: u64,
    /// Tokens of the prompt.
    pub prompt_eval_count: usize,
    /// From the call to the first token, waiting included.
    pub prompt_eval_duration: u64,
    /// Tokens generated.
    pub eval_count: usize,
    /// From the first token to the last.
    pub eval_duration: u64,
}

/// What is new in a message.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct OllamaAnswerMessage {
    /// Always `assistant`.
    pub role: &'static str,
    /// New characters.
    pub content: String,
    /// New characters of what the model thinks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Calls that are complete.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<OllamaToolCall>,
}

/// A call of a tool.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct OllamaToolCall {
    /// Names the call.
    pub id: String,
    /// What is called.
    pub function: OllamaFunction,
}

/// What a call calls.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct OllamaFunction {
    /// The call's number.
    pub index: usize,
    /// One of the request's tools.
    pub name: String,
    /// With what.
    #[schema(value_type = Object)]
    pub arguments: Map<String, Value>,
}

/// What is new in an answer.
#[derive(Debug, Default)]
pub(super) struct News {
    content: String,
    thinking: String,
    calls: Vec<OllamaToolCall>,
    logprobs: Vec<ChatLogprob>,
}

/// One answer on its way.
pub(super) struct Telling {
    model: String,
    /// Whether the answer is a message.
    chat: bool,
    /// Whether tokens are told.
    logprobs: bool,
    blocks: Blocks,
    /// Id, name and arguments of the call that is being written.
    call: Option<(String, String, String)>,
    /// Calls that are complete.
    calls: usize,
    tokens: Tokens,
    begun: Instant,
    first: Option<Instant>,
}

impl Telling {
    /// `begun`: when the call arrived.
    pub(super) fn new(model: String, chat: bool, form: Option<&Form>, facts: &Facts, begun: Instant) -> Self {
        Self {
            model,
            chat,
            logprobs: false,
            blocks: Blocks::new(form, facts),
            call: None,
            calls: 0,
            tokens: Tokens { prompt: facts.input_length, ..Tokens::default() },
            begun,
            first: None,
        }
    }

    /// The same with the log-probabilities of tokens, if there is a model to tell them.
    pub(super) fn with_logprobs(self, model: Option<Arc<ModelText>>) -> Self {
        Self { logprobs: model.is_some(), blocks: self.blocks.with_logprobs(model), ..self }
    }

    /// Takes a step; what is new goes to `news`. With the last step comes the end of the answer.
    pub(super) fn step(&mut self, mut step: Step, news: &mut News) -> Option<OllamaAnswer> {
        let now = Instant::now();
        let first = *self.first.get_or_insert(now);
        self.tokens.generated += 1;
        let mut told = Vec::new();
        self.blocks.step(&mut step, |event| told.push(event));
        told.into_iter().for_each(|event| self.take(event, news));
        let finish = step.finish?;
        let cost = OllamaCost {
            total_duration: nanoseconds(now - self.begun),
            load_duration: 0,
            prompt_eval_count: self.tokens.prompt,
            prompt_eval_duration: nanoseconds(first - self.begun),
            eval_count: self.tokens.generated,
            eval_duration: nanoseconds(now - first),
        };
        let reason = if self.blocks.reason(finish) == StopReason::Length { "length" } else { "stop" };
        Some(OllamaAnswer { done: true, done_reason: Some(reason), cost: Some(cost), ..self.line(News::default()) })
    }

    fn take(&mut self, event: BlockEvent, news: &mut News) {
        match event {
            BlockEvent::Begin(Kind::Call { id, name }) => self.call = Some((id, name, String::new())),
            BlockEvent::Begin(_) | BlockEvent::End(Sort::Text | Sort::Reasoning) => {}
            BlockEvent::More(Sort::Text, more, tokens) => {
                news.content.push_str(&more);
                news.logprobs.extend(tokens);
            }
            BlockEvent::More(Sort::Reasoning, more, _) => news.thinking.push_str(&more),
            BlockEvent::More(Sort::Call, more, _) => {
                if let Some((_, _, arguments)) = &mut self.call {
                    arguments.push_str(&more);
                }
            }
            BlockEvent::End(Sort::Call) => {
                // A call that was cut off is none: it has no arguments that could be told.
                let Some((id, name, arguments)) = self.call.take() else { return };
                if let Ok(arguments) = serde_json::from_str(&arguments) {
                    news.calls
                        .push(OllamaToolCall { id, function: OllamaFunction { index: self.calls, name, arguments } });
                    self.calls += 1;
                }
            }
        }
    }

    /// What is new as a line.
    pub(super) fn line(&self, news: News) -> OllamaAnswer {
        let thinking = (!news.thinking.is_empty()).then_some(news.thinking);
        let (message, response, thinking) = if self.chat {
            let message =
                OllamaAnswerMessage { role: "assistant", content: news.content, thinking, tool_calls: news.calls };
            (Some(message), None, None)
        } else {
            (None, Some(news.content), thinking)
        };
        OllamaAnswer {
            model: self.model.clone(),
            created_at: now(),
            message,
            response,
            thinking,
            logprobs: self.logprobs.then_some(news.logprobs),
            done: false,
            done_reason: None,
            cost: None,
        }
    }
}

impl OllamaAnswer {
    /// With what is new in another.
    pub(super) fn with(self, other: Self) -> Self {
        let Self { message, response, thinking, logprobs, .. } = other;
        Self { message, response, thinking, logprobs, ..self }
    }

    /// To a request that asks for nothing.
    pub(super) fn nothing(model: String, chat: bool) -> Self {
        let message = chat.then(|| OllamaAnswerMessage { role: "assistant", ..OllamaAnswerMessage::default() });
        Self {
            model,
            created_at: now(),
            message,
            response: (!chat).then(String::new),
            thinking: None,
            logprobs: None,
            done: true,
            done_reason: Some("load"),
            cost: None,
        }
    }
}

impl News {
    fn is_empty(&self) -> bool {
        self.content.is_empty() && self.thinking.is_empty() && self.calls.is_empty()
    }
}

/// This moment, as Ollama writes it.
pub(super) fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Nanos, true)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Translate for Telling {
    const DIALECT: Dialect = Dialect::Ollama;
    const CONTENT_TYPE: &'static str = "application/x-ndjson";

    fn step(&mut self, _: usize, step: Step, events: &mut Events) {
        let mut news = News::default();
        let end = Self::step(self, step, &mut news);
        if !news.is_empty() {
            events.push_line(&self.line(news));
        }
        if let Some(end) = end {
            events.push_line(&end);
        }
    }

    fn end(&mut self, _: &mut Events) {}

    fn fail(&mut self, error: &ApiError, events: &mut Events) {
        events.push_line(&OllamaErrorResponse { error: error.to_string() });
    }

    /// Lines have no comments: one without news says that the stream lives.
    fn alive(&mut self, events: &mut Events) {
        events.push_line(&self.line(News::default()));
    }
}
