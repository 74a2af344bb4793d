//! Routes for operators: health, readiness, facts, metrics, models.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::errors::{ApiError, ErrorResponse};
use super::state::AppState;
use crate::shard::handle::EngineStatus;

/// TGI's default, where newer schedulers have no such number.
const WAITING_SERVED_RATIO: f32 = 0.3;
/// TGI's default, where newer schedulers have no such number.
const MAX_WAITING_TOKENS: u32 = 20;

/// Whether the server is alive: it may also be recovering from a shard's death or draining.
///
/// # Errors
/// `Unhealthy` before the model is loaded and after the engine has ended.
#[utoipa::path(get, path = "/health", tag = "Operations", responses(
    (status = 200, description = "Alive"),
    (status = 503, description = "Not yet, or no longer", body = ErrorResponse),
))]
pub async fn health(State(state): State<AppState>) -> Result<(), ApiError> {
    match state.engine.status() {
        EngineStatus::Ready | EngineStatus::Recovering | EngineStatus::Draining => Ok(()),
        EngineStatus::Starting | EngineStatus::Stopped => Err(ApiError::Unhealthy),
    }
}

/// The same as `/health`.
///
/// # Errors
/// Those of `/health`.
#[utoipa::path(get, path = "/", tag = "Operations", responses(
    (status = 200, description = "Alive"),
    (status = 503, description = "Not yet, or no longer", body = ErrorResponse),
))]
pub async fn root(state: State<AppState>) -> Result<(), ApiError> {
    health(state).await
}

/// The same as `/health`.
///
/// # Errors
/// Those of `/health`.
#[utoipa::path(get, path = "/ping", tag = "Operations", responses(
    (status = 200, description = "Alive"),
    (status = 503, description = "Not yet, or no longer", body = ErrorResponse),
))]
pub async fn ping(state: State<AppState>) -> Result<(), ApiError> {
    health(state).await
}

/// Whether a load balancer should send requests here.
///
/// # Errors
/// `Loading` while the model loads or comes back, `Draining` when the server goes away.
#[utoipa::path(get, path = "/ready", tag = "Operations", responses(
    (status = 200, description = "Ready for requests"),
    (status = 503, description = "Starting, recovering or draining", body = ErrorResponse),
))]
pub async fn ready(State(state): State<AppState>) -> Result<(), ApiError> {
    match state.engine.status() {
        EngineStatus::Ready => Ok(()),
        EngineStatus::Starting | EngineStatus::Recovering => Err(ApiError::Loading),
        EngineStatus::Draining | EngineStatus::Stopped => Err(ApiError::Draining),
    }
}

/// Facts and limits of the server.
#[derive(Debug, Serialize, ToSchema)]
pub struct Info {
    /// The model's name.
    pub model_id: String,
    /// Its revision.
    pub model_sha: Option<String>,
    /// What it is for.
    pub model_pipeline_tag: &'static str,
    /// Data type of its weights.
    pub model_dtype: String,
    /// Kind of device it runs on.
    pub model_device_type: String,
    /// Sequences in the house at once.
    pub max_concurrent_requests: usize,
    /// Largest `best_of`.
    pub max_best_of: usize,
    /// Most stop strings in a request.
    pub max_stop_sequences: usize,
    /// Longest prompt, in tokens.
    pub max_input_tokens: usize,
    /// Longest prompt plus output, in tokens.
    pub max_total_tokens: usize,
    /// Tokens that fit the KV pool; null until the model is loaded.
    pub max_batch_total_tokens: Option<u64>,
    /// Of TGI 2, kept for its clients; the scheduler does not use it.
    pub waiting_served_ratio: f32,
    /// Of TGI 2, kept for its clients; the scheduler does not use it.
    pub max_waiting_tokens: u32,
    /// Most sequences that run at once; null leaves it to the shard.
    pub max_batch_size: Option<u32>,
    /// Threads that validate.
    pub validation_workers: usize,
    /// Most prompts in a `/v1/completions` call.
    pub max_client_batch_size: usize,
    /// What answers here.
    pub router: &'static str,
    /// Its version.
    pub version: String,
    /// Its commit, where it was built in.
    pub sha: Option<&'static str>,
    /// Its image, where it runs in one.
    pub docker_label: Option<&'static str>,
}

/// Facts and limits of the server.
#[utoipa::path(get, path = "/info", tag = "Operations", responses((status = 200, description = "Facts and limits", body = Info)))]
pub async fn info(State(state): State<AppState>) -> Json<Info> {
    let settings = &state.settings;
    let pool = state.metrics.engine.max_total_tokens();
    Json(Info {
        model_id: settings.model_id.clone(),
        model_sha: settings.model_sha.clone(),
        model_pipeline_tag: "text-generation",
        model_dtype: settings.model_dtype.clone(),
        model_device_type: settings.model_device_type.clone(),
        max_concurrent_requests: settings.max_concurrent_requests,
        max_best_of: settings.max_best_of,
        max_stop_sequences: settings.max_stop_sequences,
        max_input_tokens: settings.max_input_tokens,
        max_total_tokens: settings.max_total_tokens,
        max_batch_total_tokens: settings.max_batch_total_tokens.map(u64::from).or(pool),
        waiting_served_ratio: WAITING_SERVED_RATIO,
        max_waiting_tokens: MAX_WAITING_TOKENS,
        max_batch_size: settings.max_batch_size,
        validation_workers: settings.validation_workers,
        max_client_batch_size: settings.max_client_batch_size,
        router: "textgen-router",
        version: settings.version.clone(),
        sha: None,
        docker_label: None,
    })
}

/// The router's metrics and, while it can be asked, the shard's, in Prometheus' text format.
#[utoipa::path(get, path = "/metrics", tag = "Operations", responses(
    (status = 200, description = "Metrics", body = String, content_type = "text/plain; version=0.0.4"),
))]
pub async fn metrics(State(state): State<AppState>) -> Response {
    state.metrics.lifecycle.set_in_flight(state.gate.present());
    let mut page = state.metrics.render();
    if let Some(shard) = state.shard_ops.metrics().await {
        page.push_str(&shard);
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}
