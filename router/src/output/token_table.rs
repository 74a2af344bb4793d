//! What each token writes, looked up by id: built once at load, so that a token costs a copy of its bytes.

use tokenizers::Tokenizer;

use super::joining::{Joining, Pieces};

/// Ids above this are taken for a damaged file: no vocabulary comes near it, and the table has an entry per id.
const MAX_TOKEN_ID: u32 = 1 << 24;

/// What one token writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry<'a> {
    /// No such token.
    Unknown,
    /// Its bytes; for pieces these are whole characters.
    Text(&'a [u8]),
    /// One byte of a character that is spelled in bytes.
    Byte(u8),
}

/// Bytes and kind of every token.
pub(crate) struct TokenTable {
    bytes: Vec<u8>,
    /// Where each token's bytes end; they start where the one before ends.
    ends: Vec<u32>,
    kinds: Vec<Kind>,
    longest: usize,
}

#[derive(Clone, Copy, Default)]
struct Kind {
    known: bool,
    special: bool,
    byte: bool,
}

impl std::fmt::Debug for TokenTable {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("TokenTable").field("tokens", &self.ends.len()).finish_non_exhaustive()
    }
}

impl TokenTable {
    /// Asks the tokenizer for every token it has.
    ///
    /// # Errors
    /// A reason, when an id is beyond any real vocabulary.
    pub(crate) fn build(tokenizer: &Tokenizer, joining: &Joining) -> Result<Self, String> {
        let largest = tokenizer.get_vocab(true).into_values().max();
        if let Some(largest) = largest.filter(|&id| id > MAX_TOKEN_ID) {
            return Err(format!("it has a token with id {largest}, and ids may not exceed {MAX_TOKEN_ID}"));
        }
        let count = largest.map_or(0, |id| id + 1);
        let alphabet = byte_level_alphabet();
        let mut table = Self { bytes: Vec::new(), ends: Vec::new(), kinds: Vec::new(), longest: 0 };
        for id in 0..count {
            table.push(tokenizer, joining, &alphabet, id)?;
        }
        Ok(table)
    }

    fn push(&mut self, tokenizer: &Tokenizer, joining: &Joining, alphabet: &[u8], id: u32) -> Result<(), String> {
        let mut kind = Kind::default();
        let start = self.bytes.len();
        if let Some(token) = tokenizer.id_to_token(id) {
            kind.known = true;
            kind.special = tokenizer.get_added_vocabulary().is_special_token(&token);
            match joining {
                Joining::Bytes => self.bytes.extend(byte_level(&token, alphabet)),
                Joining::Pieces(pieces) => kind.byte = self.push_piece(&token, pieces),
                Joining::Library => self.bytes.extend_from_slice(token.as_bytes()),
            }
            self.longest = self.longest.max(self.bytes.len() - start);
        }
        self.kinds.push(kind);
        let end = u32::try_from(self.bytes.len()).map_err(|_| "its tokens exceed 4 GiB of text".to_owned())?;
        self.ends.push(end);
        Ok(())
    }

    /// Adds a piece; whether it is a single byte.
    fn push_piece(&mut self, token: &str, pieces: &Pieces) -> bool {
        let mut text = token.to_owned();
        for (pattern, content) in &pieces.replacements {
            text = text.replace(pattern, content);
        }
        let byte = pieces.byte_fallback.then(|| fallback_byte(&text)).flatten();
        match byte {
            Some(byte) => self.bytes.push(byte),
            None => self.bytes.extend_from_slice(text.as_bytes()),
        }
        byte.is_some()
    }

    /// What a token writes.
    pub(crate) fn get(&self, id: u32) -> Entry<'_> {
        let index = id as usize;
        let Some(kind) = self.kinds.get(index).filter(|kind| kind.known) else { return Entry::Unknown };
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        let bytes = &self.bytes[start..self.ends[index] as usize];
        if kind.byte { Entry::Byte(bytes[0]) } else { Entry::Text(bytes) }
    }

    /// Whether a token is a special one.
    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.kinds.get(id as usize).is_some_and(|kind| kind.special)
    }

    /// One more than the largest id.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Most bytes of text that one token stands for.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }
}

/// The byte of a token named `<0xNN>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The bytes of a byte-level token. One with a character outside the alphabet (an added token) is plain text.
fn byte_level(token: &str, alphabet: &[u8]) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(|c| byte_of(c, alphabet)).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

fn byte_of(character: char, alphabet: &[u8]) -> Option<u8> {
    let code = u32::from(character);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        _ => alphabet.get((code as usize).checked_sub(256)?).copied(),
    }
}

/// Byte-level BPE writes a printable Latin-1 byte as itself and the others, in order, as U+0100 and up: this lists
/// the others.
pub(crate) fn byte_level_alphabet() -> Vec<u8> {
    (0..=255).filter(|byte| !matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)).collect()
}
