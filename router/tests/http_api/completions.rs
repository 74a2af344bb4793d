//! `/v1/completions`.

use serde_json::{Value, json};
use textgen_router::shard::handle::Event;
use tower::ServiceExt;

use crate::client::json_request;
use crate::model::{BOS, EOS};
use crate::server::{Server, prompt, say, started, token};

const PATH: &str = "/v1/completions";

#[tokio::test]
async fn one_prompt_has_openais_shape() {
    let server = Server::saying("hello");
    let answer = server.post(PATH, json!({"prompt": "hi", "model": "m"})).await;
    let mut body = answer.json();
    assert!(body["id"].take().as_str().unwrap().starts_with("cmpl-"));
    assert!(body["created"].take().as_u64().is_some());
    let expected = json!({
        "id": null, "object": "text_completion", "created": null, "model": "m", "system_fingerprint": "1.2.3-native",
        "choices": [{"index": 0, "text": "hello", "logprobs": null, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}},
    });
    assert_eq!(body, expected);
    assert!(!answer.headers.contains_key("x-compute-time"));
    assert_eq!(answer.header("x-generated-tokens"), "6");
}

#[tokio::test]
async fn several_prompts_keep_their_order_and_sum_their_cost() {
    let mut server = Server::new();
    let call = tokio::spawn(server.app.clone().oneshot(json_request(PATH, &json!({"prompt": ["a", "bb"]}))));
    let (first, second) = (server.submitted().await, server.submitted().await);
    // The second ends first.
    for (submission, id) in [(second, 50), (first, 49)] {
        submission.events.send(started()).await.unwrap();
        submission.events.send(token(id)).await.unwrap();
        let Event::Token { token, .. } = token(EOS) else { unreachable!() };
        let finish = Some(textgen_router::shard::handle::Finish::StopToken);
        submission.events.send(Event::Token { token, finish }).await.unwrap();
    }
    let response = call.await.unwrap().unwrap();
    assert_eq!(response.headers()["x-queue-time"], "4");
    assert_eq!(response.headers()["x-compute-characters"], "3");
    assert_eq!(response.headers()["x-prompt-tokens"], "5");
    let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap();
    let texts: Vec<_> = body["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert_eq!(texts, ["1", "2"]);
    assert_eq!(
        body["usage"],
        json!({"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}})
    );
}

#[tokio::test]
async fn streamed_prompts_are_told_apart_by_index() {
    let server = Server::saying("né");
    let events = server.post(PATH, json!({"prompt": ["a", "bb"], "stream": true})).await.events();
    assert_eq!(events.last().unwrap(), "[DONE]");
    for index in 0..2_usize {
        let own: Vec<&Value> =
            events.iter().filter(|event| event.pointer("/choices/0/index") == Some(&json!(index))).collect();
        let text: String = own.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
        assert_eq!(text, "né");
        let reasons: Vec<_> = own.iter().map(|event| event["choices"][0]["finish_reason"].clone()).collect();
        assert_eq!(reasons, [json!(null), json!(null), json!("stop")]);
        // The last chunk of a prompt counts its tokens, as TGI does.
        let prompt_tokens = index + 2;
        assert_eq!(own[2]["usage"]["prompt_tokens"], prompt_tokens);
        assert!(own[..2].iter().all(|event| event["usage"].is_null()));
    }
}

#[tokio::test]
async fn usage_of_all_prompts_comes_in_one_more_chunk() {
    let server = Server::saying("a");
    let body = json!({"prompt": ["a", "bb"], "stream": true, "stream_options": {"include_usage": true}});
    let events = server.post(PATH, body).await.events();
    let (last, rest) = events[..events.len() - 1].split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        last["usage"],
        json!({"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}})
    );
    assert!(rest.iter().all(|event| event["usage"].is_null()));
}

#[tokio::test]
async fn one_failing_prompt_ends_the_stream_and_cancels_the_others() {
    let mut server = Server::new();
    let body = json!({"prompt": ["a", "b"], "stream": true});
    let call = tokio::spawn(server.app.clone().oneshot(json_request(PATH, &body)));
    let (first, second) = (server.submitted().await, server.submitted().await);
    first.events.send(started()).await.unwrap();
    first.events.send(token(97)).await.unwrap();
    let response = call.await.unwrap().unwrap();
    drop(first);
    let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    let body = std::str::from_utf8(&body).unwrap();
    assert!(body.contains("incomplete_generation_stream") && body.ends_with("data: [DONE]\n\n"), "{body}");
    assert!(second.events.is_closed());
}

#[tokio::test]
async fn prompts_may_be_tokens() {
    let server = Server::saying("a");
    for (prompt, counted) in [(json!([BOS, 97, 98]), 3), (json!([[97], [98, 99]]), 3)] {
        let answer = server.post(PATH, json!({"prompt": prompt})).await;
        assert_eq!(answer.json()["usage"]["prompt_tokens"], counted, "{}", answer.body);
        assert_eq!(answer.header("x-compute-characters"), "0");
    }
    server.post(PATH, json!({"prompt": [999]})).await.openai_error(422, "validation");
}

#[tokio::test]
async fn logprobs_have_openais_older_shape() {
    let server = Server::saying("né");
    let answer = server.post(PATH, json!({"prompt": "hi", "logprobs": 1})).await.json();
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["n", "\u{FFFD}", "\u{FFFD}", "</s>"]));
    assert_eq!(logprobs["token_logprobs"], json!([-0.5, -0.5, -0.5, -0.5]));
    assert_eq!(logprobs["top_logprobs"][0], json!({"n": -0.5, "o": -1.5}));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 1, 2]));

    let events = server.post(PATH, json!({"prompt": "hi", "logprobs": 1, "stream": true})).await.events();
    let offsets =
        events.iter().filter_map(|event| event.pointer("/choices/0/logprobs/text_offset")?.as_array().cloned());
    assert_eq!(Value::from(offsets.flatten().collect::<Vec<_>>()), logprobs["text_offset"]);
}

#[tokio::test]
async fn the_number_of_prompts_is_limited() {
    let server = Server::saying("a");
    let answer = server.post(PATH, json!({"prompt": ["a", "b", "c", "d"]})).await;
    assert!(answer.openai_error(422, "batch size exceeded").contains("4 prompts"));
    for none in [json!([]), json!("")] {
        server.post(PATH, json!({"prompt": none})).await.openai_error(422, "validation");
    }
    let wrong = server.post(PATH, json!({"prompt": {"a": 1}})).await;
    assert!(wrong.openai_error(422, "validation").contains("`prompt` must be"), "{}", wrong.body);
}

#[tokio::test]
async fn neutral_values_ask_for_nothing() {
    let server = Server::saying("a");
    let neutral =
        json!({"prompt": "a", "suffix": null, "echo": false, "best_of": 1, "n": 1, "truncate_prompt_tokens": null});
    let answer = server.post(PATH, neutral).await.json();
    let choice = json!({"index": 0, "text": "a", "logprobs": null, "finish_reason": "stop"});
    assert_eq!(answer["choices"], json!([choice]));
    let empty = json!({"prompt": "a", "suffix": ""});
    assert_eq!(server.post(PATH, empty).await.json()["choices"], json!([choice]));
}

/// A server that has scored a prompt of three tokens and then says `né`.
fn scoring() -> Server {
    let mut server = Server::new();
    let mut events = say("né");
    events.insert(1, prompt(&[-2.0, -3.0]));
    server.script(events);
    server
}

#[tokio::test]
async fn an_echo_comes_before_the_text() {
    let server = Server::saying("né");
    for (asked, echoed) in [(json!("hi"), "hi"), (json!([BOS, 104, 105]), "hi"), (json!([0xC3, 0xA9]), "é")] {
        let body = json!({"prompt": asked, "echo": true, "n": 2});
        let answer = server.post(PATH, body.clone()).await.json();
        for choice in answer["choices"].as_array().unwrap() {
            assert_eq!(choice["text"], format!("{echoed}né"));
        }
        assert_eq!(answer["usage"]["completion_tokens"], 8);
        let mut streamed = body;
        streamed["stream"] = json!(true);
        let events = server.post(PATH, streamed).await.events();
        for index in 0..2 {
            let own = events.iter().filter(|event| event.pointer("/choices/0/index") == Some(&json!(index)));
            let texts = own.map(|event| event["choices"][0]["text"].as_str().unwrap());
            assert_eq!(texts.collect::<String>(), format!("{echoed}né"));
        }
    }
    let shown = json!({"prompt": [BOS, 104], "echo": true, "skip_special_tokens": false});
    assert_eq!(server.post(PATH, shown).await.json()["choices"][0]["text"], "<s>hné");
    let cut = json!({"prompt": "abcd", "echo": true, "truncate_prompt_tokens": 2});
    assert_eq!(server.post(PATH, cut).await.json()["choices"][0]["text"], "cdné");
}

#[tokio::test]
async fn an_echo_has_the_prompts_logprobs_too() {
    let server = scoring();
    let answer = server.post(PATH, json!({"prompt": "hi", "echo": true, "logprobs": 1, "n": 2})).await.json();
    for choice in answer["choices"].as_array().unwrap() {
        let logprobs = &choice["logprobs"];
        assert_eq!(logprobs["tokens"], json!(["<s>", "h", "i", "n", "\u{FFFD}", "\u{FFFD}", "</s>"]));
        assert_eq!(logprobs["token_logprobs"], json!([null, -2.0, -3.0, -0.5, -0.5, -0.5, -0.5]));
        assert_eq!(logprobs["top_logprobs"].as_array().unwrap()[..2], [json!(null), json!({"b": -0.25})]);
        assert_eq!(logprobs["text_offset"], json!([0, 0, 1, 2, 3, 3, 4]));
    }
    let streamed = json!({"prompt": "hi", "echo": true, "logprobs": 1, "n": 2, "stream": true});
    let events = server.post(PATH, streamed).await.events();
    for (index, choice) in answer["choices"].as_array().unwrap().iter().enumerate() {
        let of_choice =
            || events.iter().filter_map(|event| event.pointer("/choices/0")).filter(|one| one["index"] == index);
        let text: String = of_choice().map(|one| one["text"].as_str().unwrap()).collect();
        assert_eq!(text, choice["text"]);
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            let all: Vec<Value> =
                of_choice().flat_map(|one| one["logprobs"][list].as_array().unwrap().clone()).collect();
            assert_eq!(Value::from(all), choice["logprobs"][list], "{list} of choice {index}");
        }
    }
    let both = json!({"prompt": "hi", "echo": true, "logprobs": 1, "prompt_logprobs": 0, "stream": true});
    let error = server.post(PATH, both).await.openai_error(422, "validation");
    assert!(error.contains("`prompt_logprobs` is not supported when streaming"), "{error}");
}

#[tokio::test]
async fn no_tokens_at_all_may_be_asked_for_to_look_at_a_prompt() {
    let server = scoring();
    let body = json!({"prompt": "hi", "echo": true, "logprobs": 0, "max_tokens": 0});
    let answer = server.post(PATH, body).await;
    assert_eq!(answer.header("x-generated-tokens"), "0");
    let answer = answer.json();
    assert_eq!(answer["choices"][0]["text"], "hi");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["choices"][0]["logprobs"]["token_logprobs"], json!([null, -2.0, -3.0]));
    assert_eq!(answer["choices"][0]["logprobs"]["top_logprobs"], json!([null, {}, {}]));
    assert_eq!((&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]), (&json!(3), &json!(0)));

    let stream = json!({"prompt": "hi", "echo": true, "max_tokens": 0, "logprobs": 0, "stream": true});
    let events = server.post(PATH, stream).await.events();
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!(events[0]["choices"][0]["text"], "hi");
    assert_eq!(events[0]["choices"][0]["logprobs"]["token_logprobs"], json!([null, -2.0, -3.0]));
    assert_eq!(events[0]["choices"][0]["finish_reason"], "length");
    assert_eq!(events[0]["usage"]["completion_tokens"], 0);

    let nothing = server.post(PATH, json!({"prompt": "hi", "max_tokens": 0})).await;
    assert!(nothing.openai_error(422, "validation").contains("`max_new_tokens` must be strictly positive"));
}

#[tokio::test]
async fn a_prompts_logprobs_have_vllms_shape() {
    let server = scoring();
    let body = json!({"prompt": "hi", "prompt_logprobs": 1, "n": 2});
    let answer = server.post(PATH, body).await.json();
    let top = json!({"logprob": -0.25, "rank": 1, "decoded_token": "b"});
    let expected = json!([
        null,
        {"98": top, "104": {"logprob": -2.0, "rank": 2, "decoded_token": "h"}},
        {"98": top, "105": {"logprob": -3.0, "rank": 2, "decoded_token": "i"}},
    ]);
    for choice in answer["choices"].as_array().unwrap() {
        assert_eq!(choice["prompt_logprobs"], expected);
        assert_eq!(choice["text"], "né");
    }
    let alone = server.post(PATH, json!({"prompt": "hi", "prompt_logprobs": 0, "max_tokens": 0})).await.json();
    assert_eq!(alone["choices"][0]["prompt_logprobs"][1], json!({"104": expected[1]["104"]}));
    assert_eq!(alone["choices"][0]["text"], "");
    let streamed = json!({"prompt": "hi", "prompt_logprobs": 1, "stream": true});
    let error = server.post(PATH, streamed).await.openai_error(422, "validation");
    assert!(error.contains("`prompt_logprobs`"), "{error}");
    let many = server.post(PATH, json!({"prompt": "hi", "prompt_logprobs": 21})).await;
    assert!(many.openai_error(422, "validation").contains("`prompt_logprobs` must be <= 20"));
}

#[tokio::test]
async fn tokens_are_told_when_asked_for() {
    let server = Server::saying("né");
    let body = json!({"prompt": "hi", "return_token_ids": true});
    let choice = server.post(PATH, body.clone()).await.json()["choices"][0].clone();
    assert_eq!(choice["prompt_token_ids"], json!([BOS, 104, 105]));
    assert_eq!(choice["token_ids"], json!([110, 0xC3, 0xA9, EOS]));
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let events = server.post(PATH, streamed).await.events();
    assert_eq!(events[0]["choices"][0]["prompt_token_ids"], choice["prompt_token_ids"]);
    assert!(events[1]["choices"][0].get("prompt_token_ids").is_none());
    let ids = events.iter().filter_map(|event| event.pointer("/choices/0/token_ids")?.as_array().cloned());
    assert_eq!(Value::from(ids.flatten().collect::<Vec<_>>()), choice["token_ids"]);
}

#[tokio::test]
async fn every_chunk_may_count_tokens() {
    let server = Server::saying("né");
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let events = server.post(PATH, json!({"prompt": "hi", "stream": true, "stream_options": options})).await.events();
    let counts: Vec<_> =
        events.iter().filter_map(|event| event.pointer("/usage/completion_tokens")?.as_u64()).collect();
    assert_eq!(counts, [1, 3, 4, 4]);
    assert!(events.iter().all(|event| event == "[DONE]" || event["usage"]["prompt_tokens"] == 3));
    let alone = json!({"prompt": "hi", "stream": true, "stream_options": {"continuous_usage_stats": true}});
    let events = server.post(PATH, alone).await.events();
    assert!(events[0]["usage"].is_null(), "as in vLLM, it needs `include_usage`");
}

#[tokio::test]
async fn special_tokens_are_added_and_shown_as_asked() {
    let server = Server::saying("a");
    let bare = json!({"prompt": "hi", "add_special_tokens": false});
    assert_eq!(server.post(PATH, bare).await.json()["usage"]["prompt_tokens"], 2);
    let shown = json!({"prompt": "hi", "skip_special_tokens": false, "ignore_eos": true, "max_tokens": 2});
    assert_eq!(server.post(PATH, shown).await.json()["choices"][0]["text"], "a</s>");
    for (kept, counted) in [(json!(2), 2), (json!(-1), 5)] {
        let body = json!({"prompt": "abcd", "truncate_prompt_tokens": kept});
        assert_eq!(server.post(PATH, body).await.json()["usage"]["prompt_tokens"], counted);
    }
    let fitted = json!({"prompt": "x".repeat(900), "truncate_prompt_tokens": -1});
    assert_eq!(server.post(PATH, fitted).await.json()["usage"]["prompt_tokens"], 200);
    for wrong in [0, -2, 10_000] {
        let answer = server.post(PATH, json!({"prompt": "a", "truncate_prompt_tokens": wrong})).await;
        assert!(answer.openai_error(422, "validation").contains("`truncate_prompt_tokens` must be"), "{wrong}");
    }
}

#[tokio::test]
async fn a_gap_is_refused_in_words_where_it_cannot_be_filled() {
    let server = Server::saying("a");
    for (change, word) in [
        (json!({}), "`suffix` needs a model that was trained to fill in the middle"),
        (json!({"prompt": [97]}), "`suffix` needs a `prompt` that is text"),
        (json!({"echo": true}), "`suffix` and `echo`"),
        (json!({"truncate_prompt_tokens": 3}), "`suffix` and `truncate_prompt_tokens`"),
    ] {
        let mut body = json!({"prompt": "a", "suffix": "b"});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let message = server.post(PATH, body).await.openai_error(422, "validation");
        assert!(message.contains(word), "{message}");
    }
}
