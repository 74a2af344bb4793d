//! One sequence from admission to its last token: the typed path that every dialect translates to and from.

mod admission;
mod answer;
mod running;

use super::errors::ApiError;
use super::gate::Refused;
use crate::metrics::Call;

pub use admission::Admission;
pub use answer::{Completed, Facts, FinishReason, Moments, Step, Times, best, share_prompt_scores};
pub use running::Running;

fn failed(call: &Call, error: ApiError) -> ApiError {
    if let Some(kind) = error.row().counts_as {
        call.fail(kind);
    }
    if let ApiError::Refused(Refused { cause, .. }) = error {
        call.refused(cause);
    }
    error
}
