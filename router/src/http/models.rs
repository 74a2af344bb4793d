//! The models served, as OpenAI's clients list them, and Anthropic's, which ask by the same path.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::errors::{ApiError, OpenAiErrorResponse};
use super::inference::check_model;
use super::state::AppState;
use crate::settings::Settings;

/// A header that all of Anthropic's clients send, and none of OpenAI's.
const ANTHROPIC_VERSION: &str = "anthropic-version";
/// When the model was made: no file says, and Anthropic's clients are told so by this.
const UNKNOWN_TIME: &str = "1970-01-01T00:00:00Z";

/// The models served, in OpenAI's form.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// Always `list`.
    pub object: &'static str,
    /// The one model.
    pub data: Vec<ModelCard>,
}

/// One model, in OpenAI's form.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelCard {
    /// The name to ask for.
    pub id: String,
    /// Always `model`.
    pub object: &'static str,
    /// Always 0, as in TGI.
    pub created: u64,
    /// The name again, as in TGI.
    pub owned_by: String,
    /// Longest prompt plus output, in tokens, as vLLM tells it.
    pub max_model_len: usize,
}

/// The models served, in Anthropic's form.
#[derive(Debug, Serialize, ToSchema)]
pub struct AnthropicModels {
    /// The one model.
    pub data: Vec<AnthropicModel>,
    /// Always false.
    pub has_more: bool,
    /// Its name.
    pub first_id: String,
    /// Its name.
    pub last_id: String,
}

/// One model, in Anthropic's form.
#[derive(Debug, Serialize, ToSchema)]
pub struct AnthropicModel {
    /// Always `model`.
    pub r#type: &'static str,
    /// The name to ask for.
    pub id: String,
    /// The name again.
    pub display_name: String,
    /// Not known: the beginning of 1970.
    pub created_at: &'static str,
    /// Always `active`.
    pub lifecycle: &'static str,
    /// Longest prompt, in tokens.
    pub max_input_tokens: usize,
    /// Longest answer, in tokens: behind a prompt of one.
    pub max_tokens: usize,
}

/// The models, by who asks.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Models {
    /// OpenAI's form.
    OpenAi(ModelList),
    /// Anthropic's, with the header `anthropic-version`.
    Anthropic(AnthropicModels),
}

/// One model, by who asks.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Model {
    /// OpenAI's form.
    OpenAi(ModelCard),
    /// Anthropic's, with the header `anthropic-version`.
    Anthropic(AnthropicModel),
}

impl ModelCard {
    fn of(settings: &Settings) -> Self {
        let id = settings.model_id.clone();
        Self { id: id.clone(), object: "model", created: 0, owned_by: id, max_model_len: settings.max_total_tokens }
    }
}

impl AnthropicModel {
    fn of(settings: &Settings) -> Self {
        Self {
            r#type: "model",
            id: settings.model_id.clone(),
            display_name: settings.model_id.clone(),
            created_at: UNKNOWN_TIME,
            lifecycle: "active",
            max_input_tokens: settings.max_input_tokens,
            max_tokens: settings.max_total_tokens.saturating_sub(1),
        }
    }
}

/// The models served: in OpenAI's form, and in Anthropic's with the header `anthropic-version`.
#[utoipa::path(get, path = "/v1/models", tag = "OpenAI", responses((status = 200, description = "The models", body = Models)))]
pub async fn list(State(state): State<AppState>, headers: HeaderMap) -> Json<Models> {
    let settings = &state.settings;
    Json(if headers.contains_key(ANTHROPIC_VERSION) {
        let model = AnthropicModel::of(settings);
        let (first_id, last_id) = (model.id.clone(), model.id.clone());
        Models::Anthropic(AnthropicModels { data: vec![model], has_more: false, first_id, last_id })
    } else {
        Models::OpenAi(ModelList { object: "list", data: vec![ModelCard::of(settings)] })
    })
}

/// One of the models served, in the form of the list.
///
/// # Errors
/// `NoSuchModel`.
#[utoipa::path(get, path = "/v1/models/{model}", tag = "OpenAI", params(
    ("model" = String, Path, description = "The model's name, or the part of it behind the last slash"),
), responses(
    (status = 200, description = "The model", body = Model),
    (status = 404, description = "No model has this name", body = OpenAiErrorResponse),
))]
pub async fn retrieve(
    State(state): State<AppState>,
    headers: HeaderMap,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(name) = name.map_err(|error| ApiError::BadBody(error.to_string()))?;
    check_model(&state, &name, None)?;
    Ok(Json(if headers.contains_key(ANTHROPIC_VERSION) {
        Model::Anthropic(AnthropicModel::of(&state.settings))
    } else {
        Model::OpenAi(ModelCard::of(&state.settings))
    })
    .into_response())
}
