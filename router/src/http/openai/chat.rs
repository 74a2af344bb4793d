//! `POST /v1/chat/completions`.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures::future::try_join_all;

use super::answers::{AnswerMessage, ChatChoice, ChatCompletion, ChatCompletionChunk, Head, StopReason, Usage};
use super::async_tools::{self, AsyncTools};
use super::chat_stream::ChatStream;
use super::logprobs::{ChatLogprobs, chat_logprob, prompt_logprobs as prompt_logprobs_of};
use super::parts::Form;
use super::types::ChatRequest;
use crate::http::errors::ApiError;
use crate::http::extract::Body;
use crate::http::generation::{Admission, Completed, Running, best};
use crate::http::openapi::OpenAiErrors;
use crate::http::standing::Caller;
use crate::http::state::AppState;
use crate::http::{headers, sse};
use crate::input::ModelText;

/// Continues a conversation, streamed or whole.
///
/// # Errors
/// Whatever the table in `errors` holds.
#[utoipa::path(post, path = "/v1/chat/completions", tag = "OpenAI", request_body = ChatRequest, responses(
    (status = 200, description = "The answer, or its stream, which ends with `[DONE]`", content(
        (ChatCompletion = "application/json"),
        (ChatCompletionChunk = "text/event-stream"),
    )),
    OpenAiErrors,
))]
pub async fn chat_completions(
    State(state): State<AppState>,
    caller: Caller,
    Body(body): Body<ChatRequest>,
) -> Result<Response, ApiError> {
    if let Some(options) = body.async_tools.as_ref().and_then(AsyncTools::options) {
        return async_tools::respond(&state, caller, body, options).await;
    }
    let head = Head::new("chatcmpl", body.model.clone(), &state.settings);
    let (logprobs, streamed, usage) = (body.wants_logprobs(), body.streamed(), body.stream_usage());
    let (answers, wanted) = (body.answers(), body.extras());
    let Conversation { form, runs } = open(&state, caller, Ok(body)).await?;
    if streamed {
        let facts = runs.iter().map(Running::facts);
        let stream = ChatStream::new(head, facts, form.as_ref(), logprobs, usage, wanted, &state.model);
        return sse::respond(&state, runs, stream).await;
    }
    let mut all = try_join_all(runs.into_iter().map(Running::complete)).await?;
    let first = all.first_mut();
    let prompt_logprobs = wanted.prompt_logprobs.zip(first.as_deref());
    let prompt_logprobs = prompt_logprobs.map(|(count, one)| prompt_logprobs_of(one, count, &state.model));
    let prompt_token_ids = first.filter(|_| wanted.token_ids).map(|one| std::mem::take(&mut one.facts.prompt_tokens));
    let mut headers = HeaderMap::new();
    headers::describe(&mut headers, &state.settings, &all);
    let mut usage = Usage::of(&all);
    let (chosen, others) = best(all, answers);
    let told = |completed: Completed| Told::new(completed, form.as_ref(), logprobs, wanted.token_ids, &state.model);
    let chosen: Vec<Told> = chosen.into_iter().map(told).collect();
    if form.is_some() {
        // What was computed is paid for: the answers that are not returned count too.
        let others = others.into_iter().map(told).collect::<Vec<_>>();
        let reasoning = chosen.iter().chain(&others).map(|answer| answer.reasoning_tokens).sum();
        usage = usage.with_reasoning(reasoning);
    }
    let answer = ChatCompletion { prompt_logprobs, prompt_token_ids, ..answer(head, chosen, usage) };
    Ok((headers, Json(answer)).into_response())
}

/// A conversation that is being continued.
pub(in crate::http) struct Conversation {
    /// What to look for in the answers; `None` when they are text alone.
    pub(in crate::http) form: Option<Form>,
    /// The answers.
    pub(in crate::http) runs: Vec<Running>,
}

/// Lets a conversation in and hands it to the engine. Other dialects translate theirs into the same body; what they
/// refuse counts as this route's own refusals do.
///
/// # Errors
/// Why it is not taken.
pub(in crate::http) async fn open(
    state: &AppState,
    caller: Caller,
    body: Result<ChatRequest, ApiError>,
) -> Result<Conversation, ApiError> {
    let sequences = body.as_ref().map_or(1, |body| body.sequences(state.settings.max_choices));
    let mut admission = Admission::enter(state, caller, sequences).await?;
    let body = body.map_err(|error| admission.refuse(error))?;
    let calling = body.calling().map_err(|error| admission.refuse(error))?;
    let mut request = body.into_generation().map_err(|error| admission.refuse(error))?;
    let form = Form::choose(&mut request, &calling, &state.parsers).map_err(|error| admission.refuse(error))?;
    let runs = admission.start(request).await?;
    Ok(Conversation { form, runs })
}

/// One answer as it is told.
struct Told {
    message: AnswerMessage,
    finish: StopReason,
    reasoning_tokens: Option<usize>,
    logprobs: Option<ChatLogprobs>,
    token_ids: Option<Vec<u32>>,
}

impl Told {
    fn new(completed: Completed, form: Option<&Form>, logprobs: bool, token_ids: bool, model: &ModelText) -> Self {
        let token_ids = token_ids.then(|| completed.token_ids());
        let entries = || completed.steps.iter().map(|step| chat_logprob(step, model)).collect();
        let logprobs = logprobs.then(|| ChatLogprobs { content: entries() });
        let (message, finish, reasoning_tokens) = match form {
            Some(form) => form.message(&completed),
            None => (AnswerMessage::text(completed.text), completed.finish.into(), None),
        };
        Self { message, finish, reasoning_tokens, logprobs, token_ids }
    }
}

fn answer(head: Head, told: Vec<Told>, usage: Usage) -> ChatCompletion {
    let choice = |(index, told): (usize, Told)| ChatChoice {
        index,
        logprobs: told.logprobs,
        finish_reason: told.finish,
        message: told.message,
        token_ids: told.token_ids,
    };
    ChatCompletion {
        id: head.id,
        object: "chat.completion",
        created: head.created,
        model: head.model,
        system_fingerprint: head.system_fingerprint,
        usage,
        choices: told.into_iter().enumerate().map(choice).collect(),
        prompt_logprobs: None,
        prompt_token_ids: None,
    }
}
