//! The routes by which clouds call a container: SageMaker's and Vertex AI's. They carry the bodies of other routes.

use axum::extract::{Request, State};
use axum::http::{Method, Uri};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tower::ServiceExt;
use utoipa::ToSchema;

use super::errors::{ApiError, Dialect, ErrorResponse, OpenAiErrorResponse};
use super::extract::{Body, parsed};
use super::generation::{Admission, Running, best};
use super::native::generate::compat_generate;
use super::native::types::{CompatGenerateRequest, GenerateRequest, GenerateResponse, StreamResponse};
use super::openai::answers::{ChatCompletion, ChatCompletionChunk, Completion, CompletionChunk};
use super::openai::chat::chat_completions;
use super::openai::completions::completions;
use super::openai::types::{ChatRequest, CompletionRequest};
use super::openapi::NativeErrors;
use super::standing::Caller;
use super::state::AppState;
use super::{layers, ops};
use crate::input::GenerationRequest;
use crate::settings::Settings;

/// Where Vertex AI predicts, whatever path it was told to call.
const PREDICT: &str = "/vertex";
/// Where it asks whether the server lives.
const HEALTH: &str = "/health";

/// Body of `POST /invocations`: that of `POST /`, of a chat, or of a completion, told apart by their fields.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Invocation {
    /// With `inputs`.
    Generate(Box<CompatGenerateRequest>),
    /// With `messages`.
    Chat(Box<ChatRequest>),
    /// With `prompt`.
    Completion(Box<CompletionRequest>),
}

/// The error body of the route whose body it is.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum InvocationError {
    /// Of `POST /`.
    Native(ErrorResponse),
    /// Of OpenAI's routes.
    OpenAi(OpenAiErrorResponse),
}

/// Answer of `POST /invocations`: that of the route whose body it was.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Invoked {
    /// Of `inputs`.
    Generate(Vec<GenerateResponse>),
    /// Of `messages`.
    Chat(Box<ChatCompletion>),
    /// Of `prompt`.
    Completion(Box<Completion>),
}

/// An event of its stream.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum InvokedEvent {
    /// Of `inputs`.
    Generate(Box<StreamResponse>),
    /// Of `messages`.
    Chat(Box<ChatCompletionChunk<'static>>),
    /// Of `prompt`.
    Completion(Box<CompletionChunk<'static>>),
}

/// What SageMaker calls: answers as `POST /`, `POST /v1/chat/completions` or `POST /v1/completions` does, errors included.
///
/// # Errors
/// Those of that route.
#[utoipa::path(post, path = "/invocations", tag = "Clouds", request_body = Invocation, responses(
    (status = 200, description = "The answer of the route whose body it is, or its stream", content(
        (Invoked = "application/json"),
        (InvokedEvent = "text/event-stream"),
    )),
    (status = 400, description = "The body is not JSON, or broke off", body = InvocationError),
    (status = 404, description = "No adapter has this name", body = InvocationError),
    (status = 408, description = "The body took too long", body = InvocationError),
    (status = 413, description = "The body is too large", body = InvocationError),
    (status = 415, description = "The body is not declared as JSON", body = InvocationError),
    (status = 422, description = "A field breaks a rule", body = InvocationError),
    (status = 424, description = "The shard failed on this request", body = InvocationError),
    (status = 429, description = "The server is overloaded", body = InvocationError),
    (status = 500, description = "The engine stopped early", body = InvocationError),
    (status = 503, description = "The server is starting or draining, or its queue is full", body = InvocationError),
    (status = 504, description = "The deadline passed", body = InvocationError),
))]
pub async fn invocations(
    state: State<AppState>,
    caller: Caller,
    Body(body): Body<Value>,
) -> Result<Response, ApiError> {
    let given = |field: &str| body.get(field).is_some();
    let answer = if given("inputs") {
        return compat_generate(state, caller, Body(parsed(&body)?)).await;
    } else if given("messages") {
        match parsed(&body) {
            Ok(chat) => chat_completions(state, caller, Body(chat)).await,
            Err(error) => Err(error),
        }
    } else if given("prompt") {
        match parsed(&body) {
            Ok(completion) => completions(state, caller, Body(completion)).await,
            Err(error) => Err(error),
        }
    } else {
        return Err(ApiError::BadFields("it needs `inputs`, `messages` or `prompt`".to_owned()));
    };
    let mut response = answer.into_response();
    response.extensions_mut().insert(Dialect::OpenAi);
    Ok(response)
}

/// Body of `POST /vertex`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct VertexRequest {
    /// What to answer, at most `max_client_batch_size` of them.
    #[schema(value_type = Vec<VertexInstance>)]
    pub instances: Vec<Value>,
}

/// One thing to answer, told apart by their fields.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum VertexInstance {
    /// With `inputs`.
    Generate(Box<GenerateRequest>),
    /// With `messages`; its answer is told as a text, calls and reasoning included.
    Chat(Box<ChatRequest>),
}

/// Answer of `POST /vertex`.
#[derive(Debug, Serialize, ToSchema)]
pub struct VertexResponse {
    /// A text for each instance.
    pub predictions: Vec<String>,
}

/// What Vertex AI calls: texts for several instances at once.
///
/// # Errors
/// Whatever the table in `errors` holds, of the first instance that fails.
#[utoipa::path(post, path = "/vertex", tag = "Clouds", request_body = VertexRequest, responses(
    (status = 200, description = "The texts", body = VertexResponse),
    NativeErrors,
))]
pub async fn vertex(
    State(state): State<AppState>,
    caller: Caller,
    Body(body): Body<VertexRequest>,
) -> Result<Json<VertexResponse>, ApiError> {
    let (given, limit) = (body.instances.len(), state.settings.max_client_batch_size);
    let instances = if given == 0 {
        Err(invalid("`instances` holds no instance; send one"))
    } else if given > limit {
        Err(invalid(&format!("`instances` holds {given} instances, more than the {limit} allowed; send fewer at once")))
    } else {
        body.instances.iter().map(|instance| Instance::new(instance, &state)).collect::<Result<Vec<_>, _>>()
    };
    let sequences = instances.as_ref().map_or(1, |all| all.iter().map(|instance| instance.sequences).sum());
    let mut admission = Admission::enter(&state, caller, sequences).await?;
    let instances = instances.map_err(|error| admission.refuse(error))?;
    let mut running = Vec::with_capacity(instances.len());
    for instance in instances {
        let runs = admission.start(instance.request).await?;
        running.push(try_join_all(runs.into_iter().map(Running::complete)));
    }
    let answers = try_join_all(running).await?;
    let text = |all| best(all, 1).0.pop().map(|answer| answer.text).ok_or(ApiError::Incomplete);
    Ok(Json(VertexResponse { predictions: answers.into_iter().map(text).collect::<Result<_, _>>()? }))
}

/// The same routes for the paths that Vertex AI was told to call.
pub fn elsewhere(state: AppState) -> Router {
    Router::new()
        .route(PREDICT, post(vertex))
        .route(HEALTH, get(ops::health))
        .route_layer(from_fn(layers::tell))
        .method_not_allowed_fallback(layers::method_not_allowed)
        .with_state(state)
}

/// The route for which a path stands that Vertex AI was told to call. One path may be both.
#[must_use]
pub fn renamed(settings: &Settings, request: &Request) -> Option<&'static str> {
    let path = Some(request.uri().path());
    let (predict, health) = (settings.vertex_predict_route.as_deref(), settings.vertex_health_route.as_deref());
    if path == health && (path != predict || is_look(request.method())) {
        Some(HEALTH)
    } else {
        (path == predict).then_some(PREDICT)
    }
}

/// Whether a request only asks whether the server lives, by a path that is no route's.
#[must_use]
pub fn asks_health(settings: &Settings, request: &Request) -> bool {
    renamed(settings, request) == Some(HEALTH) && is_look(request.method())
}

fn is_look(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// Answers a request as that route of `elsewhere` does.
pub async fn routed(clouds: Router, mut request: Request, route: &'static str) -> Response {
    *request.uri_mut() = Uri::from_static(route);
    let mut response = match clouds.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    // The path may be one that looks like another dialect's.
    response.extensions_mut().insert(Dialect::Native);
    response
}

struct Instance {
    request: GenerationRequest,
    sequences: usize,
}

impl Instance {
    fn new(instance: &Value, state: &AppState) -> Result<Self, ApiError> {
        if instance.get("messages").is_some() {
            let chat = ChatRequest { stream: None, ..parsed(instance)? };
            let sequences = chat.sequences(state.settings.max_choices);
            return Ok(Self { request: chat.into_generation()?, sequences });
        }
        let GenerateRequest { inputs, parameters } = parsed(instance)?;
        let best_of = parameters.as_ref().and_then(|given| given.best_of).unwrap_or(1) as usize;
        let (request, _) = super::native::translate(inputs, parameters, false)?;
        Ok(Self { request, sequences: best_of.clamp(1, state.settings.max_best_of.max(1)) })
    }
}

fn invalid(sentence: &str) -> ApiError {
    ApiError::Validation(format!("Input validation error: {sentence}"))
}
