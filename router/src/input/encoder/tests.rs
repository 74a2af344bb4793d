//! The ids are those that the library gives, whatever the text.

use proptest::prelude::*;
use proptest::test_runner::Config;
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use super::{Encoder, KNOWN, WORD, WORDS};
use crate::input::test_models::{byte_level, fallback_decoder, pieces};

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn bytes(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn changed(changes: &Value) -> Value {
    let mut model = byte_level();
    for (name, value) in changes.as_object().unwrap() {
        model[name] = value.clone();
    }
    model
}

fn sequence(steps: &[Value]) -> Value {
    json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}})
}

fn read(model: &Value) -> Tokenizer {
    model.to_string().parse().unwrap()
}

/// GPT-2's, Llama 3's, DeepSeek's cuts one after the other, Qwen's with a normalizer, and tokens that take spaces along.
fn kinds() -> Vec<Value> {
    let mut greedy = byte_level();
    greedy["added_tokens"][1]["lstrip"] = json!(true);
    greedy["added_tokens"][1]["rstrip"] = json!(true);
    let mut after = byte_level();
    let special = after["post_processor"]["single"][0].clone();
    after["post_processor"]["single"].as_array_mut().unwrap().push(special);
    let mut composing = changed(&sequence(&[split(LLAMA3), bytes(false)]));
    composing["normalizer"] = json!({"type": "NFC"});
    composing["post_processor"] = json!(null);
    let three = [split(r"\p{N}{1,3}"), split("[一-龥]+"), split(r"\s?\p{L}+|[^\p{L}]"), bytes(true)];
    vec![
        byte_level(),
        changed(&sequence(&[split(LLAMA3), bytes(false)])),
        changed(&sequence(&three)),
        composing,
        greedy,
        after,
    ]
}

fn texts() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "hello",
        " world",
        " he'll",
        "<s>",
        "</s>",
        " </s> ",
        "  \n",
        "\r\n",
        "\t",
        "e\u{301}",
        "é",
        "🌍",
        "日本",
        "12345",
        "\u{a0}",
        "don't",
        " WE'RE",
        "…",
        "a",
        "\0",
        "\u{1100}\u{1161}\u{11a8}",
    ]);
    prop::collection::vec(prop_oneof![words.prop_map(str::to_owned), "\\PC{0,8}", any::<String>()], 0..12)
        .prop_map(|parts| parts.concat())
}

#[test]
fn ids_are_those_of_the_library() {
    for model in kinds() {
        let tokenizer = read(&model);
        let encoder = Encoder::of(&tokenizer);
        assert!(encoder.words.is_some(), "{}", model["pre_tokenizer"]);
        let config = Config { cases: 400, failure_persistence: None, ..Config::default() };
        proptest!(config, |(text in texts(), special in any::<bool>())| {
            let expected = tokenizer.encode(text.as_str(), special).unwrap();
            prop_assert_eq!(encoder.encode(&tokenizer, &text, special).unwrap(), expected.get_ids());
        });
    }
}

#[test]
fn other_tokenizers_take_the_whole_way() {
    let prefixed = json!({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}});
    let mut removing = split(LLAMA3);
    removing["behavior"] = json!("Removed");
    let mut random = byte_level();
    random["model"]["dropout"] = json!(0.1);
    let others = [
        pieces(&fallback_decoder()),
        changed(&prefixed),
        changed(&sequence(&[removing, bytes(false)])),
        changed(&sequence(&[split(LLAMA3)])),
        changed(&json!({"pre_tokenizer": null})),
        random,
    ];
    for model in &others {
        assert!(Encoder::of(&read(model)).words.is_none(), "{}", model["pre_tokenizer"]);
    }
    let tokenizer = read(&others[0]);
    let ids = Encoder::of(&tokenizer).encode(&tokenizer, "hello world", true).unwrap();
    assert_eq!(ids, tokenizer.encode("hello world", true).unwrap().get_ids());
}

#[test]
fn no_more_words_are_remembered_than_a_few() {
    let tokenizer = read(&byte_level());
    let encoder = Encoder::of(&tokenizer);
    let text: String =
        (0..2 * WORDS + 10).map(|number| format!(" {number}")).collect::<String>() + &"x".repeat(WORD + 1);
    let expected = tokenizer.encode(text.as_str(), true).unwrap();
    assert_eq!(encoder.encode(&tokenizer, &text, true).unwrap(), expected.get_ids());
    assert_eq!(encoder.encode(&tokenizer, &text, true).unwrap(), expected.get_ids());
    KNOWN.with_borrow(|known| {
        assert!(known.words.len() <= WORDS);
        assert!(known.ids.len() <= WORDS * WORD);
        assert!(known.words.keys().all(|word| word.len() <= WORD));
    });
}

#[test]
fn two_tokenizers_do_not_share_words() {
    let mut other = byte_level();
    other["model"]["merges"] = json!([]);
    let (one, two) = (read(&byte_level()), read(&other));
    let (first, second) = (Encoder::of(&one), Encoder::of(&two));
    for _ in 0..2 {
        assert_eq!(first.encode(&one, "hello", false).unwrap().len(), 1);
        assert_eq!(second.encode(&two, "hello", false).unwrap().len(), 5);
    }
}
