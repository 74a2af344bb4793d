//! `/generate`, `/`, `/tokenize`, `/detokenize` and `/chat_tokenize`.

use serde_json::{Value, json};
use textgen_router::http::Patience;
use textgen_router::settings::Settings;

use crate::model::{BOS, EOS};
use crate::server::{Server, prompt, say, settings, started, token};

#[tokio::test]
async fn the_answer_is_the_text_alone() {
    let server = Server::saying("hello");
    let answer = server.post("/generate", json!({"inputs": "hi"})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.json(), json!({"generated_text": "hello"}));
}

#[tokio::test]
async fn details_have_tgis_fields_and_no_others() {
    let server = Server::saying("ab");
    let body = json!({"inputs": "hi", "parameters": {"details": true, "do_sample": true, "seed": 7}});
    let answer = server.post("/generate", body).await.json();
    let byte = |id: u32, text: &str| json!({"id": id, "text": text, "logprob": -0.5, "special": false});
    let end = json!({"id": EOS, "text": "</s>", "logprob": -0.5, "special": true});
    let details = json!({
        "finish_reason": "eos_token", "generated_tokens": 3, "seed": 7, "prefill": [],
        "tokens": [byte(97, "a"), byte(98, "b"), end],
    });
    assert_eq!(answer, json!({"generated_text": "ab", "details": details}));
}

#[tokio::test]
async fn greedy_has_a_null_seed() {
    let server = Server::saying("ab");
    let answer = server.post("/generate", json!({"inputs": "hi", "parameters": {"details": true}})).await;
    assert_eq!(answer.json()["details"].get("seed"), Some(&Value::Null));
}

#[tokio::test]
async fn without_parameters_tokens_are_drawn_and_with_them_they_are_not() {
    let mut server = Server::new();
    for (body, draws) in [
        (json!({"inputs": "hi"}), true),
        (json!({"inputs": "hi", "parameters": {}}), false),
        (json!({"inputs": "hi", "parameters": {"do_sample": true}}), true),
    ] {
        for path in ["/generate", "/"] {
            let request = crate::client::json_request(path, &body);
            let call = tokio::spawn(tower::ServiceExt::oneshot(server.app.clone(), request));
            let submission = server.submitted().await;
            assert_eq!(submission.request.sampling.temperature > 0.0, draws, "{path} {body}");
            drop(submission);
            assert_eq!(call.await.unwrap().unwrap().status(), 500);
        }
    }
}

#[tokio::test]
async fn top_tokens_are_there_when_asked_for() {
    let server = Server::saying("a");
    let body = json!({"inputs": "hi", "parameters": {"details": true, "top_n_tokens": 2}});
    let tops = server.post("/generate", body).await.json()["details"]["top_tokens"].clone();
    let expected = json!([
        {"id": 97, "text": "a", "logprob": -0.5, "special": false},
        {"id": 98, "text": "b", "logprob": -1.5, "special": false},
    ]);
    assert_eq!(tops[0], expected);
    assert_eq!(tops.as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn prompt_tokens_are_there_when_asked_for() {
    let mut server = Server::new();
    let mut events = say("a");
    events.insert(1, prompt(&[-2.0, -3.0]));
    server.script(events);
    let body = json!({"inputs": "hi", "parameters": {"decoder_input_details": true}});
    let prefill = server.post("/generate", body).await.json()["details"]["prefill"].clone();
    let expected = json!([
        {"id": BOS, "text": "<s>", "logprob": null},
        {"id": 104, "text": "h", "logprob": -2.0},
        {"id": 105, "text": "i", "logprob": -3.0},
    ]);
    assert_eq!(prefill, expected);
}

#[tokio::test]
async fn the_stop_string_stays_and_ends_the_text() {
    let mut server = Server::new();
    server.script(say("one.two"));
    for stop in [json!(["e.t"]), json!("e.t")] {
        let body = json!({"inputs": "hi", "parameters": {"stop": stop, "details": true}});
        let answer = server.post("/generate", body).await.json();
        assert_eq!(answer["generated_text"], "one.t");
        assert_eq!(answer["details"]["finish_reason"], "stop_sequence");
        assert_eq!(answer["details"]["generated_tokens"], 5);
    }
}

#[tokio::test]
async fn a_stop_token_of_the_client_is_a_stop_sequence() {
    let server = Server::saying("abc");
    let body = json!({"inputs": "hi", "parameters": {"stop_token_ids": [98], "details": true}});
    let answer = server.post("/generate", body).await.json();
    assert_eq!(answer["generated_text"], "ab");
    assert_eq!(answer["details"]["finish_reason"], "stop_sequence");
}

#[tokio::test]
async fn the_limit_of_tokens_is_length() {
    let server = Server::saying("abc");
    let body = json!({"inputs": "hi", "parameters": {"max_new_tokens": 2, "details": true}});
    let answer = server.post("/generate", body).await.json();
    assert_eq!(answer["generated_text"], "ab");
    assert_eq!(answer["details"]["finish_reason"], "length");
}

#[tokio::test]
async fn half_a_character_at_the_end_is_replaced() {
    let mut server = Server::new();
    server.script(vec![started(), token(0xC3), token(0xA9), token(0xE2), token(EOS)]);
    let answer = server.post("/generate", json!({"inputs": "hi", "parameters": {"details": true}})).await.json();
    assert_eq!(answer["generated_text"], "é\u{FFFD}");
    let texts: Vec<_> = answer["details"]["tokens"].as_array().unwrap().iter().map(|token| &token["text"]).collect();
    assert_eq!(texts, ["", "é", "", "</s>"]);
}

#[tokio::test]
async fn the_compatible_form_answers_a_list_and_repeats_the_prompt() {
    let server = Server::saying("hello");
    let answer = server.post("/", json!({"inputs": "hi "})).await;
    assert_eq!(answer.json(), json!([{"generated_text": "hi hello"}]));
    let without = json!({"inputs": "hi ", "parameters": {"return_full_text": false}});
    assert_eq!(server.post("/", without).await.json(), json!([{"generated_text": "hello"}]));
    let with = json!({"inputs": "hi ", "parameters": {"return_full_text": true}});
    assert_eq!(server.post("/generate", with).await.json(), json!({"generated_text": "hi hello"}));
}

#[tokio::test]
async fn null_is_the_same_as_left_out() {
    let server = Server::saying("hello");
    let mut parameters = serde_json::Map::new();
    for field in [
        "best_of",
        "temperature",
        "repetition_penalty",
        "frequency_penalty",
        "top_k",
        "top_p",
        "typical_p",
        "do_sample",
        "max_new_tokens",
        "return_full_text",
        "stop",
        "truncate",
        "watermark",
        "logit_bias",
        "allowed_token_ids",
        "bad_words",
        "min_new_tokens",
        "details",
        "decoder_input_details",
        "seed",
        "top_n_tokens",
        "grammar",
        "adapter_id",
    ] {
        parameters.insert(field.to_owned(), Value::Null);
    }
    let answer = server.post("/generate", json!({"inputs": "hi", "parameters": parameters, "other": 1})).await;
    assert_eq!(answer.json(), json!({"generated_text": "hello"}));
    assert_eq!(server.post("/generate", json!({"inputs": "hi", "parameters": null})).await.status, 200);
}

#[tokio::test]
async fn an_operator_names_what_answers_are_computed_on() {
    let settings = Settings { compute_type: Some("2-a100".to_owned()), ..settings() };
    let mut server = Server::with(settings, Patience::default());
    server.script(say("hello"));
    let answer = server.post("/generate", json!({"inputs": "hi"})).await;
    assert_eq!(answer.header("x-compute-type"), "2-a100");
}

#[tokio::test]
async fn headers_say_what_it_cost() {
    let server = Server::saying("hello");
    let answer = server.post("/generate", json!({"inputs": "hé"})).await;
    assert_eq!(answer.header("x-compute-type"), "cpu");
    assert_eq!(answer.number("x-compute-characters"), 2.0);
    assert_eq!(answer.number("x-prompt-tokens"), 4.0);
    assert_eq!(answer.number("x-generated-tokens"), 6.0);
    assert_eq!(answer.header("x-queue-time"), "2");
    // The fraction of seconds and the whole milliseconds are one figure.
    let milliseconds = (answer.number("x-compute-time") * 1000.0).floor();
    assert_eq!(answer.number("x-total-time"), milliseconds);
    for name in ["x-validation-time", "x-inference-time", "x-time-per-token"] {
        let whole: u64 = answer.header(name).parse().unwrap();
        assert!(whole as f64 <= milliseconds, "{name}");
    }
}

#[tokio::test]
async fn tokenize_gives_ids_and_places() {
    let server = Server::new();
    let tokens = server.post("/tokenize", json!({"inputs": "hé"})).await.json();
    let ids: Vec<_> = tokens.as_array().unwrap().iter().map(|token| token["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [u64::from(BOS), 104, 0xC3, 0xA9]);
    assert_eq!(tokens[1], json!({"id": 104, "text": "h", "start": 0, "stop": 1}));
}

#[tokio::test]
async fn detokenize_gives_the_text_back() {
    let server = Server::new();
    let tokens = json!([BOS, 104, 0xC3, 0xA9, EOS]);
    let whole = server.post("/detokenize", json!({"tokens": tokens})).await.json();
    assert_eq!(whole, json!({"prompt": "<s>hé</s>"}));
    let plain = server.post("/detokenize", json!({"tokens": tokens, "skip_special_tokens": true})).await.json();
    assert_eq!(plain, json!({"prompt": "hé"}));
    assert_eq!(server.post("/detokenize", json!({"tokens": []})).await.json(), json!({"prompt": ""}));
    let answer = server.post("/detokenize", json!({"tokens": [104, 1_000_000]})).await;
    let error = answer.native_error(422, "validation");
    assert!(error.contains("`tokens`") && error.contains("1000000"), "{error}");
    for body in [json!({}), json!({"tokens": "a"}), json!({"tokens": [-1]}), json!({"tokens": [0.5]})] {
        assert_eq!(server.post("/detokenize", body.clone()).await.status, 422, "{body}");
    }
}

#[tokio::test]
async fn chat_tokenize_gives_the_templated_text_too() {
    let server = Server::new();
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let answer = server.post("/chat_tokenize", body).await.json();
    assert_eq!(answer["templated_text"], "[user]hi[assistant]");
    let tokens = answer["tokenize_response"].as_array().unwrap();
    assert_eq!(tokens.len(), "[user]hi[assistant]".len());
    assert_eq!(tokens[0], json!({"id": 91, "text": "[", "start": 0, "stop": 1}));
}
