//! HTTP: routes by dialect. A dialect translates a body into `input`'s request and a sequence's tokens into its own
//! answers; everything between is one typed path (`generation`).

pub mod anthropic;
mod blocks;
pub mod clouds;
pub mod docs;
mod drain;
pub mod errors;
mod extract;
pub mod gate;
pub mod generation;
mod headers;
pub mod http2;
pub mod inference;
pub mod keys;
pub mod layers;
pub mod library;
mod listener;
pub mod models;
pub mod native;
pub mod ollama;
pub mod openai;
pub mod openapi;
pub mod ops;
pub mod responses;
mod shard_ops;
mod sse;
mod stamp;
pub mod standing;
pub mod state;
pub mod tls;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderValue, Method, header};
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use tower::util::option_layer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

pub use self::listener::{Answers, Door, serve, upkeep};
use self::native::{generate, stream, tokenize};
use self::openai::{async_tools, chat, completions};
pub use self::shard_ops::ShardOps;
pub use self::state::{AppState, Patience};
use crate::settings::Settings;
use crate::traces::TRACEPARENT;

/// Every route of the server.
pub fn app(state: AppState) -> Router {
    let (clouds, models) = (clouds::elsewhere(state.clone()), inference::elsewhere(state.clone()));
    let settings = Arc::clone(&state.settings);
    let elsewhere = move |request: Request| {
        let (settings, clouds, models) = (Arc::clone(&settings), clouds.clone(), models.clone());
        async move {
            match clouds::renamed(&settings, &request) {
                Some(route) => clouds::routed(clouds, request, route).await,
                None => inference::not_found(models, request).await,
            }
        }
    };
    Router::new()
        .route("/", get(ops::root).post(generate::compat_generate))
        .route("/generate", post(generate::generate))
        .route("/generate_stream", post(stream::generate_stream))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/chat_tokenize", post(tokenize::chat_tokenize))
        .route("/v1/chat/completions", post(chat::chat_completions))
        .route("/v1/chat/completions/{id}/tool_results", post(async_tools::tool_results))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/input_tokens", post(responses::input_tokens))
        .route("/v1/responses/{id}", get(responses::retrieve).delete(responses::delete))
        .route("/v1/responses/{id}/input_items", get(responses::input_items))
        .route("/v1/messages", post(anthropic::messages))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*model}", get(models::retrieve))
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/tags", get(ollama::models::tags))
        .route("/api/ps", get(ollama::models::ps))
        .route("/api/show", post(ollama::models::show))
        .route("/api/version", get(ollama::models::version))
        .route("/invocations", post(clouds::invocations))
        .route("/vertex", post(clouds::vertex))
        .route("/health", get(ops::health))
        .route("/ping", get(ops::ping))
        .route("/ready", get(ops::ready))
        .route("/info", get(ops::info))
        .route("/metrics", get(ops::metrics))
        .route("/api-doc/openapi.json", get(openapi::document))
        .route("/docs", get(docs::page))
        .route("/docs/{file}", get(docs::file))
        .merge(inference::routes())
        .fallback(elsewhere)
        .method_not_allowed_fallback(layers::method_not_allowed)
        .layer(DefaultBodyLimit::max(state.settings.payload_limit))
        .layer(option_layer(state.ring.needed().then(|| from_fn_with_state(state.clone(), keys::required))))
        .layer(from_fn_with_state(state.clone(), layers::finish))
        .layer(cors(&state.settings))
        .with_state(state)
}

fn cors(settings: &Settings) -> CorsLayer {
    let origins: Vec<HeaderValue> =
        settings.cors_allow_origin.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect();
    let origins = if origins.is_empty() { AllowOrigin::any() } else { AllowOrigin::list(origins) };
    CorsLayer::new()
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // Clients in browsers send headers of their own (`x-stainless-…`, `anthropic-version`), and a star would leave out
        // `authorization`.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([layers::REQUEST_ID, header::RETRY_AFTER, inference::wire::HEADER_LENGTH, TRACEPARENT])
        .allow_origin(origins)
}
