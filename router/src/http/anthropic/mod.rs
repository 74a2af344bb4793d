//! Anthropic's routes. A message becomes a chat in OpenAI's form; its answer is told in blocks.

pub mod answer;
mod content;
pub mod request;
mod stream;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::{IntoResponses, ToSchema};
use uuid::Uuid;

use self::answer::{AnthropicEvent, AnthropicMessage};
use self::request::MessagesRequest;
use self::stream::MessageStream;
use super::blocks::Told;
use super::errors::{AnthropicErrorResponse, ApiError};
use super::extract::Body;
use super::openai::chat::{Conversation, open};
use super::standing::Caller;
use super::state::AppState;
use super::{headers, sse};

/// Continues a conversation, streamed or whole.
///
/// # Errors
/// Whatever the table in `errors` holds.
#[utoipa::path(post, path = "/v1/messages", tag = "Anthropic", request_body = MessagesRequest, responses(
    (status = 200, description = "The answer, or its stream: events named by their `type`", content(
        (AnthropicMessage = "application/json"),
        (AnthropicEvent = "text/event-stream"),
    )),
    AnthropicErrors,
))]
pub async fn messages(
    State(state): State<AppState>,
    caller: Caller,
    Body(body): Body<MessagesRequest>,
) -> Result<Response, ApiError> {
    let streamed = body.streamed();
    let model = body.model.clone().unwrap_or_else(|| state.settings.model_id.clone());
    let Conversation { form, mut runs } = open(&state, caller, body.into_chat()).await?;
    let run = runs.pop().ok_or(ApiError::Incomplete)?;
    let id = format!("msg_{}", Uuid::new_v4().simple());
    if streamed {
        let stream = MessageStream::new(id, model, form.as_ref(), run.facts());
        return sse::respond(&state, vec![run], stream).await;
    }
    let completed = run.complete().await?;
    let mut headers = HeaderMap::new();
    headers::describe(&mut headers, &state.settings, std::slice::from_ref(&completed));
    Ok((headers, Json(AnthropicMessage::whole(id, model, Told::new(form.as_ref(), completed)))).into_response())
}

/// Counts the tokens of a prompt without generating anything.
///
/// # Errors
/// When the body is wrong, the template does not accept it, or validation is overloaded.
#[utoipa::path(post, path = "/v1/messages/count_tokens", tag = "Anthropic", request_body = MessagesRequest, responses(
    (status = 200, description = "The number of tokens", body = TokenCount),
    AnthropicTextErrors,
))]
pub async fn count_tokens(
    State(state): State<AppState>,
    Body(body): Body<MessagesRequest>,
) -> Result<Json<TokenCount>, ApiError> {
    let text = state.preparer.render_chat(body.into_counted()?.into_prompt()?).await?;
    // The template wrote the special tokens already.
    let input_tokens = state.preparer.tokenize(text, false).await?.len();
    Ok(Json(TokenCount { input_tokens }))
}

/// Answer of `POST /v1/messages/count_tokens`.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenCount {
    /// Tokens of messages, system prompt and tools, as the chat template writes them.
    pub input_tokens: usize,
}

/// The errors of Anthropic's routes.
#[derive(Debug, IntoResponses)]
pub enum AnthropicErrors {
    /// The body is not JSON, or a field breaks a rule.
    #[response(status = 400)]
    BadRequest(AnthropicErrorResponse),
    /// The body took too long.
    #[response(status = 408)]
    Timeout(AnthropicErrorResponse),
    /// The body is too large.
    #[response(status = 413)]
    TooLarge(AnthropicErrorResponse),
    /// The body is not declared as JSON.
    #[response(status = 415)]
    NotJson(AnthropicErrorResponse),
    /// The server is overloaded.
    #[response(status = 429)]
    Overloaded(AnthropicErrorResponse),
    /// The engine stopped early, or failed on this request.
    #[response(status = 500)]
    Incomplete(AnthropicErrorResponse),
    /// The server is starting or draining, or its queue is full.
    #[response(status = 503)]
    Unavailable(AnthropicErrorResponse),
    /// The deadline passed.
    #[response(status = 504)]
    Late(AnthropicErrorResponse),
}

/// The errors of Anthropic's routes that generate nothing.
#[derive(Debug, IntoResponses)]
pub enum AnthropicTextErrors {
    /// The body is not JSON, or a field breaks a rule.
    #[response(status = 400)]
    BadRequest(AnthropicErrorResponse),
    /// The body took too long.
    #[response(status = 408)]
    Timeout(AnthropicErrorResponse),
    /// The body is too large.
    #[response(status = 413)]
    TooLarge(AnthropicErrorResponse),
    /// The body is not declared as JSON.
    #[response(status = 415)]
    NotJson(AnthropicErrorResponse),
    /// Validation is overloaded.
    #[response(status = 429)]
    Overloaded(AnthropicErrorResponse),
    /// A fault in the server.
    #[response(status = 500)]
    Internal(AnthropicErrorResponse),
}
