//! Walks under masks: whatever finishes is what the source asked for, as others judge it.

mod compile;
mod forced;
mod gbnf;
mod gbnf_random;
mod hostile;
mod layouts;
mod measure;
mod other_sources;
mod patterns;
mod schemas;
pub(crate) mod walk;

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::{CompiledGrammar, GrammarError, GrammarLimits, GrammarSource, Vocabulary};
use crate::input::ModelText;
use crate::input::test_models::{Folder, byte_level, pieces};
use serde_json::json;

/// The built-in model's tokens: byte-level BPE of 2,046 tokens.
pub(crate) static DEMO: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/textgen/demo/model");
    vocabulary(&ModelText::load(&folder).unwrap())
});
/// Byte-level BPE of 256 bytes and a few merges across characters.
pub(crate) static TINY: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| {
    let folder = Folder::new()
        .with("tokenizer.json", &byte_level())
        .with("tokenizer_config.json", &json!({"eos_token": "</s>", "bos_token": "<s>"}));
    vocabulary(&ModelText::load(folder.path()).unwrap())
});
/// SentencePiece-like pieces with byte fallback, and a tokenizer that writes a space before a first word; its model has more
/// rows than tokens.
static PIECES: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| {
    let folder = Folder::new()
        .with("tokenizer.json", &pieces(&crate::input::test_models::fallback_decoder()))
        .with("tokenizer_config.json", &json!({"eos_token": "</s>"}))
        .with("config.json", &json!({"vocab_size": 300}));
    vocabulary(&ModelText::load(folder.path()).unwrap())
});

/// The built-in model's tokens, by which the library panics once this text is forced.
pub(crate) const UNSPEAKABLE: &str = "boom";
pub(crate) static FAILING: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/textgen/demo/model");
    Arc::new(Vocabulary::failing_at(UNSPEAKABLE, &ModelText::load(&folder).unwrap()))
});

fn vocabulary(model: &ModelText) -> Arc<Vocabulary> {
    Arc::new(Vocabulary::new(model, &GrammarLimits::default()).unwrap())
}

pub(crate) fn compile(source: &GrammarSource, vocabulary: &Arc<Vocabulary>) -> Result<CompiledGrammar, GrammarError> {
    CompiledGrammar::compile(source, vocabulary, &unhurried())
}

/// The usual limits, but for the time: a machine may stand still for a while.
fn unhurried() -> GrammarLimits {
    GrammarLimits { compile_timeout: Duration::from_secs(600), ..GrammarLimits::default() }
}

fn refusal(source: &GrammarSource) -> GrammarError {
    compile(source, &DEMO).expect_err("the source should be refused")
}
