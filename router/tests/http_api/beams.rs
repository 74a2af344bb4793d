//! Beam search on OpenAI's routes: what reaches the engine, and what becomes of the answers that come back whole.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use textgen_router::http::Patience;
use textgen_router::scheduler::{EarlyStopping, FinishedBy, Hypothesis};
use textgen_router::settings::Settings;
use textgen_router::shard::handle::{EngineError, Event, Submission};
use tower::ServiceExt;

use crate::client::{Answer, json_request};
use crate::model::{EOS, tokens};
use crate::server::{Server, settings};

const PERMITS: usize = 8;

fn server() -> Server {
    Server::with(Settings { max_choices: 4, max_concurrent_requests: PERMITS, ..settings() }, Patience::default())
}

fn chat(fields: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "use_beam_search": true});
    let Value::Object(fields) = fields else { panic!("{fields}") };
    body.as_object_mut().unwrap().extend(fields);
    body
}

/// A text, and the end of the sequence after it or the limit.
fn hypothesis(text: &str, finished_by: FinishedBy) -> Hypothesis {
    let end = (finished_by == FinishedBy::StopToken).then_some(EOS);
    let tokens: Vec<u32> = tokens(text).into_iter().chain(end).collect();
    let logprobs = vec![-0.25; tokens.len()];
    Hypothesis { tokens, logprobs, score: -0.25, finished_by }
}

/// Lets a call search and find these.
async fn ask(server: &mut Server, path: &str, body: &Value, found: Vec<Hypothesis>) -> (Answer, Submission) {
    let call = tokio::spawn(server.app.clone().oneshot(json_request(path, body)));
    let submission = server.submitted().await;
    let ways = std::iter::once(&submission.events).chain(&submission.forks);
    assert_eq!(ways.clone().count(), found.len());
    for (events, found) in ways.zip(found) {
        events.send(Event::Started { queued: Duration::ZERO, cached_tokens: 2 }).await.unwrap();
        events.send(Event::Answer(found)).await.unwrap();
    }
    let (parts, body) = call.await.unwrap().unwrap().into_parts();
    let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
    let body = String::from_utf8(body.into()).unwrap();
    (Answer { status: parts.status, headers: parts.headers, body }, submission)
}

const PROMPT: usize = "[user]hi[assistant]".len();

#[tokio::test]
async fn a_search_reaches_the_engine_and_its_answers_come_in_their_order() {
    let mut server = server();
    let body = chat(json!({
        "n": 2, "best_of": 3, "length_penalty": 0.5, "early_stopping": "never", "temperature": 0, "seed": 3,
        "logprobs": true,
    }));
    let found = vec![hypothesis("worse", FinishedBy::Length), hypothesis("better", FinishedBy::StopToken)];
    let (answer, submission) = ask(&mut server, "/v1/chat/completions", &body, found).await;
    let beams = submission.request.beams.unwrap();
    assert_eq!((beams.width, beams.returned, beams.length_penalty), (3, 2, 0.5));
    assert_eq!(beams.early_stopping, EarlyStopping::Never);
    assert_eq!(submission.request.sampling.temperature, 0.0);
    let body = answer.json();
    for (index, (text, reason, scored)) in [("worse", "length", 5), ("better", "stop", 7)].into_iter().enumerate() {
        let choice = &body["choices"][index];
        assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(text), &json!(reason)));
        let entries = choice["logprobs"]["content"].as_array().unwrap();
        assert_eq!((entries.len(), &entries[0]["logprob"]), (scored, &json!(-0.25)));
    }
    // The tokens of the answers are paid for, those of the beams that died are not.
    let usage = &body["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(PROMPT), &json!(12)));
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 2);
    assert_eq!(server.state.permits.available_permits(), PERMITS);
    let metrics = server.get("/metrics").await.body;
    assert!(metrics.contains("tgi_request_success 1"), "{metrics}");
}

#[tokio::test]
async fn a_search_takes_a_permit_for_each_beam_until_it_is_over() {
    let mut server = server();
    let call = tokio::spawn(
        server
            .app
            .clone()
            .oneshot(json_request("/v1/completions", &json!({"prompt": "hi", "use_beam_search": true, "best_of": 4}))),
    );
    let submission = server.submitted().await;
    assert_eq!((submission.forks.len(), server.state.permits.available_permits()), (0, PERMITS - 4));
    submission.events.send(Event::Failed(EngineError::TooLong("too wide".to_owned()))).await.unwrap();
    assert_eq!(call.await.unwrap().unwrap().status(), 422);
    assert_eq!(server.state.permits.available_permits(), PERMITS);
}

#[tokio::test]
async fn completions_of_several_prompts() {
    let mut server = server();
    let body = json!({"prompt": ["a", "b"], "use_beam_search": true, "n": 2, "best_of": 4, "logprobs": 0});
    let call = tokio::spawn(server.app.clone().oneshot(json_request("/v1/completions", &body)));
    for prompt in ["a", "b"] {
        let submission = server.submitted().await;
        for (events, text) in [&submission.events, &submission.forks[0]].into_iter().zip(["1", "2"]) {
            let found = hypothesis(&format!("{prompt}{text}"), FinishedBy::StopToken);
            events.send(Event::Answer(found)).await.unwrap();
        }
    }
    let body = http_body_util::BodyExt::collect(call.await.unwrap().unwrap().into_body()).await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap();
    let texts: Vec<_> = body["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert_eq!(texts, ["a1", "a2", "b1", "b2"]);
}

#[tokio::test]
async fn stop_strings_cut_answers_after_the_search() {
    let mut server = server();
    let body = chat(json!({"n": 2, "stop": "et"}));
    let found = vec![hypothesis("better", FinishedBy::StopToken), hypothesis("worse", FinishedBy::StopToken)];
    let (answer, _) = ask(&mut server, "/v1/chat/completions", &body, found).await;
    let body = answer.json();
    assert_eq!(body["choices"][0]["message"]["content"], "b");
    assert_eq!(body["choices"][1]["message"]["content"], "worse");
    assert_eq!(body["usage"]["completion_tokens"], "bet".len() + "worse".len() + 1);
}

#[tokio::test]
async fn a_stream_of_answers() {
    let mut server = server();
    let found = || vec![hypothesis("better", FinishedBy::StopToken), hypothesis("worse", FinishedBy::Length)];
    for (path, body) in [
        ("/v1/chat/completions", chat(json!({"n": 2, "best_of": 3, "stream": true}))),
        ("/v1/completions", json!({"prompt": "a", "use_beam_search": true, "n": 2, "best_of": 3, "stream": true})),
    ] {
        let (answer, _) = ask(&mut server, path, &body, found()).await;
        let mut texts: BTreeMap<u64, String> = BTreeMap::new();
        let events = answer.events();
        for event in &events {
            let Some(choice) = event.pointer("/choices/0") else { continue };
            let text = choice.pointer("/delta/content").or(choice.get("text")).and_then(Value::as_str);
            texts.entry(choice["index"].as_u64().unwrap()).or_default().push_str(text.unwrap_or_default());
        }
        assert_eq!(texts.into_values().collect::<Vec<_>>(), ["better", "worse"], "{path}");
        assert_eq!(events.last().unwrap(), "[DONE]");
        assert_eq!(server.state.permits.available_permits(), PERMITS);
    }
}

#[tokio::test]
async fn what_makes_no_sense_with_or_without_a_search_has_its_sentence() {
    let server = server();
    for (fields, sentence) in [
        (json!({"n": 5}), "`n` must be <= 4"),
        (json!({"best_of": 5}), "`best_of` must be <= 4"),
        (json!({"n": 3, "best_of": 2}), "`best_of` must be at least `n`"),
        (json!({"temperature": 0.7}), "`temperature` has no place in a beam search"),
        (json!({"top_p": 0.9}), "`top_p` has no place"),
        (json!({"top_k": 5}), "`top_k` has no place"),
        (json!({"min_p": 0.1}), "`min_p` has no place"),
        (json!({"typical_p": 0.5}), "`typical_p` has no place"),
        (json!({"repetition_penalty": 1.2}), "`repetition_penalty` has no place"),
        (json!({"frequency_penalty": 0.2}), "`frequency_penalty` has no place"),
        (json!({"presence_penalty": 0.2}), "`presence_penalty` has no place"),
        (json!({"logprobs": true, "top_logprobs": 2}), "no alternatives are reported"),
        (json!({"length_penalty": 1e39}), "`length_penalty` must be a finite number"),
        (
            json!({"use_beam_search": false, "length_penalty": 0.5}),
            "`length_penalty` has no effect without a beam search",
        ),
        (json!({"use_beam_search": false, "early_stopping": true}), "`early_stopping` has no effect without"),
        (json!({"use_beam_search": null, "early_stopping": "never"}), "`early_stopping` has no effect without"),
        (json!({"early_stopping": "soon"}), "`early_stopping` must be true, false or `never`"),
    ] {
        let answer = server.post("/v1/chat/completions", chat(fields)).await;
        let said = answer.openai_error(422, "validation");
        assert!(said.contains(sentence), "{said}");
    }
    assert_eq!(server.state.permits.available_permits(), PERMITS);
}

#[tokio::test]
async fn neutral_values_are_taken_either_way() {
    let neutral = json!({
        "length_penalty": 1.0, "early_stopping": false, "top_p": 1.0, "top_k": -1, "temperature": 1.0, "top_logprobs": 0,
    });
    for search in [false, true] {
        let mut server = server();
        let mut body = chat(neutral.clone());
        body["use_beam_search"] = json!(search);
        let call = tokio::spawn(server.app.clone().oneshot(json_request("/v1/chat/completions", &body)));
        let submission = server.submitted().await;
        assert_eq!(submission.request.beams.map(|beams| (beams.width, beams.returned)), search.then_some((1, 1)));
        call.abort();
    }
}
