//! `POST /generate`, and `POST /`, which also streams.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures::future::try_join_all;

use super::stream;
use super::types::{
    BestOfSequence, CompatGenerateRequest, Details, GenerateParameters, GenerateRequest, GenerateResponse,
    PrefillToken, TokenInfo,
};
use super::{Wanted, token_info, top_tokens, translate};
use crate::http::errors::ApiError;
use crate::http::extract::Body;
use crate::http::generation::{Admission, Completed, Running, best, share_prompt_scores};
use crate::http::headers;
use crate::http::openapi::NativeErrors;
use crate::http::standing::Caller;
use crate::http::state::AppState;
use crate::input::ModelText;
use crate::shard::handle::PromptScore;

/// Generates a text and answers it whole.
///
/// # Errors
/// Whatever the table in `errors` holds.
#[utoipa::path(post, path = "/generate", tag = "Native", request_body = GenerateRequest, responses(
    (status = 200, description = "The text", body = GenerateResponse),
    NativeErrors,
))]
pub async fn generate(
    State(state): State<AppState>,
    caller: Caller,
    Body(body): Body<GenerateRequest>,
) -> Result<Response, ApiError> {
    let (headers, answer) = run(&state, caller, body.inputs, body.parameters).await?;
    Ok((headers, Json(answer)).into_response())
}

/// Generates a text, streamed or whole; the whole answer is a list of one, and begins with the prompt by default.
///
/// # Errors
/// Whatever the table in `errors` holds.
#[utoipa::path(post, path = "/", tag = "Native", request_body = CompatGenerateRequest, responses(
    (status = 200, description = "The text, or its stream", content(
        (Vec<GenerateResponse> = "application/json"),
        (super::types::StreamResponse = "text/event-stream"),
    )),
    NativeErrors,
))]
pub async fn compat_generate(
    State(state): State<AppState>,
    caller: Caller,
    Body(body): Body<CompatGenerateRequest>,
) -> Result<Response, ApiError> {
    // Sampling by default depends on whether there are parameters: the default below must not bring them into being.
    let parameters = match body.parameters {
        Some(given) => GenerateParameters { return_full_text: given.return_full_text.or(Some(true)), ..given },
        None => GenerateParameters { return_full_text: Some(true), do_sample: Some(true), ..Default::default() },
    };
    if body.stream.unwrap_or_default() {
        return stream::run(&state, caller, body.inputs, Some(parameters)).await;
    }
    let (headers, answer) = run(&state, caller, body.inputs, Some(parameters)).await?;
    Ok((headers, Json([answer])).into_response())
}

async fn run(
    state: &AppState,
    caller: Caller,
    inputs: String,
    parameters: Option<GenerateParameters>,
) -> Result<(HeaderMap, GenerateResponse), ApiError> {
    let asked = parameters.as_ref().and_then(|given| given.best_of).unwrap_or(1) as usize;
    // A call that is refused for its number of sequences takes no more than an allowed one.
    let mut admission = Admission::enter(state, caller, asked.clamp(1, state.settings.max_best_of)).await?;
    let (request, wanted) = translate(inputs, parameters, false).map_err(|error| admission.refuse(error))?;
    let runs = admission.start(request).await?;
    let mut all = try_join_all(runs.into_iter().map(Running::complete)).await?;
    share_prompt_scores(&mut all);
    let mut headers = HeaderMap::new();
    headers::describe(&mut headers, &state.settings, &all);
    let (mut chosen, others) = best(all, 1);
    let best = chosen.pop().ok_or(ApiError::Incomplete)?;
    Ok((headers, answer(best, others, wanted, &state.model)))
}

fn answer(best: Completed, others: Vec<Completed>, wanted: Wanted, model: &ModelText) -> GenerateResponse {
    let details = wanted.details.then(|| Details {
        finish_reason: best.finish.into(),
        generated_tokens: count(&best),
        seed: best.facts.seed,
        prefill: prefill(&best, model),
        tokens: tokens(&best, model),
        top_tokens: alternatives(&best, wanted, model),
        best_of_sequences: others.into_iter().map(|other| best_of_sequence(other, wanted, model)).collect(),
    });
    GenerateResponse { generated_text: text(best, wanted), details }
}

fn best_of_sequence(completed: Completed, wanted: Wanted, model: &ModelText) -> BestOfSequence {
    BestOfSequence {
        finish_reason: completed.finish.into(),
        generated_tokens: count(&completed),
        seed: completed.facts.seed,
        prefill: prefill(&completed, model),
        tokens: tokens(&completed, model),
        top_tokens: alternatives(&completed, wanted, model),
        generated_text: text(completed, wanted),
    }
}

fn text(completed: Completed, wanted: Wanted) -> String {
    match completed.facts.prompt_text {
        Some(prompt) if wanted.full_text => format!("{prompt}{}", completed.text),
        _ => completed.text,
    }
}

fn count(completed: &Completed) -> u32 {
    u32::try_from(completed.steps.len()).unwrap_or(u32::MAX)
}

fn tokens(completed: &Completed, model: &ModelText) -> Vec<TokenInfo> {
    completed.steps.iter().map(|step| token_info(step, model)).collect()
}

fn alternatives(completed: &Completed, wanted: Wanted, model: &ModelText) -> Vec<Vec<TokenInfo>> {
    let steps = if wanted.top_tokens { completed.steps.as_slice() } else { &[] };
    steps.iter().map(|step| top_tokens(step, model)).collect()
}

fn prefill(completed: &Completed, model: &ModelText) -> Vec<PrefillToken> {
    let token = |(&id, score): (&u32, &Option<PromptScore>)| PrefillToken {
        id,
        text: model.token_text(id),
        logprob: score.as_ref().map(|score| score.logprob),
    };
    completed.facts.prompt_tokens.iter().zip(&completed.prompt_scores).map(token).collect()
}
