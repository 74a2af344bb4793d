//! Who is let in: limits of the queue and of each key, and what those hear who are not.

use std::convert::Infallible;

use axum::response::Response;
use serde_json::{Value, json};
use textgen_router::http::Patience;
use textgen_router::settings::Settings;
use textgen_router::shard::handle::Submission;
use tokio::task::JoinHandle;
use tower::ServiceExt;

use crate::client::{Answer, json_request, with_headers};
use crate::server::{Server, say, settings};

fn server(settings: Settings) -> Server {
    Server::with(Settings { max_concurrent_requests: 8, max_batch_size: Some(1), ..settings }, Patience::default())
}

type Call = JoinHandle<Result<Response, Infallible>>;

impl Server {
    /// A call by the holder of a key that stays in the house until it is dropped.
    async fn stay(&mut self, key: &str, body: &Value) -> (Submission, Call) {
        let request = with_headers(json_request("/generate", body), &[("x-api-key", key)]);
        let call = tokio::spawn(self.app.clone().oneshot(request));
        (self.submitted().await, call)
    }

    async fn post_as(&self, key: &str, path: &str, body: &Value) -> Answer {
        self.send(with_headers(json_request(path, body), &[("x-api-key", key)])).await
    }

    async fn refused(&self, cause: &str) -> f64 {
        let page = self.get("/metrics").await.body;
        let name = format!("textgen_requests_refused_total{{cause=\"{cause}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
    }
}

fn native(max_new_tokens: u32) -> Value {
    json!({"inputs": "hi", "parameters": {"max_new_tokens": max_new_tokens}})
}

fn advised(answer: &Answer) {
    assert!((1.0..=60.0).contains(&answer.number("retry-after")), "{:?}", answer.headers);
}

#[tokio::test]
async fn a_full_queue_is_503_on_every_route_streamed_or_not() {
    let mut server = server(Settings { max_queue_size: Some(1), ..settings() });
    let (_running, _waiting) = (server.stay("a", &native(5)).await, server.stay("b", &native(5)).await);
    for path in ["/generate", "/generate_stream"] {
        let answer = server.post_as("c", path, &native(5)).await;
        assert!(answer.native_error(503, "queue_full").contains("too many requests wait"));
        advised(&answer);
    }
    for stream in [false, true] {
        let answer = server.post_as("c", "/v1/completions", &json!({"prompt": "hi", "stream": stream})).await;
        answer.openai_error(503, "queue_full");
        assert_eq!(answer.json()["error"]["type"], "server_error");
        advised(&answer);
    }
    assert_eq!(server.refused("queue_requests").await, 4.0);
}

#[tokio::test]
async fn expected_tokens_beyond_the_pool_are_503() {
    let mut server = server(Settings { max_queue_tokens: Some(40), ..settings() });
    server.state.metrics.engine.set_max_total_tokens(100);
    // Three tokens of prompt each.
    let _running = server.stay("a", &native(97)).await;
    let _waiting = server.stay("b", &native(27)).await;
    let answer = server.post_as("c", "/generate_stream", &native(20)).await;
    assert!(answer.native_error(503, "queue_full").contains("too many tokens wait"));
    advised(&answer);
    let _fits = server.stay("c", &native(7)).await;
    assert_eq!(server.refused("queue_tokens").await, 1.0);
}

#[tokio::test]
async fn a_key_that_has_its_share_is_429_and_others_are_served() {
    let limits = Settings { max_requests_per_key: Some(2), max_tokens_per_key: Some(50), ..settings() };
    let mut server = server(limits);
    let _first = server.stay("a", &native(30)).await;
    let answer = server.post_as("a", "/generate", &native(30)).await;
    assert!(answer.native_error(429, "rate_limited").contains("tokens of this key"));
    let _second = server.stay("a", &native(5)).await;
    let answer = server.post_as("a", "/v1/completions", &json!({"prompt": "hi", "stream": true})).await;
    assert!(answer.openai_error(429, "rate_limited").contains("requests of this key"));
    assert_eq!(answer.json()["error"]["type"], "rate_limit_error");
    advised(&answer);
    assert_eq!((server.refused("key_tokens").await, server.refused("key_requests").await), (1.0, 1.0));
    server.script(say("a"));
    assert_eq!(server.post_as("b", "/generate", &native(30)).await.status, 200);
    assert_eq!(server.post("/generate", native(30)).await.status, 200);
}

#[tokio::test]
async fn who_is_refused_leaves_no_trace() {
    let mut server = server(Settings { max_queue_size: Some(0), ..settings() });
    let (running, call) = server.stay("a", &native(5)).await;
    for _ in 0..50 {
        server.post_as("b", "/generate", &native(5)).await.native_error(503, "queue_full");
    }
    drop(running);
    assert_eq!(call.await.unwrap().unwrap().status(), 500);
    server.script(say("a"));
    assert_eq!(server.post_as("b", "/generate", &native(5)).await.status, 200);
    assert_eq!(server.state.permits.available_permits(), 8);
}

#[tokio::test]
async fn keys_are_in_no_metric_and_no_answer() {
    let mut server = server(Settings { max_requests_per_key: Some(1), ..settings() });
    let _first = server.stay("sesame", &native(30)).await;
    let answer = server.post_as("sesame", "/generate", &native(30)).await;
    assert!(!format!("{answer:?} {}", server.get("/metrics").await.body).contains("sesame"));
}
