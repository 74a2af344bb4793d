//! Ollama's routes: lines of JSON instead of events, options in an object of their own.

pub mod answer;
pub mod models;
pub mod request;

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use utoipa::IntoResponses;

use self::answer::{News, OllamaAnswer, Telling};
use self::request::{Asked, OllamaChatRequest, OllamaGenerateRequest};
use super::errors::{ApiError, OllamaErrorResponse};
use super::extract::AnyBody;
use super::generation::Admission;
use super::openai::chat::{Conversation, open};
use super::openai::types::CompletionRequest;
use super::sse;
use super::standing::Caller;
use super::state::AppState;

/// Continues a conversation; streamed unless `stream` is false.
///
/// # Errors
/// Whatever the table in `errors` holds.
#[utoipa::path(post, path = "/api/chat", tag = "Ollama", request_body = OllamaChatRequest, responses(
    (status = 200, description = "The answer, or a line of JSON for each piece of it", content(
        (OllamaAnswer = "application/json"),
        (OllamaAnswer = "application/x-ndjson"),
    )),
    OllamaErrors,
))]
pub async fn chat(
    State(state): State<AppState>,
    caller: Caller,
    AnyBody(body): AnyBody<OllamaChatRequest>,
) -> Result<Response, ApiError> {
    let (model, streamed) = (name(&state, body.model.clone()), body.streamed());
    let logprobs = body.logprobs.unwrap_or_default();
    answer(&state, caller, Head { model, chat: true, streamed, logprobs, begun: Instant::now() }, body.asked()).await
}

/// Answers a prompt; streamed unless `stream` is false.
///
/// # Errors
/// Whatever the table in `errors` holds.
#[utoipa::path(post, path = "/api/generate", tag = "Ollama", request_body = OllamaGenerateRequest, responses(
    (status = 200, description = "The answer, or a line of JSON for each piece of it", content(
        (OllamaAnswer = "application/json"),
        (OllamaAnswer = "application/x-ndjson"),
    )),
    OllamaErrors,
))]
pub async fn generate(
    State(state): State<AppState>,
    caller: Caller,
    AnyBody(body): AnyBody<OllamaGenerateRequest>,
) -> Result<Response, ApiError> {
    let (model, streamed) = (name(&state, body.model.clone()), body.streamed());
    let logprobs = body.logprobs.unwrap_or_default();
    let asked = body.asked(state.model.has_chat_template());
    answer(&state, caller, Head { model, chat: false, streamed, logprobs, begun: Instant::now() }, asked).await
}

struct Head {
    model: String,
    chat: bool,
    streamed: bool,
    logprobs: bool,
    begun: Instant,
}

fn name(state: &AppState, given: Option<String>) -> String {
    given.unwrap_or_else(|| state.settings.model_id.clone())
}

async fn answer(
    state: &AppState,
    caller: Caller,
    head: Head,
    asked: Result<Asked, ApiError>,
) -> Result<Response, ApiError> {
    let Conversation { form, mut runs } = match asked {
        Ok(Asked::Nothing) => return Ok(Json(OllamaAnswer::nothing(head.model, head.chat)).into_response()),
        Ok(Asked::Text(text)) => continued(state, caller, *text).await?,
        Ok(Asked::Chat(chat)) => open(state, caller, Ok(*chat)).await?,
        Err(error) => open(state, caller, Err(error)).await?,
    };
    let mut run = runs.pop().ok_or(ApiError::Incomplete)?;
    let told = head.logprobs.then(|| Arc::clone(&state.model));
    let mut telling = Telling::new(head.model, head.chat, form.as_ref(), run.facts(), head.begun).with_logprobs(told);
    if head.streamed {
        return sse::respond(state, vec![run], telling).await;
    }
    let mut news = News::default();
    let mut end = None;
    while let Some(step) = run.next().await {
        end = telling.step(step?, &mut news);
    }
    Ok(Json(end.ok_or(ApiError::Incomplete)?.with(telling.line(news))).into_response())
}

/// A text that is continued without the chat template.
async fn continued(state: &AppState, caller: Caller, text: CompletionRequest) -> Result<Conversation, ApiError> {
    let mut admission = Admission::enter(state, caller, 1).await?;
    let request = text.into_generations(1).map_err(|error| admission.refuse(error))?.pop();
    let run = admission.start_one(request.ok_or(ApiError::Incomplete)?).await?;
    Ok(Conversation { form: None, runs: vec![run] })
}

/// The errors of Ollama's routes.
#[derive(Debug, IntoResponses)]
pub enum OllamaErrors {
    /// The body is not JSON, or a field breaks a rule.
    #[response(status = 400)]
    BadRequest(OllamaErrorResponse),
    /// The body took too long.
    #[response(status = 408)]
    Timeout(OllamaErrorResponse),
    /// The body is too large.
    #[response(status = 413)]
    TooLarge(OllamaErrorResponse),
    /// The server is overloaded.
    #[response(status = 429)]
    Overloaded(OllamaErrorResponse),
    /// The engine stopped early, or failed on this request.
    #[response(status = 500)]
    Incomplete(OllamaErrorResponse),
    /// The server is starting or draining, or its queue is full.
    #[response(status = 503)]
    Unavailable(OllamaErrorResponse),
    /// The deadline passed.
    #[response(status = 504)]
    Late(OllamaErrorResponse),
}
