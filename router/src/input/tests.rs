//! Loading of models, and the threads.

mod loading;
mod pool;
mod rules;

use std::sync::Arc;

use serde_json::{Value, json};

use super::test_models::{Folder, byte_level};
use super::{Limits, ModelText};
use crate::request::Watermark;

fn limits() -> Limits {
    Limits {
        max_best_of: 4,
        max_choices: 8,
        max_stop_sequences: 4,
        max_logit_bias: 3,
        max_bad_words: 3,
        watermark: Watermark { gamma: 0.5, delta: 2.0 },
        max_top_n_tokens: 5,
        max_input_tokens: 20,
        max_total_tokens: 30,
        validation_workers: 2,
        max_waiting_validations: 8,
    }
}

fn folder() -> Folder {
    Folder::new()
        .with("tokenizer.json", &byte_level())
        .with("config.json", &json!({"vocab_size": 300, "eos_token_id": 267}))
        .with(
            "tokenizer_config.json",
            &json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": TEMPLATE}),
        )
}

const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}";

fn model() -> Arc<ModelText> {
    Arc::new(ModelText::load(folder().path()).unwrap())
}

/// The sentence of the error, if it is one.
fn sentence<T: std::fmt::Debug>(result: Result<T, impl std::fmt::Display>) -> String {
    result.map_or_else(|error| error.to_string(), |value| panic!("accepted as {value:?}"))
}

fn object(fields: &Value) -> serde_json::Map<String, Value> {
    fields.as_object().unwrap().clone()
}
