//! OpenAI's Responses: items whole and streamed, and those that are kept.

use axum::body::Body;
use axum::http::{Method, Request};
use proptest::prelude::*;
use serde_json::{Value, json};
use textgen_router::http::Patience;
use textgen_router::settings::Settings;
use textgen_router::shard::handle::{EngineError, Event};
use tower::ServiceExt;

use crate::client::{Answer, json_request, with_headers};
use crate::model::{EOS, marked, tokens};
use crate::server::{Server, say, settings, started, token};

const PATH: &str = "/v1/responses";
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
    let events = marked(text).into_iter().chain([EOS]).map(token);
    server.script(std::iter::once(started()).chain(events).collect());
    server
}

fn tools() -> Value {
    let city = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!([{"type": "function", "name": "get", "description": "Gets", "parameters": city, "strict": null}])
}

fn named_events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.header("content-type"), "text/event-stream");
    let blocks = answer.body.strip_suffix("\n\n").unwrap().split("\n\n");
    let event = |(number, block): (usize, &str)| {
        let (name, data) = block.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(number)));
        data
    };
    blocks.enumerate().map(event).collect()
}

/// Takes out what differs between two answers.
fn timeless(mut response: Value) -> Value {
    assert!(response["id"].take().as_str().unwrap().starts_with("resp_"));
    for time in ["created_at", "completed_at"] {
        response[time].take();
    }
    for item in response["output"].as_array_mut().unwrap() {
        assert!(item["id"].take().is_string());
        if let Some(call) = item.get_mut("call_id") {
            assert!(call.take().is_string());
        }
    }
    response
}

/// The output as a stream's deltas make it.
fn put_together(events: &[Value]) -> Value {
    let mut output: Vec<Value> = Vec::new();
    for event in events {
        let at = || usize::try_from(event["output_index"].as_u64().unwrap()).unwrap();
        match event["type"].as_str().unwrap() {
            "response.output_item.added" => {
                assert_eq!((at(), &event["item"]["status"]), (output.len(), &json!("in_progress")));
                output.push(event["item"].clone());
            }
            "response.content_part.added" => {
                output[at()]["content"].as_array_mut().unwrap().push(event["part"].clone());
            }
            "response.output_text.delta" | "response.reasoning_text.delta" => {
                let text = &mut output[at()]["content"][0]["text"];
                *text = json!(text.as_str().unwrap().to_owned() + event["delta"].as_str().unwrap());
                if let Some(tokens) = output[at()]["content"][0].get_mut("logprobs") {
                    tokens.as_array_mut().unwrap().extend(event["logprobs"].as_array().unwrap().clone());
                }
            }
            "response.function_call_arguments.delta" => {
                let arguments = &mut output[at()]["arguments"];
                *arguments = json!(arguments.as_str().unwrap().to_owned() + event["delta"].as_str().unwrap());
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(output[at()]["content"][0]["text"], event["text"]);
                assert_eq!(output[at()]["id"], event["item_id"]);
            }
            "response.function_call_arguments.done" => assert_eq!(output[at()]["arguments"], event["arguments"]),
            "response.content_part.done" => assert_eq!(output[at()]["content"][0], event["part"]),
            "response.output_item.done" => {
                output[at()]["status"] = event["item"]["status"].clone();
                assert_eq!(output[at()], event["item"]);
            }
            _ => {}
        }
    }
    json!(output)
}

/// The response to a body; checks that a stream says the same.
async fn both(server: &Server, body: Value) -> Value {
    let answer = server.post(PATH, body.clone()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let whole = answer.json();
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let events = named_events(&server.post(PATH, streamed).await);
    let last = events.last().unwrap();
    assert_eq!(put_together(&events), last["response"]["output"]);
    assert_eq!(last["type"], format!("response.{}", whole["status"].as_str().unwrap()));
    assert_eq!(timeless(last["response"].clone()), timeless(whole.clone()));
    whole
}

#[tokio::test]
async fn a_text() {
    let server = Server::saying("né");
    let body = json!({"model": "m", "input": "hi", "instructions": "be", "max_output_tokens": 20, "temperature": 0,
                      "metadata": {"a": "b"}, "store": false});
    let response = timeless(both(&server, body).await);
    let prompt = "[system]be[user]hi[assistant]".len();
    let part = json!({"type": "output_text", "text": "né", "annotations": [], "logprobs": []});
    assert_eq!(
        response["output"],
        json!([
            {"type": "message", "id": null, "status": "completed", "role": "assistant", "content": [part]},
        ])
    );
    assert_eq!(
        response["usage"],
        json!({
            "input_tokens": prompt, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": prompt + 4,
        })
    );
    for (field, value) in [
        ("object", json!("response")),
        ("status", json!("completed")),
        ("error", Value::Null),
        ("incomplete_details", Value::Null),
        ("instructions", json!("be")),
        ("max_output_tokens", json!(20)),
        ("metadata", json!({"a": "b"})),
        ("model", json!("m")),
        ("parallel_tool_calls", json!(true)),
        ("previous_response_id", Value::Null),
        ("store", json!(false)),
        ("temperature", json!(0.0)),
        ("tools", json!([])),
        ("text", json!({"format": {"type": "text"}})),
        ("tool_choice", json!("auto")),
        ("top_p", json!(1.0)),
    ] {
        assert_eq!(response[field], value, "{field}");
    }
    let counted = server.post("/v1/responses/input_tokens", json!({"input": "hi", "instructions": "be"})).await.json();
    assert_eq!(counted, json!({"object": "response.input_tokens", "input_tokens": prompt}));
}

#[tokio::test]
async fn tokens_of_a_text_have_logprobs() {
    let body = json!({"input": "hi", "include": ["message.output_text.logprobs"], "store": false});
    let response = both(&Server::saying("né"), body.clone()).await;
    let told = response["output"][0]["content"][0]["logprobs"].as_array().unwrap();
    let bytes: Vec<&Value> = told.iter().map(|entry| &entry["bytes"]).collect();
    assert_eq!(bytes, [&json!([b'n']), &json!([0xC3]), &json!([0xA9])], "and not the end of the sequence");
    assert!(told.iter().all(|entry| entry["logprob"] == -0.5 && entry["top_logprobs"].is_array()));
    // The tokens of thoughts and calls are no part of the text.
    let mut body = body;
    body["tools"] = tools();
    let response = both(&saying(&format!("<think>Hm.</think>I look.{CALL}")), body).await;
    let tokens = response["output"][1]["content"][0]["logprobs"].as_array().unwrap();
    let text: String = tokens.iter().map(|entry| entry["token"].as_str().unwrap()).collect();
    assert_eq!(text, "I look.");
}

#[tokio::test]
async fn the_events_come_in_openais_order() {
    let answer = Server::saying("ab").post(PATH, json!({"input": "hi", "stream": true})).await;
    let events = named_events(&answer);
    let names: Vec<&str> =
        events.iter().map(|event| event["type"].as_str().unwrap().strip_prefix("response.").unwrap()).collect();
    assert_eq!(
        names,
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed",
        ]
    );
    assert_eq!(events[0]["response"]["status"], "in_progress");
    assert_eq!(events[0]["response"]["id"], events[9]["response"]["id"]);
    assert_eq!(events[4]["logprobs"], json!([]));
}

#[tokio::test]
async fn thoughts_text_and_calls_are_items() {
    let server = saying(&format!("<think>Hm.</think>I look.{CALL}"));
    let response = timeless(both(&server, json!({"input": "hi", "tools": tools()})).await);
    let output = response["output"].as_array().unwrap();
    assert_eq!(output[0]["content"], json!([{"type": "reasoning_text", "text": "Hm."}]));
    assert_eq!((&output[0]["type"], &output[0]["summary"]), (&json!("reasoning"), &json!([])));
    assert_eq!(output[1]["content"][0]["text"], "I look.");
    let call = json!({"type": "function_call", "id": null, "status": "completed", "call_id": null, "name": "get",
                      "arguments": "{\"city\": \"Köln\"}"});
    assert_eq!(output[2], call);
    assert_eq!(response["usage"]["output_tokens_details"]["reasoning_tokens"], 5);
    assert_eq!(response["tools"], tools());
    // A limit leaves the last item and the response incomplete.
    let response = both(&server, json!({"input": "hi", "tools": tools(), "max_output_tokens": 8})).await;
    assert_eq!(
        (&response["status"], &response["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(response["output"][0]["status"], "completed");
    assert_eq!(response["output"][1]["status"], "incomplete");
}

/// The prompt of a body.
async fn prompt(server: &mut Server, body: Value) -> Vec<u32> {
    let call = tokio::spawn(server.app.clone().oneshot(json_request(PATH, &body)));
    tokio::select! {
        submission = server.submitted() => submission.request.prompt,
        answer = call => panic!("{body}: refused with {}", answer.unwrap().unwrap().status()),
    }
}

#[tokio::test]
async fn what_the_model_reads() {
    let mut server = Server::new();
    let items = json!([
        {"role": "developer", "content": "be"}, {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "c", "name": "get", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "rain"},
    ]);
    let body = json!({"input": items, "tools": tools(), "tool_choice": "none"});
    assert_eq!(prompt(&mut server, body).await, tokens("[system]be[user]hi[assistant][tool]rain[assistant]"));
    let long = json!({"input": "x".repeat(500), "truncation": "auto", "max_output_tokens": 150});
    assert_eq!(prompt(&mut server, long).await.len(), 150, "what does not fit beside the answer is cut off");
    // An answer is an item of its own.
    let body = json!({"input": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "He"}]});
    assert_eq!(prompt(&mut server, body).await, tokens("[user]hi[assistant]He[assistant]"));
}

async fn with_key(server: &Server, method: Method, path: &str, key: &str, body: Option<Value>) -> Answer {
    let request = match body {
        Some(body) => json_request(path, &body),
        None => Request::builder().method(method).uri(path).body(Body::empty()).unwrap(),
    };
    server.send(with_headers(request, &[("x-api-key", key)])).await
}

#[tokio::test]
async fn a_response_goes_on_from_another() {
    let server = Server::saying("hey");
    let post = |body| with_key(&server, Method::POST, PATH, "mine", Some(body));
    let first = post(json!({"input": "hi", "instructions": "be", "max_output_tokens": 9})).await.json();
    assert_eq!(first["store"], true);
    let id = first["id"].as_str().unwrap().to_owned();
    let body = json!({"input": "so?", "previous_response_id": id, "max_output_tokens": 9, "stream": true});
    let second = named_events(&post(body).await).pop().unwrap()["response"].clone();
    assert_eq!(second["previous_response_id"], json!(id));
    // The instructions are not passed on.
    assert_eq!(second["usage"]["input_tokens"], "[user]hi[assistant]hey[user]so?[assistant]".len());
    let third = json!({"input": "and?", "previous_response_id": second["id"], "store": false, "max_output_tokens": 9});
    let third = post(third).await.json();
    let whole = "[user]hi[assistant]hey[user]so?[assistant]hey[user]and?[assistant]";
    assert_eq!(third["usage"]["input_tokens"], whole.len());

    let get = |path: String, key: &'static str| {
        let server = &server;
        async move { with_key(server, Method::GET, &path, key, None).await }
    };
    assert_eq!(get(format!("{PATH}/{id}"), "mine").await.json(), first);
    get(format!("{PATH}/{id}"), "yours").await.openai_error(404, "response_not_found");
    server.get(&format!("{PATH}/{id}")).await.openai_error(404, "response_not_found");
    let unkept = third["id"].as_str().unwrap();
    get(format!("{PATH}/{unkept}"), "mine").await.openai_error(404, "response_not_found");
    let theirs = json!({"input": "x", "previous_response_id": id});
    with_key(&server, Method::POST, PATH, "yours", Some(theirs)).await.openai_error(404, "response_not_found");
    get(format!("{PATH}/{id}?stream=true"), "mine").await.openai_error(422, "validation");

    let delete = |key: &'static str| {
        with_key(&server, Method::DELETE, Box::leak(format!("{PATH}/{id}").into_boxed_str()), key, None)
    };
    delete("yours").await.openai_error(404, "response_not_found");
    assert_eq!(delete("mine").await.json(), json!({"id": id, "object": "response", "deleted": true}));
    delete("mine").await.openai_error(404, "response_not_found");
    // What came after it knows what it needs.
    let after = json!({"input": "and?", "previous_response_id": second["id"], "max_output_tokens": 9});
    assert_eq!(post(after).await.json()["usage"]["input_tokens"], whole.len());
}

#[tokio::test]
async fn its_input_can_be_read_again() {
    let server = Server::saying("hey");
    let input = json!([{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"},
                       {"type": "message", "id": "own", "role": "user", "content": [{"type": "input_text", "text": "three"}]}]);
    let response = server.post(PATH, json!({"input": input})).await.json();
    let path = format!("{PATH}/{}/input_items", response["id"].as_str().unwrap());
    let list = |query: &'static str| {
        let (server, path) = (&server, format!("{path}{query}"));
        async move { server.get(&path).await }
    };
    let all = list("?order=asc").await.json();
    let texts = |list: &Value| -> Vec<String> {
        let items = list["data"].as_array().unwrap().iter();
        items.map(|item| item["content"][0]["text"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(texts(&all), ["one", "two", "three"]);
    assert_eq!((&all["last_id"], &all["has_more"], &all["object"]), (&json!("own"), &json!(false), &json!("list")));
    assert_eq!(all["data"][1]["content"][0]["type"], "output_text");
    let newest = list("?limit=1").await.json();
    assert_eq!((texts(&newest), &newest["has_more"]), (vec!["three".to_owned()], &json!(true)));
    assert_eq!(texts(&list("?after=own").await.json()), ["two", "one"]);
    for query in ["?order=up", "?limit=0", "?limit=101", "?limit=x", "?after=nothing"] {
        list(query).await.openai_error(422, "validation");
    }
    server.get("/v1/responses/resp_x/input_items").await.openai_error(404, "response_not_found");
}

#[tokio::test]
async fn a_store_that_is_off_keeps_nothing() {
    let settings = Settings { response_store_bytes: 0, ..settings() };
    let mut server = Server::with(settings, Patience::default());
    server.script(say("hey"));
    let response = server.post(PATH, json!({"input": "hi"})).await.json();
    assert_eq!(response["store"], false);
    let path = format!("{PATH}/{}", response["id"].as_str().unwrap());
    server.get(&path).await.openai_error(404, "response_not_found");
    let error = server.post(PATH, json!({"input": "hi", "store": true})).await.openai_error(422, "validation");
    assert!(error.contains("`store`"), "{error}");
}

#[tokio::test]
async fn what_is_not_served_is_named() {
    let server = Server::saying("x");
    for (extra, place) in [
        (json!({"background": true}), "`background`"),
        (json!({"conversation": "conv_1"}), "`conversation`"),
        (json!({"prompt": {"id": "p"}}), "`prompt`"),
        (json!({"truncation": "middle"}), "`truncation`"),
        (json!({"top_logprobs": 21}), "`top_logprobs`"),
        (
            json!({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}}}),
            "in `text.format`: ",
        ),
        (json!({"text": {"format": {"type": "json_schema", "name": "n", "schema": 3}}}), "`text.format.schema`"),
        (json!({"tools": [{"type": "web_search"}]}), "`tools[0].type`"),
        (json!({"tools": [{"type": "function", "name": "a b"}]}), "`tools[0].function.name`"),
        (json!({"tool_choice": {"type": "mcp"}}), "`tool_choice`"),
        (json!({"text": {"format": {"type": "xml"}}}), "`text.format.type`"),
        (json!({"input": []}), "`input`"),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "`item_reference`"),
        (json!({"input": 3}), "`input`"),
        (json!({"temperature": -1}), "`temperature`"),
        (json!({"max_output_tokens": 0}), "max_new_tokens"),
    ] {
        for streamed in [false, true] {
            let mut body = json!({"input": "hi", "stream": streamed});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let message = server.post(PATH, body).await.openai_error(422, "validation");
            assert!(message.contains(place), "{extra}: {message}");
        }
    }
    server
        .post(PATH, json!({"input": "hi", "previous_response_id": "resp_x"}))
        .await
        .openai_error(404, "response_not_found");
}

#[tokio::test]
async fn a_stream_that_fails() {
    let failed = || Event::Failed(EngineError::Shard("no memory".to_owned()));
    let body = json!({"input": "hi", "stream": true});
    let mut server = Server::new();
    server.script(vec![started(), failed()]);
    server.post(PATH, body.clone()).await.openai_error(424, "generation");
    let mut server = Server::new();
    server.script(vec![started(), token(97), failed()]);
    let events = named_events(&server.post(PATH, body).await);
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    assert!(last["response"]["error"]["message"].as_str().unwrap().contains("no memory"));
    let id = last["response"]["id"].as_str().unwrap();
    server.get(&format!("{PATH}/{id}")).await.openai_error(404, "response_not_found");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the model says, a stream says what the whole response says.
    #[test]
    fn streams_and_whole_responses_agree(
        pieces in prop::collection::vec(prop::sample::select(&[
            CALL, "<think>", "</think>", "<tool_call>", "</tool_call>", "{\"name\": \"get\"", "text ", "é😀", "\n", "}",
        ][..]), 0..6),
        most in 1_u32..200,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            both(&saying(&pieces.concat()), json!({"input": "hi", "tools": tools(), "max_output_tokens": most})).await
        });
    }
}
