//! The JSON body of a request, with every way it can be wrong as an `ApiError`.

use std::error::Error;

use axum::Json;
use axum::extract::rejection::{BytesRejection, FailedToBufferBody, JsonRejection};
use axum::extract::{FromRequest, Request};
use axum::http::header;
use bytes::Bytes;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use super::errors::ApiError;
use super::state::AppState;

/// Characters of a parser's reason that a client is told.
const MAX_REASON: usize = 200;
/// What the parser says, after the field's path, of a number that the field's type cannot hold.
const OUT_OF_RANGE: &str = ": number out of range";
/// What it says of a list where an object is expected, which it takes for the object's fields in order: too long, or too short.
const MORE_ITEMS: &str = "trailing characters at ";
const FEWER_ITEMS: &str = "invalid length ";

/// A JSON body. Nesting deeper than 128 is refused by the parser.
#[derive(Debug)]
pub struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<AppState> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        if !is_declared(&request) {
            return Err(ApiError::NotJson);
        }
        receive(request, state).await.map(Self)
    }
}

/// A JSON body whatever it is declared as: Ollama's clients declare none, and curl a form.
#[derive(Debug)]
pub struct AnyBody<T>(pub T);

impl<T: DeserializeOwned> FromRequest<AppState> for AnyBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        receive(request, state).await.map(Self)
    }
}

/// Whether the body is said to be JSON: `application/json`, or something that ends in `+json`.
fn is_declared(request: &Request) -> bool {
    let declared = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = declared.and_then(|value| value.split(';').next()).unwrap_or_default().trim().to_ascii_lowercase();
    essence.strip_prefix("application/").is_some_and(|subtype| subtype == "json" || subtype.ends_with("+json"))
}

async fn receive<T: DeserializeOwned>(request: Request, state: &AppState) -> Result<T, ApiError> {
    read(&bytes(request, state).await?)
}

async fn bytes(request: Request, state: &AppState) -> Result<Bytes, ApiError> {
    let (patience, limit) = (state.patience.body, state.settings.payload_limit);
    match tokio::time::timeout(patience, Bytes::from_request(request, state)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(rejection)) => Err(refusal(&rejection.into(), &[], limit)),
        Err(_) => Err(ApiError::BodyTimeout { seconds: patience.as_secs() }),
    }
}

/// A body as it is.
#[derive(Debug)]
pub struct RawBody(pub Bytes);

impl FromRequest<AppState> for RawBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        bytes(request, state).await.map(Self)
    }
}

/// A body of another route's type within one that was read already.
///
/// # Errors
/// `BadFields`, with the field at fault.
pub fn parsed<T: DeserializeOwned>(body: &Value) -> Result<T, ApiError> {
    let text = serde_json::to_vec(body).map_err(|error| ApiError::Internal(error.to_string()))?;
    read(&text)
}

/// A body that is there already.
///
/// # Errors
/// `BadJson`, `BadFields` or `Validation`, with the field at fault.
pub fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, ApiError> {
    match Json::from_bytes(text) {
        Ok(Json(body)) => Ok(body),
        Err(rejection) => Err(refusal(&rejection, text, text.len())),
    }
}

fn refusal(rejection: &JsonRejection, body: &[u8], limit: usize) -> ApiError {
    match rejection {
        JsonRejection::JsonSyntaxError(error) => {
            let reason = reason(error);
            match (reason.split_once(OUT_OF_RANGE), reason.split_once(MORE_ITEMS)) {
                (Some((path, _)), _) => out_of_range(path),
                (_, Some((path, _))) if is_json(body) => no_list(path),
                _ => ApiError::BadJson(reason),
            }
        }
        JsonRejection::JsonDataError(error) => {
            let reason = reason(error);
            let fields = reason.split_once(FEWER_ITEMS).filter(|(_, wanted)| wanted.contains(", expected struct "));
            match fields {
                Some((path, _)) => no_list(path),
                None => ApiError::BadFields(reason),
            }
        }
        JsonRejection::BytesRejection(BytesRejection::FailedToBufferBody(FailedToBufferBody::LengthLimitError(_))) => {
            ApiError::TooLarge { limit }
        }
        other => ApiError::BadBody(reason(other)),
    }
}

/// Well-formed JSON whose number the field cannot hold, which the parser counts among errors of syntax.
fn out_of_range(path: &str) -> ApiError {
    let field = path.rsplit('.').next().unwrap_or(path);
    ApiError::Validation(format!(
        "Input validation error: `{field}` is out of the range of numbers; send a smaller one"
    ))
}

fn is_json(body: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(body).is_ok()
}

/// Well-formed JSON with a list where an object is expected. `path` is empty where it is the whole body.
fn no_list(path: &str) -> ApiError {
    ApiError::BadFields(format!("{path}invalid type: a list, expected an object"))
}

/// The innermost cause, which names the field and the place.
fn reason(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        // `serde_path_to_error` puts the field before its source's text; going further would lose it.
        if source.source().is_none() && innermost.to_string().ends_with(&source.to_string()) {
            break;
        }
        innermost = source;
    }
    cut(&innermost.to_string())
}

/// Paths into a body hold keys of the client's choice: a sentence has room for a part of them.
fn cut(text: &str) -> String {
    if text.contains("recursion limit exceeded") {
        return "it is nested deeper than 128 levels; send a flatter one".to_owned();
    }
    let mut characters = text.chars();
    let start: String = characters.by_ref().take(MAX_REASON).collect();
    if characters.next().is_some() { format!("{start}…") } else { start }
}
