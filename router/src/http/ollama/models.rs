//! What Ollama tells of its models: here there is one.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::SystemTime;

use axum::Json;
use axum::extract::State;
use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::http::errors::{ApiError, OllamaErrorResponse};
use crate::http::extract::AnyBody;
use crate::http::state::AppState;
use crate::settings::Settings;
use crate::shard::handle::EngineStatus;

/// The version of Ollama whose API this is: clients ask it to know what they may use.
const OLLAMA: &str = "0.12.11";
/// What Ollama's names end with when they say nothing else.
const LATEST: &str = ":latest";
/// Largest head of a weights file that is read, in bytes; the format's own limit.
const MAX_HEAD: u64 = 100_000_000;
/// The model stays until the server ends.
const NEVER: &str = "9999-12-31T23:59:59Z";

/// What is known of the model's files.
#[derive(Debug, Clone)]
pub struct ModelFiles {
    architecture: String,
    context: Option<u64>,
    size: u64,
    parameters: u64,
    modified: String,
    digest: String,
}

/// Answer of `GET /api/tags`.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaModels {
    /// The one model.
    pub models: Vec<OllamaModel>,
}

/// One model.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaModel {
    /// The name to ask for.
    pub name: String,
    /// The same.
    pub model: String,
    /// When its files were written.
    pub modified_at: String,
    /// Bytes of its weights.
    pub size: u64,
    /// Tells models apart: of the name, the revision and the configuration.
    pub digest: String,
    /// What it is.
    pub details: OllamaDetails,
}

/// What a model is.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaDetails {
    /// Always empty.
    pub parent_model: &'static str,
    /// `safetensors`, or `gguf`.
    pub format: &'static str,
    /// Its architecture.
    pub family: String,
    /// The same.
    pub families: Vec<String>,
    /// How many parameters it has.
    pub parameter_size: String,
    /// In what they are computed.
    pub quantization_level: String,
}

/// Answer of `GET /api/ps`.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaRunning {
    /// The model, once it is loaded.
    pub models: Vec<OllamaRunningModel>,
}

/// A model that is loaded.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaRunningModel {
    /// The name to ask for.
    pub name: String,
    /// The same.
    pub model: String,
    /// Bytes of its weights.
    pub size: u64,
    /// Of them in a device's own memory.
    pub size_vram: u64,
    /// Tells models apart.
    pub digest: String,
    /// What it is.
    pub details: OllamaDetails,
    /// When it is let go: never.
    pub expires_at: &'static str,
    /// Longest prompt and answer together, in tokens.
    pub context_length: usize,
}

/// Body of `POST /api/show`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct OllamaShowRequest {
    /// The model's name.
    #[serde(alias = "name")]
    pub model: String,
}

/// Answer of `POST /api/show`.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaShow {
    /// What Ollama would make the model from.
    pub modelfile: String,
    /// How it draws when a request does not say; always empty.
    pub parameters: &'static str,
    /// The chat template; Jinja, not Ollama's.
    pub template: String,
    /// What it is.
    pub details: OllamaDetails,
    /// Facts by name.
    #[schema(value_type = Object)]
    pub model_info: Map<String, Value>,
    /// What it can do: `completion`, `tools`, `thinking`.
    pub capabilities: Vec<&'static str>,
    /// When its files were written.
    pub modified_at: String,
}

/// Answer of `GET /api/version`.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaVersion {
    /// The version of Ollama whose API this is.
    #[schema(example = "0.12.11")]
    pub version: &'static str,
}

/// The models served.
///
/// # Errors
/// `Internal`, when the model's files cannot be read.
#[utoipa::path(get, path = "/api/tags", tag = "Ollama", responses(
    (status = 200, description = "The models", body = OllamaModels),
    (status = 500, description = "The model's files cannot be read", body = OllamaErrorResponse),
))]
pub async fn tags(State(state): State<AppState>) -> Result<Json<OllamaModels>, ApiError> {
    let files = files(&state).await?;
    let name = name(&state.settings);
    let details = details(&state.settings, &files);
    let model = OllamaModel {
        model: name.clone(),
        name,
        modified_at: files.modified,
        size: files.size,
        digest: files.digest,
        details,
    };
    Ok(Json(OllamaModels { models: vec![model] }))
}

/// The models that are loaded.
///
/// # Errors
/// `Internal`, when the model's files cannot be read.
#[utoipa::path(get, path = "/api/ps", tag = "Ollama", responses(
    (status = 200, description = "The model, once it is loaded", body = OllamaRunning),
    (status = 500, description = "The model's files cannot be read", body = OllamaErrorResponse),
))]
pub async fn ps(State(state): State<AppState>) -> Result<Json<OllamaRunning>, ApiError> {
    if !matches!(state.engine.status(), EngineStatus::Ready | EngineStatus::Draining) {
        return Ok(Json(OllamaRunning { models: Vec::new() }));
    }
    let files = files(&state).await?;
    let name = name(&state.settings);
    let on_device = state.settings.model_device_type != "cpu";
    let model = OllamaRunningModel {
        model: name.clone(),
        name,
        size: files.size,
        size_vram: if on_device { files.size } else { 0 },
        details: details(&state.settings, &files),
        digest: files.digest,
        expires_at: NEVER,
        context_length: state.settings.max_total_tokens,
    };
    Ok(Json(OllamaRunning { models: vec![model] }))
}

/// What is known of a model.
///
/// # Errors
/// `NoSuchModel`, when it is not the one that is served.
#[utoipa::path(post, path = "/api/show", tag = "Ollama", request_body = OllamaShowRequest, responses(
    (status = 200, description = "What is known of it", body = OllamaShow),
    (status = 404, description = "Another model is served", body = OllamaErrorResponse),
    (status = 400, description = "The body is not JSON, or a field breaks a rule", body = OllamaErrorResponse),
    (status = 408, description = "The body took too long", body = OllamaErrorResponse),
    (status = 413, description = "The body is too large", body = OllamaErrorResponse),
    (status = 415, description = "The body is not declared as JSON", body = OllamaErrorResponse),
    (status = 500, description = "A fault in the server", body = OllamaErrorResponse),
))]
pub async fn show(
    State(state): State<AppState>,
    AnyBody(body): AnyBody<OllamaShowRequest>,
) -> Result<Json<OllamaShow>, ApiError> {
    let plain = |name: &str| name.strip_suffix(LATEST).unwrap_or(name).to_owned();
    if plain(&body.model) != plain(&state.settings.model_id) {
        return Err(ApiError::NoSuchModel(body.model.chars().take(100).collect()));
    }
    let files = files(&state).await?;
    let mut capabilities = vec!["completion"];
    capabilities.extend(state.parsers.tools.as_ref().map(|_| "tools"));
    capabilities.extend(state.parsers.reasoning.as_ref().map(|_| "thinking"));
    let architecture = &files.architecture;
    let mut model_info = Map::new();
    model_info.insert("general.architecture".to_owned(), json!(architecture));
    model_info.insert("general.parameter_count".to_owned(), json!(files.parameters));
    let context = files.context.unwrap_or(state.settings.max_total_tokens as u64);
    model_info.insert(format!("{architecture}.context_length"), json!(context));
    Ok(Json(OllamaShow {
        modelfile: format!("FROM {}\n", state.settings.model_id),
        parameters: "",
        template: state.model.chat_templates().next().unwrap_or_default().to_owned(),
        details: details(&state.settings, &files),
        model_info,
        capabilities,
        modified_at: files.modified,
    }))
}

/// The version of Ollama whose API this is, not the server's own.
#[utoipa::path(get, path = "/api/version", tag = "Ollama", responses(
    (status = 200, description = "The version", body = OllamaVersion),
))]
pub async fn version() -> Json<OllamaVersion> {
    Json(OllamaVersion { version: OLLAMA })
}

fn name(settings: &Settings) -> String {
    let id = &settings.model_id;
    if id.contains(':') { id.clone() } else { format!("{id}{LATEST}") }
}

fn details(settings: &Settings, files: &ModelFiles) -> OllamaDetails {
    let quantization_level = match settings.model_dtype.as_str() {
        "float32" => "F32".to_owned(),
        "float16" => "F16".to_owned(),
        "bfloat16" => "BF16".to_owned(),
        other => other.to_owned(),
    };
    OllamaDetails {
        parent_model: "",
        // A GGUF file's weights stay where they are; only its texts are in the folder.
        format: if files.size > 0 { "safetensors" } else { "gguf" },
        family: files.architecture.clone(),
        families: vec![files.architecture.clone()],
        parameter_size: short(files.parameters),
        quantization_level,
    }
}

/// A number as Ollama writes it: `1.2B`.
fn short(count: u64) -> String {
    let count = count as f64;
    match count {
        0.0 => "unknown".to_owned(),
        _ if count >= 1e9 => format!("{:.1}B", count / 1e9),
        _ if count >= 1e6 => format!("{:.2}M", count / 1e6),
        _ => format!("{:.2}K", count / 1e3),
    }
}

/// Reads the files once; they do not change while they are served.
async fn files(state: &AppState) -> Result<ModelFiles, ApiError> {
    if let Some(files) = state.files.get() {
        return Ok(files.clone());
    }
    let reading = state.clone();
    let read =
        tokio::task::spawn_blocking(move || reading.files.get_or_init(|| ModelFiles::read(&reading.settings)).clone());
    read.await.map_err(|error| ApiError::Internal(error.to_string()))
}

impl ModelFiles {
    /// What cannot be read is left at nothing: it is only told, not used.
    fn read(settings: &Settings) -> Self {
        let folder = &settings.model_dir;
        let text = fs::read(folder.join("config.json")).unwrap_or_default();
        let config: Value = serde_json::from_slice(&text).unwrap_or_default();
        let mut identity = blake3::Hasher::new();
        for part in [settings.model_id.as_bytes(), settings.model_sha.as_deref().unwrap_or_default().as_bytes(), &text]
        {
            identity.update(&(part.len() as u64).to_le_bytes());
            identity.update(part);
        }
        let weights = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let weights = weights.filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
        let (mut size, mut parameters) = (0, 0);
        for path in weights {
            size += fs::metadata(&path).map_or(0, |file| file.len());
            parameters += count(&path).unwrap_or(0);
        }
        let modified = fs::metadata(folder.join("config.json")).and_then(|file| file.modified());
        let modified = DateTime::<Utc>::from(modified.unwrap_or(SystemTime::UNIX_EPOCH));
        Self {
            architecture: config["model_type"].as_str().unwrap_or("unknown").to_owned(),
            context: config["max_position_embeddings"].as_u64(),
            size,
            parameters,
            modified: modified.to_rfc3339_opts(SecondsFormat::Secs, true),
            digest: identity.finalize().to_hex().to_string(),
        }
    }
}

/// The numbers in a file of weights, from its head.
fn count(path: &Path) -> Option<u64> {
    #[derive(Deserialize)]
    struct Tensor {
        shape: Vec<u64>,
    }
    let mut file = File::open(path).ok()?;
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEAD {
        return None;
    }
    let mut head = Vec::new();
    file.take(length).read_to_end(&mut head).ok()?;
    let head: Map<String, Value> = serde_json::from_slice(&head).ok()?;
    let tensors = head.into_iter().filter_map(|(_, value)| serde_json::from_value::<Tensor>(value).ok());
    Some(tensors.map(|tensor| tensor.shape.iter().product::<u64>()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (count, text) in [(8_030_261_248, "8.0B"), (134_515_008, "134.52M"), (3_500, "3.50K"), (0, "unknown")] {
            assert_eq!(short(count), text);
        }
    }
}
