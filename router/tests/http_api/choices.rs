//! Several sequences of one prompt: `n` and `best_of`.

use serde_json::{Value, json};
use textgen_router::http::Patience;
use textgen_router::settings::Settings;
use textgen_router::shard::events::EventSender;
use textgen_router::shard::handle::{EngineError, Event, Finish, Submission, Token};
use tower::ServiceExt;

use crate::client::{Answer, json_request};
use crate::model::{EOS, tokens};
use crate::server::{Server, prompt, settings, started, token};

fn server() -> Server {
    Server::with(
        Settings { max_best_of: 3, max_choices: 3, max_concurrent_requests: 8, ..settings() },
        Patience::default(),
    )
}

/// Says a text of this log-probability per token, and ends.
async fn say(events: &EventSender, text: &str, logprob: f32) {
    events.send(Event::Started { queued: std::time::Duration::ZERO, cached_tokens: 2 }).await.unwrap();
    for id in tokens(text).into_iter().chain([EOS]) {
        let finish = (id == EOS).then_some(Finish::StopToken);
        let token = Token { id, logprob, top: Vec::new() };
        events.send(Event::Token { token, finish }).await.unwrap();
    }
}

/// Answers one call: each sequence with its text and log-probability.
async fn ask(server: &mut Server, path: &str, body: Value, said: &[(&str, f32)]) -> (Answer, Submission) {
    let call = tokio::spawn(server.app.clone().oneshot(json_request(path, &body)));
    let submission = server.submitted().await;
    assert_eq!(submission.forks.len() + 1, said.len());
    let ways = std::iter::once(&submission.events).chain(&submission.forks);
    for (events, (text, logprob)) in ways.zip(said) {
        say(events, text, *logprob).await;
    }
    let (parts, body) = call.await.unwrap().unwrap().into_parts();
    let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
    let body = String::from_utf8(body.into()).unwrap();
    (Answer { status: parts.status, headers: parts.headers, body }, submission)
}

fn chat(fields: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let Value::Object(fields) = fields else { panic!("{fields}") };
    body.as_object_mut().unwrap().extend(fields);
    body
}

const PROMPT: usize = "[user]hi[assistant]".len();

#[tokio::test]
async fn n_answers_to_a_conversation() {
    let mut server = server();
    let said = [("one", -1.0), ("two", -0.1), ("three", -2.0)];
    let (answer, _) = ask(&mut server, "/v1/chat/completions", chat(json!({"n": 3})), &said).await;
    let body = answer.json();
    for (index, (text, _)) in said.iter().enumerate() {
        // Nothing is ranked where everything is returned.
        assert_eq!(body["choices"][index]["index"], index);
        assert_eq!(body["choices"][index]["message"]["content"], *text);
    }
    let generated = "onetwothree".len() + 3;
    let expected = json!({
        "prompt_tokens": PROMPT, "completion_tokens": generated, "total_tokens": PROMPT + generated,
        "prompt_tokens_details": {"cached_tokens": 2},
    });
    assert_eq!(body["usage"], expected);
    assert_eq!(answer.header("x-prompt-tokens"), PROMPT.to_string());
    assert_eq!(server.state.permits.available_permits(), 8);
}

#[tokio::test]
async fn n_streamed_answers_are_told_apart_by_index() {
    let mut server = server();
    let body = chat(json!({"n": 2, "stream": true, "stream_options": {"include_usage": true}, "logprobs": true}));
    let (answer, _) = ask(&mut server, "/v1/chat/completions", body, &[("ab", -1.0), ("cd", -1.0)]).await;
    let events = answer.events();
    for (index, text) in ["ab", "cd"].into_iter().enumerate() {
        let own: Vec<&Value> =
            events.iter().filter(|event| event.pointer("/choices/0/index") == Some(&json!(index))).collect();
        assert_eq!(own[0]["choices"][0]["delta"]["role"], "assistant");
        let said: String = own.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(said, text);
        let scored: usize =
            own.iter().filter_map(|event| event.pointer("/choices/0/logprobs/content")?.as_array().map(Vec::len)).sum();
        assert_eq!(scored, 3);
        assert_eq!(own.last().unwrap()["choices"][0]["finish_reason"], "stop");
    }
    let usage = &events[events.len() - 2]["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(PROMPT), &json!(6)));
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 2);
    assert_eq!(events.last().unwrap(), "[DONE]");
}

#[tokio::test]
async fn the_best_of_several_completions() {
    let mut server = server();
    let body = json!({"prompt": "hi", "n": 2, "best_of": 3});
    let said = [("one", -1.0), ("two", -0.1), ("three", -0.5)];
    let (answer, _) = ask(&mut server, "/v1/completions", body, &said).await;
    let body = answer.json();
    let texts: Vec<_> = body["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert_eq!(texts, ["two", "three"]);
    // What was computed is paid for.
    assert_eq!(body["usage"]["completion_tokens"], "onetwothree".len() + 3);
    assert_eq!(body["usage"]["prompt_tokens"], 3);
}

#[tokio::test]
async fn several_prompts_have_n_completions_each() {
    let mut server = server();
    server.script(vec![started(), token(97), token(EOS)]);
    let body = json!({"prompt": ["a", "bb"], "n": 2, "stream": true});
    let events = server.post("/v1/completions", body.clone()).await.events();
    let indices: std::collections::BTreeSet<u64> =
        events.iter().filter_map(|event| event.pointer("/choices/0/index")?.as_u64()).collect();
    assert_eq!(indices.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
    let usages = events.iter().filter_map(|event| event.pointer("/usage/prompt_tokens")?.as_u64());
    assert_eq!(usages.sum::<u64>(), 5);
    let mut whole = body;
    whole["stream"] = json!(false);
    let whole = server.post("/v1/completions", whole).await.json();
    assert_eq!(whole["choices"].as_array().unwrap().len(), 4);
    assert_eq!(whole["usage"]["prompt_tokens"], 5);
}

#[tokio::test]
async fn the_best_of_native_sequences_and_the_others_in_their_order() {
    let mut server = server();
    let parameters = json!({"best_of": 3, "do_sample": true, "details": true, "return_full_text": true});
    let body = json!({"inputs": "hi ", "parameters": parameters});
    // The mean counts, not the sum: the longest is the best here.
    let said = [("a", -1.0), ("much longer", -0.5), ("b", -0.9)];
    let (answer, submission) = ask(&mut server, "/generate", body, &said).await;
    let answer = answer.json();
    assert_eq!(answer["generated_text"], "hi much longer");
    let others = answer["details"]["best_of_sequences"].as_array().unwrap();
    let texts: Vec<_> = others.iter().map(|other| &other["generated_text"]).collect();
    assert_eq!(texts, ["hi a", "hi b"]);
    assert_eq!(others[0]["finish_reason"], "eos_token");
    assert_eq!(others[0]["generated_tokens"], 2);
    assert_eq!(others[0]["tokens"].as_array().unwrap().len(), 2);
    let sampling = submission.request.sampling;
    let seeds = [&others[0]["seed"], &answer["details"]["seed"], &others[1]["seed"]];
    for (choice, seed) in (0..).zip(seeds) {
        assert_eq!(seed, &json!(sampling.for_choice(choice).seed));
    }
}

#[tokio::test]
async fn one_sequence_has_no_others() {
    let server = Server::saying("a");
    let body = json!({"inputs": "hi", "parameters": {"best_of": 1, "details": true}});
    let answer = server.post("/generate", body).await.json();
    assert!(!answer["details"].as_object().unwrap().contains_key("best_of_sequences"));
}

#[tokio::test]
async fn the_prompts_scores_are_with_whichever_is_best() {
    let mut server = server();
    let parameters = json!({"best_of": 2, "do_sample": true, "decoder_input_details": true});
    let call = tokio::spawn(
        server.app.clone().oneshot(json_request("/generate", &json!({"inputs": "hi", "parameters": parameters}))),
    );
    let submission = server.submitted().await;
    submission.events.send(prompt(&[-3.0, -4.0])).await.unwrap();
    say(&submission.events, "a", -1.0).await;
    say(&submission.forks[0], "b", -0.5).await;
    let body = call.await.unwrap().unwrap().into_body();
    let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["generated_text"], "b");
    assert_eq!(body["details"]["prefill"][2]["logprob"], -4.0);
    assert_eq!(body["details"]["best_of_sequences"][0]["prefill"][1]["logprob"], -3.0);
}

#[tokio::test]
async fn more_than_allowed_is_422_and_each_needs_a_permit() {
    let server = server();
    for (path, body) in [
        ("/v1/chat/completions", chat(json!({"n": 4}))),
        ("/v1/completions", json!({"prompt": "a", "n": 4_000_000_000_u32})),
        ("/v1/completions", json!({"prompt": "a", "n": 2, "best_of": 1})),
        ("/v1/completions", json!({"prompt": "a", "best_of": 2, "stream": true})),
    ] {
        server.post(path, body).await.openai_error(422, "validation");
    }
    let native = json!({"inputs": "a", "parameters": {"best_of": 2, "do_sample": true}});
    server.post("/generate_stream", native).await.native_error(422, "validation");
    assert_eq!(server.state.permits.available_permits(), 8);

    let few = Settings { max_concurrent_requests: 1, ..settings() };
    let server = Server::with(few, Patience::default());
    server.post("/v1/completions", json!({"prompt": "a", "n": 2})).await.openai_error(429, "overloaded");
}

#[tokio::test]
async fn one_that_fails_fails_the_call_and_frees_the_others() {
    let mut server = server();
    for stream in [false, true] {
        let body = json!({"prompt": "a", "n": 2, "stream": stream});
        let call = tokio::spawn(server.app.clone().oneshot(json_request("/v1/completions", &body)));
        let submission = server.submitted().await;
        submission.forks[0].send(Event::Failed(EngineError::Shard("broken".to_owned()))).await.unwrap();
        assert_eq!(call.await.unwrap().unwrap().status(), 424);
        assert!(submission.events.is_closed());
        assert_eq!(server.state.permits.available_permits(), 8);
    }
}
