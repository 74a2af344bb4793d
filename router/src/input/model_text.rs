//! The text side of a model: tokenizer, special tokens and chat template.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use serde::de::IgnoredAny;
use tokenizers::{NormalizerWrapper, Tokenizer};

use super::encoder::Encoder;
pub use super::files::LoadError;
use super::files::{read_json, read_optional};
use super::infill::Infill;
use super::special_tokens::SpecialTokens;
use super::template::ChatTemplates;
use crate::output::joining::Joining;
use crate::output::library_decode;
use crate::output::token_table::{Entry, TokenTable};

/// Tokenizer, special tokens and chat template of one model; shared by `input` and `output`.
pub struct ModelText {
    tokenizer: Tokenizer,
    encoder: Encoder,
    joining: Joining,
    table: TokenTable,
    special: SpecialTokens,
    templates: ChatTemplates,
    longest_token: Option<usize>,
    infill: Option<Infill>,
}

impl std::fmt::Debug for ModelText {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The whole vocabulary would be printed.
        formatter.debug_struct("ModelText").field("joining", &self.joining).finish_non_exhaustive()
    }
}

impl ModelText {
    /// Reads `tokenizer.json`, `tokenizer_config.json`, the chat template, `generation_config.json` and `config.json`.
    ///
    /// # Errors
    /// One sentence about the file that is missing or damaged. A chat template that does not parse is no error here:
    /// chat requests are refused with the reason, everything else works.
    pub fn load(dir: &Path) -> Result<Self, LoadError> {
        let mut tokenizer = load_tokenizer(dir)?;
        let config = read_json(dir, "tokenizer_config.json")?;
        let special = SpecialTokens::load(dir, &config, &mut tokenizer)?;
        let joining = Joining::of(&tokenizer);
        let table = TokenTable::build(&tokenizer, &joining)
            .map_err(|reason| LoadError::Damaged { path: dir.join(TOKENIZER), reason })?;
        let templates = ChatTemplates::load(dir, &config, &special)?;
        let shrinkage = shrinkage(&tokenizer).filter(|_| joining == Joining::Bytes);
        let longest_token = shrinkage.map(|times| table.longest().saturating_mul(times));
        let infill = Infill::of(&tokenizer);
        let encoder = Encoder::of(&tokenizer);
        Ok(Self { tokenizer, encoder, joining, table, special, templates, longest_token, infill })
    }

    /// Ids that end a sequence, ascending.
    #[must_use]
    pub fn eos_tokens(&self) -> &Arc<[u32]> {
        &self.special.eos_ids
    }

    /// What the decoder starts with, of a model with an encoder, which reads the prompts.
    #[must_use]
    pub fn decoder_start(&self) -> Option<&Arc<[u32]>> {
        self.special.decoder_start.as_ref()
    }

    /// Whether a token is a special one, which answers leave out.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.table.is_special(id)
    }

    /// The text of one token alone; special tokens by name, incomplete characters as U+FFFD, unknown ids empty.
    #[must_use]
    pub fn token_text(&self, id: u32) -> String {
        match self.table.get(id) {
            Entry::Unknown => String::new(),
            _ if self.is_special(id) => self.tokenizer.id_to_token(id).unwrap_or_default(),
            _ if self.joining == Joining::Library => library_decode(&self.tokenizer, &[id]),
            Entry::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Entry::Byte(byte) => String::from_utf8_lossy(&[byte]).into_owned(),
        }
    }

    /// Ids are below this: the rows of the model's embedding, or the tokenizer's size when the model does not say.
    #[must_use]
    pub fn vocab_size(&self) -> u32 {
        let tokens = u32::try_from(self.table.len()).unwrap_or(u32::MAX);
        self.special.vocab_size.unwrap_or(tokens)
    }

    /// Whether chat requests can be rendered.
    #[must_use]
    pub fn has_chat_template(&self) -> bool {
        self.templates.usable()
    }

    /// The texts of the chat templates, the one for tools first.
    pub(crate) fn chat_templates(&self) -> impl Iterator<Item = &str> {
        self.templates.sources()
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The ids of a text.
    ///
    /// # Errors
    /// The library's own.
    pub(crate) fn encode(&self, text: &str, add_special_tokens: bool) -> tokenizers::Result<Vec<u32>> {
        self.encoder.encode(&self.tokenizer, text, add_special_tokens)
    }

    pub(crate) fn joining(&self) -> &Joining {
        &self.joining
    }

    pub(crate) fn table(&self) -> &TokenTable {
        &self.table
    }

    pub(crate) fn templates(&self) -> &ChatTemplates {
        &self.templates
    }

    /// How the model is shown a gap to fill, when it was taught to.
    pub(crate) fn infill(&self) -> Option<&Infill> {
        self.infill.as_ref()
    }

    /// Most bytes of a prompt that one token can stand for; `None` when that is not known.
    pub(crate) fn longest_token(&self) -> Option<usize> {
        self.longest_token
    }
}

const TOKENIZER: &str = "tokenizer.json";

fn load_tokenizer(dir: &Path) -> Result<Tokenizer, LoadError> {
    let path = dir.join(TOKENIZER);
    let Some(bytes) = read_optional(dir, TOKENIZER)? else {
        let remedy = "save the model's fast tokenizer there (`AutoTokenizer.from_pretrained(…).save_pretrained(…)`)";
        return Err(LoadError::Missing { path, remedy });
    };
    let damaged = |reason: String| LoadError::Damaged { path: path.clone(), reason };
    // The library takes JSON for granted in places and panics where it is none.
    serde_json::from_slice::<IgnoredAny>(&bytes).map_err(|error| damaged(format!("it is not JSON ({error})")))?;
    let parsed = catch_unwind(|| Tokenizer::from_bytes(bytes)).map_err(|_| damaged("it is no tokenizer".to_owned()))?;
    let unreadable = |error: tokenizers::Error| damaged(format!("it is no tokenizer ({error})"));
    let mut tokenizer = parsed.map_err(unreadable)?;
    // Files remember how a training run cut and padded; a request is neither cut nor padded.
    tokenizer.with_truncation(None).map_err(unreadable)?;
    tokenizer.with_padding(None);
    // It also panics at the first text where the template around texts names a token that the file does not say.
    catch_unwind(AssertUnwindSafe(|| tokenizer.encode_fast("", true).is_ok())).map_err(|_| {
        damaged("its `post_processor` puts special tokens around a text that it does not define".to_owned())
    })?;
    // Our workers are the parallelism; a second pool would only compete with the device's threads.
    tokenizers::utils::parallelism::set_parallelism(false);
    Ok(tokenizer)
}

/// How many times longer a text may be than what the tokenizer makes of it; `None` without a bound (a normalizer that
/// drops characters, or a token that swallows the spaces beside it).
fn shrinkage(tokenizer: &Tokenizer) -> Option<usize> {
    let swallows = |token: &tokenizers::AddedToken| token.lstrip || token.rstrip;
    if tokenizer.get_added_vocabulary().get_added_tokens_decoder().values().any(swallows) {
        return None;
    }
    match tokenizer.get_normalizer() {
        None => Some(1),
        // Composing turns at most nine bytes (a Hangul syllable in three parts) into three.
        Some(NormalizerWrapper::NFC(_)) => Some(3),
        Some(_) => None,
    }
}
