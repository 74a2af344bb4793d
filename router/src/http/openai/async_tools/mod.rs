//! Asynchronous calls: an answer whose finished calls are told at once, that goes on while they run, and that takes their
//! results while it is written. `docs/async-tools.md` is the protocol.

pub mod board;
mod conversation;
mod run;
pub(super) mod stream;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use self::conversation::Conversation;
use self::run::{AsyncRun, Begun};
use self::stream::AsyncStream;
pub use self::stream::{AsyncToolsEvent, DropReason};
use super::answers::Head;
use super::chat_stream::ChatStream;
use super::grammar::invalid;
use super::messages::Content;
use super::parts::Form;
use super::tools::{Calling, Choice};
use super::types::ChatRequest;
use crate::http::errors::{ApiError, OpenAiErrorResponse};
use crate::http::extract::Body;
use crate::http::generation::Admission;
use crate::http::sse;
use crate::http::standing::Caller;
use crate::http::state::AppState;
use crate::input::{GenerationRequest, Prompt};
use crate::metrics::ResultFate;

/// What the model reads in place of a result that is not there yet.
const PENDING: &str = "The tool is running. Its result will follow.";
/// Longest text of a client's own in its place, in bytes.
const MOST_PENDING: usize = 1024;

/// Whether calls run while the answer goes on, and how.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "`async_tools` must be true, false, or an object with `go_on` and `pending`")]
pub enum AsyncTools {
    /// Whether they do.
    Switch(bool),
    /// They do.
    How(AsyncToolsOptions),
}

/// How an answer goes on while calls run.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AsyncToolsOptions {
    /// Whether the model is asked to go on when it ends its turn with calls whose results are not there; true by default. With
    /// false it waits for a result then.
    pub go_on: Option<bool>,
    /// What it reads in place of such a result.
    #[schema(max_length = 1024)]
    pub pending: Option<String>,
}

impl AsyncTools {
    /// How, where it is asked for.
    pub(super) fn options(&self) -> Option<AsyncToolsOptions> {
        match self {
            Self::Switch(on) => on.then(AsyncToolsOptions::default),
            Self::How(options) => Some(options.clone()),
        }
    }
}

/// Answers a chat whose calls run while the answer goes on.
///
/// # Errors
/// Whatever the table in `errors` holds.
pub(super) async fn respond(
    state: &AppState,
    caller: Caller,
    body: ChatRequest,
    options: AsyncToolsOptions,
) -> Result<Response, ApiError> {
    let head = Head::new("chatcmpl", body.model.clone(), &state.settings);
    let (logprobs, usage, wanted, owner) = (body.wants_logprobs(), body.stream_usage(), body.extras(), caller.owner());
    let mut admission = Admission::enter(state, caller, 1).await?;
    let translated = body.calling().and_then(|calling| Ok((calling, body.into_generation()?)));
    let checked = translated.and_then(|(calling, request)| {
        check(&request, &calling, &options)?;
        let mut first = request.clone();
        let form = Form::choose(&mut first, &calling, &state.parsers)?.filter(Form::finds_calls);
        let form = form.ok_or_else(|| {
            invalid("`async_tools` needs a model whose calls the server can read; name its parser with `--tool-call-parser`")
        })?;
        Ok((calling, request, first, form))
    });
    let (calling, request, first, form) = checked.map_err(|error| admission.refuse(error))?;
    let messages = match &request.prompt {
        Prompt::Chat(chat) => chat.messages.clone(),
        _ => Vec::new(),
    };
    let conversation = Conversation::new(messages, options.pending.unwrap_or_else(|| PENDING.to_owned()));
    let run = admission.start_one(first).await?.keeping_room();
    let goes_on = options.go_on.unwrap_or(true);
    let chat = ChatStream::new(head, std::iter::once(run.facts()), None, logprobs, usage, wanted, &state.model);
    let metrics = state.metrics.async_tools.clone();
    let board = state.boards.open(chat.id(), owner, state.settings.payload_limit, metrics);
    let begun = Begun { request, calling, form, goes_on, conversation, admission, run };
    let run = AsyncRun::new(state.clone(), begun, board);
    sse::respond(state, vec![run], AsyncStream(chat)).await
}

/// The rules of asynchronous calls.
fn check(request: &GenerationRequest, calling: &Calling, options: &AsyncToolsOptions) -> Result<(), ApiError> {
    let parameters = &request.parameters;
    let Prompt::Chat(chat) = &request.prompt else { return Ok(()) };
    let sentence = if !parameters.stream {
        "`async_tools` needs `\"stream\": true`: calls are told while the answer is written"
    } else if parameters.sequences() != 1 || parameters.beams.is_some() {
        "`async_tools` cannot be used with `n` or `best_of` above 1 or with `use_beam_search`: results belong to one answer"
    } else if chat.tools.as_ref().is_none_or(Vec::is_empty) || calling.choice == Choice::Hidden {
        "`async_tools` needs `tools` that the model may call; send some, and no `\"tool_choice\": \"none\"`"
    } else if calling.choice.forces() {
        "`async_tools` needs `\"tool_choice\": \"auto\"`: an answer that is calls alone does not go on beside them"
    } else if parameters.grammar.is_some() {
        "`async_tools` cannot be used with `response_format` or another shape of the answer; leave one of them out"
    } else if chat.continue_final_message {
        "`async_tools` cannot continue the last message; end the conversation with a user's or a tool's"
    } else if options.pending.as_ref().is_some_and(|text| text.len() > MOST_PENDING) {
        "`async_tools.pending` may have 1024 bytes at most; shorten it"
    } else {
        return Ok(());
    };
    Err(invalid(sentence))
}

/// Body of `POST /v1/chat/completions/{id}/tool_results`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ToolResult {
    /// The call whose result it is.
    pub tool_call_id: String,
    /// The result: a text, or parts of one.
    #[schema(value_type = Content)]
    pub content: Value,
}

/// Answer of `POST /v1/chat/completions/{id}/tool_results`.
#[derive(Debug, Serialize, ToSchema)]
pub struct ToolResultTaken {
    /// The answer that takes it.
    pub id: String,
    /// Always `chat.completion.tool_result`.
    pub object: &'static str,
    /// The call whose result it is.
    pub tool_call_id: String,
}

/// Takes the result of a call of an answer that is being written with `async_tools`. It is inserted behind the sentence or line
/// that the model is writing; `results_inserted` in the stream says when.
///
/// # Errors
/// `NoSuchAnswer`, also when it is another key's or over; `AlreadyAnswered`; `Validation`; `TooLarge` and `TooLong`; `Refused`.
#[utoipa::path(post, path = "/v1/chat/completions/{id}/tool_results", tag = "OpenAI", request_body = ToolResult, params(
    ("id" = String, Path, description = "The answer's `id`, as its chunks have it"),
), responses(
    (status = 202, description = "It is taken", body = ToolResultTaken),
    (status = 400, description = "The body is not JSON, or broke off", body = OpenAiErrorResponse),
    (status = 404, description = "No answer of this name takes results", body = OpenAiErrorResponse),
    (status = 408, description = "The body took too long", body = OpenAiErrorResponse),
    (status = 409, description = "The call has a result", body = OpenAiErrorResponse),
    (status = 413, description = "The body is too large, or the results of this answer are", body = OpenAiErrorResponse),
    (status = 415, description = "The body is not declared as JSON", body = OpenAiErrorResponse),
    (status = 422, description = "There is no such call, a field breaks a rule, or the conversation would be too long",
     body = OpenAiErrorResponse),
    (status = 429, description = "Too much waits for validation", body = OpenAiErrorResponse),
))]
pub async fn tool_results(
    State(state): State<AppState>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    Body(body): Body<ToolResult>,
) -> Result<(StatusCode, Json<ToolResultTaken>), ApiError> {
    let id = id.map(|Path(id)| id).map_err(|_| ApiError::NoSuchAnswer("?".to_owned()))?;
    let posted = post(&state, &caller, &id, &body.tool_call_id, body.content).await;
    let fate = if posted.is_ok() { ResultFate::Taken } else { ResultFate::Refused };
    state.metrics.async_tools.results(fate, 1);
    posted?;
    let taken = ToolResultTaken { id, object: "chat.completion.tool_result", tool_call_id: body.tool_call_id };
    Ok((StatusCode::ACCEPTED, Json(taken)))
}

async fn post(state: &AppState, caller: &Caller, id: &str, call: &str, content: Value) -> Result<(), ApiError> {
    let content = text(content)?;
    // Nobody's text is tokenized who has no answer here.
    state.boards.check(id, caller.owner())?;
    let tokens = state.preparer.count(content.clone()).await?;
    state.boards.post(id, caller.owner(), call, (content, tokens))
}

/// A result as text.
fn text(content: Value) -> Result<String, ApiError> {
    let part = |part: &Value| {
        let text = part.get("text").and_then(Value::as_str).filter(|_| part["type"] == "text");
        text.map(str::to_owned)
    };
    let text = match content {
        Value::String(text) => Some(text),
        Value::Array(parts) => parts.iter().map(part).collect(),
        _ => None,
    };
    text.ok_or_else(|| {
        invalid("`content` must be a string or a list of `text` parts; write other results as JSON text")
    })
}
