use serde_json::json;

use super::*;
use crate::input::Prompt;

fn tensor(name: &str, elements: Value) -> Tensor {
    let Value::Array(elements) = elements else { panic!("{elements}") };
    Tensor { name: name.to_owned(), rank: 1, elements }
}

fn read(inputs: Vec<Tensor>, parameters: Value) -> Result<Asked, String> {
    let Value::Object(parameters) = parameters else { panic!("{parameters}") };
    let inference = Inference { inputs, outputs: Vec::new(), parameters };
    Asked::read(inference, 3).map_err(|error| error.to_string())
}

fn with(sampling: &Value) -> Asked {
    let inputs =
        vec![tensor("text_input", json!(["hi"])), tensor("sampling_parameters", json!([sampling.to_string()]))];
    read(inputs, json!({})).unwrap()
}

#[test]
fn settings_have_the_names_of_three_servers() {
    for sampling in [
        json!({"max_tokens": 5, "stop": ["a"], "seed": 3, "top_k": 2, "min_tokens": 1}),
        json!({"max_new_tokens": 5, "stop_sequences": "a", "seed": 3, "top_k": 2, "min_new_tokens": 1}),
        json!({"max_tokens": 5, "stop_words": ["a", ""], "bad_words": [""], "random_seed": 3, "runtime_top_k": 2,
               "min_length": 1, "beam_width": 1}),
        json!({"max_tokens": "5", "stop": "a", "seed": "3", "top_k": "2", "min_tokens": "1"}),
    ] {
        let mut requests = with(&sampling).completion.into_generations(1).unwrap();
        let request = requests.pop().unwrap();
        assert_eq!(request.prompt, Prompt::Text { text: "hi".to_owned(), add_special_tokens: true });
        let given = request.parameters;
        assert_eq!((given.max_new_tokens, given.seed, given.top_k), (Some(5), Some(3), Some(2)), "{sampling}");
        assert_eq!((given.stop, given.min_new_tokens), (vec!["a".to_owned()], Some(("min_tokens", 1))), "{sampling}");
        assert!(given.greedy_at_zero && given.bad_words.is_empty(), "{sampling}");
    }
}

#[test]
fn texts_stand_for_numbers_switches_and_objects() {
    let asked = with(&json!({
        "temperature": "0.5", "ignore_eos": "True", "logit_bias": "{\"3\": 1}", "cache_salt": "12",
        "response_format": "{\"type\": \"json_object\"}", "stop_token_ids": "[7]",
    }));
    let completion = asked.completion;
    assert_eq!((completion.temperature, completion.ignore_eos), (Some(0.5), Some(true)));
    assert_eq!(completion.cache_salt.as_deref(), Some("12"));
    assert_eq!(completion.response_format, Some(json!({"type": "json_object"})));
    assert_eq!((completion.logit_bias.unwrap()["3"], completion.stop_token_ids), (1.0, Some(vec![7])));
}

#[test]
fn one_tensor_goes_before_others_and_those_before_parameters() {
    let inputs = || vec![tensor("text_input", json!(["hi"])), tensor("max_new_tokens", json!([2]))];
    let limit = |asked: Asked| asked.completion.max_tokens;
    assert_eq!(limit(read(inputs(), json!({"max_tokens": 1, "unknown": [1]})).unwrap()), Some(2));
    let mut all = inputs();
    all.push(tensor("sampling_parameters", json!([{"max_tokens": 3}])));
    assert_eq!(limit(read(all, json!({"max_tokens": 1})).unwrap()), Some(3));
    let given = read(vec![tensor("text_input", json!(["hi"]))], json!({"sampling_parameters": "{\"max_tokens\": 4}"}));
    assert_eq!(limit(given.unwrap()), Some(4));
}

#[test]
fn switches_are_tensors_or_parameters() {
    let asked = read(
        vec![
            tensor("text_input", json!(["a", "b"])),
            tensor("stream", json!([false, false])),
            tensor("return_num_input_tokens", json!([true])),
        ],
        json!({"exclude_input_in_output": "true", "timeout": 1500, "return_finish_reason": false, "priority": 2,
               "triton_enable_empty_final_response": true}),
    )
    .unwrap();
    assert_eq!((asked.stream, asked.full_text), (Some(false), Some(false)));
    assert_eq!((asked.timeout, asked.empty_final), (Some(Duration::from_micros(1500)), true));
    assert_eq!(asked.flags, [(Out::FinishReason, false), (Out::InputTokens, true)]);
    assert_eq!((asked.completion.prompt.len(), asked.completion.priority), (2, Some(2)));
    let full = with(&json!({"return_full_text": true, "do_sample": false}));
    assert_eq!((full.full_text, full.completion.temperature), (Some(true), Some(0.0)));
}

#[test]
fn a_beam_width_is_a_beam_search() {
    let completion = with(&json!({"beam_width": 3, "len_penalty": 0.5})).completion;
    assert_eq!((completion.use_beam_search, completion.best_of), (Some(true), Some(3)));
    assert_eq!(completion.length_penalty, Some(0.5));
}

#[test]
fn what_changes_the_answer_is_not_a_setting() {
    let completion =
        with(&json!({"prompt": "x", "echo": true, "logprobs": 3, "stream": true, "suffix": "y"})).completion;
    assert!(completion.echo.is_none() && completion.logprobs.is_none() && completion.suffix.is_none());
    assert!(completion.stream.is_none());
}

#[test]
fn what_is_wrong_is_said() {
    let text = || tensor("text_input", json!(["hi"]));
    for (inputs, parameters, words) in [
        (vec![], json!({}), "`text_input` is missing"),
        (vec![tensor("text_input", json!([]))], json!({}), "0 prompts; send from 1 to 3"),
        (vec![tensor("text_input", json!(["a", "b", "c", "d"]))], json!({}), "4 prompts; send from 1 to 3"),
        (vec![tensor("text_input", json!([1]))], json!({}), "must hold text"),
        (vec![Tensor { rank: 3, ..text() }], json!({}), "more than two dimensions"),
        (vec![text(), text()], json!({}), "`text_input` is there twice"),
        (vec![text(), tensor("stop", json!(["a"])), tensor("stop_words", json!(["b"]))], json!({}), "is there twice"),
        (vec![text(), tensor("image", json!(["x"]))], json!({}), "no input has the name `image`; the model takes"),
        (vec![text(), tensor("temperature", json!([1, 2]))], json!({}), "`temperature` must hold one value"),
        (vec![text(), tensor("stream", json!(["x"]))], json!({}), "`stream` must be true or false"),
        (vec![text(), tensor("sampling_parameters", json!(["[1]"]))], json!({}), "must be a JSON object, as text"),
        (vec![text(), tensor("sampling_parameters", json!(["{"]))], json!({}), "must be a JSON object, as text: "),
        (vec![text(), tensor("sampling_parameters", json!([3]))], json!({}), "must be a JSON object, as text"),
        (vec![text()], json!({"temperature": "warm"}), "temperature"),
        (vec![text()], json!({"timeout": -1}), "`timeout` must be a whole number of microseconds"),
    ] {
        let error = read(inputs, parameters).unwrap_err();
        assert!(error.contains(words), "{words}: {error}");
    }
    let unknown = Inference { inputs: vec![text()], outputs: vec!["logits".to_owned()], ..Inference::default() };
    let error = Asked::read(unknown, 3).unwrap_err().to_string();
    assert!(error.contains("no output has the name `logits`; the model has `text_output`"), "{error}");
}
