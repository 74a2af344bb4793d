//! The Open Inference Protocol over REST: tensors in JSON and behind it, the `generate` extension, names, errors.

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use textgen_router::shard::handle::{EngineError, EngineStatus, Event};
use tower::ServiceExt;

use crate::client::{Answer, json_request, with_headers};
use crate::server::{Server, started, token};

const INFER: &str = "/v2/models/bytes/infer";
const GENERATE: &str = "/v2/models/bytes/generate";
const STREAM: &str = "/v2/models/bytes/generate_stream";

/// A tensor of texts.
fn texts(name: &str, texts: &[&str]) -> Value {
    json!({"name": name, "datatype": "BYTES", "shape": [texts.len()], "data": texts})
}

fn switch(name: &str, on: bool) -> Value {
    json!({"name": name, "datatype": "BOOL", "shape": [1], "data": [on]})
}

impl Answer {
    fn inference_error(&self, status: u16) -> String {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        let body = self.json();
        assert_eq!(body.as_object().unwrap().len(), 1);
        body["error"].as_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn a_text_is_continued_and_counted() {
    let server = Server::saying("hey");
    let answer = server.post(INFER, json!({"id": "7", "inputs": [texts("text_input", &["hi "])]})).await;
    assert_eq!(
        answer.json(),
        json!({
            "model_name": "bytes",
            "model_version": "1",
            "id": "7",
            "outputs": [
                {"name": "text_output", "datatype": "BYTES", "shape": [1], "data": ["hi hey"]},
                {"name": "finish_reason", "datatype": "BYTES", "shape": [1], "data": ["stop"]},
                {"name": "num_input_tokens", "datatype": "UINT32", "shape": [1], "data": [4]},
                {"name": "num_output_tokens", "datatype": "UINT32", "shape": [1], "data": [4]},
            ]
        })
    );
    assert_eq!((answer.header("x-prompt-tokens"), answer.header("x-generated-tokens")), ("4", "4"));
}

#[tokio::test]
async fn the_outputs_are_those_that_are_asked_for() {
    let server = Server::saying("hey");
    let outputs = async |inputs: Value, outputs: Value| {
        let mut inputs: Vec<Value> = inputs.as_array().unwrap().clone();
        inputs.push(texts("text_input", &["hi "]));
        let answer = server.post(INFER, json!({"inputs": inputs, "outputs": outputs})).await.json();
        let told = |tensor: &Value| (tensor["name"].as_str().unwrap().to_owned(), tensor["data"][0].clone());
        answer["outputs"].as_array().unwrap().iter().map(told).collect::<Vec<_>>()
    };
    let named = |name: &str, value: Value| (name.to_owned(), value);
    let wanted = json!([{"name": "cumulative_logprob"}, {"name": "text_output"}]);
    let both = [named("cumulative_logprob", json!(-2.0)), named("text_output", json!("hey"))];
    assert_eq!(outputs(json!([switch("exclude_input_in_output", true)]), wanted).await, both);
    let switches = json!([
        switch("return_finish_reason", false),
        switch("return_cumulative_logprob", true),
        switch("return_num_output_tokens", false),
        texts("sampling_parameters", &["{\"max_tokens\": 1}"]),
    ]);
    let three = [
        named("text_output", json!("hi h")),
        named("num_input_tokens", json!(4)),
        named("cumulative_logprob", json!(-0.5)),
    ];
    assert_eq!(outputs(switches, Value::Null).await, three);
}

#[tokio::test]
async fn a_batch_keeps_its_dimensions() {
    let server = Server::saying("ab");
    let column = json!({"name": "text_input", "datatype": "BYTES", "shape": [2, 1], "data": [["x"], ["y"]]});
    let body = json!({"inputs": [column], "parameters": {"n": 2, "exclude_input_in_output": true}});
    let answer = server.post(INFER, body).await.json();
    assert_eq!(answer["outputs"][0]["shape"], json!([2, 2]));
    assert_eq!(answer["outputs"][0]["data"], json!(["ab", "ab", "ab", "ab"]));
    let row = json!({"inputs": [texts("text_input", &["x", "y"])]});
    let answer = server.post(INFER, row).await.json();
    assert_eq!((&answer["outputs"][0]["shape"], &answer["outputs"][0]["data"]), (&json!([2]), &json!(["xab", "yab"])));
}

/// A body of JSON and raw tensors.
fn binary(json: &Value, raw: &[u8]) -> Request<Body> {
    let json = json.to_string();
    let length = json.len().to_string();
    let body = [json.as_bytes(), raw].concat();
    Request::post(INFER).header("inference-header-content-length", length).body(Body::from(body)).unwrap()
}

#[tokio::test]
async fn raw_tensors_stand_behind_the_json() {
    let server = Server::saying("hey");
    let inputs = json!([
        {"name": "exclude_input_in_output", "datatype": "BOOL", "shape": [1], "parameters": {"binary_data_size": 1}},
        {"name": "text_input", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}},
    ]);
    let raw = b"\x01\x02\0\0\0hi";
    let send = async |outputs: Value, all: bool| {
        let body = json!({"inputs": inputs, "outputs": outputs, "parameters": {"binary_data_output": all}});
        server.app.clone().oneshot(binary(&body, &raw[..])).await.unwrap()
    };
    let answer = send(Value::Null, true).await;
    assert_eq!(answer.headers()["content-type"], "application/octet-stream");
    let length: usize = answer.headers()["inference-header-content-length"].to_str().unwrap().parse().unwrap();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let (head, tail) = body.split_at(length);
    let head: Value = serde_json::from_slice(head).unwrap();
    let sizes: Vec<u64> = head["outputs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|output| {
            assert!(output.get("data").is_none());
            output["parameters"]["binary_data_size"].as_u64().unwrap()
        })
        .collect();
    assert_eq!(sizes, [7, 8, 4, 4]);
    assert_eq!(tail, b"\x03\0\0\0hey\x04\0\0\0stop\x03\0\0\0\x04\0\0\0");

    let some = json!([{"name": "text_output", "parameters": {"binary_data": false}}, {"name": "finish_reason"}]);
    let answer = send(some, true).await;
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(body.ends_with(b"\x04\0\0\0stop"));
    let answer = send(json!([{"name": "text_output"}]), false).await;
    assert!(answer.headers().get("inference-header-content-length").is_none());
}

#[tokio::test]
async fn raw_tensors_that_are_not_as_declared_are_refused() {
    let server = Server::new();
    let input = |size: Value| json!({"name": "text_input", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": size}});
    for (inputs, raw, words) in [
        (json!([input(json!(6))]), &b"\x02\0\0\0h"[..], "more than the bytes sent"),
        (json!([input(json!(-1))]), b"\x02\0\0\0hi", "more than the bytes sent"),
        (json!([input(json!(5))]), b"\x02\0\0\0hi", "has not the bytes"),
        (json!([input(json!(6))]), b"\x02\0\0\0hi!", "1 bytes behind the JSON belong to no tensor"),
        (json!([texts("text_input", &["a"])]), b"x", "belong to no tensor"),
    ] {
        let answer = server.send(binary(&json!({"inputs": inputs}), raw)).await;
        assert!(answer.inference_error(400).contains(words), "{words}: {}", answer.body);
    }
    for length in ["5000", "-1", "x"] {
        let request = json_request(INFER, &json!({"inputs": []}));
        let answer = server.send(with_headers(request, &[("inference-header-content-length", length)])).await;
        assert!(answer.inference_error(400).contains("`inference-header-content-length`"), "{}", answer.body);
    }
}

#[tokio::test]
async fn generate_says_the_same_in_one_object() {
    let server = Server::saying("hey");
    let answer = server.post(GENERATE, json!({"id": "a", "text_input": "hi ", "max_tokens": 3})).await;
    let said = json!({
        "model_name": "bytes", "model_version": "1", "id": "a", "text_output": "hi hey", "finish_reason": "length",
        "num_input_tokens": 4, "num_output_tokens": 3
    });
    assert_eq!(answer.json(), said);
    let body = json!({"text_input": ["x", "y"], "exclude_input_in_output": true, "return_finish_reason": false,
                      "sampling_parameters": {"max_tokens": 2}});
    let several = server.post(GENERATE, body).await.json();
    assert_eq!((&several["text_output"], &several["num_output_tokens"]), (&json!(["he", "he"]), &json!([2, 2])));
    assert!(several.get("finish_reason").is_none());
}

#[tokio::test]
async fn a_stream_tells_the_same_text_token_by_token() {
    let server = Server::saying("héy");
    let whole = server.post(GENERATE, json!({"text_input": "hi", "exclude_input_in_output": true})).await.json();
    let events =
        server.post(STREAM, json!({"text_input": "hi", "id": "a", "return_num_output_tokens": true})).await.events();
    assert_eq!(events.len(), 5);
    let text: String = events.iter().map(|event| event["text_output"].as_str().unwrap()).collect();
    assert_eq!(whole["text_output"], text);
    let counted: u64 = events.iter().map(|event| event["num_output_tokens"].as_u64().unwrap()).sum();
    assert_eq!(whole["num_output_tokens"], counted);
    let (last, others) = events.split_last().unwrap();
    assert!(others.iter().all(|event| event.get("finish_reason").is_none() && event["id"] == "a"));
    assert_eq!(last["finish_reason"], "stop");
    let one = server.post(STREAM, json!({"text_input": "hi", "stream": false, "exclude_input_in_output": true})).await;
    assert_eq!(one.events(), [whole]);
}

#[tokio::test]
async fn a_stream_that_fails_says_so() {
    let mut server = Server::new();
    let call = tokio::spawn(server.app.clone().oneshot(json_request(STREAM, &json!({"text_input": "hi"}))));
    let submission = server.submitted().await;
    for event in [started(), token(97), Event::Failed(EngineError::Shard("broken".to_owned()))] {
        submission.events.send(event).await.unwrap();
    }
    let body = call.await.unwrap().unwrap().into_body().collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.into()).unwrap();
    let last = body.trim_end().rsplit("\n\n").next().unwrap();
    assert_eq!(last, "data: {\"error\":\"Request failed during generation: broken\"}");
}

#[tokio::test]
async fn a_model_has_two_names_and_one_version() {
    let server = Server::saying("hey");
    for name in ["bytes", "test/bytes", "test%2Fbytes"] {
        for version in ["", "/versions/1"] {
            let path = format!("/v2/models/{name}{version}");
            let facts = server.get(&path).await.json();
            assert_eq!(facts["name"], name.replace("%2F", "/"));
            assert_eq!((&facts["versions"], facts["inputs"].as_array().unwrap().len()), (&json!(["1"]), 8));
            assert_eq!(server.get(&format!("{path}/ready")).await.status, 200);
            let answer = server.post(&format!("{path}/generate"), json!({"text_input": "hi"})).await;
            assert_eq!(answer.json()["text_output"], "hihey", "{path}");
            let wrong = server.get(&format!("{path}/infer")).await;
            assert_eq!((wrong.status.as_u16(), wrong.header("allow")), (405, "POST"));
        }
    }
    for path in ["/v2/models/other", "/v2/models/a/bytes", "/v2/models/bytes/versions/2", "/v2/models/other/ready"] {
        assert!(server.get(path).await.inference_error(404).contains("is not served here"), "{path}");
        let answer = server.post(&format!("{path}/infer"), json!({"inputs": [texts("text_input", &["a"])]})).await;
        answer.inference_error(404);
    }
    for path in ["/v2/other", "/v2/models", "/v2/models/", "/v2/models//infer", "/v2/models/%FF/infer"] {
        assert!([400, 404].contains(&server.post(path, json!({})).await.status.as_u16()), "{path}");
    }
    let page = server.get("/metrics").await.body;
    let counted = "textgen_http_requests_total{route=\"/v2/models/{model}/generate\",status=\"200\"} 6";
    assert!(page.contains(counted), "{page}");
    assert!(!page.contains("test/bytes/"), "{page}");
}

#[tokio::test]
async fn health_is_that_of_the_server() {
    let server = Server::new();
    for (status, live, ready) in [
        (EngineStatus::Starting, 503, 503),
        (EngineStatus::Ready, 200, 200),
        (EngineStatus::Recovering, 200, 503),
        (EngineStatus::Draining, 200, 503),
        (EngineStatus::Stopped, 503, 503),
    ] {
        server.status.send_replace(status);
        assert_eq!(server.get("/v2/health/live").await.status, live, "{status:?}");
        for path in ["/v2/health/ready", "/v2/models/bytes/ready"] {
            assert_eq!(server.get(path).await.status, ready, "{status:?}");
        }
    }
    let facts = server.get("/v2").await.json();
    assert_eq!((&facts["name"], &facts["version"]), (&json!("textgen"), &json!("1.2.3")));
    server.get("/v2/health/live").await.inference_error(503);
}

#[tokio::test]
async fn what_is_wrong_is_400_with_a_sentence() {
    let server = Server::new();
    let text = || texts("text_input", &["hi"]);
    for (body, words) in [
        (json!({}), "missing field `inputs`"),
        (json!({"inputs": []}), "`text_input` is missing"),
        (json!({"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1]}]}), "has no elements"),
        (json!({"inputs": [text(), texts("image", &["x"])]}), "no input has the name `image`"),
        (json!({"inputs": [texts("text_input", &["a", "b", "c", "d"])]}), "send from 1 to 3"),
        (json!({"inputs": [text(), switch("stream", true)]}), "use `generate_stream`"),
        (json!({"inputs": [text()], "parameters": {"temperature": -1}}), "`temperature` must be"),
        (json!({"inputs": [text()], "parameters": {"max_tokens": 0}}), "`max_new_tokens`"),
        (json!({"inputs": [text()], "parameters": {"binary_data_output": 1}}), "`binary_data_output` must be"),
        (json!({"inputs": [text()], "outputs": [{"name": "x"}]}), "no output has the name `x`"),
        (
            json!({"inputs": [text()], "outputs": [{"name": "x", "parameters": {"classification": 2}}]}),
            "`classification`",
        ),
    ] {
        let answer = server.post(INFER, body).await;
        assert!(answer.inference_error(400).contains(words), "{words}: {}", answer.body);
    }
    for (body, words) in [
        (json!({"text_input": ["a", "b"]}), "a stream holds one text"),
        (json!({"text_input": "a", "n": 2}), "a stream holds one text"),
        (json!({"text_input": "a", "exclude_input_in_output": false}), "cannot begin with the prompt"),
        (json!({"text_input": "a", "id": 3}), "`id` must be a string"),
        (json!({"text_input": "a", "parameters": 3}), "`parameters` must be an object"),
        (json!([]), "invalid type"),
    ] {
        let answer = server.post(STREAM, body).await;
        assert!(answer.inference_error(400).contains(words), "{words}: {}", answer.body);
    }
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    for body in ["", "{", deep.as_str()] {
        let request = Request::post(GENERATE).body(Body::from(body.to_owned())).unwrap();
        server.send(request).await.inference_error(400);
    }
    let large = json!({"text_input": "x".repeat(5000)});
    server.post(GENERATE, large).await.inference_error(413);
    let coded = with_headers(json_request(INFER, &json!({"inputs": []})), &[("content-encoding", "gzip")]);
    assert!(server.send(coded).await.inference_error(400).contains("compressed"));
}

#[tokio::test]
async fn headers_and_the_timeout_make_a_standing() {
    let mut server = Server::new();
    let body = json!({"text_input": "hi", "parameters": {"timeout": 3_600_000_000_u64, "priority": 2}});
    let request =
        with_headers(json_request(GENERATE, &body), &[("authorization", "Bearer a"), ("x-request-priority", "1")]);
    let call = tokio::spawn(server.app.clone().oneshot(request));
    let submission = server.submitted().await;
    assert!(submission.standing.deadline.is_some());
    assert_eq!(submission.standing.priority, 2);
    assert_ne!(submission.standing.tenant, 0);
    submission.events.send(Event::Failed(EngineError::Timeout)).await.unwrap();
    assert_eq!(call.await.unwrap().unwrap().status(), 504);
}
