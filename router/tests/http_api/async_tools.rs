//! Asynchronous calls: an answer that goes on while its calls run. The engine says what the test says, when the test says.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body_util::BodyExt;
use proptest::prelude::*;
use serde_json::{Value, json};
use textgen_router::http::Patience;
use textgen_router::settings::Settings;
use textgen_router::shard::handle::{EngineStatus, Event, Finish, Submission, Token};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tower::ServiceExt;

use crate::client::{json_request, with_headers};
use crate::model::{EOS, marked, tokens};
use crate::server::{Server, settings, started, token};

const PATH: &str = "/v1/chat/completions";
const CALL: &str = r#"<tool_call>{"name": "clock", "arguments": {"city": "Köln"}}</tool_call>"#;
const PENDING: &str = "The tool is running. Its result will follow.";

fn server() -> Server {
    with(settings())
}

fn with(settings: Settings) -> Server {
    let name = |name: &str| Some(name.to_owned());
    let settings = Settings { tool_call_parser: name("hermes"), reasoning_parser: name("qwen3"), ..settings };
    Server::with(settings, Patience::default())
}

#[allow(clippy::needless_pass_by_value)] // `body(json!({…}))` reads best.
fn body(extra: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}],
        "stream": true, "stream_options": {"include_usage": true}, "async_tools": true,
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// A prompt as the test's chat template writes it; it leaves calls out.
fn prompt(said: &str) -> Vec<u32> {
    tokens(&format!("[user]hi{said}[tools]1[assistant]"))
}

/// The engine says this, as far as somebody still wants to hear it.
async fn say(to: &Submission, text: &str) {
    for id in marked(text) {
        if to.events.send(token(id)).await.is_err() {
            break;
        }
    }
}

/// The engine ends a turn, by the model's own end.
async fn end(to: &Submission) {
    finish(to, EOS, Finish::StopToken).await;
}

async fn finish(to: &Submission, id: u32, finish: Finish) {
    let token = Token { id, logprob: -0.5, top: Vec::new() };
    to.events.send(Event::Token { token, finish: Some(finish) }).await.unwrap();
}

/// The events of an answer, as they come. A task takes them from the server all the time, as a connection does.
struct Reader {
    id: String,
    frames: mpsc::Receiver<Bytes>,
    pump: JoinHandle<()>,
    read: String,
    /// Text that was read.
    content: String,
    /// The last usage and the reason.
    usage: Value,
    reason: Value,
    done: bool,
}

impl Reader {
    /// Asks, and lets the engine make the call.
    async fn calling(server: &mut Server, extra: Value, before: &str) -> (Self, String) {
        let (mut reader, turn) = Self::asking(server, extra, &format!("{before}{CALL}")).await;
        let id = reader.call().await;
        end(&turn).await;
        (reader, id)
    }

    /// Asks, and lets the engine say this.
    async fn asking(server: &mut Server, extra: Value, text: &str) -> (Self, Submission) {
        let answer = tokio::spawn(server.app.clone().oneshot(json_request(PATH, &body(extra))));
        let turn = server.submitted().await;
        assert_eq!(turn.request.prompt, prompt(""));
        turn.events.send(started()).await.unwrap();
        say(&turn, text).await;
        (Self::new(answer.await.unwrap().unwrap()), turn)
    }

    fn new(answer: Response) -> Self {
        assert_eq!(answer.status(), 200);
        let (read, content) = (String::new(), String::new());
        let (sender, frames) = mpsc::channel(4096);
        let pump = tokio::spawn(pump(answer.into_body(), sender));
        Self { id: String::new(), frames, pump, read, content, usage: Value::Null, reason: Value::Null, done: false }
    }

    /// The next chunk; `None` behind the last one.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.read.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.read = rest;
                return self.take(event.strip_prefix("data: ").unwrap());
            }
            let frame = self.frames.recv().await?;
            self.read.push_str(std::str::from_utf8(&frame).unwrap());
        }
    }

    fn take(&mut self, data: &str) -> Option<Value> {
        assert!(!self.done, "behind the end: {data}");
        if data == "[DONE]" {
            self.done = true;
            return None;
        }
        let chunk: Value = serde_json::from_str(data).unwrap();
        let id = chunk["id"].as_str().unwrap_or_else(|| panic!("{chunk}"));
        assert!(self.id.is_empty() || self.id == id);
        self.id = id.to_owned();
        if let Some(text) = chunk.pointer("/choices/0/delta/content").and_then(Value::as_str) {
            self.content.push_str(text);
        }
        if let Some(choice) = chunk["choices"].get(0) {
            assert!(self.reason.is_null(), "behind the reason: {chunk}");
            self.reason = choice["finish_reason"].clone();
        }
        if !chunk["usage"].is_null() {
            self.usage = chunk["usage"].clone();
        }
        Some(chunk)
    }

    /// Reads to the next event of this type.
    async fn event(&mut self, kind: &str) -> Value {
        while let Some(chunk) = self.next().await {
            if chunk["async_tools"]["type"] == kind {
                assert_eq!(chunk["choices"][0]["delta"], json!({}));
                return chunk["async_tools"].clone();
            }
        }
        panic!("no {kind} before the end of {:?}", self.content)
    }

    /// Reads to the next complete call; gives its id.
    async fn call(&mut self) -> String {
        self.event("call_complete").await["tool_call_id"].as_str().unwrap().to_owned()
    }

    /// Reads until the text is this.
    async fn until(&mut self, content: &str) {
        while self.content != content {
            assert!(content.starts_with(&self.content), "{:?} is not {content:?}", self.content);
            assert!(self.next().await.is_some(), "it ended with {:?}", self.content);
        }
    }

    /// Reads to the end; gives the reason.
    async fn rest(&mut self) -> &str {
        while self.next().await.is_some() {}
        assert!(self.done);
        self.reason.as_str().unwrap()
    }

    /// Leaves, whatever is still to come.
    async fn leave(self) {
        self.pump.abort();
        assert!(self.pump.await.unwrap_err().is_cancelled());
    }

    async fn post(&self, server: &Server, call: &str, content: &str) -> u16 {
        let result = json!({"tool_call_id": call, "content": content});
        server.post(&format!("{PATH}/{}/tool_results", self.id), result).await.status.as_u16()
    }
}

async fn pump(mut body: Body, to: mpsc::Sender<Bytes>) {
    while let Some(frame) = body.frame().await {
        if to.send(frame.unwrap().into_data().unwrap()).await.is_err() {
            break;
        }
    }
}

/// The next turn's way into the engine, whose prompt is this.
async fn turn(server: &mut Server, said: &str) -> Submission {
    let turn = server.submitted().await;
    let text: Vec<u8> = turn.request.prompt.iter().map(|&id| u8::try_from(id).unwrap()).collect();
    assert_eq!(turn.request.prompt, prompt(said), "{}", String::from_utf8_lossy(&text));
    turn.events.send(started()).await.unwrap();
    turn
}

#[tokio::test]
async fn text_is_read_while_the_call_runs_and_the_result_before_what_follows() {
    let mut server = server();
    let (mut reader, call) = Reader::calling(&mut server, json!({}), "Let me see.").await;
    // The model goes on before there is a result.
    let pending = turn(&mut server, &format!("[assistant]Let me see.[tool]{PENDING}")).await;
    say(&pending, "One moment").await;
    reader.until("Let me see.\n\nOne moment").await;
    assert_eq!(reader.post(&server, &call, "14:05").await, 202);
    // Not in the middle of a sentence.
    say(&pending, ", please. And").await;
    reader.until("Let me see.\n\nOne moment, please.").await;
    assert_eq!(reader.event("results_inserted").await["tool_call_ids"], json!([call]));
    let last = turn(&mut server, "[assistant]Let me see.\n\nOne moment, please.[tool]14:05").await;
    pending.events.closed().await;
    say(&last, "It is 14:05.").await;
    end(&last).await;
    assert_eq!(reader.rest().await, "stop");
    assert_eq!(reader.content, "Let me see.\n\nOne moment, please.\n\nIt is 14:05.");
    let said = format!("Let me see.{CALL}");
    let completion = marked(&said).len() + 1 + "One moment, please.".len() + "It is 14:05.".len() + 1;
    assert_eq!(reader.usage["prompt_tokens"], prompt("").len());
    assert_eq!(reader.usage["completion_tokens"], completion);
    // It takes no more results, and nothing of it is left.
    assert_eq!(reader.post(&server, &call, "14:06").await, 404);
    assert!(server.state.boards.is_empty());
    assert_eq!(server.state.permits.available_permits(), 4);
    let metrics = server.get("/metrics").await.body;
    assert!(metrics.lines().any(|line| line == "tgi_request_success 1"), "{metrics}");
}

#[tokio::test]
async fn the_chunks_of_a_call_are_those_of_any_chat() {
    let mut server = server();
    let answer = tokio::spawn(server.app.clone().oneshot(json_request(PATH, &body(json!({})))));
    let first = server.submitted().await;
    first.events.send(started()).await.unwrap();
    say(&first, CALL).await;
    let mut reader = Reader::new(answer.await.unwrap().unwrap());
    let (mut arguments, mut id, mut name) = (String::new(), String::new(), String::new());
    loop {
        let chunk = reader.next().await.unwrap();
        if let Some(event) = chunk.get("async_tools") {
            assert_eq!(event, &json!({"type": "call_complete", "tool_call_id": id, "index": 0}));
            break;
        }
        let call = &chunk["choices"][0]["delta"]["tool_calls"][0];
        id.push_str(call["id"].as_str().unwrap_or_default());
        name.push_str(call["function"]["name"].as_str().unwrap_or_default());
        arguments.push_str(call["function"]["arguments"].as_str().unwrap_or_default());
    }
    assert_eq!((name.as_str(), arguments.as_str()), ("clock", r#"{"city": "Köln"}"#));
}

#[tokio::test]
async fn a_model_with_nothing_more_to_say_waits() {
    let mut server = server();
    let (mut reader, call) = Reader::calling(&mut server, json!({}), "").await;
    let pending = turn(&mut server, &format!("[assistant][tool]{PENDING}")).await;
    say(&pending, "Wait").await;
    end(&pending).await;
    assert_eq!(reader.event("waiting").await["tool_call_ids"], json!([call]));
    // Its room is kept, though nothing of it is in the engine.
    assert_eq!(server.state.permits.available_permits(), 3);
    assert_eq!(reader.post(&server, &call, "14:05").await, 202);
    assert_eq!(reader.event("results_inserted").await["tool_call_ids"], json!([call]));
    let last = turn(&mut server, "[assistant]Wait[tool]14:05").await;
    end(&last).await;
    assert_eq!(reader.rest().await, "stop");
    assert_eq!(reader.content, "Wait");
}

#[tokio::test]
async fn several_calls_are_answered_in_any_order() {
    let mut server = server();
    let options = json!({"async_tools": {"go_on": false, "pending": "wait"}});
    let (mut reader, first) = Reader::calling(&mut server, options, CALL).await;
    let second = reader.call().await;
    assert_ne!(first, second);
    let ids = reader.event("waiting").await["tool_call_ids"].clone();
    assert_eq!(ids, json!([first, second]));
    assert_eq!(reader.post(&server, &second, "two").await, 202);
    let next = turn(&mut server, "[assistant][tool]wait[tool]two").await;
    // A call of a later turn is one more of the same answer.
    say(&next, CALL).await;
    let third = reader.event("call_complete").await;
    assert_eq!(third["index"], 2);
    end(&next).await;
    assert_eq!(reader.event("waiting").await["tool_call_ids"], json!([first, third["tool_call_id"]]));
    assert_eq!(reader.post(&server, third["tool_call_id"].as_str().unwrap(), "three").await, 202);
    let next = turn(&mut server, "[assistant][tool]wait[tool]two[assistant][tool]three").await;
    assert_eq!(reader.post(&server, &first, "one").await, 202);
    // It comes before the first word of the turn, which begins anew with it.
    let last = turn(&mut server, "[assistant][tool]one[tool]two[assistant][tool]three").await;
    next.events.closed().await;
    end(&last).await;
    assert_eq!(reader.rest().await, "stop");
}

#[tokio::test]
async fn nothing_is_inserted_into_reasoning_or_a_call() {
    let mut server = server();
    let (mut reader, call) = Reader::calling(&mut server, json!({}), "").await;
    let pending = turn(&mut server, &format!("[assistant][tool]{PENDING}")).await;
    say(&pending, "<think>Hm").await;
    while reader.next().await.unwrap().pointer("/choices/0/delta/reasoning_content").is_none() {}
    assert_eq!(reader.post(&server, &call, "14:05").await, 202);
    say(&pending, ". So.</think>").await;
    say(&pending, CALL).await;
    let second = reader.call().await;
    say(&pending, "Two. And").await;
    assert_eq!(reader.event("results_inserted").await["tool_call_ids"], json!([call]));
    assert_eq!(reader.content, "Two.");
    let last = turn(&mut server, &format!("[assistant][tool]14:05[assistant]Two.[tool]{PENDING}")).await;
    end(&last).await;
    assert_eq!(reader.event("waiting").await["tool_call_ids"], json!([second]));
}

#[tokio::test]
async fn limits_are_those_of_the_whole_answer() {
    let mut server = server();
    let (mut reader, _) = Reader::calling(&mut server, json!({"max_tokens": 100}), "").await;
    let spent = marked(CALL).len() + 1;
    let pending = turn(&mut server, &format!("[assistant][tool]{PENDING}")).await;
    assert_eq!(pending.request.max_new_tokens as usize, 100 - spent);
    finish(&pending, 97, Finish::Length).await;
    assert_eq!(reader.rest().await, "length");
    assert_eq!(reader.usage["completion_tokens"], spent + 1);

    let (mut reader, call) = Reader::calling(&mut server, json!({"stop": ["END"]}), "").await;
    let pending = turn(&mut server, &format!("[assistant][tool]{PENDING}")).await;
    say(&pending, "a. ENDb").await;
    assert_eq!(reader.rest().await, "stop");
    assert_eq!(reader.content, "a. ");
    assert_eq!(reader.post(&server, &call, "14:05").await, 404);
}

#[tokio::test]
async fn a_result_that_nobody_sends_is_not_awaited_for_ever() {
    let mut server = with(Settings { async_tools_timeout: 0, ..settings() });
    let (mut reader, call) = Reader::calling(&mut server, json!({"async_tools": {"go_on": false}}), "").await;
    assert_eq!(reader.event("waiting").await["tool_call_ids"], json!([call]));
    // From here on it is a chat like any other.
    assert_eq!(reader.rest().await, "tool_calls");
    assert_eq!(server.state.permits.available_permits(), 4);
}

#[tokio::test]
async fn a_server_that_goes_away_does_not_wait() {
    let mut server = server();
    let (mut reader, _) = Reader::calling(&mut server, json!({"async_tools": {"go_on": false}}), "").await;
    reader.event("waiting").await;
    server.status.send(EngineStatus::Draining).unwrap();
    assert_eq!(reader.rest().await, "tool_calls");
}

/// A number of `/metrics`.
async fn metric(server: &Server, name: &str) -> f64 {
    let page = server.get("/metrics").await.body;
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
}

async fn fates(server: &Server) -> [f64; 4] {
    let mut counts = [0.0; 4];
    for (count, fate) in counts.iter_mut().zip(["taken", "refused", "inserted", "dropped"]) {
        *count = metric(server, &format!("textgen_async_tool_results_total{{fate=\"{fate}\"}}")).await;
    }
    counts
}

#[tokio::test]
async fn a_result_that_does_not_fit_is_refused_and_a_shorter_one_taken() {
    let mut server = server();
    let (mut reader, call) = Reader::calling(&mut server, json!({"max_tokens": null}), "").await;
    let pending = turn(&mut server, &format!("[assistant][tool]{PENDING}")).await;
    assert_eq!(metric(&server, "textgen_async_tool_calls_open").await, 1.0);
    say(&pending, "One").await;
    reader.until("One").await;
    // 200 tokens are the most of a prompt; a token is a byte.
    let room = 200 - pending.request.prompt.len() - "One".len();
    assert_eq!(reader.post(&server, &call, &"x".repeat(room + 1)).await, 422);
    assert_eq!(reader.post(&server, &call, "7").await, 202);
    assert_eq!(metric(&server, "textgen_async_tool_calls_open").await, 0.0);
    say(&pending, ". And").await;
    assert_eq!(reader.event("results_inserted").await["tool_call_ids"], json!([call]));
    let last = turn(&mut server, "[assistant]One.[tool]7").await;
    end(&last).await;
    assert_eq!(reader.rest().await, "stop");
    assert_eq!(fates(&server).await, [1.0, 1.0, 1.0, 0.0]);
}

#[tokio::test]
async fn a_result_for_which_there_is_no_room_any_more_is_dropped() {
    let mut server = with(Settings { stream_buffer: 512, ..settings() });
    let (mut reader, call) = Reader::calling(&mut server, json!({"max_tokens": null}), "").await;
    let pending = turn(&mut server, &format!("[assistant][tool]{PENDING}")).await;
    say(&pending, "a").await;
    reader.until("a").await;
    // It would fit now, but the sentence goes on.
    let room = 200 - pending.request.prompt.len() - 1;
    assert_eq!(reader.post(&server, &call, &"x".repeat(room)).await, 202);
    let text = format!("a{}. ", "b".repeat(PENDING.len() + 2));
    say(&pending, &text[1..]).await;
    let dropped = json!({"type": "results_dropped", "tool_call_ids": [call], "reason": "too_long"});
    assert_eq!(reader.event("results_dropped").await, dropped);
    // The answer goes on without it, and the call takes another one.
    let next = turn(&mut server, &format!("[assistant]{}[tool]{PENDING}", text.trim_end())).await;
    end(&next).await;
    assert_eq!(reader.event("waiting").await["tool_call_ids"], json!([call]));
    assert_eq!(reader.post(&server, &call, "7").await, 202);
    reader.event("results_inserted").await;
    let last = turn(&mut server, &format!("[assistant]{}[tool]7", text.trim_end())).await;
    end(&last).await;
    assert_eq!(reader.rest().await, "stop");
    assert_eq!(fates(&server).await, [2.0, 0.0, 1.0, 1.0]);
}

#[tokio::test]
async fn a_conversation_without_room_for_another_turn_ends() {
    let mut server = with(Settings { stream_buffer: 512, ..settings() });
    let before = format!("{}.", "a".repeat(200 - prompt("").len()));
    let (mut reader, _) = Reader::calling(&mut server, json!({"max_tokens": null}), &before).await;
    assert_eq!(reader.rest().await, "length");
    let metrics = server.get("/metrics").await.body;
    assert!(metrics.lines().any(|line| line == "tgi_request_success 1"), "{metrics}");
    assert_eq!(metric(&server, "textgen_async_tool_calls_open").await, 0.0);
}

#[tokio::test]
async fn a_result_that_comes_with_the_last_token_is_told_as_dropped() {
    let mut server = server();
    let (mut reader, call) = Reader::calling(&mut server, json!({}), "").await;
    let pending = turn(&mut server, &format!("[assistant][tool]{PENDING}")).await;
    say(&pending, "a").await;
    reader.until("a").await;
    assert_eq!(reader.post(&server, &call, "7").await, 202);
    finish(&pending, 98, Finish::Length).await;
    let dropped = json!({"type": "results_dropped", "tool_call_ids": [call], "reason": "over"});
    assert_eq!(reader.event("results_dropped").await, dropped);
    assert_eq!(reader.rest().await, "length");
    assert_eq!(reader.post(&server, &call, "7").await, 404);
    assert_eq!(fates(&server).await, [1.0, 1.0, 0.0, 1.0]);
}

#[tokio::test]
async fn a_server_that_goes_away_drops_what_it_cannot_insert() {
    let mut server = server();
    let (mut reader, call) = Reader::calling(&mut server, json!({}), "").await;
    let pending = turn(&mut server, &format!("[assistant][tool]{PENDING}")).await;
    say(&pending, "a").await;
    reader.until("a").await;
    assert_eq!(reader.post(&server, &call, "7").await, 202);
    server.status.send(EngineStatus::Draining).unwrap();
    // What runs may end its sentence.
    say(&pending, ". b").await;
    let dropped = json!({"type": "results_dropped", "tool_call_ids": [call], "reason": "over"});
    assert_eq!(reader.event("results_dropped").await, dropped);
    assert_eq!(reader.rest().await, "tool_calls");
}

#[tokio::test]
async fn a_client_that_leaves_leaves_nothing_behind() {
    let mut server = server();
    let (mut reader, _) = Reader::calling(&mut server, json!({"async_tools": {"go_on": false}}), "").await;
    reader.event("waiting").await;
    assert_eq!((server.state.boards.len(), server.state.permits.available_permits()), (1, 3));
    reader.leave().await;
    assert!(server.state.boards.is_empty());
    assert_eq!(server.state.permits.available_permits(), 4);

    let (mut reader, _) = Reader::calling(&mut server, json!({}), "").await;
    let pending = turn(&mut server, &format!("[assistant][tool]{PENDING}")).await;
    say(&pending, "a").await;
    reader.until("a").await;
    reader.leave().await;
    pending.events.closed().await;
    assert!(server.state.boards.is_empty());
    assert_eq!(server.state.permits.available_permits(), 4);
}

#[tokio::test]
async fn results_are_refused_with_a_reason() {
    let room = Settings { max_input_tokens: 2000, max_total_tokens: 2100, ..settings() };
    let mut server = with(Settings { payload_limit: 1000, ..room });
    let (mut reader, call) = Reader::calling(&mut server, json!({"async_tools": {"go_on": false}}), CALL).await;
    let second = reader.call().await;
    reader.event("waiting").await;
    let path = format!("{PATH}/{}/tool_results", reader.id);
    let result = |call: &str, content: Value| json!({"tool_call_id": call, "content": content});
    let sent = async |path: &str, body: Value| server.post(path, body).await;
    let elsewhere = format!("{PATH}/chatcmpl-0/tool_results");
    sent(&elsewhere, result(&call, json!("x"))).await.openai_error(404, "answer_not_found");
    sent(&path, result("call_0", json!("x"))).await.openai_error(422, "validation");
    sent(&path, result(&call, json!({"time": 1}))).await.openai_error(422, "validation");
    sent(&path, result(&call, json!([{"type": "image_url"}]))).await.openai_error(422, "validation");
    sent(&path, json!({"content": "x"})).await.openai_error(422, "validation");
    let theirs = with_headers(json_request(&path, &result(&call, json!("x"))), &[("authorization", "Bearer other")]);
    server.send(theirs).await.openai_error(404, "answer_not_found");
    let parts = json!([{"type": "text", "text": "x".repeat(600)}, {"type": "text", "text": "y"}]);
    let taken = sent(&path, result(&call, parts)).await;
    assert_eq!(taken.status, 202);
    let expected = json!({"id": reader.id, "object": "chat.completion.tool_result", "tool_call_id": call});
    assert_eq!(taken.json(), expected);
    sent(&path, result(&call, json!("x"))).await.openai_error(409, "already_answered");
    sent(&path, result(&second, json!("x".repeat(600)))).await.openai_error(413, "payload_too_large");
}

#[tokio::test]
async fn what_cannot_go_on_is_refused() {
    let server = server();
    let assistant = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I"}]);
    for (extra, words) in [
        (json!({"stream": false, "stream_options": null}), "`\"stream\": true`"),
        (json!({"n": 2}), "`n`"),
        (json!({"use_beam_search": true, "best_of": 2}), "`use_beam_search`"),
        (json!({"tools": []}), "needs `tools`"),
        (json!({"tools": null}), "needs `tools`"),
        (json!({"tool_choice": "none"}), "needs `tools`"),
        (json!({"tool_choice": "required"}), "`\"tool_choice\": \"auto\"`"),
        (json!({"tool_choice": "clock"}), "`\"tool_choice\": \"auto\"`"),
        (json!({"response_format": {"type": "json_object"}}), "`response_format`"),
        (json!({"messages": assistant}), "cannot continue the last message"),
        (json!({"async_tools": {"pending": "x".repeat(1025)}}), "`async_tools.pending`"),
        (json!({"async_tools": "yes"}), "`async_tools` must be true, false"),
    ] {
        let error = server.post(PATH, body(extra.clone())).await.openai_error(422, "validation");
        assert!(error.contains(words), "{extra}: {error}");
    }
    assert_eq!(server.state.permits.available_permits(), 4);
    let server = Server::saying("x");
    let error = server.post(PATH, body(json!({}))).await.openai_error(422, "validation");
    assert!(error.contains("--tool-call-parser"), "{error}");
    let answer = server.post(PATH, body(json!({"async_tools": false}))).await;
    assert_eq!(answer.status, 200);
}

/// Sentences and lines of letters, and where one may be cut.
fn sentences() -> impl Strategy<Value = Vec<String>> {
    let words = "[a-zé]{1,6}( [a-z]{1,6}){0,3}";
    prop::collection::vec((words, prop::sample::select(&[". ", "! ", ".\n", "? "][..])), 1..5)
        .prop_map(|all| all.into_iter().map(|(words, end)| words + end).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Wherever a result comes: what was read is what the model goes on from, cut behind a sentence, and nothing is lost.
    #[test]
    fn a_result_at_any_point_loses_no_text(pieces in sentences(), place: prop::sample::Index, after in "[A-Z]{1,5}\\.") {
        let text = pieces.concat();
        let letters: Vec<usize> = text.char_indices().filter(|(_, c)| c.is_alphabetic()).map(|(at, c)| at + c.len_utf8()).collect();
        let at = letters[place.index(letters.len())];
        // Behind the sentence that it falls into.
        let end = at + text[at..].find(['.', '!', '?']).unwrap() + 1;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut server = with(Settings { stream_buffer: 512, ..settings() });
            let (mut reader, call) = Reader::calling(&mut server, json!({}), "").await;
            let pending = turn(&mut server, &format!("[assistant][tool]{PENDING}")).await;
            say(&pending, &text[..at]).await;
            reader.until(&text[..at]).await;
            assert_eq!(reader.post(&server, &call, "7").await, 202);
            say(&pending, &text[at..]).await;
            reader.event("results_inserted").await;
            assert_eq!(reader.content, text[..end]);
            let last = turn(&mut server, &format!("[assistant]{}[tool]7", &text[..end])).await;
            say(&last, &after).await;
            end_with(&mut reader, &last).await;
            assert_eq!(reader.content, format!("{}\n\n{after}", &text[..end]));
            assert_eq!(reader.usage["completion_tokens"], marked(CALL).len() + 1 + end + after.len() + 1);
        });
    }
}

async fn end_with(reader: &mut Reader, last: &Submission) {
    end(last).await;
    assert_eq!(reader.rest().await, "stop");
}
