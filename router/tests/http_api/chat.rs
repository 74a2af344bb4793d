//! `/v1/chat/completions`.

use serde_json::{Value, json};
use textgen_router::shard::handle::Event;

use crate::client::json_request;
use crate::model::{BOS, EOS, tokens};
use crate::server::{Server, prompt, say, started, token};

#[allow(clippy::needless_pass_by_value)] // `chat(json!({…}))` reads best.
fn chat(extra: Value) -> Value {
    let Value::Object(extra) = extra else { panic!("not an object: {extra}") };
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(extra);
    body
}

const PATH: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_whole_answer_has_openais_shape() {
    let server = Server::saying("hello");
    let answer = server.post(PATH, chat(json!({"model": "any/name", "temperature": 0}))).await;
    let mut body = answer.json();
    let id = body["id"].take();
    assert!(id.as_str().unwrap().starts_with("chatcmpl-") && id.as_str().unwrap().len() == 41, "{id}");
    assert!(body["created"].take().as_u64().unwrap() > 1_700_000_000);
    let expected = json!({
        "id": null, "object": "chat.completion", "created": null, "model": "any/name",
        "system_fingerprint": "1.2.3-native",
        "choices": [{
            "index": 0, "message": {"role": "assistant", "content": "hello"}, "logprobs": null, "finish_reason": "stop",
        }],
        "usage": {"prompt_tokens": 19, "completion_tokens": 6, "total_tokens": 25, "prompt_tokens_details": {"cached_tokens": 0}},
    });
    assert_eq!(body, expected);
    assert_eq!(answer.header("x-prompt-tokens"), "19");
    assert_eq!(answer.header("x-compute-characters"), "19");
    assert!(answer.number("x-compute-time") > 0.0);
}

#[tokio::test]
async fn tgi_and_no_name_stand_for_the_model_served() {
    let server = Server::saying("x");
    for body in [chat(json!({"model": "tgi"})), chat(json!({})), chat(json!({"model": null}))] {
        assert_eq!(server.post(PATH, body).await.json()["model"], "test/bytes");
    }
}

#[tokio::test]
async fn a_stream_has_the_role_then_text_then_the_reason() {
    let server = Server::saying("né");
    let answer = server.post(PATH, chat(json!({"stream": true}))).await;
    let events = answer.events();
    assert_eq!(events.last().unwrap(), "[DONE]");
    let chunks = &events[..events.len() - 1];
    let deltas: Vec<_> = chunks.iter().map(|chunk| chunk["choices"][0]["delta"].clone()).collect();
    let expected =
        [json!({"role": "assistant", "content": ""}), json!({"content": "n"}), json!({"content": "é"}), json!({})];
    assert_eq!(deltas, expected);
    let reasons: Vec<_> = chunks.iter().map(|chunk| chunk["choices"][0]["finish_reason"].clone()).collect();
    assert_eq!(reasons, [json!(null), json!(null), json!(null), json!("stop")]);
    let first = &chunks[0];
    assert!(first["id"].as_str().unwrap().starts_with("chatcmpl-"));
    for chunk in chunks {
        assert_eq!(chunk["id"], first["id"]);
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["model"], "test/bytes");
        assert_eq!(chunk["system_fingerprint"], "1.2.3-native");
        assert!(chunk["usage"].is_null());
        assert!(chunk["choices"][0]["logprobs"].is_null());
    }
}

#[tokio::test]
async fn usage_comes_in_one_more_chunk() {
    let server = Server::saying("ab");
    let body = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let events = server.post(PATH, body).await.events();
    let usage = &events[events.len() - 2];
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(
        usage["usage"],
        json!({"prompt_tokens": 19, "completion_tokens": 3, "total_tokens": 22, "prompt_tokens_details": {"cached_tokens": 0}})
    );
    let without = chat(json!({"stream": true, "stream_options": null}));
    assert_eq!(server.post(PATH, without).await.events().len(), events.len() - 1);
}

#[tokio::test]
async fn logprobs_have_tokens_bytes_and_alternatives() {
    let mut server = Server::new();
    server.script(vec![started(), token(0xC3), token(0xA9), token(97), token(EOS)]);
    let wanted = json!({"logprobs": true, "top_logprobs": 2});
    let whole = server.post(PATH, chat(wanted)).await.json();
    let entries = whole["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(entries.len(), 4);
    assert_eq!(entries[0]["bytes"], json!([0xC3]));
    let expected = json!({"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [
        {"token": "a", "logprob": -0.5, "bytes": [97]}, {"token": "b", "logprob": -1.5, "bytes": [98]},
    ]});
    assert_eq!(entries[2], expected);

    // A stream tells the same, though some tokens have no text of their own.
    let streamed = chat(json!({"logprobs": true, "top_logprobs": 2, "stream": true}));
    let events = server.post(PATH, streamed).await.events();
    let lists = events.iter().filter_map(|event| event.pointer("/choices/0/logprobs/content")?.as_array().cloned());
    assert_eq!(lists.flatten().collect::<Vec<_>>(), entries);
}

#[tokio::test]
async fn the_stop_string_is_not_shown() {
    let server = Server::saying("one.two");
    for stop in [json!("."), json!(["x", "."])] {
        let answer = server.post(PATH, chat(json!({"stop": stop}))).await.json();
        assert_eq!(answer["choices"][0]["message"]["content"], "one");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let events = server.post(PATH, chat(json!({"stop": stop, "stream": true}))).await.events();
        let texts = events.iter().filter_map(|event| event.pointer("/choices/0/delta/content")?.as_str());
        assert_eq!(texts.collect::<String>(), "one");
    }
    let shown = chat(json!({"stop": ".", "include_stop_str_in_output": true}));
    assert_eq!(server.post(PATH, shown).await.json()["choices"][0]["message"]["content"], "one.");
}

#[tokio::test]
async fn a_stop_token_is_not_shown() {
    let server = Server::saying("abc");
    let answer = server.post(PATH, chat(json!({"stop_token_ids": [98]}))).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "a");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn the_limit_of_tokens_is_length() {
    let server = Server::saying("abc");
    let both = json!({"max_tokens": 9, "max_completion_tokens": 2});
    for limit in [json!({"max_tokens": 2}), json!({"max_completion_tokens": 2}), both] {
        let answer = server.post(PATH, chat(limit)).await.json();
        assert_eq!(answer["choices"][0]["message"]["content"], "ab");
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], 2);
    }
}

/// What reaches the engine for a body.
async fn submitted(body: Value) -> textgen_router::request::ValidRequest {
    submitted_to(PATH, body).await
}

async fn submitted_to(path: &str, body: Value) -> textgen_router::request::ValidRequest {
    let mut server = Server::new();
    let call = tokio::spawn(tower::ServiceExt::oneshot(server.app.clone(), json_request(path, &body)));
    let submission = tokio::select! {
        submission = server.submitted() => submission,
        answer = call => panic!("{body}: refused with {}", answer.unwrap().unwrap().status()),
    };
    submission.request
}

#[tokio::test]
async fn scores_that_no_answer_tells_are_not_worked_out() {
    let text = |name: &str| json!([{"name": name, "shape": [1], "datatype": "BYTES", "data": ["a"]}]);
    for (path, body, unscored) in [
        (PATH, chat(json!({})), true),
        (PATH, chat(json!({"stream": true})), true),
        (PATH, chat(json!({"logprobs": true})), false),
        (PATH, chat(json!({"n": 2})), true),
        (PATH, chat(json!({"n": 1, "best_of": 2, "temperature": 1})), false),
        ("/v1/completions", json!({"prompt": "a"}), true),
        ("/v1/completions", json!({"prompt": "a", "logprobs": 0}), false),
        ("/v1/responses", json!({"input": "a"}), true),
        ("/v1/responses", json!({"input": "a", "include": ["message.output_text.logprobs"]}), false),
        ("/v1/messages", json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}), true),
        ("/api/generate", json!({"prompt": "a", "stream": false}), true),
        ("/generate", json!({"inputs": "a"}), true),
        ("/generate", json!({"inputs": "a", "parameters": {"details": true}}), false),
        ("/generate", json!({"inputs": "a", "parameters": {"decoder_input_details": true}}), false),
        ("/generate_stream", json!({"inputs": "a"}), false),
        ("/v2/models/bytes/infer", json!({"inputs": text("text_input")}), false),
    ] {
        assert_eq!(submitted_to(path, body.clone()).await.unscored, unscored, "{path} {body}");
    }
}

#[tokio::test]
async fn sampling_fields_reach_the_engine() {
    let body = chat(json!({
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "typical_p": 0.8, "repetition_penalty": 1.1,
        "frequency_penalty": 0.2, "presence_penalty": -0.3, "seed": 11, "max_tokens": 5, "logprobs": true,
        "top_logprobs": 3, "stop_token_ids": [5], "ignore_eos": true,
    }));
    let request = submitted(body).await;
    let sampling = request.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p), (0.5, 0.9, 40, 0.1));
    assert_eq!((sampling.typical_p, sampling.repetition_penalty), (0.8, 1.1));
    assert_eq!((sampling.frequency_penalty, sampling.presence_penalty, sampling.seed), (0.2, -0.3, 11));
    assert_eq!((request.max_new_tokens, request.top_n_tokens), (5, 3));
    assert_eq!(request.stop_tokens.as_ref(), [5]);
}

#[tokio::test]
async fn neutral_values_are_off() {
    let neutral = json!({
        "top_k": -1, "top_p": 1.0, "n": 1, "best_of": 1, "logit_bias": {}, "response_format": {"type": "text"},
        "tool_choice": "auto", "min_tokens": 0, "guided_json": null, "use_beam_search": false, "seed": -1,
        "user": "someone", "metadata": {"a": "b"},
    });
    let request = submitted(chat(neutral)).await;
    assert_eq!((request.sampling.top_k, request.sampling.seed), (0, u64::MAX));
    assert_eq!(request.sampling.temperature, 1.0);
    assert_eq!(submitted(chat(json!({"temperature": 0}))).await.sampling.temperature, 0.0);
}

#[tokio::test]
async fn what_may_be_drawn_reaches_the_engine() {
    let body = json!({
        "logit_bias": {"98": -100, "97": 1.5}, "allowed_token_ids": [97, 98], "bad_words": ["ab"], "min_tokens": 3,
    });
    let rules = submitted(chat(body)).await.rules.unwrap();
    assert_eq!(rules.bias, [(97, 1.5), (98, -100.0)]);
    assert_eq!(rules.allowed[3], 1 << (97 - 96) | 1 << (98 - 96));
    assert_eq!(rules.banned, [vec![97, 98], vec![32, 97, 98]]);
    assert_eq!((rules.min_tokens, rules.watermark), (3, None));
    assert_eq!(submitted(chat(json!({}))).await.rules, None);
}

#[tokio::test]
async fn a_prompts_logprobs_and_tokens_are_beside_the_choices() {
    let mut server = Server::new();
    let mut events = say("a");
    let asked = tokens("[user]hi[assistant]");
    events.insert(1, prompt(&vec![-2.0; asked.len() - 1]));
    server.script(events);
    let body = chat(json!({"prompt_logprobs": 0, "return_token_ids": true}));
    let answer = server.post(PATH, body).await.json();
    assert_eq!(answer["prompt_token_ids"], json!(asked));
    assert_eq!(answer["choices"][0]["token_ids"], json!([97, EOS]));
    assert_eq!(answer["prompt_logprobs"].as_array().unwrap().len(), asked.len());
    assert_eq!(answer["prompt_logprobs"][1], json!({"117": {"logprob": -2.0, "rank": 2, "decoded_token": "u"}}));

    let events = server.post(PATH, chat(json!({"return_token_ids": true, "stream": true}))).await.events();
    assert_eq!(events[0]["prompt_token_ids"], json!(asked));
    assert!(events[1].get("prompt_token_ids").is_none());
    let ids = events.iter().filter_map(|event| event.pointer("/choices/0/token_ids")?.as_array().cloned());
    assert_eq!(Value::from(ids.flatten().collect::<Vec<_>>()), json!([97, EOS]));
}

#[tokio::test]
async fn every_chunk_may_count_tokens() {
    let server = Server::saying("ab");
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let events = server.post(PATH, chat(json!({"stream": true, "stream_options": options}))).await.events();
    let counts: Vec<_> =
        events.iter().filter_map(|event| event.pointer("/usage/completion_tokens")?.as_u64()).collect();
    assert_eq!(counts, [1, 1, 2, 3, 3]);
}

#[tokio::test]
async fn a_conversation_may_get_the_tokenizers_special_tokens_too() {
    let request = submitted(chat(json!({"add_special_tokens": true}))).await;
    assert_eq!(request.prompt[0], BOS);
    assert_eq!(request.prompt[1..], tokens("[user]hi[assistant]"));
}

#[tokio::test]
async fn the_templates_own_variables_are_not_the_clients() {
    let server = Server::saying("x");
    for name in ["messages", "tools", "add_generation_prompt", "bos_token", "chat_template"] {
        let answer = server.post(PATH, chat(json!({"chat_template_kwargs": {name: "x"}}))).await;
        let message = answer.openai_error(422, "validation");
        assert!(message.contains(&format!("`chat_template_kwargs` must not set `{name}`")), "{message}");
    }
    let both = chat(json!({"add_generation_prompt": true, "continue_final_message": true}));
    assert!(server.post(PATH, both).await.openai_error(422, "validation").contains("cannot both be true"));
}

#[tokio::test]
async fn stop_strings_are_not_looked_for_in_the_first_tokens() {
    let server = Server::saying("a.b.c.d");
    for (min_tokens, text) in [(0, "a"), (1, "a"), (2, "a.b"), (3, "a.b"), (4, "a.b.c"), (6, "a.b.c.d")] {
        let body = chat(json!({"stop": ".", "min_tokens": min_tokens}));
        let answer = server.post(PATH, body).await.json();
        assert_eq!(answer["choices"][0]["message"]["content"], text, "{min_tokens}");
    }
}

/// As Hugging Face's clients send it, to the text that TGI gives the model.
#[tokio::test]
async fn a_prompt_for_tools_comes_behind_the_last_message() {
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "hi"}]}]);
    let begun = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So"}]);
    for (extra, expected) in [
        (json!({}), "[user]hi\n---\nUse f.[tools]1[assistant]"),
        (json!({"messages": parts}), "[user]hi\n---\nUse f.[tools]1[assistant]"),
        (json!({"messages": begun}), "[user]hi\n---\nUse f.[assistant]So"),
        (json!({"tool_prompt": ""}), "[user]hi[tools]1[assistant]"),
        (json!({"tools": []}), "[user]hi[assistant]"),
        (json!({"tool_choice": "none"}), "[user]hi[assistant]"),
    ] {
        let tools = json!([{"type": "function", "function": {"name": "f"}}]);
        let mut body = chat(json!({"tools": tools, "tool_prompt": "Use f."}));
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        assert_eq!(submitted(body).await.prompt, tokens(expected), "{extra}");
    }
}

#[tokio::test]
async fn content_comes_in_several_forms() {
    let parts = json!([{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]);
    for (message, text) in [
        (json!({"role": "user", "content": "hi"}), "[user]hi[assistant]"),
        (json!({"role": "user", "content": parts}), "[user]hi[assistant]"),
        (json!({"role": "tool", "content": [{"type": "refusal", "refusal": "hi"}]}), "[tool]hi[assistant]"),
        (json!({"role": "user", "content": null}), "[user][assistant]"),
        (json!({"role": "user", "name": null, "tool_calls": null, "content": "hi"}), "[user]hi[assistant]"),
        (json!({"role": "developer", "content": "hi"}), "[system]hi[assistant]"),
        // The assistant's last message is continued, as TGI does.
        (json!({"role": "assistant", "content": "hi"}), "[assistant]hi"),
    ] {
        assert_eq!(submitted(json!({"messages": [message]})).await.prompt, tokens(text));
    }
    let opened = json!({"messages": [{"role": "assistant", "content": "hi"}], "add_generation_prompt": true});
    assert_eq!(submitted(opened).await.prompt, tokens("[assistant]hi[assistant]"));
}

#[tokio::test]
async fn tools_reach_the_template_unless_none_may_be_chosen() {
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    for choice in [json!(null), json!("auto")] {
        let request = submitted(chat(json!({"tools": tools, "tool_choice": choice}))).await;
        assert_eq!(request.prompt, tokens("[user]hi[tools]1[assistant]"));
    }
    let request = submitted(chat(json!({"tools": tools, "tool_choice": "none"}))).await;
    assert_eq!(request.prompt, tokens("[user]hi[assistant]"));
}

#[tokio::test]
async fn a_shape_reaches_the_engine_as_a_grammar() {
    let schema = json!({"type": "object", "properties": {"x": {"type": "integer"}}});
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    for fields in [
        json!({"response_format": {"type": "json_object"}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}),
        json!({"grammar": {"type": "regex", "value": "a+"}}),
        json!({"guided_choice": ["yes", "no"]}),
        json!({"guided_json": {}}),
        json!({"structured_outputs": {"grammar": "start: \"a\""}}),
        json!({"tools": tools, "tool_choice": "required"}),
        json!({"tools": tools, "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ] {
        assert!(submitted(chat(fields.clone())).await.grammar.is_some(), "{fields}");
    }
    for fields in [json!({}), json!({"response_format": {"type": "text"}}), json!({"tools": tools})] {
        assert!(submitted(chat(fields.clone())).await.grammar.is_none(), "{fields}");
    }
}

#[tokio::test]
async fn a_shape_that_cannot_be_held_is_refused() {
    let server = Server::saying("x");
    for (fields, words) in [
        (json!({"response_format": {"type": "poem"}}), "`response_format.type`"),
        (json!({"guided_regex": "a", "guided_choice": ["a"]}), "both ask for a shape"),
        (
            json!({"guided_json": {"type": "array", "uniqueItems": true}}),
            "in `guided_json`: `uniqueItems` cannot be enforced",
        ),
        (json!({"guided_regex": "("}), "does not parse"),
        (json!({"tool_choice": "required"}), "there are no `tools`"),
        (json!({"tool_choice": "f"}), "`f`, which is not in `tools`"),
    ] {
        let answer = server.post(PATH, chat(fields)).await;
        let message = answer.openai_error(422, "validation");
        assert!(message.contains(words), "{message}");
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
}

#[tokio::test]
async fn what_is_not_served_is_refused_by_name() {
    let server = Server::saying("x");
    for (field, value, remedy) in [
        ("functions", json!([{"name": "f"}]), "`tools`"),
        ("function_call", json!("auto"), "`tool_choice`"),
        ("audio", json!({"voice": "a", "format": "wav"}), "text"),
        ("modalities", json!(["text", "audio"]), "text"),
        ("web_search_options", json!({"search_context_size": "low"}), "`tools`"),
        ("moderation", json!({"model": "m"}), "leave it out"),
    ] {
        let answer = server.post(PATH, chat(json!({field: value}))).await;
        let message = answer.openai_error(422, "validation");
        assert!(message.contains(&format!("`{field}` is not supported yet")) && message.contains(remedy), "{message}");
        assert_eq!(answer.json()["error"]["param"], field);
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
    // What asks for nothing is no reason.
    let nothing =
        json!({"functions": [], "function_call": null, "audio": null, "modalities": ["text"], "tool_prompt": null});
    assert_eq!(server.post(PATH, chat(nothing)).await.status, 200);
    let adapter = server.post(PATH, chat(json!({"adapter_id": "mine"}))).await;
    assert!(adapter.openai_error(404, "adapter_not_found").contains("`mine`"));
    let lonely = server.post(PATH, chat(json!({"top_logprobs": 2}))).await;
    assert!(lonely.openai_error(422, "validation").contains("`logprobs`"));
}

#[tokio::test]
async fn events_of_the_engine_that_are_not_tokens_are_not_text() {
    let mut server = Server::new();
    // A sequence that is computed again after a shard died starts again.
    let again = Event::Started { queued: std::time::Duration::from_secs(9), cached_tokens: 7 };
    server.script(vec![started(), token(97), again, token(98), token(EOS)]);
    let answer = server.post(PATH, chat(json!({}))).await;
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "ab");
    assert_eq!(answer.header("x-queue-time"), "2");
}
