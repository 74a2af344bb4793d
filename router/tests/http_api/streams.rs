//! `/generate_stream` and what all streams share.

use std::time::Duration;

use futures::StreamExt;
use http_body_util::BodyExt;
use serde_json::json;
use textgen_router::http::Patience;
use textgen_router::shard::handle::{EngineError, Event};
use tower::ServiceExt;

use crate::client::json_request;
use crate::model::EOS;
use crate::server::{Server, settings, started, token};

#[tokio::test]
async fn the_bytes_are_tgis() {
    let server = Server::saying("a");
    let body = json!({"inputs": "hi", "parameters": {"details": true}});
    let answer = server.post("/generate_stream", body).await;
    let expected = concat!(
        r#"data: {"index":1,"token":{"id":97,"text":"a","logprob":-0.5,"special":false},"#,
        r#""generated_text":null,"details":null}"#,
        "\n\n",
        r#"data: {"index":2,"token":{"id":257,"text":"</s>","logprob":-0.5,"special":true},"#,
        r#""generated_text":"a","details":{"finish_reason":"eos_token","generated_tokens":2,"seed":null,"#,
        r#""input_length":3}}"#,
        "\n\n",
    );
    assert_eq!(answer.body, expected);
    assert_eq!(answer.header("content-type"), "text/event-stream");
    assert_eq!(answer.header("cache-control"), "no-cache");
    assert_eq!(answer.header("x-accel-buffering"), "no");
    assert_eq!(answer.header("x-compute-type"), "cpu");
    assert_eq!(answer.header("x-compute-characters"), "2");
    assert!(!answer.headers.contains_key("x-total-time"));
}

#[tokio::test]
async fn characters_come_whole_and_the_text_last() {
    let server = Server::saying("né");
    let answer = server.post("/generate_stream", json!({"inputs": "hi"})).await;
    let events = answer.events();
    let texts: Vec<_> = events.iter().map(|event| event["token"]["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["n", "", "é", "</s>"]);
    let indices: Vec<_> = events.iter().map(|event| event["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [1, 2, 3, 4]);
    assert!(events[..3].iter().all(|event| event["generated_text"].is_null()));
    assert_eq!(events[3]["generated_text"], "né");
    assert!(events[3]["details"].is_null());
}

#[tokio::test]
async fn the_compatible_form_streams_too() {
    let server = Server::saying("a");
    let events = server.post("/", json!({"inputs": "hi ", "stream": true})).await.events();
    assert_eq!(events[1]["generated_text"], "hi a");
}

#[tokio::test]
async fn top_tokens_are_in_each_event() {
    let server = Server::saying("a");
    let body = json!({"inputs": "hi", "parameters": {"top_n_tokens": 2}});
    let events = server.post("/generate_stream", body).await.events();
    assert_eq!(events[0]["top_tokens"][1], json!({"id": 98, "text": "b", "logprob": -1.5, "special": false}));
}

#[tokio::test]
async fn an_error_before_the_first_token_has_its_status() {
    let mut server = Server::new();
    server.script(vec![started(), Event::Failed(EngineError::Shard("no memory".to_owned()))]);
    let answer = server.post("/generate_stream", json!({"inputs": "hi"})).await;
    assert!(answer.native_error(424, "generation").contains("no memory"));
    let chat = json!({"stream": true, "messages": [{"role": "user", "content": "hi"}]});
    server.post("/v1/chat/completions", chat).await.openai_error(424, "generation");
    let invalid = json!({"inputs": "hi", "parameters": {"temperature": -1.0}});
    server.post("/generate_stream", invalid).await.native_error(422, "validation");
}

#[tokio::test]
async fn an_error_after_the_first_token_is_an_event() {
    let mut server = Server::new();
    server.script(vec![started(), token(97), Event::Failed(EngineError::Shard("no memory".to_owned()))]);
    let answer = server.post("/generate_stream", json!({"inputs": "hi"})).await;
    assert_eq!(answer.status, 200);
    let events = answer.events();
    assert_eq!(events.len(), 2);
    let text = "Request failed during generation: no memory";
    assert_eq!(events[1], json!({"error": text, "error_type": "generation"}));

    let chat = json!({"stream": true, "messages": [{"role": "user", "content": "hi"}]});
    let events = server.post("/v1/chat/completions", chat).await.events();
    let error = &events[events.len() - 2];
    assert_eq!(error["error"]["message"], text);
    assert_eq!(error["error"]["http_status_code"], 424);
    assert_eq!(events[events.len() - 1], "[DONE]");
}

#[tokio::test]
async fn an_engine_that_ends_early_is_said() {
    let mut server = Server::new();
    server.script(vec![started(), token(97)]);
    let events = server.post("/generate_stream", json!({"inputs": "hi"})).await.events();
    assert_eq!(events[1]["error_type"], "incomplete_generation_stream");
    let whole = server.post("/generate", json!({"inputs": "hi"})).await;
    whole.native_error(500, "incomplete_generation");
}

#[tokio::test]
async fn a_silent_stream_opens_and_is_kept_alive() {
    let patience =
        Patience { first_token: Duration::from_millis(5), keep_alive: Duration::from_millis(5), ..Patience::default() };
    let mut server = Server::with(settings(), patience);
    let request = json_request("/generate_stream", &json!({"inputs": "hi"}));
    let call = tokio::spawn(server.app.clone().oneshot(request));
    let submission = server.submitted().await;
    // No token was sent, and yet there is an answer.
    let response = call.await.unwrap().unwrap();
    assert_eq!(response.status(), 200);
    let mut body = response.into_body().into_data_stream();
    assert_eq!(body.next().await.unwrap().unwrap(), ":\n\n");
    submission.events.send(started()).await.unwrap();
    submission.events.send(Event::Failed(EngineError::Shard("late".to_owned()))).await.unwrap();
    let mut rest = String::new();
    while let Some(frame) = body.next().await {
        rest.push_str(std::str::from_utf8(&frame.unwrap()).unwrap());
    }
    assert!(rest.ends_with("\"error_type\":\"generation\"}\n\n"), "{rest}");
}

#[tokio::test]
async fn dropping_the_body_cancels_and_frees_the_permit() {
    let mut server = Server::new();
    let free = server.state.permits.available_permits();
    let request = json_request("/generate_stream", &json!({"inputs": "hi"}));
    let call = tokio::spawn(server.app.clone().oneshot(request));
    let submission = server.submitted().await;
    submission.events.send(started()).await.unwrap();
    submission.events.send(token(97)).await.unwrap();
    let mut body = call.await.unwrap().unwrap().into_body().into_data_stream();
    assert!(body.next().await.unwrap().unwrap().starts_with(b"data: {\"index\":1"));
    assert_eq!(server.state.permits.available_permits(), free - 1);
    assert!(!submission.events.is_closed());
    drop(body);
    assert!(submission.events.is_closed());
    assert_eq!(server.state.permits.available_permits(), free);
}

#[tokio::test]
async fn a_stop_string_cancels_in_the_engine() {
    let mut server = Server::new();
    let body = json!({"inputs": "hi", "parameters": {"stop": ["b"]}});
    let call = tokio::spawn(server.app.clone().oneshot(json_request("/generate_stream", &body)));
    let submission = server.submitted().await;
    for event in [started(), token(97), token(98)] {
        submission.events.send(event).await.unwrap();
    }
    let response = call.await.unwrap().unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(std::str::from_utf8(&body).unwrap().matches("data: ").count(), 2);
    assert!(submission.events.is_closed());
    // Nothing comes after the end, whatever the engine still sends.
    assert!(submission.events.send(token(EOS)).await.is_err());
}

#[tokio::test]
async fn all_tokens_that_are_ready_leave_together() {
    let mut server = Server::new();
    let request = json_request("/generate_stream", &json!({"inputs": "hi"}));
    let call = tokio::spawn(server.app.clone().oneshot(request));
    let submission = server.submitted().await;
    let events: Vec<_> = std::iter::once(started()).chain((97..117).map(token)).collect();
    for event in &events {
        submission.events.send(event.clone()).await.unwrap();
    }
    let mut body = call.await.unwrap().unwrap().into_body().into_data_stream();
    let (mut frames, mut seen) = (0, 0);
    while seen < 20 {
        let frame = body.next().await.unwrap().unwrap();
        seen += std::str::from_utf8(&frame).unwrap().matches("data: ").count();
        frames += 1;
    }
    // What came before the answer began is one frame, and what came between two looks at the queue is another.
    assert_eq!(seen, 20);
    assert!(frames <= 2, "{frames} frames");
    for event in &events[1..6] {
        submission.events.send(event.clone()).await.unwrap();
    }
    let frame = body.next().await.unwrap().unwrap();
    assert_eq!(std::str::from_utf8(&frame).unwrap().matches("data: ").count(), 5);
}
