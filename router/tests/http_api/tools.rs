//! Calls of tools and reasoning in chat answers: streamed, whole, and alike.

use proptest::prelude::*;
use serde_json::{Value, json};
use textgen_router::http::Patience;
use textgen_router::request::ThinkingBudget;
use textgen_router::settings::Settings;
use textgen_router::shard::handle::Event;
use tower::ServiceExt;

use crate::client::json_request;
use crate::model::{EOS, marked, tokens};
use crate::server::{Server, settings, started, token};

const PATH: &str = "/v1/chat/completions";

/// What the model writes: `get` with an argument, and `ping` without one.
const GET: &str = r#"<tool_call>{"name": "get", "arguments": {"city": "Köln"}}</tool_call>"#;
const PING: &str = "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>";

/// A server of a model that writes calls and reasoning in one of these ways and says this, markers included.
fn saying(calls: &str, reasoning: &str, text: &str) -> Server {
    let name = |name: &str| Some(name.to_owned());
    let settings = Settings { tool_call_parser: name(calls), reasoning_parser: name(reasoning), ..settings() };
    let mut server = Server::with(settings, Patience::default());
    server.script(said(text));
    server
}

fn said(text: &str) -> Vec<Event> {
    std::iter::once(started()).chain(marked(text).into_iter().chain([EOS]).map(token)).collect()
}

#[allow(clippy::needless_pass_by_value)] // `chat(json!({…}))` reads best.
fn chat(extra: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn tools() -> Value {
    let city = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!([
        {"type": "function", "function": {"name": "get", "description": "Gets", "parameters": city}},
        {"type": "function", "function": {"name": "ping"}},
    ])
}

fn with_tools(extra: Value) -> Value {
    let mut body = chat(extra);
    body["tools"] = tools();
    body
}

/// A message as the deltas of a stream give it, its reason and its log-probabilities; by choice.
fn put_together(events: &[Value], choice: u64) -> (Value, Value, Vec<Value>) {
    let mut message = json!({"role": null, "content": null});
    let (mut reason, mut logprobs) = (Value::Null, Vec::new());
    let own = events.iter().filter_map(|event| event["choices"].get(0)).filter(|own| own["index"] == choice);
    for own in own {
        assert!(reason.is_null(), "a delta behind the last one");
        for (field, new) in own["delta"].as_object().unwrap() {
            match new {
                Value::Array(calls) => add_call(&mut message, &calls[0]),
                Value::String(new) => {
                    let before = message[field].as_str().unwrap_or_default().to_owned();
                    message[field] = json!(before + new);
                }
                other => panic!("{other}"),
            }
        }
        logprobs.extend(own.pointer("/logprobs/content").and_then(Value::as_array).cloned().unwrap_or_default());
        reason = own["finish_reason"].clone();
    }
    (message, reason, logprobs)
}

fn add_call(message: &mut Value, delta: &Value) {
    if message["tool_calls"].is_null() {
        message["tool_calls"] = json!([]);
    }
    let calls = message["tool_calls"].as_array_mut().unwrap();
    let index = usize::try_from(delta["index"].as_u64().unwrap()).unwrap();
    if index == calls.len() {
        let mut call = delta.clone();
        call.as_object_mut().unwrap().remove("index");
        assert!(call["id"].is_string() && call["type"] == "function" && call["function"]["arguments"] == "");
        calls.push(call);
        return;
    }
    // Only the first delta has more than arguments, and calls do not overlap.
    assert_eq!(index + 1, calls.len());
    assert_eq!(delta.as_object().unwrap().keys().collect::<Vec<_>>(), ["index", "function"]);
    assert_eq!(delta["function"].as_object().unwrap().len(), 1);
    let before = calls[index]["function"]["arguments"].as_str().unwrap().to_owned();
    calls[index]["function"]["arguments"] = json!(before + delta["function"]["arguments"].as_str().unwrap());
}

/// Takes the ids out of a message's calls.
fn take_ids(message: &mut Value) -> Vec<String> {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    calls.into_iter().flatten().map(|call| call["id"].take().as_str().unwrap().to_owned()).collect()
}

/// The first answer to a body; checks that a stream says the same.
async fn ask(server: &Server, body: Value) -> Value {
    let answer = server.post(PATH, body.clone()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let whole = answer.json();
    let mut streamed = body;
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    let events = server.post(PATH, streamed).await.events();
    for choice in whole["choices"].as_array().unwrap() {
        let (mut message, reason, logprobs) = put_together(&events, choice["index"].as_u64().unwrap());
        let mut expected = choice["message"].clone();
        assert_eq!(take_ids(&mut message).len(), take_ids(&mut expected).len());
        assert_eq!(message, expected);
        assert_eq!(reason, choice["finish_reason"]);
        let expected = choice.pointer("/logprobs/content").and_then(Value::as_array).cloned().unwrap_or_default();
        assert_eq!(logprobs, expected);
    }
    assert_eq!(events[events.len() - 2]["usage"], whole["usage"]);
    whole
}

/// Calls as name and arguments, which are JSON.
fn calls(message: &Value) -> Vec<(String, Value)> {
    let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
    let call = |call: Value| {
        let function = &call["function"];
        let arguments = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        (function["name"].as_str().unwrap().to_owned(), arguments)
    };
    calls.into_iter().map(call).collect()
}

#[tokio::test]
async fn an_answer_of_calls_alone_has_no_content() {
    let server = saying("hermes", "none", &format!("{GET}\n{PING}"));
    let mut whole = ask(&server, with_tools(json!({}))).await;
    let choice = &mut whole["choices"][0];
    let message = &mut choice["message"];
    assert_eq!(calls(message), [("get".to_owned(), json!({"city": "Köln"})), ("ping".to_owned(), json!({}))]);
    let ids = take_ids(message);
    assert!(ids[0] != ids[1] && ids.iter().all(|id| id.starts_with("call_") && id.len() == 37), "{ids:?}");
    let call = |name: &str, arguments: &str| json!({"id": null, "type": "function", "function": {"name": name, "arguments": arguments}});
    let expected = json!({
        "role": "assistant", "content": null,
        "tool_calls": [call("get", r#"{"city": "Köln"}"#), call("ping", "{}")],
    });
    assert_eq!(*message, expected);
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert!(!whole["usage"].as_object().unwrap().contains_key("completion_tokens_details"));
}

#[tokio::test]
async fn text_stands_beside_calls() {
    let server = saying("hermes", "none", &format!("I look. {GET}"));
    let whole = ask(&server, with_tools(json!({"logprobs": true, "top_logprobs": 1}))).await;
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["content"], "I look.");
    assert_eq!(calls(&choice["message"]).len(), 1);
    let scored = choice["logprobs"]["content"].as_array().unwrap().len();
    assert_eq!(json!(scored), whole["usage"]["completion_tokens"]);
}

#[tokio::test]
async fn a_stream_shows_a_call_before_it_is_complete() {
    let server = saying("hermes", "none", GET);
    let events = server.post(PATH, with_tools(json!({"stream": true}))).await.events();
    let arguments = events.iter().filter(|event| event.pointer("/choices/0/delta/tool_calls").is_some()).count();
    assert!(arguments > 5, "{events:?}");
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant"}));
}

#[tokio::test]
async fn text_is_text_where_no_call_is() {
    // Without tools, with tools that may not be chosen, without a parser, and with tools of other names.
    let other = json!([{"type": "function", "function": {"name": "other"}}]);
    let inside = GET.replace("<tool_call>", "").replace("</tool_call>", "");
    for (parser, body, text) in [
        ("hermes", chat(json!({})), inside.as_str()),
        ("hermes", chat(json!({"tools": []})), &inside),
        ("hermes", with_tools(json!({"tool_choice": "none"})), &inside),
        ("none", with_tools(json!({})), &inside),
        ("hermes", chat(json!({"tools": other})), GET),
    ] {
        let server = saying(parser, "none", GET);
        let whole = ask(&server, body.clone()).await;
        let choice = &whole["choices"][0];
        assert_eq!(choice["message"], json!({"role": "assistant", "content": text}), "{body}");
        assert_eq!(choice["finish_reason"], "stop");
    }
}

#[tokio::test]
async fn one_call_when_parallel_ones_are_not_wanted() {
    let server = saying("hermes", "none", &format!("{GET}{PING}"));
    for (parallel, count) in [(json!(false), 1), (json!(true), 2), (json!(null), 2)] {
        let whole = ask(&server, with_tools(json!({"parallel_tool_calls": parallel}))).await;
        assert_eq!(calls(&whole["choices"][0]["message"]).len(), count);
        assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
        assert_eq!(whole["usage"]["completion_tokens"], marked(GET).len() + marked(PING).len() + 1);
    }
}

#[tokio::test]
async fn a_call_that_is_cut_off_is_no_reason_to_call() {
    let server = saying("hermes", "none", &format!("{GET}{GET}"));
    let whole = ask(&server, with_tools(json!({"max_tokens": 2 * marked(GET).len() - 5}))).await;
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["tool_calls"].as_array().unwrap().len(), 2);
    let cut = message["tool_calls"][1]["function"]["arguments"].as_str().unwrap();
    assert!(r#"{"city": "Köln"}"#.starts_with(cut) && serde_json::from_str::<Value>(cut).is_err(), "{cut}");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");

    let stopped = ask(&server, with_tools(json!({"stop": "öl"}))).await;
    assert_eq!(stopped["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], r#"{"city": "K"#);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn mistrals_ids_are_what_its_templates_take() {
    let server = saying("mistral", "none", r#"[TOOL_CALLS][{"name": "ping", "arguments": {}}]"#);
    let mut whole = ask(&server, with_tools(json!({}))).await;
    let ids = take_ids(&mut whole["choices"][0]["message"]);
    assert!(ids.len() == 1 && ids[0].len() == 9 && ids[0].chars().all(|c| c.is_ascii_alphanumeric()), "{ids:?}");
}

#[tokio::test]
async fn reasoning_is_told_apart_and_counted() {
    let server = saying("hermes", "qwen3", &format!("<think>\nHm, é.\n</think>\n\nYes. {GET}"));
    let whole = ask(&server, with_tools(json!({"logprobs": true}))).await;
    let message = &whole["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("Hm, é."), &json!("Yes.")));
    assert_eq!(calls(message).len(), 1);
    // From the first marker to the last, which are tokens as the characters' bytes are.
    let reasoning = marked("<think>\nHm, é.\n</think>").len();
    assert_eq!(whole["usage"]["completion_tokens_details"], json!({"reasoning_tokens": reasoning}));
    // Without tools nothing but reasoning is looked for; the marks of calls are special tokens like any other.
    let whole = ask(&server, chat(json!({}))).await;
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "Hm, é.");
    assert!(message["content"].as_str().unwrap().starts_with(r#"Yes. {"name""#), "{message}");
}

#[tokio::test]
async fn reasoning_without_an_end_is_no_content() {
    let server = saying("none", "qwen3", "<think>Hm");
    let whole = ask(&server, chat(json!({}))).await;
    let expected = json!({"role": "assistant", "content": null, "reasoning_content": "Hm"});
    assert_eq!(whole["choices"][0]["message"], expected);
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn the_prompt_says_whether_an_answer_begins_inside() {
    let server = saying("none", "think", "Hm</think>Yes");
    let inside = chat(json!({"chat_template_kwargs": {"begun": "<think>"}}));
    let whole = ask(&server, inside.clone()).await;
    let expected = json!({"role": "assistant", "content": "Yes", "reasoning_content": "Hm"});
    assert_eq!(whole["choices"][0]["message"], expected);
    let outside = ask(&server, chat(json!({}))).await;
    assert_eq!(outside["choices"][0]["message"]["content"], "Hm</think>Yes");
    // Switched off, an answer is what it was.
    let off = ask(&saying("none", "none", "Hm</think>Yes"), inside).await;
    assert_eq!(off["choices"][0]["message"], json!({"role": "assistant", "content": "HmYes"}));
}

#[tokio::test]
async fn thinking_may_be_bounded() {
    let (open, close) = (EOS + 1, EOS + 2);
    let budget = |openings| Some(ThinkingBudget { budget: 7, openings, end: vec![close], closings: Vec::new() });
    let analysis = "<|channel|>analysis<|message|>";
    let channels = |openings| {
        let closings = ["<|channel|>final", "<|channel|>commentary", "<|channel|>analysis to", "<|start|>assistant to"];
        let end = marked("<|end|><|start|>assistant<|channel|>final<|message|>");
        Some(ThinkingBudget { budget: 7, openings, end, closings: closings.map(marked).to_vec() })
    };
    for (reasoning, begun, expected) in [
        ("qwen3", "", budget(vec![vec![open]])),
        ("think", "<think>", budget(Vec::new())),
        ("qwen3", "<think></think>", None),
        ("openai_gptoss", "<|start|>assistant", channels(vec![marked(analysis)])),
        ("openai_gptoss", &format!("<|start|>assistant{analysis}So"), channels(Vec::new())),
        ("openai_gptoss", "<|start|>assistant<|channel|>final<|message|>So", None),
    ] {
        let settings = Settings { reasoning_parser: Some(reasoning.to_owned()), ..settings() };
        let mut server = Server::with(settings, Patience::default());
        let body = chat(json!({"thinking_budget": 7, "chat_template_kwargs": {"begun": begun}}));
        let call = tokio::spawn(tower::ServiceExt::oneshot(server.app.clone(), json_request(PATH, &body)));
        let rules = server.submitted().await.request.rules.clone();
        assert_eq!(rules.and_then(|rules| rules.thinking.clone()), expected, "{reasoning}, {begun}");
        call.abort();
    }
    let answer = saying("none", "none", "a").post(PATH, chat(json!({"thinking_budget": 7}))).await;
    let message = answer.openai_error(422, "validation");
    assert!(message.contains("`thinking_budget` needs a model that marks"), "{message}");
}

/// Under a schema the thoughts are free, and how far they go the prompt says: a template that opens them leaves none to open.
#[tokio::test]
async fn a_schema_waits_for_the_end_of_thoughts_that_the_template_has_begun() {
    let shape = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": {"const": 7}}});
    for (reasoning, begun, thinks) in [
        ("think", "<think>\n", true),
        ("deepseek_r1", "", true),
        ("think", "<think></think>", false),
        ("none", "<think>", false),
    ] {
        let settings = Settings { reasoning_parser: Some(reasoning.to_owned()), ..settings() };
        let mut server = Server::with(settings, Patience::default());
        let body = chat(json!({"response_format": shape, "chat_template_kwargs": {"begun": begun}}));
        let call = tokio::spawn(server.app.clone().oneshot(json_request(PATH, &body)));
        let guide = server.submitted().await.request.grammar.clone().unwrap();
        let mut matcher = guide.matcher();
        assert_eq!(matcher.is_thinking(), thinks, "{reasoning}, {begun}");
        if thinks {
            marked("So {7}.</think>").into_iter().for_each(|token| matcher.advance(token).unwrap());
            assert!(!matcher.is_thinking() && !matcher.is_accepting());
        }
        matcher.advance(u32::from(b'8')).unwrap_err();
        matcher.advance(u32::from(b'7')).unwrap();
        assert!(matcher.is_accepting());
        call.abort();
    }
}

#[tokio::test]
async fn anthropics_budget_bounds_the_thinking_of_a_model_that_thinks() {
    let openings = vec![vec![EOS + 1]];
    let expected = ThinkingBudget { budget: 7, openings, end: vec![EOS + 2], closings: Vec::new() };
    for (reasoning, kind, expected) in
        [("qwen3", "enabled", Some(expected)), ("qwen3", "disabled", None), ("none", "enabled", None)]
    {
        let settings = Settings { reasoning_parser: Some(reasoning.to_owned()), ..settings() };
        let mut server = Server::with(settings, Patience::default());
        let body = json!({"max_tokens": 20, "messages": [{"role": "user", "content": "hi"}],
                          "thinking": {"type": kind, "budget_tokens": 7}});
        let call = tokio::spawn(tower::ServiceExt::oneshot(server.app.clone(), json_request("/v1/messages", &body)));
        let rules = server.submitted().await.request.rules.clone();
        assert_eq!(rules.and_then(|rules| rules.thinking.clone()), expected, "{reasoning}, {kind}");
        call.abort();
    }
}

#[tokio::test]
async fn a_continued_message_is_reasoning_only_where_it_left_off_in_it() {
    let server = saying("none", "deepseek_r1", "more</think>Yes");
    for (begun, expected) in [
        ("<think>I think", json!({"role": "assistant", "content": "Yes", "reasoning_content": "more"})),
        ("<think>I thought</think>Well", json!({"role": "assistant", "content": "moreYes"})),
        ("Well", json!({"role": "assistant", "content": "moreYes"})),
    ] {
        let body = json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": begun}]});
        assert_eq!(ask(&server, body).await["choices"][0]["message"], expected, "{begun}");
    }
}

#[tokio::test]
async fn each_of_several_answers_is_taken_apart() {
    let server = saying("hermes", "qwen3", &format!("<think>Hm</think>{GET}"));
    let whole = ask(&server, with_tools(json!({"n": 2}))).await;
    let mut ids = Vec::new();
    for choice in whole["choices"].as_array().unwrap() {
        let mut message = choice["message"].clone();
        assert_eq!((&message["reasoning_content"], calls(&message).len()), (&json!("Hm"), 1));
        ids.extend(take_ids(&mut message));
    }
    assert_ne!(ids[0], ids[1]);
    let reasoning = marked("<think>Hm</think>").len();
    assert_eq!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"], 2 * reasoning);
    // Answers that are not returned were computed, too.
    let best = server.post(PATH, with_tools(json!({"best_of": 2}))).await.json();
    assert_eq!(best["choices"].as_array().unwrap().len(), 1);
    assert_eq!(best["usage"]["completion_tokens_details"]["reasoning_tokens"], 2 * reasoning);
}

/// The prompt of a body.
async fn prompt(body: Value) -> Vec<u32> {
    let mut server = Server::new();
    let call = tokio::spawn(server.app.clone().oneshot(json_request(PATH, &body)));
    tokio::select! {
        submission = server.submitted() => submission.request.prompt,
        answer = call => panic!("{body}: refused with {}", answer.unwrap().unwrap().status()),
    }
}

#[tokio::test]
async fn results_of_calls_go_back_and_calls_are_not_continued() {
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "ping", "arguments": "{}"}});
    let mut messages = vec![
        json!({"role": "user", "content": "hi"}),
        json!({"role": "assistant", "content": "", "tool_calls": [call]}),
    ];
    let body = json!({"messages": messages, "tools": tools()});
    assert_eq!(prompt(body).await, tokens("[user]hi[assistant][tools]2[assistant]"));
    messages.push(json!({"role": "tool", "tool_call_id": "call_1", "content": "pong"}));
    let body = json!({"messages": messages, "tools": tools()});
    assert_eq!(prompt(body).await, tokens("[user]hi[assistant][tool]pong[tools]2[assistant]"));
}

#[tokio::test]
async fn what_is_no_tool_is_refused() {
    let server = Server::saying("x");
    for (tool, place) in [(json!({"type": "function"}), "`tools[0].function`"), (json!("ping"), "`tools[0]`")] {
        let message = server.post(PATH, chat(json!({"tools": [tool]}))).await.openai_error(422, "validation");
        assert!(message.contains(place), "{message}");
    }
    for choice in [json!("pong"), json!({"type": "function", "function": {"name": "pong"}})] {
        let message =
            server.post(PATH, with_tools(json!({"tool_choice": choice}))).await.openai_error(422, "validation");
        assert!(message.contains("`pong`, which is not in `tools`"), "{message}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the model says, a stream says what the whole answer says.
    #[test]
    fn streams_and_whole_answers_agree(
        pieces in prop::collection::vec(prop::sample::select(&[
            GET, PING, "<think>", "</think>", "<tool_call>", "</tool_call>", "{\"name\": \"get\"", "text ", "é😀", "\n", "}",
        ][..]), 0..6),
        parallel: bool,
    ) {
        let text: String = pieces.concat();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let whole = runtime.block_on(async {
            let settings = Settings { max_total_tokens: 1200, stream_buffer: 1024, ..settings() };
            let named = |name: &str| Some(name.to_owned());
            let settings = Settings { tool_call_parser: named("hermes"), reasoning_parser: named("qwen3"), ..settings };
            let mut server = Server::with(settings, Patience::default());
            server.script(said(&text));
            ask(&server, with_tools(json!({"parallel_tool_calls": parallel}))).await
        });
        prop_assert_eq!(&whole["usage"]["completion_tokens"], &json!(marked(&text).len() + 1));
        let message = &whole["choices"][0]["message"];
        let count = message["tool_calls"].as_array().map_or(0, Vec::len);
        prop_assert!(parallel || count <= 1);
        if whole["choices"][0]["finish_reason"] == "tool_calls" {
            // Then every one of them can be called.
            prop_assert_eq!(calls(message).len(), count);
            prop_assert!(count > 0);
        }
    }
}
