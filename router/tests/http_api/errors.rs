//! Every error: its status, its shape in each dialect, and its sentence.

use axum::body::Body;
use axum::http::{Method, Request};
use serde_json::json;
use textgen_router::http::{Patience, layers};
use textgen_router::settings::Settings;
use textgen_router::shard::handle::{EngineError, EngineStatus, Event};
use tower::ServiceExt;

use crate::client::json_request;
use crate::model::EOS;
use crate::server::{Server, settings};

fn raw(path: &str, content_type: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(path).header("content-type", content_type).body(body.into()).unwrap()
}

const GENERATION: [&str; 5] = ["/generate", "/generate_stream", "/", "/v1/chat/completions", "/v1/completions"];

fn body_for(path: &str) -> serde_json::Value {
    match path {
        "/v1/chat/completions" => json!({"messages": [{"role": "user", "content": "hi"}]}),
        "/v1/completions" => json!({"prompt": "hi"}),
        _ => json!({"inputs": "hi"}),
    }
}

#[tokio::test]
async fn broken_json_is_400() {
    let server = Server::new();
    let json = "application/json";
    let error = server.send(raw("/generate", json, "{\"inputs\": ")).await.native_error(400, "invalid_json");
    assert!(error.starts_with("the body is not valid JSON: inputs: EOF while parsing a value"), "{error}");
    server.send(raw("/v1/completions", json, "nonsense")).await.openai_error(400, "invalid_json");
    let deep = format!("{{\"tools\": {}{}}}", "[".repeat(1000), "]".repeat(1000));
    let error = server.send(raw("/v1/chat/completions", json, deep)).await.openai_error(400, "invalid_json");
    assert!(error.ends_with("it is nested deeper than 128 levels; send a flatter one"), "{error}");
    let bytes = Body::from(vec![b'{', 0xFF, b'}']);
    server.send(raw("/generate", json, bytes)).await.native_error(400, "invalid_json");
}

#[tokio::test]
async fn wrong_types_are_422_and_name_the_field() {
    let server = Server::new();
    for (path, body, field) in [
        ("/generate", json!({"inputs": 1}), "inputs"),
        ("/generate", json!({}), "missing field `inputs`"),
        ("/generate", json!({"inputs": ["a", "b"]}), "inputs"),
        ("/generate", json!({"inputs": "a", "parameters": {"temperature": "hot"}}), "parameters.temperature"),
        ("/generate", json!({"inputs": "a", "parameters": {"max_new_tokens": -1}}), "parameters.max_new_tokens"),
        ("/generate", json!({"inputs": "a", "parameters": {"stop": [1]}}), "`stop` must be a string or a list"),
        ("/tokenize", json!({"input": "a"}), "missing field `inputs`"),
    ] {
        let error = server.post(path, body).await.native_error(422, "validation");
        assert!(error.contains(field) && error.starts_with("the body does not fit this route: "), "{error}");
    }
    for (path, body, field) in [
        ("/v1/chat/completions", json!({}), "missing field `messages`"),
        ("/v1/chat/completions", json!({"messages": "hi"}), "messages"),
        ("/v1/chat/completions", json!({"messages": [{"content": "hi"}]}), "missing field `role`"),
        ("/v1/chat/completions", json!({"messages": [], "temperature": "hot"}), "temperature"),
        ("/v1/completions", json!({"prompt": "a", "seed": 1.5}), "`seed` must be an integer"),
    ] {
        let error = server.post(path, body).await.openai_error(422, "validation");
        assert!(error.contains(field), "{error}");
    }
}

#[tokio::test]
async fn a_list_for_an_object_is_422_however_long_it_is() {
    let server = Server::new();
    for length in [0, 1, 100] {
        let list = json!(vec![None::<u8>; length]);
        let error = server.post("/generate", json!({"inputs": "hi", "parameters": list})).await;
        let error = error.native_error(422, "validation");
        assert_eq!(error, "the body does not fit this route: parameters: invalid type: a list, expected an object");
        let body = json!({"messages": [{"role": "user", "content": "hi"}], "stream_options": list});
        let error = server.post("/v1/chat/completions", body).await.openai_error(422, "validation");
        assert!(error.ends_with("stream_options: invalid type: a list, expected an object"), "{error}");
    }
    let whole = server.post("/generate", json!(["hi", null, null, null])).await.native_error(422, "validation");
    assert!(whole.ends_with("route: invalid type: a list, expected an object"), "{whole}");
    let more = raw("/generate", "application/json", "{\"inputs\": \"hi\"} more");
    assert!(server.send(more).await.native_error(400, "invalid_json").contains("trailing characters"));
}

#[tokio::test]
async fn grammars_can_be_switched_off() {
    let server = Server::with(Settings { disable_grammar_support: true, ..settings() }, Patience::default());
    let body = json!({"inputs": "hi", "parameters": {"grammar": {"type": "regex", "value": "a"}}});
    let error = server.post("/generate", body).await.native_error(422, "validation");
    assert!(error.contains("--disable-grammar-support"), "{error}");
}

#[tokio::test]
async fn a_grammar_goes_to_the_engine_and_heeds_ends() {
    let mut server = Server::new();
    let parameters = json!({"grammar": {"type": "regex", "value": "[ab]+"}, "ignore_eos": true});
    let app = server.app.clone();
    let request = json_request("/generate", &json!({"inputs": "hi", "parameters": parameters}));
    let call = tokio::spawn(async move { app.oneshot(request).await });
    let submission = server.submitted().await;
    assert!(submission.request.grammar.is_some() && submission.request.stop_tokens.contains(&EOS));
    call.abort();
}

#[tokio::test]
async fn broken_rules_are_422_in_tgis_words() {
    let server = Server::new();
    for parameters in [
        json!({"temperature": -1.0}),
        json!({"temperature": 0.0}),
        json!({"top_k": 0}),
        json!({"top_p": 1.5}),
        json!({"max_new_tokens": 0}),
        json!({"max_new_tokens": 10_000}),
        json!({"best_of": 3, "do_sample": true}),
        json!({"best_of": 2}),
        json!({"priority": 4}),
        json!({"cache_salt": ""}),
        json!({"logit_bias": {"1": 101}}),
        json!({"bad_words": ["1", "2", "3", "4", "5"]}),
        json!({"allowed_token_ids": []}),
        json!({"min_new_tokens": 4, "max_new_tokens": 3}),
        json!({"stop": ["1", "2", "3", "4", "5"]}),
        json!({"top_n_tokens": 6}),
        json!({"truncate": 0}),
    ] {
        let field = parameters.as_object().unwrap().keys().next().unwrap().clone();
        let body = json!({"inputs": "hi", "parameters": parameters});
        let error = server.post("/generate", body).await.native_error(422, "validation");
        assert!(error.starts_with("Input validation error: ") && error.contains(&field), "{error}");
    }
    for (grammar, words) in [
        (json!({"type": "regex", "value": "("}), "Grammar error in `grammar`: a regular expression"),
        (json!({"type": "regex", "value": "x".repeat(2000)}), "limit of 1024"),
        (json!({"type": "json", "value": {"not": {}}}), "`not`"),
        (json!({"type": "regex"}), "`grammar.value`"),
    ] {
        let body = json!({"inputs": "hi", "parameters": {"grammar": grammar}});
        for path in ["/generate", "/generate_stream"] {
            let error = server.post(path, body.clone()).await.native_error(422, "validation");
            assert!(error.contains(words), "{error}");
        }
    }
    for inputs in [String::new(), "x".repeat(250)] {
        server.post("/generate", json!({"inputs": inputs})).await.native_error(422, "validation");
    }
    let streamed = json!({"inputs": "hi", "parameters": {"decoder_input_details": true}});
    server.post("/generate_stream", streamed).await.native_error(422, "validation");
    let adapter = json!({"inputs": "hi", "parameters": {"adapter_id": "mine"}});
    assert!(server.post("/generate", adapter).await.native_error(404, "adapter_not_found").contains("`mine`"));
    server.post("/v1/chat/completions", json!({"messages": []})).await.openai_error(422, "validation");
    let zero = json!({"n": 0, "prompt": "a"});
    assert!(server.post("/v1/completions", zero).await.openai_error(422, "validation").contains("at least 1"));
}

#[tokio::test]
async fn the_framework_refuses_in_json_too() {
    let server = Server::new();
    let error = server.send(raw("/generate", "text/plain", "{}")).await.native_error(415, "unsupported_media_type");
    assert!(error.contains("content-type: application/json"));
    server.send(raw("/v1/completions", "text/plain", "{}")).await.openai_error(415, "unsupported_media_type");
    let large = json!({"inputs": "x".repeat(5000)});
    let error = server.post("/generate", large.clone()).await.native_error(413, "payload_too_large");
    assert!(error.contains("4096 bytes"), "{error}");
    server.post("/v1/chat/completions", large).await.openai_error(413, "payload_too_large");
    let error = server.get("/nowhere").await.native_error(404, "not_found");
    assert!(error.contains("GET /nowhere"), "{error}");
    server.get("/v1/nowhere").await.openai_error(404, "not_found");
    let answer = server.get("/generate").await;
    answer.native_error(405, "method_not_allowed");
    assert_eq!(answer.header("allow"), "POST");
    let request = Request::builder().method(Method::DELETE).uri("/v1/models").body(Body::empty()).unwrap();
    server.send(request).await.openai_error(405, "method_not_allowed");
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_408() {
    let patience = Patience { body: std::time::Duration::from_millis(5), ..Patience::default() };
    let server = Server::with(settings(), patience);
    let never = Body::from_stream(futures::stream::pending::<Result<bytes::Bytes, std::io::Error>>());
    server.send(raw("/generate", "application/json", never)).await.native_error(408, "body_timeout");
    let broken = futures::stream::iter([Err::<bytes::Bytes, _>(std::io::Error::other("gone"))]);
    let broken = Body::from_stream(broken);
    server.send(raw("/generate", "application/json", broken)).await.native_error(400, "invalid_body");
}

#[tokio::test]
async fn too_many_at_once_are_429_at_once() {
    let mut server = Server::with(Settings { max_concurrent_requests: 1, ..settings() }, Patience::default());
    let first = tokio::spawn(server.app.clone().oneshot(json_request("/generate", &json!({"inputs": "hi"}))));
    let running = server.submitted().await;
    for path in GENERATION {
        let answer = server.post(path, body_for(path)).await;
        assert_eq!(answer.status, 429, "{path}");
        assert_eq!(answer.header("retry-after"), "1");
        assert_eq!(answer.json()["error_type"], "overloaded");
    }
    let streamed = json!({"prompt": "hi", "stream": true});
    let answer = server.post("/v1/completions", streamed).await;
    answer.openai_error(429, "overloaded");
    assert_eq!(answer.json()["error"]["type"], "rate_limit_error");
    // Routes that generate nothing still answer.
    assert_eq!(server.post("/tokenize", json!({"inputs": "hi"})).await.status, 200);
    assert_eq!(server.get("/health").await.status, 200);
    drop(running);
    assert_eq!(first.await.unwrap().unwrap().status(), 500);
    server.script(crate::server::say("ok"));
    assert_eq!(server.post("/generate", json!({"inputs": "hi"})).await.status, 200);
}

#[tokio::test]
async fn a_call_needs_a_permit_for_each_prompt() {
    let few = Settings { max_concurrent_requests: 2, ..settings() };
    let mut server = Server::with(few, Patience::default());
    server.script(crate::server::say("ok"));
    server.post("/v1/completions", json!({"prompt": ["a", "b", "c"]})).await.openai_error(429, "overloaded");
    assert_eq!(server.post("/v1/completions", json!({"prompt": ["a", "b"]})).await.status, 200);
    assert_eq!(server.state.permits.available_permits(), 2);
}

#[tokio::test]
async fn a_full_engine_is_429() {
    // Nobody reads the submissions, and there is room for 16.
    let server = Server::with(
        Settings { max_concurrent_requests: 32, ..settings() },
        Patience { first_token: std::time::Duration::ZERO, ..Patience::default() },
    );
    let mut open = Vec::new();
    for _ in 0..16 {
        let request = json_request("/generate_stream", &json!({"inputs": "hi"}));
        open.push(server.app.clone().oneshot(request).await.unwrap());
    }
    let answer = server.post("/generate_stream", json!({"inputs": "hi"})).await;
    answer.native_error(429, "overloaded");
    assert_eq!(answer.header("retry-after"), "1");
}

#[tokio::test]
async fn starting_and_draining_refuse_with_503() {
    let mut server = Server::new();
    for (status, error_type, words) in [
        (EngineStatus::Starting, "loading", "still loading"),
        (EngineStatus::Draining, "draining", "shutting down"),
        (EngineStatus::Stopped, "draining", "shutting down"),
    ] {
        server.status.send_replace(status);
        for path in GENERATION {
            let answer = server.post(path, body_for(path)).await;
            assert_eq!(answer.status, 503, "{path} {status:?}");
            assert_eq!(answer.header("retry-after"), "1");
            assert_eq!(answer.json()["error_type"], error_type);
            assert!(answer.body.contains(words), "{}", answer.body);
        }
    }
    // While a shard is awaited, requests wait.
    server.status.send_replace(EngineStatus::Recovering);
    server.script(crate::server::say("ok"));
    assert_eq!(server.post("/generate", json!({"inputs": "hi"})).await.status, 200);
}

#[tokio::test]
async fn a_running_request_survives_draining() {
    let mut server = Server::new();
    let call = tokio::spawn(server.app.clone().oneshot(json_request("/generate", &json!({"inputs": "hi"}))));
    let submission = server.submitted().await;
    server.status.send_replace(EngineStatus::Draining);
    for event in crate::server::say("a") {
        let finish = matches!(&event, Event::Token { token, .. } if token.id == crate::model::EOS);
        let event = match event {
            Event::Token { token, .. } if finish => {
                Event::Token { token, finish: Some(textgen_router::shard::handle::Finish::StopToken) }
            }
            other => other,
        };
        submission.events.send(event).await.unwrap();
    }
    assert_eq!(call.await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn errors_of_the_engine_have_their_status() {
    for (error, status, error_type) in [
        (EngineError::Shard("broken".to_owned()), 424, "generation"),
        (EngineError::TooLong("too long for the KV pool".to_owned()), 422, "validation"),
        (EngineError::Overloaded, 429, "overloaded"),
        (EngineError::Draining, 503, "draining"),
        (EngineError::Stopped, 503, "draining"),
        (EngineError::SlowReader, 408, "slow_reader"),
        (EngineError::Timeout, 504, "timeout"),
    ] {
        let mut server = Server::new();
        server.script(vec![Event::Failed(error)]);
        server.post("/generate", json!({"inputs": "hi"})).await.native_error(status, error_type);
        server.post("/v1/completions", json!({"prompt": "hi"})).await.openai_error(status, error_type);
    }
}

#[tokio::test]
async fn a_template_that_fails_is_422() {
    let server = Server::new();
    let body = json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}],
                      "continue_final_message": true, "add_generation_prompt": true});
    server.post("/v1/chat/completions", body.clone()).await.openai_error(422, "validation");
    server.post("/chat_tokenize", body).await.native_error(422, "validation");
}

#[tokio::test]
async fn a_panic_is_500_and_says_nothing_of_its_reason() {
    async fn boom() {
        panic!("a secret");
    }
    let server = Server::new();
    let app: axum::Router = axum::Router::new()
        .route("/boom", axum::routing::get(boom))
        .layer(axum::middleware::from_fn_with_state(server.state.clone(), layers::finish));
    let response = app.oneshot(Request::get("/boom").body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 500);
    let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["error_type"], "internal");
    assert!(!body.to_string().contains("secret"), "{body}");
}
