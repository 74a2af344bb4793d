use proptest::prelude::*;
use proptest::test_runner::Config;

use super::*;
use crate::input::test_models::{fallback_decoder, pieces};

fn load(folder: &Folder) -> Result<ModelText, crate::input::LoadError> {
    ModelText::load(folder.path())
}

#[test]
fn knows_the_special_tokens() {
    let model = model();
    assert_eq!(model.eos_tokens()[..], [267]);
    assert!(model.is_special(266) && model.is_special(267) && !model.is_special(0) && !model.is_special(9999));
    assert_eq!(model.vocab_size(), 300);
    assert!(model.has_chat_template());
}

#[test]
fn joins_the_ends_that_all_files_name() {
    let folder = folder()
        .with("generation_config.json", &json!({"eos_token_id": [7, 5]}))
        .with("config.json", &json!({"text_config": {"eos_token_id": 6, "vocab_size": 280}}));
    let model = load(&folder).unwrap();
    assert_eq!(model.eos_tokens()[..], [5, 6, 7, 267]);
    assert_eq!(model.vocab_size(), 280);
}

#[test]
fn knows_what_a_decoder_starts_with() {
    assert!(model().decoder_start().is_none());
    let start = |config: Value, generation: Value| {
        let folder = folder().with("config.json", &config).with("generation_config.json", &generation);
        load(&folder).map(|model| model.decoder_start().map(|start| start.to_vec()))
    };
    let bart = json!({"is_encoder_decoder": true, "decoder_start_token_id": 2, "forced_bos_token_id": 0});
    assert_eq!(start(bart.clone(), json!({})).unwrap(), Some(vec![2, 0]));
    assert_eq!(start(bart.clone(), json!({"forced_bos_token_id": 7})).unwrap(), Some(vec![2, 7]));
    let kin = json!({"is_encoder_decoder": true});
    assert_eq!(start(kin.clone(), json!({"bos_token_id": 1})).unwrap(), Some(vec![1]), "as Transformers does");
    assert_eq!(start(json!({"decoder_start_token_id": 2}), json!({})).unwrap(), None, "there is no encoder");
    let missing = start(kin, json!({})).unwrap_err().to_string();
    assert!(missing.contains("config.json") && missing.contains("`decoder_start_token_id` is missing"), "{missing}");
}

#[test]
fn files_beside_the_tokenizer_are_optional() {
    let model = load(&Folder::new().with("tokenizer.json", &byte_level())).unwrap();
    assert!(model.eos_tokens().is_empty() && !model.has_chat_template());
    assert_eq!(model.vocab_size(), 268);
}

#[test]
fn named_tokens_become_special() {
    let config = json!({"eos_token": "hello", "pad_token": "not in the vocabulary"});
    let folder = Folder::new().with("tokenizer.json", &byte_level()).with("tokenizer_config.json", &config);
    let model = load(&folder).unwrap();
    let hello = model.tokenizer().token_to_id("hello").unwrap();
    assert!(model.is_special(hello));
    assert_eq!(model.eos_tokens()[..], [hello]);
    assert_eq!(model.vocab_size(), 268, "no token was added");
}

#[test]
fn older_folders_name_tokens_in_a_map() {
    let folder = Folder::new()
        .with("tokenizer.json", &byte_level())
        .with("special_tokens_map.json", &json!({"eos_token": {"content": "</s>"}}));
    assert_eq!(load(&folder).unwrap().eos_tokens()[..], [267]);
}

#[test]
fn shows_tokens_alone() {
    let bytes = model();
    let id = |token: &str| bytes.tokenizer().token_to_id(token).unwrap();
    assert_eq!(bytes.token_text(id("hello")), "hello");
    assert_eq!(bytes.token_text(id("Ġwo")), " wo");
    assert_eq!(bytes.token_text(266), "<s>");
    assert_eq!(bytes.token_text(0xF0), "\u{FFFD}");
    assert_eq!(bytes.token_text(290), "");

    let pieces = load(&Folder::new().with("tokenizer.json", &pieces(&fallback_decoder()))).unwrap();
    let id = |token: &str| pieces.tokenizer().token_to_id(token).unwrap();
    assert_eq!(pieces.token_text(id("▁world")), " world");
    assert_eq!(pieces.token_text(id("<0x41>")), "A");
    assert_eq!(pieces.token_text(id("</s>")), "</s>");
}

#[test]
fn a_prompt_is_neither_cut_nor_padded() {
    let mut tokenizer = byte_level();
    tokenizer["truncation"] = json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    tokenizer["padding"] = json!({"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null,
                                  "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
    let model = load(&Folder::new().with("tokenizer.json", &tokenizer)).unwrap();
    assert_eq!(model.tokenizer().encode("xyz", true).unwrap().len(), 4);
}

#[test]
fn knows_how_much_text_a_token_may_stand_for() {
    let longest = |change: fn(&mut Value)| {
        let mut tokenizer = byte_level();
        change(&mut tokenizer);
        load(&Folder::new().with("tokenizer.json", &tokenizer)).unwrap().longest_token()
    };
    assert_eq!(longest(|_| {}), Some("hello".len()));
    assert_eq!(longest(|t| t["normalizer"] = json!({"type": "NFC"})), Some(3 * "hello".len()));
    assert_eq!(longest(|t| t["normalizer"] = json!({"type": "Strip", "strip_left": true, "strip_right": true})), None);
    assert_eq!(longest(|t| t["added_tokens"][0]["lstrip"] = json!(true)), None);
}

#[test]
fn missing_and_damaged_files_are_named() {
    let error = sentence(load(&Folder::new()));
    assert!(error.contains("tokenizer.json is missing"), "{error}");
    for name in
        ["tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json", "chat_template.json"]
    {
        for content in ["", "{", "[1]", "\"text\"", "{\"model\": 1}x", "\u{FFFD}"] {
            let error = sentence(load(&folder().with_text(name, content)));
            assert!(error.contains(name) && error.contains("cannot be used") && !error.contains('\n'), "{error}");
        }
    }
}

#[test]
fn a_damaged_template_stops_chat_only() {
    let model = load(&folder().with_text("chat_template.jinja", "{% if %}")).unwrap();
    assert!(!model.has_chat_template());
}

#[test]
fn absurd_ids_are_refused() {
    let mut tokenizer = byte_level();
    tokenizer["model"]["vocab"]["huge"] = json!(4_000_000_000u32);
    let error = sentence(load(&Folder::new().with("tokenizer.json", &tokenizer)));
    assert!(error.contains("4000000000"), "{error}");
}

fn config(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}

#[test]
fn broken_tokenizer_files_never_panic() {
    let good = byte_level().to_string();
    proptest!(config(150), |(cut in 0..good.len(), byte in any::<u8>(), replace in any::<bool>())| {
        let mut bytes = good.clone().into_bytes();
        if replace {
            bytes[cut] = byte;
        } else {
            bytes.truncate(cut);
        }
        let folder = Folder::new();
        std::fs::write(folder.path().join("tokenizer.json"), bytes).unwrap();
        let loaded = load(&folder);
        prop_assert!(replace || loaded.is_err());
    });
}

/// Where the values in a document are, the document itself left out.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    let mut visit = |key: &str, child: &Value| {
        let pointer = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
        pointers(child, &pointer, found);
        found.push(pointer);
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, child)| visit(key, child)),
        // The first items stand for all.
        Value::Array(items) => items.iter().take(3).enumerate().for_each(|(i, child)| visit(&i.to_string(), child)),
        _ => {}
    }
}

#[test]
fn a_template_with_tokens_that_nobody_defines_is_refused() {
    let mut tokenizer = byte_level();
    *tokenizer.pointer_mut("/post_processor/special_tokens").unwrap() = json!({});
    let error = load(&Folder::new().with("tokenizer.json", &tokenizer)).unwrap_err().to_string();
    assert!(error.contains("`post_processor` puts special tokens around a text that it does not define"), "{error}");
}

#[test]
fn odd_tokenizers_never_panic() {
    for good in [byte_level(), pieces(&fallback_decoder())] {
        let mut places = Vec::new();
        pointers(&good, "", &mut places);
        places.retain(|place| !place.starts_with("/model/vocab/"));
        let odd = [json!(null), json!(7), json!(-1), json!("x"), json!([]), json!({}), json!(true), json!([[1]])];
        proptest!(config(300), |(place in prop::sample::select(places.clone()), odd in prop::sample::select(odd.to_vec()))| {
            let mut tokenizer = good.clone();
            *tokenizer.pointer_mut(&place).unwrap() = odd;
            if let Ok(model) = load(&Folder::new().with("tokenizer.json", &tokenizer)) {
                let _ = model.token_text(300);
            }
        });
    }
}
