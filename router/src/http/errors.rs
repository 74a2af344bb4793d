//! Everything that can go wrong in an answer, and the one table of what a client is told.

use axum::Extension;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::gate::Refused;
use crate::grammar::GrammarError;
use crate::input::InputError;
use crate::metrics::{FailureKind, RefusalCause};
use crate::shard::handle::EngineError;

/// What went wrong; its text is one sentence that says what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// A rule is broken. The sentence comes from `input`, or starts as its sentences do.
    #[error("{0}")]
    Validation(String),
    /// A prompt has more tokens than there is room for; the sentence is as those of `Validation`.
    #[error("{0}")]
    TooLong(String),
    /// A field that is understood, but not served yet.
    #[error("Input validation error: `{field}` is not supported yet: {remedy}")]
    Unsupported {
        /// The field.
        field: &'static str,
        /// What to send instead.
        remedy: &'static str,
    },
    /// More prompts in a call than allowed.
    #[error(
        "Input validation error: `prompt` holds {given} prompts, more than the {limit} allowed; send fewer at once"
    )]
    TooManyPrompts {
        /// Prompts in the call.
        given: usize,
        /// `max_client_batch_size`.
        limit: usize,
    },
    /// The answer cannot be held to the grammar that was asked for.
    #[error("Grammar error{}: {reason}", named(.fields))]
    Grammar {
        /// The fields that ask for it; none where that is not known.
        fields: Vec<&'static str>,
        /// Why not, and what to change.
        reason: String,
    },
    /// No model has this name.
    #[error("model `{0}` is not served here; GET /v1/models names the one that is")]
    NoSuchModel(String),
    /// No response of this name is kept for this key.
    #[error("there is no response `{0}`: it was not stored, was deleted, is too old, or belongs to another API key")]
    NoSuchResponse(String),
    /// No answer of this name takes results for this key.
    #[error(
        "no answer `{0}` takes results: it is over, was not asked for with `async_tools`, or belongs to another API key; send the \
         result in a new request"
    )]
    NoSuchAnswer(String),
    /// A call has its result.
    #[error("the call `{0}` has a result already; send one for each call")]
    AlreadyAnswered(String),
    /// No adapter has this name.
    #[error("adapter `{0}` is not loaded: leave `adapter_id` out to use the base model")]
    UnknownAdapter(String),
    /// The chat template is missing, or does not accept these messages.
    #[error("{0}")]
    Template(String),
    /// No room now.
    #[error("{}", refusal(.0.cause))]
    Refused(Refused),
    /// A key is needed, and this is none that is known.
    #[error(
        "this server needs an API key: send one it knows with the header `authorization: Bearer KEY` or `x-api-key: KEY`"
    )]
    Unauthorized,
    /// The deadline passed before the answer was complete.
    #[error(
        "the request took longer than it was given; allow more time with the header `x-request-timeout`, or ask for less"
    )]
    Timeout,
    /// The model is not there yet.
    #[error("the model is still loading; try again in a moment")]
    Loading,
    /// The server is going away.
    #[error("the server is shutting down; send the request to another replica")]
    Draining,
    /// The shard failed on this request.
    #[error("Request failed during generation: {0}")]
    Generation(String),
    /// The engine ended before the text did.
    #[error("Incomplete generation: the engine stopped before the answer was complete; send the request again")]
    Incomplete,
    /// The same, in a stream.
    #[error("Incomplete generation: the engine stopped before the stream was complete; send the request again")]
    IncompleteStream,
    /// The client did not read its stream.
    #[error("the client reads too slowly; its stream was closed")]
    SlowReader,
    /// The body is not JSON.
    #[error("the body is not valid JSON: {0}")]
    BadJson(String),
    /// The body is JSON, but not what the route takes.
    #[error("the body does not fit this route: {0}")]
    BadFields(String),
    /// The body is declared as something else.
    #[error("the body must be JSON: send it with the header `content-type: application/json`")]
    NotJson,
    /// The body is longer than `payload_limit`.
    #[error("the body is too large: send less than {limit} bytes")]
    TooLarge {
        /// `payload_limit`.
        limit: usize,
    },
    /// The body did not arrive, or broke off.
    #[error("the body could not be read: {0}")]
    BadBody(String),
    /// The body took too long.
    #[error("the body did not arrive within {seconds} seconds; send it faster")]
    BodyTimeout {
        /// The limit.
        seconds: u64,
    },
    /// No such path.
    #[error("there is no `{0}` here; GET /api-doc/openapi.json lists the routes")]
    NotFound(String),
    /// The path takes other methods.
    #[error("this path does not take {0}; the header `allow` names what it takes")]
    MethodNotAllowed(String),
    /// `/health` of an engine that cannot serve.
    #[error("unhealthy")]
    Unhealthy,
    /// A fault of ours.
    #[error("the server failed on this request: {0}")]
    Internal(String),
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Status of an answer that holds nothing else.
    pub status: StatusCode,
    /// `error_type` of native answers, `code` of OpenAI's.
    pub error_type: &'static str,
    /// How it counts; `None` before a call is one.
    pub counts_as: Option<FailureKind>,
    /// Seconds after which trying again makes sense.
    pub retry_after: Option<u32>,
}

impl ApiError {
    /// The table.
    #[must_use]
    pub const fn row(&self) -> Row {
        use {FailureKind as Kind, RefusalCause as Cause};
        let (status, error_type, counts_as, retry_after) = match self {
            Self::Validation(_) | Self::TooLong(_) | Self::Unsupported { .. } | Self::Grammar { .. } => {
                (422, "validation", Some(Kind::Validation), None)
            }
            Self::TooManyPrompts { .. } => (422, "batch size exceeded", Some(Kind::Validation), None),
            Self::UnknownAdapter(_) => (404, "adapter_not_found", Some(Kind::Validation), None),
            Self::NoSuchResponse(_) => (404, "response_not_found", None, None),
            Self::NoSuchAnswer(_) => (404, "answer_not_found", None, None),
            Self::AlreadyAnswered(_) => (409, "already_answered", None, None),
            Self::NoSuchModel(_) => (404, "model_not_found", None, None),
            Self::Template(_) => (422, "template_error", Some(Kind::Template), None),
            Self::Refused(refused) => {
                let (status, error_type) = match refused.cause {
                    Cause::Concurrency | Cause::Validation | Cause::Grammar | Cause::Engine => (429, "overloaded"),
                    Cause::KeyRequests | Cause::KeyTokens => (429, "rate_limited"),
                    Cause::QueueRequests | Cause::QueueTokens => (503, "queue_full"),
                };
                (status, error_type, Some(Kind::Overloaded), Some(refused.retry_after))
            }
            Self::Unauthorized => (401, "unauthorized", None, None),
            Self::Timeout => (504, "timeout", Some(Kind::Timeout), None),
            Self::Loading => (503, "loading", Some(Kind::Unavailable), Some(1)),
            Self::Draining => (503, "draining", Some(Kind::Unavailable), Some(1)),
            Self::Generation(_) => (424, "generation", Some(Kind::Generation), None),
            Self::Incomplete => (500, "incomplete_generation", Some(Kind::Incomplete), None),
            Self::IncompleteStream => (500, "incomplete_generation_stream", Some(Kind::Incomplete), None),
            Self::SlowReader => (408, "slow_reader", Some(Kind::Dropped), None),
            Self::BadJson(_) => (400, "invalid_json", None, None),
            Self::BadBody(_) => (400, "invalid_body", None, None),
            Self::BadFields(_) => (422, "validation", None, None),
            Self::NotJson => (415, "unsupported_media_type", None, None),
            Self::TooLarge { .. } => (413, "payload_too_large", None, None),
            Self::BodyTimeout { .. } => (408, "body_timeout", None, None),
            Self::NotFound(_) => (404, "not_found", None, None),
            Self::MethodNotAllowed(_) => (405, "method_not_allowed", None, None),
            Self::Unhealthy => (503, "healthcheck", None, Some(1)),
            Self::Internal(_) => (500, "internal", Some(Kind::Generation), None),
        };
        let status = match StatusCode::from_u16(status) {
            Ok(status) => status,
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Row { status, error_type, counts_as, retry_after }
    }

    /// Whether it is the server that is at fault, which its operator should know.
    #[must_use]
    pub const fn is_fault(&self) -> bool {
        matches!(self, Self::Generation(_) | Self::Incomplete | Self::IncompleteStream | Self::Internal(_))
    }

    /// The error, where it is one of a grammar, with the fields that asked for that.
    #[must_use]
    pub fn about_shape(self, asked_by: &[&'static str]) -> Self {
        match self {
            Self::Grammar { reason, .. } => Self::Grammar { fields: asked_by.to_vec(), reason },
            other => other,
        }
    }

    /// The field at fault, where one is.
    fn param(&self) -> Option<&'static str> {
        match self {
            Self::Unsupported { field, .. } => Some(field),
            Self::TooManyPrompts { .. } => Some("prompt"),
            Self::UnknownAdapter(_) => Some("adapter_id"),
            Self::Grammar { fields, .. } => match fields.as_slice() {
                [field] => Some(field),
                _ => None,
            },
            _ => None,
        }
    }

    /// The body of an answer, or the data of a stream's last event.
    #[must_use]
    pub fn body(&self, dialect: Dialect) -> String {
        let row = self.row();
        let body = match dialect {
            Dialect::Anthropic => serde_json::to_string(&AnthropicErrorResponse {
                r#type: "error",
                error: AnthropicError { r#type: anthropic_type(row.status), message: self.to_string() },
            }),
            Dialect::Ollama => serde_json::to_string(&OllamaErrorResponse { error: self.to_string() }),
            Dialect::Inference => serde_json::to_string(&InferenceErrorResponse { error: self.to_string() }),
            Dialect::Native => {
                serde_json::to_string(&ErrorResponse { error: self.to_string(), error_type: row.error_type })
            }
            Dialect::OpenAi => serde_json::to_string(&OpenAiErrorResponse {
                error: OpenAiError {
                    message: self.to_string(),
                    r#type: openai_type(row.status),
                    param: self.param(),
                    code: row.error_type,
                    http_status_code: row.status.as_u16(),
                },
                error_type: row.error_type,
            }),
        };
        // Strings and numbers only: this cannot fail.
        body.unwrap_or_default()
    }

    /// The status in a dialect. Some have one word for what the others tell apart.
    #[must_use]
    pub const fn status(&self, dialect: Dialect) -> StatusCode {
        let status = self.row().status;
        match (dialect, status) {
            (Dialect::Native | Dialect::OpenAi, _) => status,
            (_, StatusCode::UNPROCESSABLE_ENTITY) => StatusCode::BAD_REQUEST,
            (_, StatusCode::FAILED_DEPENDENCY) => StatusCode::INTERNAL_SERVER_ERROR,
            _ => status,
        }
    }

    /// Turns an answer that stands for this error (see `IntoResponse`) into what the client reads.
    #[must_use]
    pub fn render(&self, mut response: Response, dialect: Dialect) -> Response {
        *response.status_mut() = self.status(dialect);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.remove(header::CONTENT_LENGTH);
        if let Some(seconds) = self.row().retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if *self == Self::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        *response.body_mut() = self.body(dialect).into();
        response
    }
}

/// The status and the error itself; `layers::finish` renders it in the dialect of the path, in one place for handlers,
/// extractors and the framework.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.row().status, Extension(self)).into_response()
    }
}

/// Whose shapes a route speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// TGI's.
    Native,
    /// OpenAI's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
    /// Ollama's.
    Ollama,
    /// The Open Inference Protocol's.
    Inference,
}

impl Dialect {
    /// The dialect of a path, known or not.
    #[must_use]
    pub fn of_path(path: &str) -> Self {
        match path {
            "/v1/messages" => Self::Anthropic,
            _ if path.starts_with("/v1/messages/") => Self::Anthropic,
            _ if path.starts_with("/v1/") => Self::OpenAi,
            _ if path.starts_with("/api/") => Self::Ollama,
            "/v2" => Self::Inference,
            _ if path.starts_with("/v2/") => Self::Inference,
            _ => Self::Native,
        }
    }
}

/// ` in ` and the names of fields.
fn named(fields: &[&str]) -> String {
    if fields.is_empty() { String::new() } else { format!(" in `{}`", fields.join("` or `")) }
}

/// What a client reads whose call was refused for want of room.
const fn refusal(cause: RefusalCause) -> &'static str {
    match cause {
        RefusalCause::Concurrency => "Model is overloaded: too many requests at once; try again later",
        RefusalCause::Validation => "Model is overloaded: too many requests wait for validation; try again later",
        RefusalCause::Grammar => "Model is overloaded: too many grammars wait to be compiled; try again later",
        RefusalCause::Engine => "Model is overloaded: too many requests are waiting; try again later",
        RefusalCause::QueueRequests => "the queue is full: too many requests wait; try again later",
        RefusalCause::QueueTokens => {
            "the queue is full: too many tokens wait; try again later, or ask for fewer new tokens"
        }
        RefusalCause::KeyRequests => "too many requests of this key at once; wait for some to end",
        RefusalCause::KeyTokens => {
            "too many tokens of this key at once; wait for some requests to end, or ask for fewer new tokens"
        }
    }
}

/// OpenAI's own names for kinds of errors.
fn openai_type(status: StatusCode) -> &'static str {
    match status {
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::UNAUTHORIZED => "authentication_error",
        status if status.is_client_error() && status != StatusCode::FAILED_DEPENDENCY => "invalid_request_error",
        _ => "server_error",
    }
}

/// Anthropic's names for kinds of errors.
const fn anthropic_type(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        StatusCode::FAILED_DEPENDENCY | StatusCode::INTERNAL_SERVER_ERROR => "api_error",
        _ => "invalid_request_error",
    }
}

/// The error body of Anthropic's routes, and the data of an `error` event.
#[derive(Debug, Serialize, ToSchema)]
pub struct AnthropicErrorResponse {
    /// Always `error`.
    pub r#type: &'static str,
    /// What went wrong.
    pub error: AnthropicError,
}

/// Anthropic's error object.
#[derive(Debug, Serialize, ToSchema)]
pub struct AnthropicError {
    /// Anthropic's name of the kind.
    #[schema(example = "invalid_request_error")]
    pub r#type: &'static str,
    /// What went wrong and what to change.
    pub message: String,
}

/// The error body of Ollama's routes, and the last line of a stream that fails.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaErrorResponse {
    /// What went wrong and what to change.
    pub error: String,
}

/// The error body of the Open Inference Protocol, and the last event of a stream that fails.
#[derive(Debug, Serialize, ToSchema)]
pub struct InferenceErrorResponse {
    /// What went wrong and what to change.
    pub error: String,
}

/// The error body of native routes, as TGI has it.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorResponse {
    /// What went wrong and what to change.
    #[schema(example = "Input validation error: `temperature` must be strictly positive")]
    pub error: String,
    /// The class.
    #[schema(example = "validation")]
    pub error_type: &'static str,
}

/// The error body of OpenAI routes.
#[derive(Debug, Serialize, ToSchema)]
pub struct OpenAiErrorResponse {
    /// OpenAI's error object.
    pub error: OpenAiError,
    /// The class, where TGI's clients look for it.
    pub error_type: &'static str,
}

/// OpenAI's error object.
#[derive(Debug, Serialize, ToSchema)]
pub struct OpenAiError {
    /// What went wrong and what to change.
    pub message: String,
    /// OpenAI's name of the kind.
    pub r#type: &'static str,
    /// The field at fault, where one is.
    pub param: Option<&'static str>,
    /// The class.
    pub code: &'static str,
    /// The status; of use in a stream, which began with 200.
    pub http_status_code: u16,
}

impl From<InputError> for ApiError {
    fn from(error: InputError) -> Self {
        match error {
            InputError::Validation(_) => Self::Validation(error.to_string()),
            InputError::TooLong(_) => Self::TooLong(error.to_string()),
            InputError::Template(_) => Self::Template(error.to_string()),
            InputError::Overloaded => Self::Refused(Refused::at_once(RefusalCause::Validation)),
            InputError::Internal(reason) => Self::Internal(reason),
        }
    }
}

impl From<GrammarError> for ApiError {
    fn from(error: GrammarError) -> Self {
        match error {
            GrammarError::Invalid(_)
            | GrammarError::Unsupported(_)
            | GrammarError::TooComplex(_)
            | GrammarError::Disabled => Self::Grammar { fields: Vec::new(), reason: error.to_string() },
            GrammarError::Overloaded => Self::Refused(Refused::at_once(RefusalCause::Grammar)),
            GrammarError::Internal(_) => Self::Internal(error.to_string()),
        }
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Overloaded => Self::Refused(Refused::at_once(RefusalCause::Engine)),
            EngineError::Timeout => Self::Timeout,
            EngineError::Draining | EngineError::Stopped => Self::Draining,
            EngineError::TooLong(reason) => Self::TooLong(format!("Input validation error: {reason}")),
            EngineError::Grammar(reason) => Self::Grammar { fields: Vec::new(), reason },
            EngineError::Shard(reason) => Self::Generation(reason),
            EngineError::SlowReader => Self::SlowReader,
        }
    }
}
