//! Which tokens begin and end a text, as the files of a model state it.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tokenizers::{AddedToken, Tokenizer};

use super::files::{LoadError, read_json};

/// The kinds of special tokens that tokenizers name.
const KINDS: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Names and ids of a model's special tokens.
#[derive(Debug)]
pub(crate) struct SpecialTokens {
    /// Their names by what chat templates call them: `bos_token` and its like.
    pub(crate) names: Vec<(&'static str, String)>,
    /// All ids that end a sequence, ascending.
    pub(crate) eos_ids: Arc<[u32]>,
    /// Rows of the model's embedding, when `config.json` says.
    pub(crate) vocab_size: Option<u32>,
    /// What the decoder of an encoder-decoder model starts with.
    pub(crate) decoder_start: Option<Arc<[u32]>>,
}

impl SpecialTokens {
    /// Reads the files, and marks the named tokens as special in the tokenizer (older files leave that out).
    pub(crate) fn load(dir: &Path, tokenizer_config: &Value, tokenizer: &mut Tokenizer) -> Result<Self, LoadError> {
        let map = read_json(dir, "special_tokens_map.json")?;
        let name = |key: &'static str| {
            let name = token_name(&tokenizer_config[key]).or_else(|| token_name(&map[key]))?;
            Some((key, name))
        };
        let names: Vec<_> = KINDS.into_iter().filter_map(name).collect();
        for (_, token) in &names {
            mark_special(tokenizer, token);
        }
        let eos = names.iter().find(|(key, _)| *key == "eos_token").map(|(_, token)| token.as_str());
        let config = read_json(dir, "config.json")?;
        let generation_config = read_json(dir, "generation_config.json")?;
        let mut ids = Vec::new();
        for source in [&generation_config["eos_token_id"], either(&config, "eos_token_id")] {
            ids.extend(token_ids(source));
        }
        ids.extend(eos.and_then(|name| tokenizer.token_to_id(name)));
        ids.sort_unstable();
        ids.dedup();
        let vocab_size = either(&config, "vocab_size").as_u64().and_then(|size| u32::try_from(size).ok());
        let eos_ids = ids.into();
        let decoder_start = match config["is_encoder_decoder"].as_bool() {
            Some(true) => Some(decoder_start(dir, &config, &generation_config)?),
            _ => None,
        };
        Ok(Self { names, eos_ids, vocab_size, decoder_start })
    }
}

/// The token before the first that a decoder generates, and the first one where the files force it.
fn decoder_start(dir: &Path, config: &Value, generation_config: &Value) -> Result<Arc<[u32]>, LoadError> {
    let stated = |key: &str| {
        let value = if generation_config[key].is_null() { either(config, key) } else { &generation_config[key] };
        token_ids(value).first().copied()
    };
    let start = stated("decoder_start_token_id").or_else(|| stated("bos_token_id")).ok_or_else(|| {
        let reason = "its model has an encoder, and `decoder_start_token_id` is missing".to_owned();
        LoadError::Damaged { path: dir.join("config.json"), reason }
    })?;
    Ok(std::iter::once(start).chain(stated("forced_bos_token_id")).collect())
}

/// A field of a configuration, or of the text model inside a configuration of several models.
fn either<'a>(config: &'a Value, key: &str) -> &'a Value {
    if config[key].is_null() { &config["text_config"][key] } else { &config[key] }
}

/// A token's name: a string, or an object with its `content`.
fn token_name(value: &Value) -> Option<String> {
    let name = value.as_str().or_else(|| value["content"].as_str())?;
    Some(name.to_owned())
}

/// One id or a list of ids.
fn token_ids(value: &Value) -> Vec<u32> {
    let one = std::slice::from_ref(value);
    let values = value.as_array().map_or(one, Vec::as_slice);
    values.iter().filter_map(Value::as_u64).filter_map(|id| u32::try_from(id).ok()).collect()
}

fn mark_special(tokenizer: &mut Tokenizer, token: &str) {
    let known = tokenizer.token_to_id(token).is_some();
    if known
        && !tokenizer.get_added_vocabulary().is_special_token(token)
        && let Err(error) = tokenizer.add_special_tokens([AddedToken::from(token, true)])
    {
        tracing::warn!(token, %error, "the tokenizer does not take this token as a special one");
    }
}
