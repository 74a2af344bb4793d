//! `POST /v1/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures::future::try_join_all;

use super::answers::{Completion, CompletionChoice, CompletionChunk, Head, Usage};
use super::completion_stream::CompletionStream;
use super::echo;
use super::logprobs::{CompletionLogprobs, prompt_logprobs};
use super::types::{CompletionRequest, Wanted};
use crate::http::errors::ApiError;
use crate::http::extract::Body;
use crate::http::generation::{Admission, Completed, FinishReason, Running, best, share_prompt_scores};
use crate::http::openapi::OpenAiErrors;
use crate::http::standing::Caller;
use crate::http::state::AppState;
use crate::http::{headers, sse};
use crate::input::ModelText;

/// Completes one prompt or several, streamed or whole. A stream of several interleaves them; `index` tells them apart:
/// the prompt's number times `n`, plus the answer's.
///
/// # Errors
/// Whatever the table in `errors` holds.
#[utoipa::path(post, path = "/v1/completions", tag = "OpenAI", request_body = CompletionRequest, responses(
    (status = 200, description = "The texts, or their stream, which ends with `[DONE]`", content(
        (Completion = "application/json"),
        (CompletionChunk = "text/event-stream"),
    )),
    OpenAiErrors,
))]
pub async fn completions(
    State(state): State<AppState>,
    caller: Caller,
    Body(body): Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    if body.echoes() && state.model.decoder_start().is_some() {
        let sentence = "`echo` is not supported by a model with an encoder: its answer does not continue the prompt";
        return Err(ApiError::Validation(format!("Input validation error: {sentence}")));
    }
    let max_prompts = state.settings.max_client_batch_size;
    // A call that is refused for its number of prompts or sequences takes no more than an allowed one.
    let each = body.sequences(state.settings.max_choices);
    let mut admission = Admission::enter(&state, caller, body.prompt.len().min(max_prompts).max(1) * each).await?;
    let (answers, reported) = (body.answers(), body.reported(each));
    let head = Head::new("cmpl", body.model.clone(), &state.settings);
    let (wanted, streamed) = (body.wanted(), body.streamed());
    let requests = body.into_generations(max_prompts);
    let mut runs: Vec<Running> = Vec::new();
    for request in requests.map_err(|error| admission.refuse(error))? {
        runs.extend(admission.start(request).await?);
    }
    if streamed {
        let facts = runs.iter().map(Running::facts);
        let stream = CompletionStream::new(head, facts, wanted, &state.model);
        return sse::respond(&state, runs, stream).await;
    }
    let mut completed = try_join_all(runs.into_iter().map(Running::complete)).await?;
    share_prompt_scores(&mut completed);
    if wanted.of_prompt {
        completed.iter_mut().for_each(forget_output);
    }
    let mut headers = HeaderMap::new();
    headers::describe_all(&mut headers, &state.settings, &completed);
    let usage = Usage::of(&completed);
    let chosen = best_of_each_prompt(completed, reported, answers);
    Ok((headers, Json(answer(head, chosen, usage, wanted, &state.model))).into_response())
}

/// Only the prompt was asked for; a token had to be generated to look at it.
fn forget_output(completed: &mut Completed) {
    completed.steps.clear();
    completed.text.clear();
    completed.finish = FinishReason::Length;
}

/// The best answers to each prompt. `each` whole sequences follow one another for every prompt.
pub(in crate::http) fn best_of_each_prompt(mut all: Vec<Completed>, each: usize, answers: usize) -> Vec<Completed> {
    let mut chosen = Vec::with_capacity(all.len());
    while !all.is_empty() {
        let later = all.split_off(each.min(all.len()));
        chosen.extend(best(all, answers).0);
        all = later;
    }
    chosen
}

fn answer(head: Head, chosen: Vec<Completed>, usage: Usage, wanted: Wanted, model: &Arc<ModelText>) -> Completion {
    let extras = wanted.extras;
    let choice = |(index, completed): (usize, Completed)| {
        let prompt = wanted.echo.then(|| echo::prompt_text(&completed.facts, wanted, model));
        CompletionChoice {
            index,
            logprobs: wanted.logprobs.map(|count| all_logprobs(&completed, prompt.as_deref(), count, wanted, model)),
            finish_reason: completed.finish.into(),
            prompt_logprobs: extras.prompt_logprobs.map(|count| prompt_logprobs(&completed, count, model)),
            token_ids: extras.token_ids.then(|| completed.token_ids()),
            text: prompt.map_or_else(String::new, |prompt| prompt.to_string()) + &completed.text,
            prompt_token_ids: extras.token_ids.then_some(completed.facts.prompt_tokens),
        }
    };
    Completion {
        id: head.id,
        object: "text_completion",
        created: head.created,
        model: head.model,
        system_fingerprint: head.system_fingerprint,
        choices: chosen.into_iter().enumerate().map(choice).collect(),
        usage,
    }
}

/// Those of the prompt too, where the text begins with it.
fn all_logprobs(
    completed: &Completed,
    prompt: Option<&str>,
    alternatives: usize,
    wanted: Wanted,
    model: &Arc<ModelText>,
) -> CompletionLogprobs {
    let mut logprobs = match prompt {
        Some(_) => {
            echo::logprobs(&completed.facts.prompt_tokens, &completed.prompt_scores, alternatives, wanted, model)
        }
        None => CompletionLogprobs::default(),
    };
    let mut offset = prompt.map_or(0, |prompt| prompt.chars().count());
    for step in &completed.steps {
        logprobs.push(step, offset, model);
        offset += step.text.chars().count();
    }
    logprobs
}
