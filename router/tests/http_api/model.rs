//! A model's text side that a test can read: token N is byte N, 256 begins a text, 257 ends one, and behind them are special
//! tokens around reasoning and calls.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value, json};
use textgen_router::input::ModelText;

/// `<s>`.
pub const BOS: u32 = 256;
/// `</s>`.
pub const EOS: u32 = 257;

/// Special tokens around reasoning and calls; their ids begin behind `EOS`.
pub const MARKERS: [&str; 8] =
    ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>"];

/// The tokens of a text with its markers.
pub fn marked(text: &str) -> Vec<u32> {
    let mut rest = text;
    let mut ids = Vec::new();
    while !rest.is_empty() {
        let marker = (EOS + 1..).zip(MARKERS).find_map(|(id, marker)| Some((id, rest.strip_prefix(marker)?)));
        if let Some((id, behind)) = marker {
            ids.push(id);
            rest = behind;
        } else {
            ids.push(u32::from(rest.as_bytes()[0]));
            // Bytes of one character come one by one.
            let length = rest.chars().next().map_or(1, char::len_utf8);
            ids.extend(rest.as_bytes()[1..length].iter().copied().map(u32::from));
            rest = &rest[length..];
        }
    }
    ids
}

/// The tokens of a text without special ones.
pub fn tokens(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// The model, loaded once.
pub fn model() -> Arc<ModelText> {
    static MODEL: LazyLock<Arc<ModelText>> = LazyLock::new(|| {
        let dir = std::env::temp_dir().join(format!("textgen-http-test-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        write(&dir);
        let model = ModelText::load(&dir).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        Arc::new(model)
    });
    Arc::clone(&MODEL)
}

fn write(dir: &Path) {
    let file = |name: &str, value: &Value| std::fs::write(dir.join(name), value.to_string()).unwrap();
    file("tokenizer.json", &tokenizer());
    file("config.json", &json!({"vocab_size": EOS as usize + 1 + MARKERS.len(), "eos_token_id": EOS}));
    let template = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}\
                    {% if tools %}[tools]{{ tools | length }}{% endif %}\
                    {% if add_generation_prompt %}[assistant]{{ begun }}{% endif %}";
    file("tokenizer_config.json", &json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}));
}

fn tokenizer() -> Value {
    let mut vocab: Map<String, Value> = Map::new();
    for (byte, character) in alphabet() {
        vocab.insert(character.to_string(), byte.into());
    }
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let named = [(BOS, "<s>"), (EOS, "</s>")].into_iter().chain((EOS + 1..).zip(MARKERS));
    let added: Vec<Value> = named.map(|(id, content)| special(id, content)).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}}
        },
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []}
    })
}

/// How byte-level tokenizers write each byte: printable Latin-1 as itself, the others from U+0100 on.
fn alphabet() -> Vec<(u32, char)> {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 256;
    let mut letter = |byte: u32| {
        let code = if printable(byte) { byte } else { next };
        next += u32::from(!printable(byte));
        (byte, char::from_u32(code).unwrap())
    };
    (0..256).map(&mut letter).collect()
}
