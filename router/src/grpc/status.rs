//! What gRPC calls what went wrong.

use axum::http::StatusCode;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::http::errors::{ApiError, Dialect};

/// Seconds after which trying again makes sense, as on HTTP.
const RETRY_AFTER: &str = "retry-after";

/// The status that tells this error.
pub(super) fn status(error: &ApiError) -> Status {
    let mut status = Status::new(code(error), error.to_string());
    if let Some(seconds) = error.row().retry_after {
        status.metadata_mut().insert(RETRY_AFTER, MetadataValue::from(seconds));
    }
    status
}

fn code(error: &ApiError) -> Code {
    match error {
        // Too many wait, or too many come: both mean that room is short. A server that is going or coming is another matter.
        ApiError::Refused(_) | ApiError::TooLarge { .. } | ApiError::SlowReader => Code::ResourceExhausted,
        _ => match error.status(Dialect::Inference) {
            StatusCode::BAD_REQUEST => Code::InvalidArgument,
            StatusCode::UNAUTHORIZED => Code::Unauthenticated,
            StatusCode::FORBIDDEN => Code::PermissionDenied,
            StatusCode::NOT_FOUND => Code::NotFound,
            StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
            StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
            StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => Code::DeadlineExceeded,
            _ => Code::Internal,
        },
    }
}
