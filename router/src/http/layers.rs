//! What happens around every handler: request ids, error bodies, counting.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::future::FutureExt;
use uuid::Uuid;

use super::errors::{ApiError, Dialect};
use super::state::AppState;

/// Names a request in answers and logs.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The same, where Anthropic's clients look for it.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// What is asked many times a minute by who watches the server is no news in traces.
const QUIET: [&str; 6] = ["/health", "/ping", "/ready", "/v2/health/live", "/v2/health/ready", "/metrics"];

/// Ends every answer: renders an error in its route's dialect, names the request, counts it. A handler that panics is an error too.
pub async fn finish(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let id = request_id(&request);
    let dialect = Dialect::of_path(request.uri().path());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = request.method().clone();
    let trace = match &state.traces {
        Some(traces) if !QUIET.contains(&request.uri().path()) => {
            let trace = traces.begin(method.as_str(), request.headers());
            request.extensions_mut().insert(Arc::clone(&trace));
            Some(trace)
        }
        _ => None,
    };

    let mut response = caught(next.run(request)).await;
    // Where bodies of several dialects arrive, the handler knows better than the path.
    let dialect = response.extensions_mut().remove::<Dialect>().unwrap_or(dialect);
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        // What a client or a load balancer is told many times a second is no news to the operator.
        if error.is_fault() {
            let trace_id = trace.as_ref().map(|trace| trace.id());
            tracing::warn!(request_id = ?id, trace_id, %method, %error, "failed");
        } else {
            tracing::debug!(request_id = ?id, %method, %error, "refused");
        }
        response = error.render(response, dialect);
    }
    if dialect == Dialect::Anthropic {
        response.headers_mut().insert(ANTHROPIC_REQUEST_ID, id.clone());
    }
    response.headers_mut().insert(REQUEST_ID, id);
    // What was routed again below tells its route with the answer.
    let route = route.or(response.extensions_mut().remove::<MatchedPath>());
    let route = route.as_ref().map_or("unmatched", MatchedPath::as_str);
    state.metrics.http.answered(route, response.status().as_u16());
    match trace {
        Some(trace) => trace.answered(method.as_str(), route, response),
        None => response,
    }
}

/// Tells `finish` which route of a router below it was.
pub async fn tell(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let mut response = next.run(request).await;
    if let Some(route) = route {
        response.extensions_mut().insert(route);
    }
    response
}

/// The client's own id when it is harmless to repeat, else a new one.
fn request_id(request: &Request) -> HeaderValue {
    let harmless = |id: &&HeaderValue| {
        let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(byte);
        (1..=128).contains(&id.len()) && id.as_bytes().iter().all(allowed)
    };
    let fresh = || {
        // It has to be unique and not secret: the thread's own generator saves a system call.
        let id = uuid::Builder::from_random_bytes(rand::random()).into_uuid();
        let mut text = Uuid::encode_buffer();
        HeaderValue::from_str(id.hyphenated().encode_lower(&mut text)).unwrap_or(HeaderValue::from_static("-"))
    };
    request.headers().get(REQUEST_ID).filter(harmless).cloned().unwrap_or_else(fresh)
}

/// What a path that leads nowhere answers.
pub async fn not_found(request: Request) -> ApiError {
    ApiError::NotFound(format!("{} {}", request.method(), request.uri().path()))
}

/// What a path answers to a method it does not take.
pub async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::MethodNotAllowed(request.method().to_string())
}

/// An answer, also of a handler that panics. A layer that does this would put a box of its own around each body, to be gone
/// through with each token.
async fn caught(answer: impl Future<Output = Response>) -> Response {
    AssertUnwindSafe(answer).catch_unwind().await.unwrap_or_else(panicked)
}

/// What a handler that panicked answers; the reason is in the log, not in the answer.
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let reason = match panic.downcast::<String>() {
        Ok(reason) => *reason,
        Err(panic) => panic.downcast::<&str>().map_or_else(|_| "unknown".to_owned(), |reason| reason.to_string()),
    };
    tracing::error!(reason, "a handler panicked");
    ApiError::Internal("a fault in the server; its log says which".to_owned()).into_response()
}
