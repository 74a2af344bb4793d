//! Whose a request is, how urgent, and until when: from headers and body to the engine.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use textgen_router::http::Patience;
use textgen_router::request::Standing;
use textgen_router::settings::Settings;
use textgen_router::shard::handle::{EngineError, Event};
use tower::ServiceExt;

use crate::client::{json_request, with_headers};
use crate::server::{Server, settings, started, token};

const PATHS: [&str; 3] = ["/generate", "/v1/chat/completions", "/v1/completions"];

/// A body of any route, with these fields where the route has its parameters.
fn body(path: &str, fields: &Value) -> Value {
    if path == "/generate" {
        return json!({"inputs": "hi", "parameters": fields});
    }
    let mut body = json!({"prompt": "hi", "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// What the engine is told of a call.
async fn standing(server: &mut Server, path: &str, headers: &[(&'static str, &str)], fields: Value) -> Standing {
    let request = with_headers(json_request(path, &body(path, &fields)), headers);
    let call = tokio::spawn(server.app.clone().oneshot(request));
    let submission = server.submitted().await;
    drop(submission.events);
    call.await.unwrap().unwrap();
    submission.standing
}

#[tokio::test]
async fn a_key_is_a_tenant_with_a_cache_of_its_own() {
    let mut server = Server::new();
    for path in PATHS {
        let anonymous = standing(&mut server, path, &[], json!({})).await;
        assert_eq!((anonymous.tenant, anonymous.priority, anonymous.deadline), (0, 0, None));
        let first = standing(&mut server, path, &[("authorization", "Bearer one")], json!({})).await;
        let again = standing(&mut server, path, &[("x-api-key", "one")], json!({})).await;
        let second = standing(&mut server, path, &[("authorization", "Bearer two")], json!({})).await;
        assert_eq!(first, again);
        assert_ne!(first.tenant, second.tenant);
        assert_ne!(first.cache_key, second.cache_key);
        assert_ne!(first.cache_key, anonymous.cache_key);
        let salted = standing(&mut server, path, &[("x-api-key", "one")], json!({"cache_salt": "s"})).await;
        assert_eq!(salted.tenant, first.tenant);
        assert_ne!(salted.cache_key, first.cache_key);
    }
}

#[tokio::test]
async fn the_later_class_counts() {
    let mut server = Server::new();
    for (header, field, class) in
        [(None, json!(2), 2), (Some("1"), json!(null), 1), (Some("3"), json!(1), 3), (Some("0"), json!(1), 1)]
    {
        let headers: Vec<_> = header.map(|value| ("x-request-priority", value)).into_iter().collect();
        for path in PATHS {
            assert_eq!(standing(&mut server, path, &headers, json!({"priority": field})).await.priority, class);
        }
    }
}

#[tokio::test]
async fn a_deadline_counts_from_the_call() {
    let mut server = Server::new();
    let before = Instant::now();
    let asked = standing(&mut server, "/generate", &[("x-request-timeout", "100")], json!({})).await;
    let (deadline, after) = (asked.deadline.unwrap(), Instant::now());
    assert!(deadline >= before + Duration::from_secs(100) && deadline <= after + Duration::from_secs(100));

    let mut server = Server::with(Settings { max_request_timeout: Some(5.0), ..settings() }, Patience::default());
    for headers in [&[][..], &[("x-request-timeout", "100")]] {
        let capped = standing(&mut server, "/generate", headers, json!({})).await.deadline.unwrap();
        assert!(capped <= Instant::now() + Duration::from_secs(5));
    }
}

#[tokio::test]
async fn what_cannot_be_used_is_422_and_takes_no_room() {
    let server = Server::saying("a");
    for (headers, fields, words) in [
        (&[("x-request-timeout", "soon")][..], json!({}), "`x-request-timeout` must be seconds"),
        (&[("x-request-priority", "high")], json!({}), "`x-request-priority` must be a whole number from 0"),
        (&[("x-request-priority", "-1")], json!({}), "from 0 (first, and the default) to 3 (last)"),
        (&[], json!({"priority": -1}), "`priority` must be a whole number"),
        (&[], json!({"priority": 4}), "`priority` must be a whole number"),
        (&[], json!({"cache_salt": "x".repeat(257)}), "`cache_salt` must have from 1 to 256 bytes"),
    ] {
        for path in PATHS {
            let request = with_headers(json_request(path, &body(path, &fields)), headers);
            let answer = server.send(request).await;
            assert!(answer.status == 422 && answer.body.contains(words), "{path} {}", answer.body);
        }
    }
    assert_eq!(server.state.permits.available_permits(), 4);
}

#[tokio::test]
async fn a_stream_that_takes_too_long_ends_with_an_event() {
    let mut server = Server::new();
    server.script(vec![started(), token(97), Event::Failed(EngineError::Timeout)]);
    let events = server.post("/generate_stream", json!({"inputs": "hi"})).await.events();
    assert_eq!(events[1]["error_type"], "timeout");
    let chat = json!({"stream": true, "messages": [{"role": "user", "content": "hi"}]});
    let events = server.post("/v1/chat/completions", chat).await.events();
    assert_eq!(events[events.len() - 2]["error"]["http_status_code"], 504);
}
