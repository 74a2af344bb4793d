//! `POST /tokenize`, `POST /detokenize` and `POST /chat_tokenize`.

use axum::Json;
use axum::extract::State;

use super::types::{ChatTokenizeResponse, DetokenizeRequest, DetokenizeResponse, GenerateRequest, SimpleToken};
use crate::http::errors::ApiError;
use crate::http::extract::Body;
use crate::http::openai::types::ChatRequest;
use crate::http::openapi::TextErrors;
use crate::http::state::AppState;
use crate::input::TokenSpan;

/// The tokens of a prompt, those that the tokenizer adds included.
///
/// # Errors
/// When the body is wrong or validation is overloaded.
#[utoipa::path(post, path = "/tokenize", tag = "Native", request_body = GenerateRequest, responses(
    (status = 200, description = "The tokens", body = Vec<SimpleToken>),
    TextErrors,
))]
pub async fn tokenize(
    State(state): State<AppState>,
    Body(body): Body<GenerateRequest>,
) -> Result<Json<Vec<SimpleToken>>, ApiError> {
    let tokens = state.preparer.tokenize(body.inputs, true).await?;
    Ok(Json(tokens.into_iter().map(SimpleToken::from).collect()))
}

/// The text of some tokens, as vLLM's route of this name has it.
///
/// # Errors
/// When the body is wrong, a token is none of the vocabulary's, or validation is overloaded.
#[utoipa::path(post, path = "/detokenize", tag = "Native", request_body = DetokenizeRequest, responses(
    (status = 200, description = "The text", body = DetokenizeResponse),
    TextErrors,
))]
pub async fn detokenize(
    State(state): State<AppState>,
    Body(body): Body<DetokenizeRequest>,
) -> Result<Json<DetokenizeResponse>, ApiError> {
    let DetokenizeRequest { tokens, skip_special_tokens } = body;
    let prompt = state.preparer.detokenize(tokens, skip_special_tokens.unwrap_or_default()).await?;
    Ok(Json(DetokenizeResponse { prompt }))
}

/// A conversation as the model sees it, and its tokens.
///
/// # Errors
/// When the body is wrong, the template does not accept it, or validation is overloaded.
#[utoipa::path(post, path = "/chat_tokenize", tag = "Native", request_body = ChatRequest, responses(
    (status = 200, description = "The text and its tokens", body = ChatTokenizeResponse),
    TextErrors,
))]
pub async fn chat_tokenize(
    State(state): State<AppState>,
    Body(body): Body<ChatRequest>,
) -> Result<Json<ChatTokenizeResponse>, ApiError> {
    let templated_text = state.preparer.render_chat(body.into_prompt()?).await?;
    // The template wrote the special tokens already.
    let tokens = state.preparer.tokenize(templated_text.clone(), false).await?;
    let tokenize_response = tokens.into_iter().map(SimpleToken::from).collect();
    Ok(Json(ChatTokenizeResponse { tokenize_response, templated_text }))
}

impl From<TokenSpan> for SimpleToken {
    fn from(span: TokenSpan) -> Self {
        Self { id: span.id, text: span.text, start: span.start, stop: span.stop }
    }
}
