//! The OpenAPI document, put together from the routes themselves.

mod complete;

use axum::Json;
use axum::extract::State;
use serde_json::Value;
use utoipa::{IntoResponses, OpenApi};

use super::clouds::InvocationError;
use super::errors::{
    AnthropicErrorResponse, ApiError, ErrorResponse, InferenceErrorResponse, OllamaErrorResponse, OpenAiErrorResponse,
};
use super::native::{generate, stream, tokenize};
use super::openai::{async_tools, chat, completions};
use super::ops;
use super::state::AppState;
use super::{anthropic, clouds, docs, inference, models, ollama, responses};

#[derive(OpenApi)]
#[openapi(
    info(title = "Textgen", description = "Text generation, in TGI's, OpenAI's, Anthropic's and Ollama's dialects and the Open Inference Protocol.", license(name = "Apache-2.0")),
    paths(
        generate::generate,
        generate::compat_generate,
        stream::generate_stream,
        tokenize::tokenize,
        tokenize::detokenize,
        tokenize::chat_tokenize,
        chat::chat_completions,
        async_tools::tool_results,
        completions::completions,
        responses::create,
        responses::input_tokens,
        responses::retrieve,
        responses::delete,
        responses::input_items,
        anthropic::messages,
        anthropic::count_tokens,
        ollama::chat,
        ollama::generate,
        ollama::models::tags,
        ollama::models::ps,
        ollama::models::show,
        ollama::models::version,
        clouds::invocations,
        clouds::vertex,
        inference::server,
        inference::live,
        inference::ready,
        inference::model,
        inference::model_ready,
        inference::infer,
        inference::generate::generate,
        inference::generate::generate_stream,
        ops::root,
        ops::health,
        ops::ping,
        ops::ready,
        ops::info,
        models::list,
        models::retrieve,
        ops::metrics,
        document,
        docs::page,
        docs::file,
    ),
    components(schemas(AnthropicErrorResponse, ErrorResponse, InferenceErrorResponse, InvocationError, OllamaErrorResponse, OpenAiErrorResponse)),
    tags(
        (name = "Native", description = "TGI's own routes"),
        (name = "OpenAI", description = "OpenAI's routes"),
        (name = "Anthropic", description = "Anthropic's routes"),
        (name = "Ollama", description = "Ollama's routes"),
        (name = "Open Inference", description = "The Open Inference Protocol of KServe and Triton, version 2"),
        (name = "Clouds", description = "Routes by which clouds call a container"),
        (name = "Operations", description = "Health, facts and metrics"),
    )
)]
struct Routes;

/// This document.
#[utoipa::path(get, path = "/api-doc/openapi.json", tag = "Operations", responses(
    (status = 200, description = "OpenAPI 3", body = Object),
    (status = 500, description = "A fault in the server", body = ErrorResponse),
))]
pub async fn document(State(state): State<AppState>) -> Result<Json<Value>, ApiError> {
    let mut document = Routes::openapi();
    document.info.version.clone_from(&state.settings.version);
    let mut document = serde_json::to_value(document).map_err(|error| ApiError::Internal(error.to_string()))?;
    complete::complete(&mut document, &state.settings);
    Ok(Json(document))
}

/// The errors of generation on native routes.
#[derive(Debug, IntoResponses)]
pub enum NativeErrors {
    /// The body is not JSON, or broke off.
    #[response(status = 400)]
    BadBody(ErrorResponse),
    /// No adapter has this name.
    #[response(status = 404)]
    NotFound(ErrorResponse),
    /// The body took too long.
    #[response(status = 408)]
    Timeout(ErrorResponse),
    /// The body is too large.
    #[response(status = 413)]
    TooLarge(ErrorResponse),
    /// The body is not declared as JSON.
    #[response(status = 415)]
    NotJson(ErrorResponse),
    /// A field breaks a rule.
    #[response(status = 422)]
    Validation(ErrorResponse),
    /// The shard failed on this request.
    #[response(status = 424)]
    Generation(ErrorResponse),
    /// The server is overloaded.
    #[response(status = 429)]
    Overloaded(ErrorResponse),
    /// The engine stopped early.
    #[response(status = 500)]
    Incomplete(ErrorResponse),
    /// The server is starting or draining, or its queue is full.
    #[response(status = 503)]
    Unavailable(ErrorResponse),
    /// The deadline passed.
    #[response(status = 504)]
    Late(ErrorResponse),
}

/// The errors of native routes that take a text and generate nothing.
#[derive(Debug, IntoResponses)]
pub enum TextErrors {
    /// The body is not JSON, or broke off.
    #[response(status = 400)]
    BadBody(ErrorResponse),
    /// The body took too long.
    #[response(status = 408)]
    Timeout(ErrorResponse),
    /// The body is too large.
    #[response(status = 413)]
    TooLarge(ErrorResponse),
    /// The body is not declared as JSON.
    #[response(status = 415)]
    NotJson(ErrorResponse),
    /// A field breaks a rule.
    #[response(status = 422)]
    Validation(ErrorResponse),
    /// Validation is overloaded.
    #[response(status = 429)]
    Overloaded(ErrorResponse),
    /// A fault in the server.
    #[response(status = 500)]
    Internal(ErrorResponse),
}

/// The errors of generation on OpenAI's routes.
#[derive(Debug, IntoResponses)]
pub enum OpenAiErrors {
    /// The body is not JSON, or broke off.
    #[response(status = 400)]
    BadBody(OpenAiErrorResponse),
    /// No adapter has this name.
    #[response(status = 404)]
    NotFound(OpenAiErrorResponse),
    /// The body took too long.
    #[response(status = 408)]
    Timeout(OpenAiErrorResponse),
    /// The body is too large.
    #[response(status = 413)]
    TooLarge(OpenAiErrorResponse),
    /// The body is not declared as JSON.
    #[response(status = 415)]
    NotJson(OpenAiErrorResponse),
    /// A field breaks a rule.
    #[response(status = 422)]
    Validation(OpenAiErrorResponse),
    /// The shard failed on this request.
    #[response(status = 424)]
    Generation(OpenAiErrorResponse),
    /// The server is overloaded.
    #[response(status = 429)]
    Overloaded(OpenAiErrorResponse),
    /// The engine stopped early.
    #[response(status = 500)]
    Incomplete(OpenAiErrorResponse),
    /// The server is starting or draining, or its queue is full.
    #[response(status = 503)]
    Unavailable(OpenAiErrorResponse),
    /// The deadline passed.
    #[response(status = 504)]
    Late(OpenAiErrorResponse),
}
