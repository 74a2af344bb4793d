//! `POST /generate_stream`: one event per token; the last one has the whole text.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;

use super::types::{GenerateParameters, GenerateRequest, StreamDetails, StreamResponse};
use super::{Wanted, token_info, top_tokens, translate};
use crate::http::errors::{ApiError, Dialect};
use crate::http::extract::Body;
use crate::http::generation::{Admission, Facts, FinishReason, Step};
use crate::http::openapi::NativeErrors;
use crate::http::sse::{self, Events, Translate};
use crate::http::standing::Caller;
use crate::http::state::AppState;
use crate::input::ModelText;

/// Generates a text and streams its tokens. Errors before the first token have their own status; later ones are an
/// event with `error` and `error_type`.
///
/// # Errors
/// Whatever the table in `errors` holds.
#[utoipa::path(post, path = "/generate_stream", tag = "Native", request_body = GenerateRequest, responses(
    (status = 200, description = "One event per token", content((StreamResponse = "text/event-stream"))),
    NativeErrors,
))]
pub async fn generate_stream(
    State(state): State<AppState>,
    caller: Caller,
    Body(body): Body<GenerateRequest>,
) -> Result<Response, ApiError> {
    run(&state, caller, body.inputs, body.parameters).await
}

pub(super) async fn run(
    state: &AppState,
    caller: Caller,
    inputs: String,
    parameters: Option<GenerateParameters>,
) -> Result<Response, ApiError> {
    let mut admission = Admission::enter(state, caller, 1).await?;
    let (request, wanted) = translate(inputs, parameters, true).map_err(|error| admission.refuse(error))?;
    let running = admission.start_one(request).await?;
    let translate = NativeStream::new(running.facts(), wanted, Arc::clone(&state.model));
    sse::respond(state, vec![running], translate).await
}

struct NativeStream {
    model: Arc<ModelText>,
    wanted: Wanted,
    seed: Option<u64>,
    input_length: u32,
    index: u32,
    text: String,
}

impl NativeStream {
    fn new(facts: &Facts, wanted: Wanted, model: Arc<ModelText>) -> Self {
        let prompt = facts.prompt_text.as_ref().filter(|_| wanted.full_text);
        Self {
            model,
            wanted,
            seed: facts.seed,
            input_length: u32::try_from(facts.input_length).unwrap_or(u32::MAX),
            index: 0,
            text: prompt.map(ToString::to_string).unwrap_or_default(),
        }
    }

    fn details(&self, finish: FinishReason) -> StreamDetails {
        StreamDetails {
            finish_reason: finish.into(),
            generated_tokens: self.index,
            seed: self.seed,
            input_length: self.input_length,
        }
    }
}

impl Translate for NativeStream {
    const DIALECT: Dialect = Dialect::Native;

    fn step(&mut self, _: usize, step: Step, events: &mut Events) {
        self.index += 1;
        self.text.push_str(&step.text);
        if step.finish.is_none() && !step.special && !self.wanted.top_tokens {
            return push_plain(self.index, &step, events);
        }
        let top_tokens = if self.wanted.top_tokens { top_tokens(&step, &self.model) } else { Vec::new() };
        events.push(&StreamResponse {
            index: self.index,
            token: token_info(&step, &self.model),
            top_tokens,
            generated_text: step.finish.map(|_| std::mem::take(&mut self.text)),
            details: step.finish.filter(|_| self.wanted.details).map(|finish| self.details(finish)),
        });
    }

    fn end(&mut self, _: &mut Events) {}
}

/// The event of an ordinary token, which nearly all are: the bytes of a `StreamResponse` without the way there.
fn push_plain(index: u32, step: &Step, events: &mut Events) {
    events.push_parts(|json| {
        json.raw("{\"index\":");
        json.value(&index)?;
        json.raw(",\"token\":{\"id\":");
        json.value(&step.token.id)?;
        json.raw(",\"text\":");
        json.value(&step.text)?;
        json.raw(",\"logprob\":");
        json.value(&step.token.logprob)?;
        json.raw(",\"special\":false},\"generated_text\":null,\"details\":null}");
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::http::native::types::TokenInfo;
    use crate::shard::handle::Token;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn an_ordinary_token_is_written_as_its_type_is(
            index: u32, id: u32, text: String, logprob in prop_oneof![any::<f32>(), -20.0..0.0_f32],
        ) {
            let token = Token { id, logprob, top: Vec::new() };
            let mut short = Events::default();
            let step = Step {
                token, special: false, text: text.clone(), finish: None, stopped_by: None, cached_tokens: 0,
                prompt_scores: Vec::new(),
            };
            push_plain(index, &step, &mut short);
            let mut long = Events::default();
            long.push(&StreamResponse {
                index,
                token: TokenInfo { id, text, logprob, special: false },
                top_tokens: Vec::new(),
                generated_text: None,
                details: None,
            });
            prop_assert_eq!(short, long);
        }
    }
}
