//! Ollama's routes: lines, options, the model's facts, errors.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use textgen_router::http::Patience;
use textgen_router::settings::Settings;
use textgen_router::shard::handle::{EngineError, EngineStatus, Event};
use tower::ServiceExt;

use crate::client::{Answer, json_request};
use crate::model::{BOS, EOS, marked, tokens};
use crate::server::{Server, settings, started, token};

const CALL: &str = r#"<tool_call>{"name": "get", "arguments": {"city": "Köln"}}</tool_call>"#;

/// A server of a model that writes calls and thoughts and says this.
fn saying(text: &str) -> Server {
    let named = |name: &str| Some(name.to_owned());
    let settings = Settings {
        tool_call_parser: named("hermes"),
        reasoning_parser: named("qwen3"),
        max_total_tokens: 1200,
        ..settings()
    };
    let mut server = Server::with(settings, Patience::default());
    let events = marked(text).into_iter().chain([EOS]).map(token);
    server.script(std::iter::once(started()).chain(events).collect());
    server
}

impl Answer {
    fn lines(&self) -> Vec<Value> {
        assert_eq!(self.headers["content-type"], "application/x-ndjson");
        self.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn ollama_error(&self, status: u16) -> String {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        let body = self.json();
        assert_eq!(body.as_object().unwrap().len(), 1);
        body["error"].as_str().unwrap().to_owned()
    }
}

/// Checks what every answer has and takes out what differs between two of them.
fn timeless(mut answer: Value) -> Value {
    assert_eq!(answer["model"], "m");
    let fields = answer.as_object_mut().unwrap();
    assert!(fields.remove("created_at").unwrap().as_str().unwrap().ends_with('Z'));
    for time in ["total_duration", "prompt_eval_duration", "eval_duration"] {
        fields.remove(time);
    }
    for call in answer.pointer_mut("/message/tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        assert!(call["id"].take().is_string());
    }
    answer
}

/// The answer to a body; checks that a stream, which is what Ollama does unasked, says the same.
async fn both(server: &Server, path: &str, body: Value) -> Value {
    let lines = server.post(path, body.clone()).await.lines();
    let (last, others) = lines.split_last().unwrap();
    assert!(others.iter().all(|line| line["done"] == false));
    let mut together = timeless(last.clone());
    for line in others {
        for field in ["/message/content", "/message/thinking", "/response", "/thinking"] {
            let Some(Value::String(new)) = line.pointer(field) else { continue };
            let (parent, name) = field.rsplit_once('/').unwrap();
            let parent = together.pointer_mut(parent).unwrap();
            let before = parent[name].as_str().unwrap_or_default().to_owned();
            parent[name] = json!(before + new);
        }
        if let Some(calls) = timeless(line.clone()).pointer("/message/tool_calls") {
            together["message"]["tool_calls"] = calls.clone();
        }
    }
    let mut whole = body;
    whole["stream"] = json!(false);
    let whole = server.post(path, whole).await;
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = timeless(whole.json());
    assert_eq!(together, whole);
    whole
}

#[tokio::test]
async fn a_chat() {
    let server = Server::saying("né");
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "options": {"num_predict": 9}});
    let answer = both(&server, "/api/chat", body.clone()).await;
    assert_eq!(
        answer,
        json!({
            "model": "m", "message": {"role": "assistant", "content": "né"}, "done": true, "done_reason": "stop",
            "load_duration": 0, "prompt_eval_count": "[user]hi[assistant]".len(), "eval_count": 4,
        })
    );
    let last = server.post("/api/chat", body).await.lines().pop().unwrap();
    let time = |name: &str| last[name].as_u64().unwrap();
    assert_eq!(time("total_duration"), time("prompt_eval_duration") + time("eval_duration"));
    let short = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "options": {"num_predict": 2}});
    assert_eq!(both(&server, "/api/chat", short).await["done_reason"], "length");
    // More than fits is what fits.
    let long = json!({"model": "m", "prompt": "hi", "options": {"num_predict": 10_000}});
    assert_eq!(both(&server, "/api/generate", long).await["done_reason"], "stop");
    let load = server.post("/api/generate", json!({"model": "m"})).await.json();
    assert_eq!(timeless(load), json!({"model": "m", "response": "", "done": true, "done_reason": "load"}));
}

#[tokio::test]
async fn thoughts_and_calls() {
    let server = saying(&format!("<think>Hm.</think>I look.{CALL}"));
    let tools = json!([{"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}]);
    let messages = json!([{"role": "user", "content": "hi"}]);
    let answer =
        both(&server, "/api/chat", json!({"model": "m", "messages": messages, "tools": tools, "think": true})).await;
    assert_eq!(
        answer["message"],
        json!({
            "role": "assistant", "content": "I look.", "thinking": "Hm.",
            "tool_calls": [{"id": null, "function": {"index": 0, "name": "get", "arguments": {"city": "Köln"}}}],
        })
    );
    let answer = both(&server, "/api/generate", json!({"model": "m", "prompt": "hi"})).await;
    assert_eq!(
        (&answer["response"], &answer["thinking"]),
        (&json!("I look.{\"name\": \"get\", \"arguments\": {\"city\": \"Köln\"}}"), &json!("Hm."))
    );
}

/// The prompt of a body.
async fn prompt(path: &str, body: Value) -> Vec<u32> {
    let mut server = Server::new();
    let call = tokio::spawn(server.app.clone().oneshot(json_request(path, &body)));
    tokio::select! {
        submission = server.submitted() => submission.request.prompt,
        answer = call => panic!("{body}: refused with {}", answer.unwrap().unwrap().status()),
    }
}

#[tokio::test]
async fn what_the_model_reads() {
    let generate = "/api/generate";
    assert_eq!(
        prompt(generate, json!({"prompt": "hi", "system": "be"})).await,
        tokens("[system]be[user]hi[assistant]")
    );
    let raw = [vec![BOS], tokens("hi")].concat();
    assert_eq!(prompt(generate, json!({"prompt": "hi", "raw": true})).await, raw);
    let call = json!({"function": {"name": "get", "arguments": {}}});
    let messages = json!([
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "get", "content": "rain"},
    ]);
    assert_eq!(
        prompt("/api/chat", json!({"messages": messages})).await,
        tokens("[user]hi[assistant][tool]rain[assistant]")
    );
}

#[tokio::test]
async fn bodies_need_not_be_declared_as_json() {
    let server = Server::saying("x");
    for path in ["/api/generate", "/api/show"] {
        let body = json!({"model": "test/bytes", "prompt": "hi"}).to_string();
        let form = Request::post(path).header("content-type", "application/x-www-form-urlencoded");
        assert_eq!(server.send(form.body(Body::from(body.clone())).unwrap()).await.status, 200);
        assert_eq!(server.send(Request::post(path).body(Body::from(body)).unwrap()).await.status, 200);
        let broken = Request::post(path).body(Body::from("prompt=hi")).unwrap();
        assert!(server.send(broken).await.ollama_error(400).contains("JSON"));
    }
}

#[tokio::test]
async fn tokens_of_an_answer_have_logprobs() {
    let chat =
        json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "logprobs": true, "top_logprobs": 1});
    let raw = json!({"model": "m", "prompt": "hi", "raw": true, "logprobs": true});
    for (path, body, saying) in
        [("/api/chat", chat, saying("<think>Hm.</think>I look.")), ("/api/generate", raw, saying("I look."))]
    {
        let mut whole = body.clone();
        whole["stream"] = json!(false);
        let whole = saying.post(path, whole).await.json();
        let told: String =
            whole["logprobs"].as_array().unwrap().iter().map(|entry| entry["token"].as_str().unwrap()).collect();
        assert_eq!(told, "I look.", "{path}");
        let lines = saying.post(path, body).await.lines();
        let streamed: Vec<Value> = lines.iter().flat_map(|line| line["logprobs"].as_array().unwrap().clone()).collect();
        assert_eq!(Value::from(streamed), whole["logprobs"], "{path}");
    }
}

#[tokio::test]
async fn refusals_are_in_ollamas_shape() {
    let server = Server::saying("x");
    for (extra, place) in [
        (json!({"options": {"temperature": -1}}), "`temperature`"),
        (json!({"options": {"num_predict": 0}}), "max_new_tokens"),
        (json!({"options": {"mirostat": 1}}), "`mirostat`"),
        (json!({"template": "{{ .Prompt }}"}), "`template`"),
        (json!({"context": [1]}), "`context`"),
        (json!({"images": ["AA=="]}), "`images`"),
        (json!({"raw": true, "system": "be"}), "`system`"),
        (json!({"top_logprobs": 2}), "`logprobs`"),
        (json!({"logprobs": true, "top_logprobs": 21}), "`top_logprobs`"),
        (json!({"format": {"not": {}}}), "in `format`: "),
        (json!({"format": "xml"}), "`format`"),
        (json!({"think": 3}), "`think`"),
        (json!({"prompt": 3}), "prompt"),
    ] {
        for streamed in [false, true] {
            let mut body = json!({"model": "m", "prompt": "hi", "stream": streamed});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let message = server.post("/api/generate", body).await.ollama_error(400);
            assert!(message.contains(place), "{extra}: {message}");
        }
    }
    let picture = json!({"messages": [{"role": "user", "content": "hi", "images": ["AA=="]}]});
    assert!(server.post("/api/chat", picture).await.ollama_error(400).contains("`images`"));
    assert!(server.post("/api/pull", json!({"model": "m"})).await.ollama_error(404).contains("POST /api/pull"));
    server.status.send_replace(EngineStatus::Starting);
    server.post("/api/generate", json!({"prompt": "hi"})).await.ollama_error(503);
}

#[tokio::test]
async fn a_stream_that_fails() {
    let body = json!({"prompt": "hi"});
    let failed = || Event::Failed(EngineError::Shard("no memory".to_owned()));
    let mut server = Server::new();
    server.script(vec![started(), failed()]);
    assert!(server.post("/api/generate", body.clone()).await.ollama_error(500).contains("no memory"));
    let mut server = Server::new();
    server.script(vec![started(), token(97), failed()]);
    let lines = server.post("/api/generate", body).await.lines();
    assert_eq!(lines[0]["response"], "a");
    assert!(lines[1]["error"].as_str().unwrap().contains("no memory"));
    assert_eq!(lines.len(), 2);
}

#[tokio::test]
async fn a_silent_stream_says_nothing_in_lines() {
    let patience =
        Patience { first_token: Duration::ZERO, keep_alive: Duration::from_millis(1), ..Patience::default() };
    let server = Server::with(settings(), patience);
    let request = json_request("/api/generate", &json!({"model": "m", "prompt": "hi"}));
    let mut body = server.app.clone().oneshot(request).await.unwrap().into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let first: Value = serde_json::from_slice(&first).unwrap();
    assert_eq!(timeless(first), json!({"model": "m", "response": "", "done": false}));
}

#[tokio::test]
async fn the_model_is_described() {
    let folder = std::env::temp_dir().join(format!("textgen-ollama-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.json"), r#"{"model_type": "llama", "max_position_embeddings": 4096}"#).unwrap();
    let head =
        r#"{"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [1000, 3], "data_offsets": [0, 12000]}}"#;
    let head_length = (head.len() as u64).to_le_bytes();
    std::fs::write(folder.join("model.safetensors"), [&head_length[..], head.as_bytes()].concat()).unwrap();
    let settings = Settings { model_dir: folder.clone(), ..settings() };
    let server = Server::with(settings, Patience::default());
    let tags = server.get("/api/tags").await.json();
    let model = &tags["models"][0];
    assert_eq!((&model["name"], &model["model"]), (&json!("test/bytes:latest"), &json!("test/bytes:latest")));
    assert_eq!(model["size"], head.len() + 8);
    assert_eq!(model["digest"].as_str().unwrap().len(), 64);
    assert_eq!(model["details"]["family"], "llama");
    assert_eq!(model["details"]["parameter_size"], "3.00K");
    assert_eq!(model["details"]["quantization_level"], "F32");
    let running = server.get("/api/ps").await.json();
    assert_eq!(running["models"][0]["digest"], model["digest"]);
    assert_eq!((&running["models"][0]["size_vram"], &running["models"][0]["context_length"]), (&json!(0), &json!(300)));
    for name in ["test/bytes", "test/bytes:latest"] {
        let show = server.post("/api/show", json!({"model": name})).await.json();
        assert_eq!(show["model_info"]["llama.context_length"], 4096);
        assert_eq!(show["model_info"]["general.parameter_count"], 3000);
        assert_eq!(show["capabilities"], json!(["completion"]));
        assert!(show["template"].as_str().unwrap().contains("message.role"));
    }
    let error = server.post("/api/show", json!({"model": "other"})).await.ollama_error(404);
    assert!(error.contains("`other`"), "{error}");
    assert_eq!(server.get("/api/version").await.json(), json!({"version": "0.12.11"}));
    server.status.send_replace(EngineStatus::Recovering);
    assert_eq!(server.get("/api/ps").await.json(), json!({"models": []}));
    std::fs::remove_dir_all(&folder).unwrap();
}
