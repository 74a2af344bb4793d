//! The OpenAPI document against the routes.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::server::Server;

/// The routes as the source of the server has them: path and method.
fn routes() -> BTreeSet<(String, String)> {
    let source = concat!(include_str!("../../src/http/mod.rs"), include_str!("../../src/http/inference/mod.rs"));
    let mut routes = BTreeSet::new();
    for line in source.lines().filter_map(|line| line.trim().strip_prefix(".route(\"")) {
        let (path, methods) = line.split_once('"').unwrap();
        for method in ["get", "post", "delete"].into_iter().filter(|method| methods.contains(&format!("{method}("))) {
            // A parameter with slashes in it is written as any other.
            routes.insert((path.replace("{*", "{"), method.to_owned()));
        }
    }
    routes
}

#[tokio::test]
async fn it_lists_every_route() {
    let document = Server::new().get("/api-doc/openapi.json").await.json();
    let mut listed = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            listed.insert((path.clone(), method.clone()));
        }
    }
    assert!(listed.len() > 10);
    assert_eq!(listed, routes());
    assert_eq!(document["info"]["version"], "1.2.3");
}

#[tokio::test]
async fn routes_that_generate_list_the_headers_of_a_standing() {
    let document = Server::new().get("/api-doc/openapi.json").await.json();
    let mut found = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for operation in methods.as_object().unwrap().values() {
            let headers: Vec<_> = operation["parameters"].as_array().into_iter().flatten().collect();
            let header = |given: &&Value| {
                let reference = given["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
                reference.map_or(*given, |pointer| document.pointer(pointer).unwrap()).clone()
            };
            let headers: Vec<Value> = headers.iter().map(header).collect();
            let named = |name: &str| headers.iter().any(|header| header["name"] == name && header["in"] == "header");
            assert_eq!(named("x-request-timeout"), named("x-request-priority"), "{path}");
            if named("x-request-timeout") {
                found.insert(path.as_str());
            }
        }
    }
    assert_eq!(found.len(), 15, "{found:?}");
    assert!(found.contains("/generate") && found.contains("/v1/chat/completions") && !found.contains("/tokenize"));
}

#[tokio::test]
async fn every_reference_leads_somewhere() {
    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(reference)) = map.get("$ref") {
                    found.insert(reference.clone());
                }
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(list) => list.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let document = Server::new().get("/api-doc/openapi.json").await.json();
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(found.len() > 15, "{found:?}");
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

/// The bodies whose fields have bounds: path, schema, body, where the fields go.
fn bounded_bodies() -> [(&'static str, &'static str, Value, &'static str); 3] {
    [
        ("/generate", "GenerateParameters", json!({"inputs": "hi", "parameters": {"do_sample": true}}), "/parameters"),
        ("/v1/chat/completions", "ChatRequest", json!({"messages": [{"role": "user", "content": "hi"}]}), ""),
        ("/v1/completions", "CompletionRequest", json!({"prompt": "hi"}), ""),
    ]
}

/// The values at a bound that a schema states, and just past it.
fn at_and_past(keyword: &str, bound: &Value) -> Option<(Option<Value>, Value)> {
    let number = || bound.as_f64().unwrap();
    let whole = |by: i64| bound.as_i64().map_or_else(|| json!(number() + by as f64 / 8.0), |bound| json!(bound + by));
    let length = || bound.as_u64().unwrap() as usize;
    match keyword {
        "minimum" => Some((Some(bound.clone()), whole(-1))),
        "maximum" => Some((Some(bound.clone()), whole(1))),
        "exclusiveMinimum" => Some((None, bound.clone())),
        "minLength" => Some((Some(json!("x".repeat(length()))), json!("x".repeat(length() - 1)))),
        "maxLength" => Some((Some(json!("x".repeat(length()))), json!("x".repeat(length() + 1)))),
        "minItems" => Some((Some(json!(vec![1; length()])), json!(vec![1; length() - 1]))),
        "maxItems" => Some((Some(json!(vec![1; length()])), json!(vec![1; length() + 1]))),
        _ => None,
    }
}

#[tokio::test]
async fn its_bounds_are_those_of_validation() {
    let server = Server::saying("Hello");
    let document = server.get("/api-doc/openapi.json").await.json();
    let mut checked = 0;
    for (path, schema, body, place) in bounded_bodies() {
        let fields = document.pointer(&format!("/components/schemas/{schema}/properties")).unwrap();
        for (name, field) in fields.as_object().unwrap() {
            // The bounds of the messages, of prompts and of tools are those of their own types.
            if ["messages", "prompt", "tools"].contains(&name.as_str()) {
                continue;
            }
            for (keyword, bound) in field.as_object().unwrap() {
                let Some((at, past)) = at_and_past(keyword, bound) else { continue };
                let said = async |value: Value| {
                    let mut body = body.clone();
                    body.pointer_mut(place).unwrap()[name] = value;
                    if name == "top_logprobs" {
                        body["logprobs"] = json!(true);
                    }
                    let answer = server.post(path, body).await;
                    (answer.status.as_u16(), answer.body)
                };
                let (status, text) = said(past.clone()).await;
                let named =
                    text.contains(name.as_str()) || (name.starts_with("max_") && text.contains("max_new_tokens"));
                assert!(status == 422 && named, "{path}: {name} = {past}: {status} {text}");
                if let Some(at) = at {
                    // The length of the prompt and that of the answer have a bound together.
                    let (_, text) = said(at.clone()).await;
                    let refused = text.contains(&format!("`{name}` must")) && !text.contains("`inputs` tokens +");
                    assert!(!refused, "{path}: {name} = {at}: {text}");
                }
                checked += 1;
            }
        }
    }
    assert!(checked > 60, "{checked}");
}

#[tokio::test]
async fn every_answer_names_its_request_and_every_refusal_for_want_of_room_says_when_to_come_back() {
    let document = Server::new().get("/api-doc/openapi.json").await.json();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for operation in methods.as_object().unwrap().values() {
            for (status, response) in operation["responses"].as_object().unwrap() {
                assert!(!response["headers"]["x-request-id"].is_null(), "{path} {status}");
                let advised = !response["headers"]["retry-after"].is_null();
                assert_eq!(advised, ["429", "503"].contains(&status.as_str()), "{path} {status}");
            }
        }
    }
}

#[tokio::test]
async fn the_page_of_routes_loads_nothing_from_outside() {
    let server = Server::new();
    let page = server.get("/docs").await;
    assert_eq!((page.status.as_u16(), page.header("content-type")), (200, "text/html; charset=utf-8"));
    assert!(page.header("content-security-policy").starts_with("default-src 'none'"));
    assert!(!page.body.contains("//"), "an address: {}", page.body);
    let names: Vec<&str> =
        page.body.split('"').filter_map(|word| word.strip_prefix("docs/")).filter(|name| !name.is_empty()).collect();
    assert_eq!(names.len(), 4);
    for name in names {
        let request = Request::get(format!("/docs/{name}")).body(Body::empty()).unwrap();
        let response = server.app.clone().oneshot(request).await.unwrap();
        let zipped = response.headers().get("content-encoding").is_some_and(|coding| coding == "gzip");
        assert_eq!(response.status(), 200, "{name}");
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(bytes.starts_with(&[0x1f, 0x8b]), zipped, "{name}");
        assert!(!bytes.is_empty(), "{name}");
    }
    server.get("/docs/swagger-initializer.js").await.native_error(404, "not_found");
}
