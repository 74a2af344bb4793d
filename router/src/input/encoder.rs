//! A text's tokens: by the tokenizers library, or by its parts alone where all of them are known to be enough.
//!
//! For every byte of a text the library keeps where it came from, and for every token what it says and where. A prompt
//! needs the ids only. With byte-level BPE (GPT-2, Llama 3, Qwen, …) the library's own regular expressions cut the text
//! into words here, its model is asked for the tokens of each, and those of words that come again are remembered.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use tokenizers::models::ModelWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::tokenizer::{Model, SplitDelimiterBehavior};
use tokenizers::utils::SysRegex;
use tokenizers::{Encoding, OffsetReferential, OffsetType, Result, Token, Tokenizer};

use crate::output::token_table::byte_level_alphabet;

/// What byte-level pre-tokenizers split by unless they are told not to: GPT-2's own.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Words that a thread remembers before it starts over, and the longest of them in bytes: a few MiB.
const WORDS: usize = 16_384;
const WORD: usize = 32;
/// No token has it.
const TEXT: u32 = u32::MAX;

/// How the texts of one tokenizer become ids.
pub(crate) struct Encoder {
    words: Option<Words>,
}

/// Byte-level BPE whose words depend on nothing but themselves.
struct Words {
    /// Cut the text one after the other; each keeps both what it finds and what lies between.
    cuts: Vec<SysRegex>,
    letters: [char; 256],
    before: Vec<u32>,
    after: Vec<u32>,
    number: u64,
}

/// The tokens of words that one thread has seen.
#[derive(Default)]
struct Known {
    number: u64,
    words: HashMap<Box<str>, Range<usize>>,
    ids: Vec<u32>,
}

thread_local! {
    static KNOWN: RefCell<Known> = RefCell::default();
}

impl Encoder {
    pub(crate) fn of(tokenizer: &Tokenizer) -> Self {
        Self { words: Words::of(tokenizer) }
    }

    /// The ids of a text, those that the tokenizer's `encode` gives.
    ///
    /// # Errors
    /// The library's own, where the model cannot take a word.
    pub(crate) fn encode(&self, tokenizer: &Tokenizer, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        let Some(words) = &self.words else {
            return Ok(tokenizer.encode_fast(text, add_special_tokens)?.get_ids().to_vec());
        };
        let mut ids = Vec::with_capacity(text.len() / 3 + words.before.len() + words.after.len());
        let (before, after): (&[u32], &[u32]) =
            if add_special_tokens { (&words.before, &words.after) } else { (&[], &[]) };
        ids.extend_from_slice(before);
        let added = tokenizer.get_added_vocabulary();
        let parts = added.extract_and_normalize(tokenizer.get_normalizer(), text);
        KNOWN
            .with_borrow_mut(|known| {
                known.belong_to(words.number);
                for (part, _, tokens) in parts.get_splits(OffsetReferential::Normalized, OffsetType::None) {
                    match tokens {
                        Some(tokens) => ids.extend(tokens.iter().map(|token| token.id)),
                        None => words.encode(tokenizer.get_model(), part, &words.cuts, known, &mut ids)?,
                    }
                }
                Ok(())
            })
            .map(|()| {
                ids.extend_from_slice(after);
                ids
            })
    }
}

impl Words {
    /// `None` for a tokenizer of another kind: its texts take the library's whole way.
    fn of(tokenizer: &Tokenizer) -> Option<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
        if model.dropout.is_some_and(|share| share > 0.0) {
            return None;
        }
        let steps = match tokenizer.get_pre_tokenizer()? {
            PreTokenizerWrapper::Sequence(steps) => steps.as_ref(),
            one => std::slice::from_ref(one),
        };
        let (PreTokenizerWrapper::ByteLevel(bytes), splits) = steps.split_last()? else { return None };
        if bytes.add_prefix_space {
            return None;
        }
        let patterns = splits.iter().map(|step| match step {
            PreTokenizerWrapper::Split(split)
                if split.behavior == SplitDelimiterBehavior::Isolated && !split.invert =>
            {
                match &split.pattern {
                    SplitPattern::Regex(pattern) => Some(pattern.as_str()),
                    SplitPattern::String(_) => None,
                }
            }
            _ => None,
        });
        let patterns: Option<Vec<&str>> = patterns.chain(bytes.use_regex.then_some(Some(GPT2))).collect();
        let cuts: Option<Vec<SysRegex>> = patterns?.into_iter().map(|pattern| SysRegex::new(pattern).ok()).collect();
        let (before, after) = around(tokenizer)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Some(Self { cuts: cuts?, letters: letters(), before, after, number })
    }

    fn encode(
        &self,
        model: &ModelWrapper,
        text: &str,
        cuts: &[SysRegex],
        known: &mut Known,
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let Some((cut, rest)) = cuts.split_first() else { return self.word(model, text, known, ids) };
        let mut done = 0;
        for (start, end) in cut.find_iter(text) {
            self.encode(model, &text[done..start], rest, known, ids)?;
            self.encode(model, &text[start..end], rest, known, ids)?;
            done = end;
        }
        self.encode(model, &text[done..], rest, known, ids)
    }

    fn word(&self, model: &ModelWrapper, word: &str, known: &mut Known, ids: &mut Vec<u32>) -> Result<()> {
        if let Some(place) = known.words.get(word) {
            ids.extend_from_slice(&known.ids[place.clone()]);
            return Ok(());
        }
        let spelled: String = word.bytes().map(|byte| self.letters[usize::from(byte)]).collect();
        let from = ids.len();
        ids.extend(model.tokenize(&spelled)?.into_iter().map(|token| token.id));
        known.remember(word, &ids[from..]);
        Ok(())
    }
}

impl Known {
    /// A thread works for one tokenizer as a rule; another one's words are forgotten.
    fn belong_to(&mut self, number: u64) {
        if self.number != number {
            *self = Self { number, ..Self::default() };
        }
    }

    fn remember(&mut self, word: &str, ids: &[u32]) {
        if word.len() > WORD {
            return;
        }
        if self.words.len() >= WORDS {
            self.words.clear();
            self.ids.clear();
        }
        let from = self.ids.len();
        self.ids.extend_from_slice(ids);
        self.words.insert(word.into(), from..self.ids.len());
    }
}

/// What the tokenizer puts before and after every text; `None` where it does more than that.
fn around(tokenizer: &Tokenizer) -> Option<(Vec<u32>, Vec<u32>)> {
    let process = |special| {
        let text = Encoding::from_tokens(vec![Token::new(TEXT, String::new(), (0, 0))], 0);
        tokenizer.post_process(text, None, special).ok().map(|encoding| encoding.get_ids().to_vec())
    };
    let ids = process(true)?;
    let place = ids.iter().position(|&id| id == TEXT)?;
    let (before, after) = (ids[..place].to_vec(), ids[place + 1..].to_vec());
    (!after.contains(&TEXT) && process(false)? == [TEXT]).then_some((before, after))
}

/// The character that byte-level BPE writes for each byte.
fn letters() -> [char; 256] {
    let mut letters = std::array::from_fn(|byte| u8::try_from(byte).map_or('\0', char::from));
    for (place, byte) in (256..).zip(byte_level_alphabet()) {
        letters[usize::from(byte)] = char::from_u32(place).unwrap_or('\0');
    }
    letters
}

#[cfg(test)]
mod tests;
