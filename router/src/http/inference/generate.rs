//! The protocol's `generate` extension: the same tensors as the members of one JSON object, whole or streamed.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::answer::{self, Opened, Out, Pieces};
use super::request::{Asked, Inference};
use super::tensors::{Elements, Output, Tensor};
use super::{InferenceErrors, Model, VERSION, invalid};
use crate::http::errors::{ApiError, Dialect};
use crate::http::extract::{self, RawBody};
use crate::http::generation::Step;
use crate::http::sse::{self, Events, Translate};
use crate::http::standing::Caller;
use crate::http::state::AppState;

/// Body of `POST /v2/models/{model}/generate` and of `generate_stream`. Settings of the sampling may be members of their own,
/// too.
#[derive(Debug, ToSchema)]
#[allow(dead_code)] // It only describes: members are read as tensors are.
pub struct GenerateBody {
    /// Names the request in the answer.
    id: Option<String>,
    /// The prompt; a list of several where nothing is streamed.
    text_input: Told<String>,
    /// Settings by name: this server's, vLLM's or TensorRT-LLM's.
    #[schema(value_type = Option<Object>)]
    parameters: Option<Value>,
    /// The same, which go before `parameters`.
    #[schema(value_type = Option<Object>)]
    sampling_parameters: Option<Value>,
    /// Whether to stream: `generate` does not, `generate_stream` does unless this is false.
    stream: Option<bool>,
    /// Whether the text comes without the prompt: by default only on a stream, where it always does.
    exclude_input_in_output: Option<bool>,
}

/// One value, or one for each text.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Told<T> {
    /// One.
    One(T),
    /// One for each text.
    Several(Vec<T>),
}

impl<T> From<Vec<T>> for Told<T> {
    fn from(mut values: Vec<T>) -> Self {
        match (values.len(), values.pop()) {
            (1, Some(one)) => Self::One(one),
            (_, last) => {
                values.extend(last);
                Self::Several(values)
            }
        }
    }
}

/// Answer of `POST /v2/models/{model}/generate`, and an event of `generate_stream`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct GenerateAnswer {
    /// The model as it was asked for.
    model_name: String,
    /// Its version.
    model_version: &'static str,
    /// The request's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    id: Option<String>,
    /// The text; on a stream what is new of it.
    text_output: Told<String>,
    /// `stop` or `length`; on a stream empty until the end, and unless it is asked for only there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    finish_reason: Option<Told<String>>,
    /// Tokens of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    num_input_tokens: Option<Told<u32>>,
    /// Tokens generated; on a stream those of this event.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    num_output_tokens: Option<Told<u32>>,
    /// The sum of the tokens' log-probabilities; on a stream those so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    cumulative_logprob: Option<Told<f32>>,
}

impl GenerateAnswer {
    fn new(model_name: String, id: Option<String>, outputs: Vec<Output>) -> Self {
        let mut answer = Self {
            model_name,
            model_version: VERSION,
            id,
            text_output: Told::Several(Vec::new()),
            finish_reason: None,
            num_input_tokens: None,
            num_output_tokens: None,
            cumulative_logprob: None,
        };
        for output in outputs {
            match (output.out, output.elements) {
                (Out::FinishReason, Elements::Texts(reasons)) => answer.finish_reason = Some(reasons.into()),
                (Out::InputTokens, Elements::Counts(counts)) => answer.num_input_tokens = Some(counts.into()),
                (_, Elements::Texts(texts)) => answer.text_output = texts.into(),
                (_, Elements::Counts(counts)) => answer.num_output_tokens = Some(counts.into()),
                (_, Elements::Scores(scores)) => answer.cumulative_logprob = Some(scores.into()),
            }
        }
        answer
    }
}

/// Continues a text, or several, and answers it whole.
///
/// # Errors
/// Whatever the table in `errors` holds.
#[utoipa::path(post, path = "/v2/models/{model}/generate", tag = "Open Inference", params(
    ("model" = String, Path, description = "The model's name, or the part of it behind the last slash"),
), request_body = GenerateBody, responses(
    (status = 200, description = "The text", body = GenerateAnswer),
    InferenceErrors,
))]
pub async fn generate(
    State(state): State<AppState>,
    Model(name): Model,
    caller: Caller,
    RawBody(body): RawBody,
) -> Result<Response, ApiError> {
    let (id, asked) = read(&state, body)?;
    let opened = answer::open(&state, caller, asked.and_then(Asked::whole), false).await?;
    let (headers, answer) = whole(&state, name, id, opened).await?;
    Ok((headers, Json(answer)).into_response())
}

/// Continues a text and streams it. Errors before the first token have their own status; later ones are an event with `error`.
///
/// # Errors
/// Whatever the table in `errors` holds.
#[utoipa::path(post, path = "/v2/models/{model}/generate_stream", tag = "Open Inference", params(
    ("model" = String, Path, description = "The model's name, or the part of it behind the last slash"),
), request_body = GenerateBody, responses(
    (status = 200, description = "One event per token", content((GenerateAnswer = "text/event-stream"))),
    InferenceErrors,
))]
pub async fn generate_stream(
    State(state): State<AppState>,
    Model(name): Model,
    caller: Caller,
    RawBody(body): RawBody,
) -> Result<Response, ApiError> {
    let (id, asked) = read(&state, body)?;
    let streamed = asked.as_ref().map_or(true, |asked| asked.stream.unwrap_or(true));
    let mut opened = answer::open(&state, caller, asked, streamed).await?;
    if !streamed {
        // As in Triton: what is not to be streamed is one event.
        let (headers, answer) = whole(&state, name, id, opened).await?;
        return Ok(sse::one(headers, &answer));
    }
    let run = opened.runs.pop().ok_or(ApiError::Incomplete)?;
    let stream = GenerateStream { name, id, pieces: Pieces::new(opened.form, &run) };
    sse::respond(&state, vec![run], stream).await
}

async fn whole(
    state: &AppState,
    name: String,
    id: Option<String>,
    opened: Opened,
) -> Result<(HeaderMap, GenerateAnswer), ApiError> {
    let (headers, outputs) = answer::whole(state, opened).await?;
    Ok((headers, GenerateAnswer::new(name, id, outputs)))
}

/// What a body asks for, and under which name: its members are tensors and parameters. Outside what keeps it from being a
/// request, inside what is wrong with it.
fn read(state: &AppState, body: Bytes) -> Result<(Option<String>, Result<Asked, ApiError>), ApiError> {
    let mut members = extract::read::<Map<String, Value>>(&body)?;
    drop(body);
    let id = match members.remove("id") {
        None | Some(Value::Null) => None,
        Some(Value::String(id)) => Some(id),
        Some(_) => return Err(invalid("`id` must be a string")),
    };
    let parameters = match members.remove("parameters") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(parameters)) => parameters,
        Some(_) => return Err(invalid("`parameters` must be an object")),
    };
    let tensor = |(name, value): (String, Value)| match value {
        Value::Null => None,
        Value::Array(elements) => Some(Tensor { name, rank: 1, elements }),
        element => Some(Tensor { name, rank: 1, elements: vec![element] }),
    };
    let inputs = members.into_iter().filter_map(tensor).collect();
    let inference = Inference { inputs, outputs: Vec::new(), parameters };
    Ok((id, Asked::read(inference, state.settings.max_client_batch_size)))
}

struct GenerateStream {
    name: String,
    id: Option<String>,
    pieces: Pieces,
}

impl Translate for GenerateStream {
    const DIALECT: Dialect = Dialect::Inference;

    fn step(&mut self, _: usize, step: Step, events: &mut Events) {
        let outputs = self.pieces.next(step);
        events.push(&GenerateAnswer::new(self.name.clone(), self.id.clone(), outputs));
    }

    fn end(&mut self, _: &mut Events) {}
}
