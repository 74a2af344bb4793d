//! The model's tokens as the grammar sees them: the bytes that each writes, and how the tokenizer spells a text.

use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, Tokenizer};
use toktrie::{INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

use super::error::GrammarError;
use super::limits::GrammarLimits;
use super::parts::Parts;
use crate::input::ModelText;
use crate::output::joining::Joining;
use crate::output::token_table::Entry;

/// Bytes of forced text that are spelled as the tokenizer would; what lies behind is spelled again when it is reached.
pub(super) const SPELLED_AHEAD: usize = 4096;

/// One model's tokens, shared by all its grammars.
pub struct Vocabulary {
    factory: ParserFactory,
    parts: Arc<Parts>,
    env: TokEnv,
    eos: Arc<[u32]>,
    /// Every token with text, no special one, and none that ends a sequence: what thinking may use.
    free: Vec<u32>,
    vocab_size: usize,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Vocabulary").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// What special tokens begin with where tokens are written as bytes; no text has it.
    pub(super) const MARK: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

    /// Reads a model's tokens. It walks all of them several times: done once, at the start.
    ///
    /// # Errors
    /// `Unsupported` for a tokenizer whose tokens have no bytes of their own.
    pub fn new(model: &ModelText, limits: &GrammarLimits) -> Result<Self, GrammarError> {
        Self::spelled_by(model, limits, |speller| Arc::new(speller))
    }

    /// The same, over what is made of the model's spelling.
    fn spelled_by(
        model: &ModelText,
        limits: &GrammarLimits,
        env: impl FnOnce(Speller) -> TokEnv,
    ) -> Result<Self, GrammarError> {
        if *model.joining() == Joining::Library {
            let reason = "this model's tokenizer writes tokens that depend on each other, so no grammar can guide it";
            return Err(GrammarError::Unsupported(reason.to_owned()));
        }
        let eos = Arc::clone(model.eos_tokens());
        let words = words(model, &eos);
        let free = bits(words.len(), |id| ordinary(&words[id]));
        let size = u32::try_from(words.len()).unwrap_or(u32::MAX);
        let known: Vec<u32> = eos.iter().copied().filter(|&id| id < size).collect();
        let mut trie = TokTrie::from(&TokRxInfo::new(size, INVALID_TOKEN), &words);
        if !known.is_empty() {
            trie = trie.with_eos_tokens(&known);
        }
        let env = env(Speller { trie, tokenizer: continuing(model.tokenizer()) });
        let slices = SlicedBiasComputer::json_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| GrammarError::Internal(error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits.parser();
        let parts = Arc::new(Parts::new(factory.slicer())?);
        Ok(Self { factory, parts, env, eos, free, vocab_size: model.vocab_size() as usize })
    }

    /// `u32` words of a mask: a bit for every row of the model's logits, also for those that are no token.
    #[must_use]
    pub fn mask_words(&self) -> usize {
        self.vocab_size.div_ceil(32)
    }

    pub(super) fn factory(&self) -> &ParserFactory {
        &self.factory
    }

    /// What computes masks.
    pub(super) fn parts(&self) -> Arc<Parts> {
        Arc::clone(&self.parts)
    }

    pub(super) fn is_eos(&self, token: u32) -> bool {
        self.eos.contains(&token)
    }

    pub(super) fn knows(&self, token: u32) -> bool {
        (token as usize) < self.trie().vocab_size()
    }

    pub(super) fn free_mask(&self) -> &[u32] {
        &self.free
    }

    /// The id of a special token, by its name.
    pub(super) fn special(&self, name: &str) -> Option<u32> {
        self.trie().get_special_token(name)
    }

    /// The id of a token, special or not, by its name.
    pub(crate) fn named(&self, name: &str) -> Option<u32> {
        let ordinary = || self.trie().token_id(name.as_bytes());
        self.special(name).or_else(ordinary)
    }

    /// The bytes of a token; a special one has a mark and its name.
    pub(super) fn written(&self, token: u32) -> &[u8] {
        self.trie().token(token)
    }

    /// Bytes that a token writes; none for a special one.
    pub(super) fn bytes_of(&self, token: u32) -> &[u8] {
        let word = self.trie().token(token);
        if ordinary(word) { word } else { &[] }
    }

    /// The same, but a special token's name.
    #[cfg(test)]
    pub(super) fn name_of(&self, token: u32) -> &[u8] {
        let word = self.trie().token(token);
        if ordinary(word) { word } else { word.get(1..).unwrap_or_default() }
    }

    /// Clears what lies behind the model's last row, and copies no more than fits.
    pub(super) fn write_mask(&self, allowed: &[u32], words: &mut [u32]) {
        let shared = allowed.len().min(words.len());
        words[..shared].copy_from_slice(&allowed[..shared]);
        words[shared..].fill(0);
        let last = self.vocab_size % 32;
        if last != 0
            && let Some(word) = words.get_mut(self.vocab_size / 32)
        {
            *word &= (1 << last) - 1;
        }
    }

    fn trie(&self) -> &TokTrie {
        self.env.tok_trie()
    }
}

/// Whether a token writes text.
fn ordinary(word: &[u8]) -> bool {
    word.first().is_some_and(|&byte| byte != TokTrie::SPECIAL_TOKEN_MARKER)
}

fn bits(count: usize, on: impl Fn(usize) -> bool) -> Vec<u32> {
    let mut words = vec![0; count.div_ceil(32)];
    for id in (0..count).filter(|&id| on(id)) {
        words[id / 32] |= 1 << (id % 32);
    }
    words
}

/// What each id writes. Special tokens and ends are marked, so that no text can be spelled with them; ids without a token
/// write nothing and are never allowed.
fn words(model: &ModelText, eos: &[u32]) -> Vec<Vec<u8>> {
    let table = model.table();
    let ids = 0..u32::try_from(table.len()).unwrap_or(u32::MAX);
    let marked = |id: u32| {
        let name = model.tokenizer().id_to_token(id).unwrap_or_default();
        [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()
    };
    let word = |id: u32| match table.get(id) {
        Entry::Unknown => Vec::new(),
        _ if table.is_special(id) || eos.contains(&id) => marked(id),
        // A byte that no UTF-8 text has, and the trie's mark for special tokens.
        Entry::Text(bytes) if bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) => Vec::new(),
        Entry::Text(bytes) => bytes.to_vec(),
        Entry::Byte(TokTrie::SPECIAL_TOKEN_MARKER) => Vec::new(),
        Entry::Byte(byte) => vec![byte],
    };
    ids.map(word).collect()
}

/// Spells forced text.
struct Speller {
    trie: TokTrie,
    tokenizer: Tokenizer,
}

impl Speller {
    fn encode(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode_fast(text, false).map(|encoding| encoding.get_ids().to_vec()).unwrap_or_default()
    }

    /// Whether the tokens write exactly these bytes: a normalizer or an unknown token can change a text.
    fn spells(&self, tokens: &[u32], bytes: &[u8]) -> bool {
        let mut rest = bytes;
        for &token in tokens {
            let word = self.trie.token(token);
            match rest.strip_prefix(word) {
                Some(after) if ordinary(word) => rest = after,
                _ => return false,
            }
        }
        rest.is_empty()
    }
}

impl TokenizerEnv for Speller {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let near = bytes.len().min(SPELLED_AHEAD);
        let near = (0..=near).rev().find(|&end| is_boundary(bytes, end)).unwrap_or(near);
        let (near, far) = bytes.split_at(near);
        let mut tokens = self.trie.tokenize_with_greedy_fallback(near, |text| self.encode(text));
        if !self.spells(&tokens, near) {
            tokens = self.trie.greedy_tokenize(near);
        }
        tokens.extend(self.trie.greedy_tokenize(far));
        tokens
    }
}

/// Whether no character lies across `end`.
fn is_boundary(bytes: &[u8], end: usize) -> bool {
    bytes.get(end).is_none_or(|byte| byte & 0xC0 != 0x80)
}

/// Spelling that panics over this text, as a library might.
#[cfg(test)]
struct Failing(Speller, &'static str);

#[cfg(test)]
impl TokenizerEnv for Failing {
    fn tok_trie(&self) -> &TokTrie {
        self.0.tok_trie()
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        assert!(!String::from_utf8_lossy(bytes).contains(self.1), "made to fail");
        self.0.tokenize_bytes(bytes)
    }
}

#[cfg(test)]
impl Vocabulary {
    /// One by which the library panics as soon as it looks for what is forced and finds this text.
    pub(super) fn failing_at(text: &'static str, model: &ModelText) -> Self {
        Self::spelled_by(model, &GrammarLimits::default(), |speller| Arc::new(Failing(speller, text))).unwrap()
    }
}

/// The tokenizer for text in the middle of a sequence: it writes no space before a first word, and takes no text for a
/// special token.
fn continuing(tokenizer: &Tokenizer) -> Tokenizer {
    let mut tokenizer = tokenizer.clone();
    tokenizer.set_encode_special_tokens(true);
    let normalizer: Option<NormalizerWrapper> = tokenizer.get_normalizer().and_then(adapted);
    // Only a precompiled table can be refused, and one that was loaded is none.
    let _ = tokenizer.with_normalizer(normalizer);
    let pre_tokenizer: Option<PreTokenizerWrapper> = tokenizer.get_pre_tokenizer().and_then(adapted);
    tokenizer.with_pre_tokenizer(pre_tokenizer);
    tokenizer
}

/// A step as it is written in `tokenizer.json`, without its prefix.
fn adapted<T: Serialize + DeserializeOwned>(step: &T) -> Option<T> {
    serde_json::to_value(step).ok().and_then(without_prefix).and_then(|step| serde_json::from_value(step).ok())
}

/// A step of a tokenizer that prepends nothing; `None` when that is all it did.
fn without_prefix(mut step: Value) -> Option<Value> {
    match step["type"].as_str() {
        Some("Prepend") => return None,
        Some("Metaspace") => step["prepend_scheme"] = Value::from("never"),
        Some("ByteLevel") => step["add_prefix_space"] = Value::from(false),
        _ => {}
    }
    for steps in ["normalizers", "pretokenizers"] {
        if let Some(inner) = step[steps].as_array_mut() {
            let kept = std::mem::take(inner).into_iter().filter_map(without_prefix);
            *inner = kept.collect();
        }
    }
    Some(step)
}
