//! OpenAI's Responses: a chat in items, which the server keeps if it may.

pub mod answer;
mod items;
mod keeping;
pub mod request;
pub mod store;
mod stream;

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use self::answer::{ResponseEvent, ResponseObject};
use self::keeping::Keeping;
use self::request::{ResponsesRequest, Translated};
use self::stream::Telling;
use super::errors::{ApiError, OpenAiErrorResponse};
use super::extract::Body;
use super::openai::chat::{Conversation, open};
use super::openapi::OpenAiErrors;
use super::sse;
use super::standing::Caller;
use super::state::AppState;

/// Most items in one answer of `input_items`, and how many there are when a request does not say.
const MOST_ITEMS: usize = 100;
const ITEMS: usize = 20;

/// Answers, streamed or whole.
///
/// # Errors
/// Whatever the table in `errors` holds.
#[utoipa::path(post, path = "/v1/responses", tag = "OpenAI", request_body = ResponsesRequest, responses(
    (status = 200, description = "The response, or its stream: events named by their `type`", content(
        (ResponseObject = "application/json"),
        (ResponseEvent = "text/event-stream"),
    )),
    OpenAiErrors,
))]
pub async fn create(
    State(state): State<AppState>,
    caller: Caller,
    Body(body): Body<ResponsesRequest>,
) -> Result<Response, ApiError> {
    let owner = caller.owner();
    let (streamed, model) = (body.streamed(), body.model.clone());
    let told = body.wants_logprobs().then(|| Arc::clone(&state.model));
    let store = body.stored() && state.responses.is_on();
    let translated = context(&state, owner, &body).and_then(|context| {
        let before = if store { context.clone() } else { Vec::new() };
        Ok((before, body.translate(context)?))
    });
    let (context, input, echo, chat) = match translated {
        Ok((context, Translated { chat, input, echo })) => (context, input, echo, Ok(chat)),
        Err(error) => (Vec::new(), Vec::new(), request::Echo::default(), Err(error)),
    };
    let Conversation { form, mut runs } = open(&state, caller, chat).await?;
    let mut run = runs.pop().ok_or(ApiError::Incomplete)?;
    let response = ResponseObject::begun(model.unwrap_or_else(|| state.settings.model_id.clone()), store, echo);
    let keeping = store.then(|| Keeping::new(state.clone(), owner, context, input));
    let mut telling = Telling::new(response, form.as_ref(), run.facts(), keeping).with_logprobs(told);
    if streamed {
        return sse::respond(&state, vec![run], telling).await;
    }
    while let Some(step) = run.next().await {
        telling.take(step?, None);
    }
    Ok(Json(telling.finish(None)).into_response())
}

/// The items of the responses before.
fn context(state: &AppState, owner: store::Owner, body: &ResponsesRequest) -> Result<Vec<Value>, ApiError> {
    if body.store == Some(true) && !state.responses.is_on() {
        return Err(ApiError::Unsupported { field: "store", remedy: "send false: this server keeps no responses" });
    }
    let Some(id) = &body.previous_response_id else { return Ok(Vec::new()) };
    let kept = state.responses.get(owner, id).ok_or_else(|| no_such(id))?;
    Ok(keeping::items(&kept.context))
}

/// A response that was kept.
///
/// # Errors
/// `NoSuchResponse`, also when it is another key's.
#[utoipa::path(get, path = "/v1/responses/{id}", tag = "OpenAI", params(("id" = String, Path, description = "The response's name")), responses(
    (status = 200, description = "The response", body = ResponseObject),
    (status = 404, description = "There is none of this name", body = OpenAiErrorResponse),
    (status = 422, description = "It is asked for as a stream, or a header breaks a rule", body = OpenAiErrorResponse),
))]
pub async fn retrieve(
    State(state): State<AppState>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    if value_of("stream", query.as_deref()).is_some_and(|stream| stream != "false") {
        return Err(ApiError::Unsupported { field: "stream", remedy: "ask for the whole response" });
    }
    let id = named(id)?;
    let kept = state.responses.get(caller.owner(), &id).ok_or_else(|| no_such(&id))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], kept.response.clone()).into_response())
}

/// Answer of `DELETE /v1/responses/{id}`.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeletedResponse {
    /// The response's name.
    pub id: String,
    /// Always `response`.
    pub object: &'static str,
    /// Always true.
    pub deleted: bool,
}

/// Lets a response go.
///
/// # Errors
/// `NoSuchResponse`, also when it is another key's.
#[utoipa::path(delete, path = "/v1/responses/{id}", tag = "OpenAI", params(("id" = String, Path, description = "The response's name")), responses(
    (status = 200, description = "It is gone", body = DeletedResponse),
    (status = 404, description = "There is none of this name", body = OpenAiErrorResponse),
    (status = 422, description = "A header breaks a rule", body = OpenAiErrorResponse),
))]
pub async fn delete(
    State(state): State<AppState>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<DeletedResponse>, ApiError> {
    let id = named(id)?;
    if !state.responses.delete(caller.owner(), &id) {
        return Err(no_such(&id));
    }
    Ok(Json(DeletedResponse { id, object: "response", deleted: true }))
}

/// Answer of `GET /v1/responses/{id}/input_items`.
#[derive(Debug, Serialize, ToSchema)]
pub struct ItemList {
    /// Always `list`.
    pub object: &'static str,
    /// The items.
    #[schema(value_type = Vec<Object>)]
    pub data: Vec<Value>,
    /// The first one's name.
    pub first_id: Option<String>,
    /// The last one's name.
    pub last_id: Option<String>,
    /// Whether there are more behind it.
    pub has_more: bool,
}

/// The items that were sent with a response.
///
/// # Errors
/// `NoSuchResponse`, also when it is another key's; `Validation`, when a part of them is asked for that is none.
#[utoipa::path(get, path = "/v1/responses/{id}/input_items", tag = "OpenAI", params(
    ("id" = String, Path, description = "The response's name"),
    ("order" = Option<String>, Query, description = "`asc` or `desc`, which is the default"),
    ("limit" = Option<u32>, Query, description = "How many, from 1 to 100; 20 by default"),
    ("after" = Option<String>, Query, description = "The item behind which to begin"),
), responses(
    (status = 200, description = "The items", body = ItemList),
    (status = 404, description = "There is none of this name", body = OpenAiErrorResponse),
    (status = 422, description = "A parameter or a header breaks a rule", body = OpenAiErrorResponse),
))]
pub async fn input_items(
    State(state): State<AppState>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<Json<ItemList>, ApiError> {
    let id = named(id)?;
    let kept = state.responses.get(caller.owner(), &id).ok_or_else(|| no_such(&id))?;
    let mut data = keeping::items(&kept.input);
    let query = query.as_deref();
    match value_of("order", query) {
        None | Some("desc") => data.reverse(),
        Some("asc") => {}
        Some(_) => return Err(invalid("`order` must be `asc` or `desc`")),
    }
    let limit = match value_of("limit", query).map(str::parse) {
        None => ITEMS,
        Some(Ok(limit)) if (1..=MOST_ITEMS).contains(&limit) => limit,
        Some(_) => return Err(invalid(&format!("`limit` must be a whole number from 1 to {MOST_ITEMS}"))),
    };
    if let Some(after) = value_of("after", query) {
        let place = data.iter().position(|item| item["id"] == after);
        let place = place.ok_or_else(|| invalid("`after` must be the name of one of the items"))?;
        data.drain(..=place);
    }
    let has_more = data.len() > limit;
    data.truncate(limit);
    let name = |item: Option<&Value>| item.and_then(|item| item["id"].as_str()).map(str::to_owned);
    let (first_id, last_id) = (name(data.first()), name(data.last()));
    Ok(Json(ItemList { object: "list", data, first_id, last_id, has_more }))
}

/// Answer of `POST /v1/responses/input_tokens`.
#[derive(Debug, Serialize, ToSchema)]
pub struct InputTokens {
    /// Always `response.input_tokens`.
    pub object: &'static str,
    /// Tokens of the prompt, as the chat template writes it.
    pub input_tokens: usize,
}

/// Counts the tokens of a prompt without generating anything.
///
/// # Errors
/// When the body is wrong, the template does not accept it, or validation is overloaded.
#[utoipa::path(post, path = "/v1/responses/input_tokens", tag = "OpenAI", request_body = ResponsesRequest, responses(
    (status = 200, description = "The number of tokens", body = InputTokens),
    OpenAiErrors,
))]
pub async fn input_tokens(
    State(state): State<AppState>,
    caller: Caller,
    Body(body): Body<ResponsesRequest>,
) -> Result<Json<InputTokens>, ApiError> {
    let context = context(&state, caller.owner(), &body)?;
    let text = state.preparer.render_chat(body.translate(context)?.chat.into_prompt()?).await?;
    // The template wrote the special tokens already.
    let input_tokens = state.preparer.tokenize(text, false).await?.len();
    Ok(Json(InputTokens { object: "response.input_tokens", input_tokens }))
}

fn named(id: Result<Path<String>, PathRejection>) -> Result<String, ApiError> {
    id.map(|Path(id)| id).map_err(|_| no_such("?"))
}

fn no_such(id: &str) -> ApiError {
    ApiError::NoSuchResponse(id.chars().take(100).collect())
}

/// A parameter of a query; none that is asked for here needs an escape.
fn value_of<'a>(name: &str, query: Option<&'a str>) -> Option<&'a str> {
    query?.split('&').find_map(|pair| pair.split_once('=').filter(|(given, _)| *given == name)).map(|(_, value)| value)
}

/// A sentence about the body.
fn invalid(sentence: &str) -> ApiError {
    ApiError::Validation(format!("Input validation error: {sentence}"))
}
