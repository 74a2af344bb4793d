//! Tiny models for tests, written to folders of their own.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

/// A folder that goes away with this.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("textgen-text-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn with(self, name: &str, content: &Value) -> Self {
        self.with_text(name, &content.to_string())
    }

    pub(crate) fn with_text(self, name: &str, content: &str) -> Self {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        self
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The character that byte-level BPE writes for a byte.
pub(crate) fn byte_character(byte: u8) -> char {
    let printable = |b: &u8| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(&byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|b| !printable(b)).count();
    char::from_u32(256 + u32::try_from(rank).unwrap()).unwrap()
}

fn special(id: usize, content: &str) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
           "special": true})
}

/// Byte-level BPE with all 256 bytes (ids 0 to 255 are the bytes), some merges over several characters and parts of
/// characters, and two special tokens `<s>` and `</s>`; `<s>` goes before every text.
pub(crate) fn byte_level() -> Value {
    let mut vocab = serde_json::Map::new();
    for byte in 0..=255u8 {
        vocab.insert(byte_character(byte).to_string(), json!(vocab.len()));
    }
    let mut merges = Vec::new();
    let mut merge = |left: &[u8], right: &[u8]| {
        let write = |bytes: &[u8]| bytes.iter().map(|b| byte_character(*b)).collect::<String>();
        merges.push(json!([write(left), write(right)]));
        vocab.insert(write(left) + &write(right), json!(vocab.len()));
    };
    merge(b"h", b"e");
    merge(b"l", b"l");
    merge(b"he", b"ll");
    merge(b"hell", b"o");
    merge(b" ", b"w");
    merge(b" w", b"o");
    merge(&[0xF0], &[0x9F]); // half an emoji
    merge(&[0xF0, 0x9F], &[0x8C]);
    merge(&[0xC3], &[0xA9]); // é
    merge(b"e", b"\xC3"); // a character and the half of another
    let (bos, eos) = (vocab.len(), vocab.len() + 1);
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [special(bos, "<s>"), special(eos, "</s>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [bos], "tokens": ["<s>"]}}
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": merges}
    })
}

/// The usual decoder of SentencePiece models with byte fallback.
pub(crate) fn fallback_decoder() -> Value {
    json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    ]})
}

pub(crate) fn metaspace_decoder() -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})
}

/// A SentencePiece-like unigram model: `<unk>`, `<s>`, `</s>`, 256 byte tokens from id 3, then pieces.
pub(crate) fn pieces(decoder: &Value) -> Value {
    let mut vocab = vec![json!(["<unk>", 0.0]), json!(["<s>", 0.0]), json!(["</s>", 0.0])];
    vocab.extend((0..=255u8).map(|byte| json!([format!("<0x{byte:02X}>"), -20.0])));
    for piece in ["▁", "▁hello", "▁world", "hello", "wor", "ld", "a", "b", "é", "日本", "▁▁", "▁a", "!", "x▁y"]
    {
        vocab.push(json!([piece, -2.0]));
    }
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "post_processor": null,
        "decoder": decoder,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": true}
    })
}
