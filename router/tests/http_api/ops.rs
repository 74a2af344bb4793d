//! Health, readiness, facts, the shard's metrics, and what surrounds every answer.

use axum::body::Body;
use axum::http::Request;
use serde_json::json;
use textgen_router::http::Patience;
use textgen_router::settings::Settings;
use textgen_router::shard::handle::EngineStatus;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

use crate::server::{Server, settings};

#[tokio::test]
async fn health_and_readiness_follow_the_engine() {
    use EngineStatus::{Draining, Ready, Recovering, Starting, Stopped};
    let server = Server::new();
    for (status, alive, ready) in
        [(Starting, 503, 503), (Ready, 200, 200), (Recovering, 200, 503), (Draining, 200, 503), (Stopped, 503, 503)]
    {
        server.status.send_replace(status);
        for path in ["/", "/health", "/ping"] {
            let answer = server.get(path).await;
            assert_eq!(answer.status, alive, "{path} {status:?}");
            if alive == 200 {
                assert_eq!(answer.body, "");
            } else {
                assert_eq!(answer.json(), json!({"error": "unhealthy", "error_type": "healthcheck"}));
            }
        }
        assert_eq!(server.get("/ready").await.status, ready, "{status:?}");
    }
}

#[tokio::test]
async fn info_has_the_keys_of_both_tgis() {
    let server = Server::new();
    let info = server.get("/info").await.json();
    let expected = json!({
        "model_id": "test/bytes", "model_sha": null, "model_pipeline_tag": "text-generation",
        "model_dtype": "float32", "model_device_type": "cpu", "max_concurrent_requests": 4, "max_best_of": 2,
        "max_stop_sequences": 4, "max_input_tokens": 200, "max_total_tokens": 300, "max_batch_total_tokens": null,
        "waiting_served_ratio": info["waiting_served_ratio"], "max_waiting_tokens": 20, "max_batch_size": null,
        "validation_workers": 1, "max_client_batch_size": 3, "router": "textgen-router", "version": "1.2.3",
        "sha": null, "docker_label": null,
    });
    assert_eq!(info, expected);
    assert!(info["waiting_served_ratio"].is_number());
    server.state.metrics.engine.set_max_total_tokens(4096);
    assert_eq!(server.get("/info").await.json()["max_batch_total_tokens"], 4096);
}

#[tokio::test]
async fn models_are_listed_as_tgi_and_vllm_list_them() {
    let server = Server::new();
    let list = server.get("/v1/models").await.json();
    let card = json!({
        "id": "test/bytes", "object": "model", "created": 0, "owned_by": "test/bytes", "max_model_len": 300,
    });
    assert_eq!(list, json!({"object": "list", "data": [card]}));
    // As clients of either habit write a name with a slash, and by its last part.
    for name in ["test/bytes", "test%2Fbytes", "bytes"] {
        assert_eq!(server.get(&format!("/v1/models/{name}")).await.json(), card, "{name}");
    }
    for name in ["gpt-4", "test/other", "bytes/test", "%FF"] {
        let answer = server.get(&format!("/v1/models/{name}")).await;
        assert!([400, 404].contains(&answer.status.as_u16()), "{name}: {}", answer.body);
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error", "{name}");
    }
}

#[tokio::test]
async fn models_are_listed_for_anthropics_clients() {
    let server = Server::new();
    let ask = |path: &str| Request::get(path).header("anthropic-version", "2023-06-01").body(Body::empty()).unwrap();
    let card = json!({
        "type": "model", "id": "test/bytes", "display_name": "test/bytes", "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active", "max_input_tokens": 200, "max_tokens": 299,
    });
    let list = json!({"data": [card], "has_more": false, "first_id": "test/bytes", "last_id": "test/bytes"});
    assert_eq!(server.send(ask("/v1/models?limit=20")).await.json(), list);
    assert_eq!(server.send(ask("/v1/models/test%2Fbytes")).await.json(), card);
    assert_eq!(server.send(ask("/v1/models/claude")).await.status, 404);
}

#[tokio::test]
async fn a_sane_request_id_is_repeated_and_another_replaced() {
    let server = Server::new();
    let ask = |id: &'static [u8]| Request::get("/health").header("x-request-id", id).body(Body::empty()).unwrap();
    assert_eq!(server.send(ask(b"abc-123.X")).await.header("x-request-id"), "abc-123.X");
    for bad in [&b"has space"[..], &[b'x'; 129], b"", b"caf\xC3\xA9"] {
        let answer = server.send(ask(bad)).await;
        assert_eq!(answer.header("x-request-id").len(), 36);
    }
    let (first, second) = (server.get("/info").await, server.get("/nowhere").await);
    assert_ne!(first.header("x-request-id"), second.header("x-request-id"));
}

#[tokio::test]
async fn cors_lets_browsers_in() {
    let preflight = |origin: &'static str| {
        Request::builder()
            .method("OPTIONS")
            .uri("/v1/chat/completions")
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "authorization,content-type,x-stainless-lang,anthropic-version")
            .body(Body::empty())
            .unwrap()
    };
    let answer = Server::new().send(preflight("https://a.example")).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("access-control-allow-origin"), "*");
    for name in ["authorization", "content-type", "x-stainless-lang", "anthropic-version"] {
        assert!(answer.header("access-control-allow-headers").contains(name), "{name}");
    }

    let only = Settings { cors_allow_origin: vec!["https://a.example".to_owned()], ..settings() };
    let server = Server::with(only, Patience::default());
    let allowed = server.send(preflight("https://a.example")).await;
    assert_eq!(allowed.header("access-control-allow-origin"), "https://a.example");
    let refused = server.send(preflight("https://b.example")).await;
    assert!(!refused.headers.contains_key("access-control-allow-origin"));
}

/// A shard's ops app that answers every request with these bytes and says no more, but does not hang up.
fn shard(name: &str, answer: Vec<u8>) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("textgen-{name}-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let read = connection.read(&mut request).await.unwrap();
            assert!(request[..read].starts_with(b"GET /metrics HTTP/1.1\r\n"));
            // The reader may hang up in the middle of a page that is too long.
            let _ = connection.write_all(&answer).await;
            open.push(connection);
        }
    });
    path
}

#[tokio::test]
async fn the_shards_metrics_follow_the_routers() {
    let server = Server::new();
    let alone = server.get("/metrics").await;
    assert_eq!(alone.status, 200);
    assert!(alone.header("content-type").starts_with("text/plain; version=0.0.4"));
    assert!(alone.body.contains("tgi_queue_size 0"));

    let page = "shard_steps_total 5\n";
    let http = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{page}", page.len());
    let path = shard("good", http.into_bytes());
    server.socket.send_replace(Some(path.clone()));
    let both = server.get("/metrics").await.body;
    assert!(both.contains("tgi_queue_size 0") && both.ends_with("shard_steps_total 5\n"), "{both}");
    std::fs::remove_file(path).unwrap();

    // A shard that is gone, fails, says too much or nothing at all does not take the router's metrics with it.
    let gone = server.get("/metrics").await;
    assert!(gone.status == 200 && !gone.body.contains("shard_steps_total"));
    let failing = shard("failing", b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n".to_vec());
    let huge = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{}", 2 << 20, "x".repeat(2 << 20));
    for path in [failing, shard("huge", huge.into_bytes()), shard("silent", Vec::new())] {
        server.socket.send_replace(Some(path.clone()));
        let answer = server.get("/metrics").await;
        assert_eq!(answer.status, 200);
        assert!(answer.body.contains("tgi_queue_size 0") && answer.body.len() < 1 << 20);
        std::fs::remove_file(path).unwrap();
    }
}
