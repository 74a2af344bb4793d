//! What is kept of a response for later, and what comes back of it.

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::answer::ResponseObject;
use super::store::{Kept, Owner};
use crate::http::state::AppState;

/// Keeps a response once it is over.
pub(super) struct Keeping {
    state: AppState,
    owner: Owner,
    /// Items of the responses before.
    context: Vec<Value>,
    /// Items of its request.
    input: Vec<Value>,
}

impl Keeping {
    pub(super) const fn new(state: AppState, owner: Owner, context: Vec<Value>, input: Vec<Value>) -> Self {
        Self { state, owner, context, input }
    }

    pub(super) fn keep(self, response: &ResponseObject) {
        let output = response.output.iter().filter_map(|item| serde_json::to_value(item).ok());
        let context: Vec<Value> = self.context.into_iter().chain(self.input.iter().cloned()).chain(output).collect();
        let kept = Kept { response: json(response), input: json(&self.input), context: json(&context) };
        self.state.responses.keep(self.owner, response.id.clone(), kept);
    }
}

/// What was made here always has JSON.
fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).unwrap_or_default().into()
}

/// Items that were kept.
pub(super) fn items(kept: &[u8]) -> Vec<Value> {
    serde_json::from_slice(kept).unwrap_or_default()
}
