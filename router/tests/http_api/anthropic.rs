//! Anthropic's routes: blocks whole and streamed, counts, errors.

use std::time::Duration;

use http_body_util::BodyExt;
use proptest::prelude::*;
use serde_json::{Value, json};
use textgen_router::http::Patience;
use textgen_router::settings::Settings;
use textgen_router::shard::handle::{EngineError, EngineStatus, Event};
use tower::ServiceExt;

use crate::client::{Answer, json_request};
use crate::model::{EOS, marked, tokens};
use crate::server::{Server, settings, started, token};

const PATH: &str = "/v1/messages";
const CALL: &str = r#"<tool_call>{"name": "get", "arguments": {"city": "Köln"}}</tool_call>"#;

/// A server of a model that writes calls and thoughts and says this.
fn saying(text: &str) -> Server {
    let named = |name: &str| Some(name.to_owned());
    let settings = Settings {
        tool_call_parser: named("hermes"),
        reasoning_parser: named("qwen3"),
        max_total_tokens: 1200,
        stream_buffer: 1024,
        ..settings()
    };
    let mut server = Server::with(settings, Patience::default());
    server.script(said(text));
    server
}

fn said(text: &str) -> Vec<Event> {
    std::iter::once(started()).chain(marked(text).into_iter().chain([EOS]).map(token)).collect()
}

#[allow(clippy::needless_pass_by_value)] // `ask(json!({…}))` reads best.
fn ask(extra: Value) -> Value {
    let mut body = json!({"model": "m", "max_tokens": 1000, "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn tools() -> Value {
    let city = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!([{"name": "get", "description": "Gets", "input_schema": city}])
}

impl Answer {
    /// Name and data of each event; the name is the data's type.
    fn named(&self) -> Vec<Value> {
        assert_eq!(self.headers["content-type"], "text/event-stream");
        let blocks = self.body.strip_suffix("\n\n").unwrap().split("\n\n");
        let event = |block: &str| {
            let (name, data) = block.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(data["type"], name);
            data
        };
        blocks.map(event).collect()
    }

    fn anthropic_error(&self, status: u16, kind: &str) -> String {
        let body = self.json();
        assert_eq!((self.status.as_u16(), body["error"]["type"].as_str().unwrap()), (status, kind), "{}", self.body);
        assert_eq!(body["type"], "error");
        assert_eq!(self.header("request-id"), self.header("x-request-id"));
        body["error"]["message"].as_str().unwrap().to_owned()
    }
}

/// The message that a stream's events make.
fn put_together(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    for event in &events[1..] {
        let at = |event: &Value| usize::try_from(event["index"].as_u64().unwrap()).unwrap();
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(at(event), message["content"].as_array().unwrap().len());
                message["content"].as_array_mut().unwrap().push(event["content_block"].clone());
            }
            "content_block_delta" => {
                let block = &mut message["content"][at(event)];
                for (field, new) in event["delta"].as_object().unwrap().iter().filter(|(field, _)| *field != "type") {
                    let before = block[field].as_str().unwrap_or_default().to_owned();
                    block[field] = json!(before + new.as_str().unwrap());
                }
            }
            "content_block_stop" => {
                let block = &mut message["content"][at(event)];
                if let Some(Value::String(input)) = block.as_object_mut().unwrap().remove("partial_json") {
                    block["input"] = serde_json::from_str(&input).unwrap_or_else(|_| json!({}));
                }
            }
            "message_delta" => {
                message.as_object_mut().unwrap().extend(event["delta"].as_object().unwrap().clone());
                message["usage"] = event["usage"].clone();
            }
            _ => {}
        }
    }
    message
}

fn without_ids(mut message: Value) -> Value {
    assert!(message["id"].take().as_str().unwrap().starts_with("msg_"));
    for block in message["content"].as_array_mut().unwrap() {
        if block["type"] == "tool_use" {
            assert!(block["id"].take().is_string());
        }
    }
    message
}

/// The answer to a body; checks that a stream says the same.
async fn both(server: &Server, body: Value) -> Value {
    let answer = server.post(PATH, body.clone()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let events = server.post(PATH, streamed).await.named();
    assert_eq!(events.last().unwrap(), &json!({"type": "message_stop"}));
    let whole = without_ids(answer.json());
    assert_eq!(without_ids(put_together(&events)), whole);
    whole
}

#[tokio::test]
async fn a_text() {
    let server = Server::saying("né");
    let body =
        ask(json!({"max_tokens": 20, "system": [{"type": "text", "text": "be"}, {"type": "text", "text": "good"}]}));
    let message = both(&server, body.clone()).await;
    let expected = json!({
        "id": null, "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "né"}],
        "stop_reason": "end_turn", "stop_sequence": null,
        "usage": {"input_tokens": "[system]be\ngood[user]hi[assistant]".len(), "cache_creation_input_tokens": 0,
                  "cache_read_input_tokens": 0, "output_tokens": 4},
    });
    assert_eq!(message, expected);
    let counted = server.post("/v1/messages/count_tokens", body).await.json();
    assert_eq!(counted, json!({"input_tokens": expected["usage"]["input_tokens"]}));
}

#[tokio::test]
async fn the_events_come_in_anthropics_order() {
    let server = Server::saying("ab");
    let answer = server.post(PATH, ask(json!({"stream": true, "max_tokens": 20}))).await;
    let events = answer.named();
    let names: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "message_start",
            "content_block_start",
            "ping",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    assert_eq!(events[0]["message"]["content"], json!([]));
    assert_eq!(events[0]["message"]["stop_reason"], Value::Null);
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], "[user]hi[assistant]".len());
    assert_eq!(events[3]["delta"], json!({"type": "text_delta", "text": "a"}));
    assert_eq!(events[6]["delta"], json!({"stop_reason": "end_turn", "stop_sequence": null}));
    assert_eq!(events[6]["usage"]["output_tokens"], 3);
    assert_eq!(answer.header("cache-control"), "no-cache");
}

#[tokio::test]
async fn cached_tokens_are_counted_apart() {
    let mut server = Server::new();
    let begun = Event::Started { queued: Duration::ZERO, cached_tokens: 4 };
    server.script(vec![begun, token(97), token(EOS)]);
    let usage = both(&server, ask(json!({"max_tokens": 9}))).await["usage"].clone();
    let prompt = "[user]hi[assistant]".len();
    assert_eq!((&usage["input_tokens"], &usage["cache_read_input_tokens"]), (&json!(prompt - 4), &json!(4)));
}

#[tokio::test]
async fn ends_have_reasons() {
    let server = Server::saying("one two");
    let message = both(&server, ask(json!({"max_tokens": 20, "stop_sequences": ["x", " tw"]}))).await;
    assert_eq!(message["content"], json!([{"type": "text", "text": "one"}]));
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("stop_sequence"), &json!(" tw")));
    let message = both(&server, ask(json!({"max_tokens": 3}))).await;
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("max_tokens"), &Value::Null));
    // More than fits is what fits, of the 300 that prompt and answer may have.
    let endless = Server::saying(&"x".repeat(300));
    let message = both(&endless, ask(json!({"max_tokens": 32_000}))).await;
    assert_eq!(message["stop_reason"], "max_tokens");
    assert_eq!(message["usage"]["output_tokens"], 300 - "[user]hi[assistant]".len());
    let silent = both(&Server::saying(""), ask(json!({"max_tokens": 3}))).await;
    assert_eq!((&silent["content"], &silent["stop_reason"]), (&json!([]), &json!("end_turn")));
}

#[tokio::test]
async fn thoughts_text_and_calls_are_blocks() {
    let server = saying(&format!("<think>Hm.</think>I look.{CALL}"));
    let message = both(&server, ask(json!({"tools": tools()}))).await;
    assert_eq!(
        message["content"],
        json!([
            {"type": "thinking", "thinking": "Hm.", "signature": "unsigned"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": null, "name": "get", "input": {"city": "Köln"}},
        ])
    );
    assert_eq!(message["stop_reason"], "tool_use");
    assert_eq!(message["usage"]["output_tokens_details"]["thinking_tokens"], 5);
    // Also where the request names the call, it is what the answer ends for.
    for choice in [json!({"type": "any"}), json!({"type": "tool", "name": "get"})] {
        let message = both(&saying(CALL), ask(json!({"tools": tools(), "tool_choice": choice}))).await;
        assert_eq!((&message["content"][0]["name"], &message["stop_reason"]), (&json!("get"), &json!("tool_use")));
    }
    // Cut off within its input, a call has none.
    let message = both(&saying(CALL), ask(json!({"tools": tools(), "max_tokens": 40}))).await;
    assert_eq!((&message["content"][0]["input"], &message["stop_reason"]), (&json!({}), &json!("max_tokens")));
}

/// The prompt of a body.
async fn prompt(body: Value) -> Vec<u32> {
    let mut server = Server::new();
    let call = tokio::spawn(server.app.clone().oneshot(json_request(PATH, &body)));
    tokio::select! {
        submission = server.submitted() => submission.request.prompt,
        answer = call => panic!("{body}: refused with {}", answer.unwrap().unwrap().status()),
    }
}

#[tokio::test]
async fn what_the_model_reads() {
    let call = json!({"type": "tool_use", "id": "c", "name": "get", "input": {}});
    let result =
        json!([{"type": "tool_result", "tool_use_id": "c", "content": "rain"}, {"type": "text", "text": "So?"}]);
    let messages = json!([
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": [call]}, {"role": "user", "content": result},
    ]);
    let body = ask(json!({"messages": messages, "tools": tools(), "max_tokens": 9}));
    assert_eq!(prompt(body).await, tokens("[user]hi[assistant][tool]rain[user]So?[tools]1[assistant]"));
    // The beginning of an answer is continued.
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "He"}]);
    assert_eq!(prompt(ask(json!({"messages": messages, "max_tokens": 9}))).await, tokens("[user]hi[assistant]He"));
    let none = ask(json!({"tools": tools(), "tool_choice": {"type": "none"}, "max_tokens": 9}));
    assert_eq!(prompt(none).await, tokens("[user]hi[assistant]"));
}

#[tokio::test]
async fn refusals_are_in_anthropics_shape() {
    let server = Server::saying("x");
    let invalid = "invalid_request_error";
    for (extra, place) in [
        (json!({"max_tokens": null}), "`max_tokens`"),
        (json!({"max_tokens": 0}), "max_new_tokens"),
        (json!({"temperature": -1.0}), "`temperature`"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"messages": []}), "`messages`"),
        (json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}), "`messages[0].content[0]`"),
        (json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}), "`tools[0].type`"),
        (json!({"tools": [{"name": "a b"}]}), "`tools[0].function.name`"),
        (json!({"tool_choice": {"type": "perhaps"}}), "`tool_choice.type`"),
        (json!({"tool_choice": {"type": "tool"}}), "`tool_choice.name`"),
        (json!({"thinking": {"type": "perhaps"}}), "`thinking.type`"),
        (json!({"output_config": {"format": {"type": "xml"}}}), "`output_config.format`"),
        (
            json!({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}),
            "in `output_config.format`: ",
        ),
        (json!({"output_config": {"format": {"type": "json_schema", "schema": 3}}}), "`output_config.format.schema`"),
        (json!({"mcp_servers": [{"url": "x"}]}), "`mcp_servers`"),
        (json!({"container": "c"}), "`container`"),
    ] {
        for streamed in [false, true] {
            let mut body = ask(json!({"max_tokens": 5, "stream": streamed}));
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let message = server.post(PATH, body).await.anthropic_error(400, invalid);
            assert!(message.contains(place), "{extra}: {message}");
        }
    }
    server.post("/v1/messages/nowhere", json!({})).await.anthropic_error(404, "not_found_error");
    server.get(PATH).await.anthropic_error(405, invalid);
    server.post(PATH, ask(json!({"system": "x".repeat(5000)}))).await.anthropic_error(413, "request_too_large");
    server.status.send_replace(EngineStatus::Starting);
    let answer = server.post(PATH, ask(json!({}))).await;
    answer.anthropic_error(503, "overloaded_error");
    assert_eq!(answer.header("retry-after"), "1");
}

#[tokio::test]
async fn a_stream_that_fails() {
    let mut server = Server::new();
    server.script(vec![started(), Event::Failed(EngineError::Shard("no memory".to_owned()))]);
    let body = ask(json!({"stream": true, "max_tokens": 9}));
    assert!(server.post(PATH, body.clone()).await.anthropic_error(500, "api_error").contains("no memory"));
    let mut server = Server::new();
    server.script(vec![started(), token(97), Event::Failed(EngineError::Shard("no memory".to_owned()))]);
    let answer = server.post(PATH, body).await;
    assert_eq!(answer.status, 200);
    let (_, last) = answer.body.rsplit_once("event: error\ndata: ").unwrap();
    let last: Value = serde_json::from_str(last.trim_end()).unwrap();
    assert_eq!((&last["type"], &last["error"]["type"]), (&json!("error"), &json!("api_error")));
}

#[tokio::test]
async fn a_silent_stream_pings() {
    let patience =
        Patience { first_token: Duration::ZERO, keep_alive: Duration::from_millis(1), ..Patience::default() };
    let server = Server::with(settings(), patience);
    let request = json_request(PATH, &ask(json!({"stream": true, "max_tokens": 9})));
    let mut body = server.app.clone().oneshot(request).await.unwrap().into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(first, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the model says, a stream says what the whole answer says.
    #[test]
    fn streams_and_whole_answers_agree(
        pieces in prop::collection::vec(prop::sample::select(&[
            CALL, "<think>", "</think>", "<tool_call>", "</tool_call>", "{\"name\": \"get\"", "text ", "é😀", "\n", "}",
        ][..]), 0..6),
        most in 1_u32..200,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let message = runtime.block_on(async {
            both(&saying(&pieces.concat()), ask(json!({"tools": tools(), "max_tokens": most}))).await
        });
        for pair in message["content"].as_array().unwrap().windows(2) {
            // Blocks of a text in a row would be one.
            prop_assert!(pair[0]["type"] == "tool_use" || pair[0]["type"] != pair[1]["type"]);
        }
    }
}
