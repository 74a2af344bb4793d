//! The numbers in `/metrics`.

use std::time::Duration;

use serde_json::json;
use textgen_router::metrics::{Method, SchedulerView, StepTimes};
use textgen_router::shard::handle::{EngineError, Event};
use tower::ServiceExt;

use crate::client::json_request;
use crate::server::{Server, started, token};

impl Server {
    /// The value of a metric, labels included in its name.
    async fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").await.body;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in\n{page}")).parse().unwrap()
    }

    async fn expect(&self, expected: &[(&str, f64)]) {
        for &(name, value) in expected {
            assert_eq!(self.metric(name).await, value, "{name}");
        }
    }
}

#[tokio::test]
async fn a_successful_call_counts_once() {
    let server = Server::saying("hello");
    server.post("/generate", json!({"inputs": "hi", "parameters": {"max_new_tokens": 50}})).await;
    server
        .expect(&[
            ("tgi_request_count", 1.0),
            ("tgi_request_success", 1.0),
            ("tgi_request_duration_count", 1.0),
            ("tgi_request_validation_duration_count", 1.0),
            ("tgi_request_queue_duration_count", 1.0),
            ("tgi_request_queue_duration_sum", 0.002),
            ("tgi_request_inference_duration_count", 1.0),
            ("tgi_request_mean_time_per_token_duration_count", 1.0),
            ("tgi_request_input_length_sum", 3.0),
            ("tgi_request_generated_tokens_sum", 6.0),
            ("tgi_request_max_new_tokens_sum", 50.0),
            ("tgi_request_skipped_tokens_count", 1.0),
            ("tgi_request_skipped_tokens_sum", 0.0),
            ("textgen_time_to_first_token_seconds_count", 1.0),
            ("textgen_inter_token_seconds_count", 5.0),
            ("textgen_time_to_first_token_part_seconds_count{part=\"tokenize\"}", 1.0),
            ("textgen_time_to_first_token_part_seconds_count{part=\"queue\"}", 1.0),
            ("textgen_time_to_first_token_part_seconds_sum{part=\"queue\"}", 0.002),
            ("textgen_time_to_first_token_part_seconds_count{part=\"prefill\"}", 1.0),
            ("textgen_time_to_first_token_part_seconds_count{part=\"send\"}", 0.0),
            ("textgen_tokens_total{key=\"none\",kind=\"prompt\"}", 3.0),
            ("textgen_tokens_total{key=\"none\",kind=\"generated\"}", 6.0),
            ("textgen_http_requests_total{route=\"/generate\",status=\"200\"}", 1.0),
        ])
        .await;
}

#[tokio::test]
async fn what_tgi_does_and_we_do_not_is_shown_as_none() {
    let server = Server::new();
    for reason in ["backpressure", "wait_exceeded", "chunking"] {
        server.expect(&[(&format!("tgi_batch_concat{{reason=\"{reason}\"}}"), 0.0)]).await;
    }
    server
        .expect(&[
            ("tgi_batch_concat_duration_count{method=\"decode\"}", 0.0),
            ("tgi_batch_filter_duration_bucket{method=\"prefill\",le=\"+Inf\"}", 0.0),
            ("tgi_batch_filter_duration_bucket{method=\"decode\",le=\"+Inf\"}", 0.0),
        ])
        .await;
}

#[tokio::test]
async fn a_start_says_where_its_time_went() {
    let server = Server::new();
    server.expect(&[("textgen_time_to_ready_seconds", 0.0)]).await;
    server.state.metrics.lifecycle.ready(2.5, vec![("import".to_owned(), 1.5), ("read".to_owned(), 0.25)]);
    server
        .expect(&[
            ("textgen_time_to_ready_seconds", 2.5),
            ("textgen_time_to_ready_part_seconds{part=\"import\"}", 1.5),
            ("textgen_time_to_ready_part_seconds{part=\"read\"}", 0.25),
        ])
        .await;
}

#[tokio::test]
async fn what_is_taken_is_in_flight_until_it_is_answered() {
    let mut server = Server::new();
    server.expect(&[("textgen_sequences_in_flight", 0.0)]).await;
    let body = json!({"prompt": ["a", "b"]});
    let call = tokio::spawn(server.app.clone().oneshot(json_request("/v1/completions", &body)));
    let submissions = [server.submitted().await, server.submitted().await];
    // A drain changes nothing about what it waits for.
    server.status.send_replace(textgen_router::shard::handle::EngineStatus::Draining);
    server.expect(&[("textgen_sequences_in_flight", 2.0)]).await;
    drop(submissions);
    drop(call.await.unwrap().unwrap());
    server.expect(&[("textgen_sequences_in_flight", 0.0)]).await;
}

#[tokio::test]
async fn one_call_of_several_prompts_is_one_call() {
    let server = Server::saying("hello");
    for stream in [false, true] {
        server.post("/v1/completions", json!({"prompt": ["a", "b"], "stream": stream})).await;
    }
    server
        .expect(&[
            ("tgi_request_count", 2.0),
            ("tgi_request_success", 2.0),
            ("tgi_request_duration_count", 2.0),
            ("tgi_request_generated_tokens_count", 4.0),
            ("tgi_request_input_length_sum", 8.0),
            // Once for each stream, whose two texts share their first write.
            ("textgen_time_to_first_token_part_seconds_count{part=\"send\"}", 1.0),
        ])
        .await;
}

#[tokio::test]
async fn failures_count_by_cause() {
    let mut server = Server::new();
    server.post("/generate", json!({"inputs": ""})).await;
    server.post("/v1/completions", json!({"prompt": "a", "n": 3})).await;
    server.post("/generate", json!({"wrong": 1})).await;

    let call = tokio::spawn(server.app.clone().oneshot(json_request("/generate", &json!({"inputs": "hi"}))));
    let submission = server.submitted().await;
    call.abort();
    submission.events.closed().await;
    assert!(call.await.unwrap_err().is_cancelled());
    server.expect(&[("textgen_tokens_total{key=\"none\",kind=\"prompt\"}", 3.0)]).await;

    for events in [vec![Event::Failed(EngineError::Shard("x".to_owned()))], vec![started(), token(97)]] {
        let call = tokio::spawn(server.app.clone().oneshot(json_request("/generate", &json!({"inputs": "hi"}))));
        let submission = server.submitted().await;
        for event in events {
            submission.events.send(event).await.unwrap();
        }
        drop(submission);
        call.await.unwrap().unwrap();
    }
    server.status.send_replace(textgen_router::shard::handle::EngineStatus::Draining);
    server.post("/generate", json!({"inputs": "hi"})).await;

    server
        .expect(&[
            // Five calls and a body that was no call.
            ("tgi_request_count", 6.0),
            ("tgi_request_success", 0.0),
            ("tgi_request_failure{err=\"validation\"}", 2.0),
            ("tgi_request_failure{err=\"dropped\"}", 1.0),
            ("tgi_request_failure{err=\"generation\"}", 1.0),
            ("tgi_request_failure{err=\"incomplete\"}", 1.0),
            ("tgi_request_failure{err=\"unavailable\"}", 1.0),
            ("tgi_request_failure{err=\"overloaded\"}", 0.0),
            ("tgi_request_failure{err=\"template\"}", 0.0),
            ("tgi_request_failure{err=\"timeout\"}", 0.0),
            // Of the three that the engine took; the last of them got a token before it was cut short.
            ("textgen_tokens_total{key=\"none\",kind=\"prompt\"}", 9.0),
            ("textgen_tokens_total{key=\"none\",kind=\"generated\"}", 1.0),
            ("textgen_http_requests_total{route=\"/generate\",status=\"422\"}", 2.0),
            ("textgen_http_requests_total{route=\"/v1/completions\",status=\"422\"}", 1.0),
            ("textgen_http_requests_total{route=\"/generate\",status=\"503\"}", 1.0),
        ])
        .await;
}

#[tokio::test]
async fn paths_that_lead_nowhere_share_a_label() {
    let server = Server::new();
    server.get("/one").await;
    server.get("/two").await;
    server.expect(&[("textgen_http_requests_total{route=\"unmatched\",status=\"404\"}", 2.0)]).await;
}

#[tokio::test]
async fn buckets_are_tgis() {
    let server = Server::saying("a");
    server.post("/generate", json!({"inputs": "hi"})).await;
    let page = server.get("/metrics").await.body;
    let buckets = |name: &str| -> Vec<f64> {
        let start = format!("{name}_bucket{{le=\"");
        let bounds = page.lines().filter_map(|line| line.strip_prefix(&start)?.split_once('"'));
        bounds.filter(|(bound, _)| *bound != "+Inf").map(|(bound, _)| bound.parse().unwrap()).collect()
    };
    let seconds = buckets("tgi_request_duration");
    assert_eq!(seconds.len(), 35);
    assert!((seconds[0] - 0.00015).abs() < 1e-9 && (seconds[34] - 145.6).abs() < 0.1);
    let lengths = buckets("tgi_request_input_length");
    assert_eq!((lengths.len(), lengths[0], lengths[99]), (100, 2.0, 200.0));
    assert_eq!(buckets("tgi_request_max_new_tokens")[99], 300.0);
}

#[tokio::test]
async fn the_engines_numbers_arrive() {
    let server = Server::new();
    let engine = &server.state.metrics.engine;
    let ms = Duration::from_millis;
    engine.step_sent(Method::Prefill, 3);
    engine.step_sent(Method::Decode, 2);
    let times = StepTimes { plan: ms(1), queue: ms(2), forward: ms(4), sample: ms(8), deliver: ms(16), total: ms(14) };
    engine.observe_step(Method::Decode, &times);
    engine.step_failed(Method::Prefill);
    engine.set_scheduler(&SchedulerView {
        waiting: 5,
        running: 3,
        running_max_tokens: 900,
        blocks_used: 7,
        blocks_cached: 2,
        blocks_total: 64,
    });
    engine.set_max_total_tokens(1024);
    engine.preemptions.increment(2);
    engine.shard_restarts.increment(1);
    server
        .expect(&[
            ("tgi_batch_inference_count{method=\"prefill\"}", 1.0),
            ("tgi_batch_inference_count{method=\"decode\"}", 1.0),
            ("tgi_batch_inference_success{method=\"decode\"}", 1.0),
            ("tgi_batch_inference_failure{method=\"prefill\"}", 1.0),
            ("tgi_batch_inference_duration_sum{method=\"decode\"}", 0.014),
            ("tgi_batch_forward_duration_sum{method=\"decode\"}", 0.004),
            ("tgi_batch_decode_duration_sum{method=\"decode\"}", 0.008),
            ("tgi_batch_next_size_sum", 5.0),
            ("tgi_batch_current_size", 3.0),
            ("tgi_batch_current_max_tokens", 900.0),
            ("tgi_batch_max_total_tokens", 1024.0),
            ("tgi_queue_size", 5.0),
            ("textgen_sequences_running", 3.0),
            ("textgen_sequences_waiting", 5.0),
            ("textgen_kv_blocks_used", 7.0),
            ("textgen_kv_blocks_total", 64.0),
            ("textgen_preemptions_total", 2.0),
            ("textgen_shard_restarts_total", 1.0),
            ("textgen_step_seconds_sum{part=\"plan\"}", 0.001),
            ("textgen_step_seconds_sum{part=\"deliver\"}", 0.016),
        ])
        .await;
}
