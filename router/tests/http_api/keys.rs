//! Keys that calls need: who is let in, what each may have at once, and how a file of keys is followed.

use std::path::{Path, PathBuf};

use axum::body::Body;
use serde_json::json;
use textgen_router::grpc::proto::{ModelMetadataRequest, ServerLiveRequest, ServerMetadataRequest};
use textgen_router::http::Patience;
use textgen_router::http::keys::KeyRing;
use textgen_router::secret::Secret;
use textgen_router::settings::Settings;
use tonic::{Code, Request};

use crate::client::{Answer, json_request, with_headers};
use crate::server::{Server, say, settings};

/// A file of keys that is gone with the test.
struct KeyFile(PathBuf);

impl KeyFile {
    fn new(name: &str, content: &str) -> Self {
        let path = std::env::temp_dir().join(format!("textgen-keys-{name}-{}.json", std::process::id()));
        std::fs::write(&path, content).unwrap();
        Self(path)
    }

    /// As a careful editor writes: another file in its place, so that no reader finds half of it.
    fn replace(&self, content: &str) {
        let fresh = self.0.with_extension("new");
        std::fs::write(&fresh, content).unwrap();
        std::fs::rename(fresh, &self.0).unwrap();
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn keyed(key: Option<&str>, file: Option<&Path>) -> Settings {
    Settings { api_key: key.map(Secret::from), api_key_file: file.map(Path::to_owned), ..settings() }
}

fn serving(settings: Settings) -> Server {
    let mut server = Server::with(settings, Patience::default());
    server.script(say("ok"));
    server
}

async fn ask(server: &Server, path: &str, headers: &[(&'static str, &str)]) -> Answer {
    let body =
        json!({"inputs": "hi", "prompt": "hi", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]});
    server.send(with_headers(json_request(path, &body), headers)).await
}

#[tokio::test]
async fn every_route_but_liveness_needs_the_key() {
    let server = serving(keyed(Some("sesame"), None));
    for path in ["/health", "/ping", "/ready", "/v2/health/live", "/v2/health/ready"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    let paths =
        ["/", "/info", "/metrics", "/docs", "/api-doc/openapi.json", "/v1/models", "/api/tags", "/v2", "/nowhere"];
    for path in paths {
        let answer = server.get(path).await;
        assert_eq!((answer.status.as_u16(), answer.header("www-authenticate")), (401, "Bearer"), "{path}");
    }
    for path in ["/generate", "/v1/chat/completions", "/v1/completions", "/v1/messages", "/api/chat", "/tokenize"] {
        for headers in [vec![], vec![("authorization", "Bearer sesam")], vec![("x-api-key", "sesame2")]] {
            assert_eq!(ask(&server, path, &headers).await.status, 401, "{path}: {headers:?}");
        }
        for headers in
            [("authorization", "Bearer sesame"), ("authorization", "bearer  sesame"), ("x-api-key", "sesame")]
        {
            assert_eq!(ask(&server, path, &[headers]).await.status, 200, "{path}: {headers:?}");
        }
    }
    assert_eq!(ask(&server, "/v1/completions", &[]).await.json()["error"]["type"], "authentication_error");
    assert_eq!(ask(&server, "/v1/messages", &[]).await.json()["error"]["type"], "authentication_error");
    assert_eq!(ask(&server, "/generate", &[]).await.json()["error_type"], "unauthorized");
}

#[tokio::test]
async fn grpc_needs_the_key_too() {
    let server = serving(keyed(Some("sesame"), None));
    let mut client = server.grpc();
    assert!(client.server_live(ServerLiveRequest {}).await.unwrap().into_inner().live);
    let refused = client.server_metadata(ServerMetadataRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    let asked = || ModelMetadataRequest { name: "test/bytes".to_owned(), version: String::new() };
    assert_eq!(client.model_metadata(asked()).await.unwrap_err().code(), Code::Unauthenticated);
    let mut request = Request::new(asked());
    request.metadata_mut().insert("authorization", "Bearer sesame".parse().unwrap());
    assert!(client.model_metadata(request).await.is_ok());
}

#[tokio::test]
async fn keys_of_a_file_have_limits_of_their_own() {
    let file =
        KeyFile::new("limits", r#"{"keys": [{"key": "wide"}, {"name": "n", "key": "narrow", "max_requests": 1}]}"#);
    let server = serving(keyed(Some("sesame"), Some(&file.0)));
    for (key, status) in [("wide", 200), ("sesame", 200), ("narrow", 429), ("other", 401)] {
        let body = json!({"prompt": "hi", "max_tokens": 8, "n": 2});
        let request = with_headers(json_request("/v1/completions", &body), &[("x-api-key", key)]);
        assert_eq!(server.send(request).await.status, status, "{key}");
    }
    assert_eq!(ask(&server, "/v1/completions", &[("x-api-key", "narrow")]).await.status, 200);
}

#[tokio::test]
async fn tokens_are_counted_by_the_name_of_the_key() {
    let keys = r#"{"keys": [{"name": "team a", "key": "one"}, {"name": "team a", "key": "two"}, {"key": "hush"}]}"#;
    let file = KeyFile::new("names", keys);
    let server = serving(keyed(Some("sesame"), Some(&file.0)));
    for key in ["one", "two", "hush", "sesame", "guessed"] {
        ask(&server, "/v1/completions", &[("x-api-key", key)]).await;
    }
    // A prompt of three tokens each, and an answer of two letters and an end; no key is in the page.
    let page = server
        .send(with_headers(axum::http::Request::get("/metrics").body(Body::empty()).unwrap(), &[("x-api-key", "one")]));
    let page = page.await.body;
    for (name, calls) in [("team a", 2), ("unnamed", 1), ("api-key", 1), ("none", 0)] {
        for kind in ["prompt", "generated"] {
            let line = format!("textgen_tokens_total{{key=\"{name}\",kind=\"{kind}\"}} {}\n", 3 * calls);
            assert!(page.contains(&line), "{line}{page}");
        }
    }
    assert!(!page.contains("sesame") && !page.contains("hush"));
}

#[tokio::test]
async fn a_file_that_changes_is_read_again_and_a_broken_one_changes_nothing() {
    let file = KeyFile::new("changes", r#"{"keys": [{"key": "one"}]}"#);
    let server = serving(keyed(None, Some(&file.0)));
    let status = async |key: &str| ask(&server, "/v1/completions", &[("x-api-key", key)]).await.status.as_u16();
    assert_eq!((status("one").await, status("two").await), (200, 401));
    file.replace(r#"{"keys": [{"key": "two"}]}"#);
    server.state.ring.refresh();
    assert_eq!((status("one").await, status("two").await), (401, 200));
    for broken in ["", "{", r#"{"keys": []}"#, r#"{"keys": [{"key": "three", "sha256": "x"}]}"#] {
        file.replace(broken);
        server.state.ring.refresh();
        assert_eq!((status("two").await, status("three").await), (200, 401), "{broken}");
    }
    std::fs::remove_file(&file.0).unwrap();
    server.state.ring.refresh();
    assert_eq!(status("two").await, 200);
    file.replace(r#"{"keys": [{"key": "three"}]}"#);
    server.state.ring.refresh();
    assert_eq!((status("two").await, status("three").await), (401, 200));
}

#[test]
fn a_file_that_is_of_no_use_is_named_and_nothing_of_it_shown() {
    let file = KeyFile::new("useless", r#"{"keys": [{"key": "hush", "more": 1}]}"#);
    let error = KeyRing::of(&keyed(None, Some(&file.0))).unwrap_err().to_string();
    assert!(error.starts_with("--api-key-file ") && error.contains("line 1, column"), "{error}");
    assert!(!error.contains("hush"));
    let missing = KeyRing::of(&keyed(None, Some(Path::new("/nonexistent/keys")))).unwrap_err().to_string();
    assert!(missing.contains("/nonexistent/keys"), "{missing}");
    let shown = format!("{:?} {:?}", keyed(Some("hush"), None), KeyRing::of(&keyed(Some("hush"), None)).unwrap());
    assert!(!shown.contains("hush"), "{shown}");
}
