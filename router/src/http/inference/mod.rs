//! The Open Inference Protocol, version 2, as KServe and Triton have it: REST here, gRPC in `crate::grpc`. Tensors by the
//! names of Triton's backends become a completion; its answer is told in tensors.

pub mod answer;
pub mod generate;
pub mod request;
pub mod tensors;
pub mod wire;

use axum::Json;
use axum::Router;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use tower::ServiceExt;
use utoipa::{IntoResponses, ToSchema};

use self::answer::Out;
use self::request::{Asked, INPUTS};
use self::tensors::Datatype;
use self::wire::{InferRequest, InferResponse};
use super::errors::{ApiError, InferenceErrorResponse};
use super::extract::RawBody;
use super::standing::Caller;
use super::state::AppState;
use super::{layers, ops};

/// The one version of the one model.
pub const VERSION: &str = "1";
/// What the server calls itself.
pub const SERVER: &str = "textgen";
/// The protocol's extensions that are served.
pub const EXTENSIONS: [&str; 2] = ["binary_tensor_data", "generate"];
/// Where models are.
const MODELS: &str = "/v2/models/";

/// The protocol's routes.
pub fn routes() -> Router<AppState> {
    Router::new()
        .route("/v2", get(server))
        .route("/v2/health/live", get(live))
        .route("/v2/health/ready", get(ready))
        .route("/v2/models/{model}", get(model))
        .route("/v2/models/{model}/ready", get(model_ready))
        .route("/v2/models/{model}/infer", post(infer))
        .route("/v2/models/{model}/generate", post(generate::generate))
        .route("/v2/models/{model}/generate_stream", post(generate::generate_stream))
}

/// The same routes for paths that these patterns miss: with a version, or with a model's name that holds slashes.
pub fn elsewhere(state: AppState) -> Router {
    routes()
        .route_layer(from_fn(layers::tell))
        .fallback(layers::not_found)
        .method_not_allowed_fallback(layers::method_not_allowed)
        .with_state(state)
}

/// What a path that no route has answers: a model's path in its long form is taken by its short one.
pub async fn not_found(models: Router, mut request: Request) -> Response {
    let Some((uri, version)) = shortened(request.uri()) else {
        return layers::not_found(request).await.into_response();
    };
    *request.uri_mut() = uri;
    if let Some(version) = version {
        request.extensions_mut().insert(Version(version));
    }
    match models.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// A version that a path named.
#[derive(Debug, Clone)]
struct Version(String);

/// The path of a model without its version and with the slashes of its name escaped; `None` where that is the path itself.
fn shortened(uri: &Uri) -> Option<(Uri, Option<String>)> {
    let path = uri.path();
    let rest = path.strip_prefix(MODELS)?;
    let action =
        ["/infer", "/generate", "/generate_stream", "/ready"].into_iter().find(|action| rest.ends_with(action));
    let named = rest.strip_suffix(action.unwrap_or_default())?;
    let (name, version) = match named.rsplit_once("/versions/") {
        Some((name, version)) if !version.contains('/') => (name, Some(version.to_owned())),
        _ => (named, None),
    };
    let short = format!("{MODELS}{}{}", name.replace('/', "%2F"), action.unwrap_or_default());
    if short == path || name.is_empty() {
        return None;
    }
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    Some((format!("{short}{query}").parse().ok()?, version))
}

/// The model of a path, as it was asked for.
#[derive(Debug)]
pub struct Model(pub String);

impl FromRequestParts<AppState> for Model {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let version = parts.extensions.get::<Version>().map(|version| version.0.clone());
        let path = Path::<String>::from_request_parts(parts, state).await;
        let Path(name) = path.map_err(|error| ApiError::BadBody(error.to_string()))?;
        check_model(state, &name, version.as_deref())?;
        Ok(Self(name))
    }
}

/// Checks that a model is the one that is served: by its name, or by the part of it behind the last slash.
///
/// # Errors
/// `NoSuchModel`.
pub fn check_model(state: &AppState, name: &str, version: Option<&str>) -> Result<(), ApiError> {
    let own = &state.settings.model_id;
    let known = name == own || own.rsplit('/').next() == Some(name);
    match version.filter(|version| !version.is_empty() && *version != VERSION) {
        None if known => Ok(()),
        // A name of the client's choice: a sentence has room for a part of it.
        None => Err(ApiError::NoSuchModel(name.chars().take(128).collect())),
        Some(version) => Err(ApiError::NoSuchModel(format!("{name}/versions/{version}").chars().take(160).collect())),
    }
}

/// Facts of the server.
#[derive(Debug, Serialize, ToSchema)]
pub struct ServerMetadata {
    /// Always `textgen`.
    pub name: &'static str,
    /// The version of the server.
    pub version: String,
    /// The protocol's extensions that are served.
    pub extensions: [&'static str; 2],
}

/// Facts of the server.
#[utoipa::path(get, path = "/v2", tag = "Open Inference", responses((status = 200, description = "Facts", body = ServerMetadata)))]
pub async fn server(State(state): State<AppState>) -> Json<ServerMetadata> {
    Json(ServerMetadata { name: SERVER, version: state.settings.version.clone(), extensions: EXTENSIONS })
}

/// The same as `/health`.
///
/// # Errors
/// Those of `/health`.
#[utoipa::path(get, path = "/v2/health/live", tag = "Open Inference", responses(
    (status = 200, description = "Alive"),
    (status = 503, description = "Not yet, or no longer", body = InferenceErrorResponse),
))]
pub async fn live(state: State<AppState>) -> Result<(), ApiError> {
    ops::health(state).await
}

/// The same as `/ready`.
///
/// # Errors
/// Those of `/ready`.
#[utoipa::path(get, path = "/v2/health/ready", tag = "Open Inference", responses(
    (status = 200, description = "Ready for requests"),
    (status = 503, description = "Starting, recovering or draining", body = InferenceErrorResponse),
))]
pub async fn ready(state: State<AppState>) -> Result<(), ApiError> {
    ops::ready(state).await
}

/// Facts of a model.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelMetadata {
    /// The model as it was asked for.
    pub name: String,
    /// Always one, `1`.
    pub versions: [&'static str; 1],
    /// Always `textgen`.
    pub platform: &'static str,
    /// The tensors that it takes; all but `text_input` may be left out. Settings of the sampling may be tensors, too.
    pub inputs: Vec<TensorMetadata>,
    /// The tensors that it answers.
    pub outputs: Vec<TensorMetadata>,
}

/// What is known of a tensor beforehand.
#[derive(Debug, Serialize, ToSchema)]
pub struct TensorMetadata {
    /// Its name.
    pub name: &'static str,
    /// The type of its elements.
    pub datatype: &'static str,
    /// Its dimensions; -1 is any.
    pub shape: [i64; 1],
}

impl ModelMetadata {
    /// Those of the model under this name.
    #[must_use]
    pub fn of(name: String) -> Self {
        let several = |name: &str| name == request::TEXT_INPUT;
        let input = |(name, datatype): (_, Datatype)| TensorMetadata {
            name,
            datatype: datatype.name(),
            shape: [if several(name) { -1 } else { 1 }],
        };
        let output = |out: Out| TensorMetadata { name: out.name(), datatype: out.datatype().name(), shape: [-1] };
        Self {
            name,
            versions: [VERSION],
            platform: SERVER,
            inputs: INPUTS.into_iter().map(input).collect(),
            outputs: Out::ALL.into_iter().map(output).collect(),
        }
    }
}

/// Facts of a model: the tensors that it takes and answers. Paths of models may name the version, as in
/// `/v2/models/{model}/versions/1`.
///
/// # Errors
/// `NoSuchModel`.
#[utoipa::path(get, path = "/v2/models/{model}", tag = "Open Inference", params(
    ("model" = String, Path, description = "The model's name, or the part of it behind the last slash"),
), responses(
    (status = 200, description = "Facts", body = ModelMetadata),
    (status = 404, description = "No model has this name", body = InferenceErrorResponse),
))]
pub async fn model(Model(name): Model) -> Json<ModelMetadata> {
    Json(ModelMetadata::of(name))
}

/// The same as `/ready`, of one model.
///
/// # Errors
/// `NoSuchModel`, and those of `/ready`.
#[utoipa::path(get, path = "/v2/models/{model}/ready", tag = "Open Inference", params(
    ("model" = String, Path, description = "The model's name, or the part of it behind the last slash"),
), responses(
    (status = 200, description = "Ready for requests"),
    (status = 404, description = "No model has this name", body = InferenceErrorResponse),
    (status = 503, description = "Starting, recovering or draining", body = InferenceErrorResponse),
))]
pub async fn model_ready(state: State<AppState>, _: Model) -> Result<(), ApiError> {
    ops::ready(state).await
}

/// Continues the texts of a tensor, and answers tensors. Raw tensors may follow the JSON: then the header
/// `inference-header-content-length` has the length of the JSON.
///
/// # Errors
/// Whatever the table in `errors` holds.
#[utoipa::path(post, path = "/v2/models/{model}/infer", tag = "Open Inference", params(
    ("model" = String, Path, description = "The model's name, or the part of it behind the last slash"),
), request_body = InferRequest, responses(
    (status = 200, description = "The tensors", content(
        (InferResponse = "application/json"),
        (Vec<u8> = "application/octet-stream"),
    )),
    InferenceErrors,
))]
pub async fn infer(
    State(state): State<AppState>,
    Model(name): Model,
    caller: Caller,
    headers: HeaderMap,
    RawBody(body): RawBody,
) -> Result<Response, ApiError> {
    let received = wire::read(&headers, &body)?;
    drop(body);
    let asked = Asked::read(received.inference, state.settings.max_client_batch_size).and_then(Asked::whole);
    let opened = answer::open(&state, caller, asked, false).await?;
    let (headers, outputs) = answer::whole(&state, opened).await?;
    wire::respond(name, received.id, outputs, &received.raw, headers)
}

/// A rule that is broken.
pub(crate) fn invalid(sentence: &str) -> ApiError {
    ApiError::Validation(format!("Input validation error: {sentence}"))
}

/// The errors of generation in this protocol.
#[derive(Debug, IntoResponses)]
pub enum InferenceErrors {
    /// The body is not JSON, or a field or a tensor breaks a rule.
    #[response(status = 400)]
    BadRequest(InferenceErrorResponse),
    /// No model or adapter has this name.
    #[response(status = 404)]
    NotFound(InferenceErrorResponse),
    /// The body took too long.
    #[response(status = 408)]
    Timeout(InferenceErrorResponse),
    /// The body is too large.
    #[response(status = 413)]
    TooLarge(InferenceErrorResponse),
    /// The server is overloaded.
    #[response(status = 429)]
    Overloaded(InferenceErrorResponse),
    /// The engine stopped early, or failed on this request.
    #[response(status = 500)]
    Incomplete(InferenceErrorResponse),
    /// The server is starting or draining, or its queue is full.
    #[response(status = 503)]
    Unavailable(InferenceErrorResponse),
    /// The deadline passed.
    #[response(status = 504)]
    Late(InferenceErrorResponse),
}
