//! Characters whose bytes arrive one token after another.

/// Stands for bytes that are no character.
pub(crate) const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// The first bytes of a character whose rest has not come yet: three at most.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Carry {
    bytes: [u8; 4],
    len: usize,
}

impl Carry {
    /// Whether no character has begun that is not whole.
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn take(&mut self) -> ([u8; 4], usize) {
        (self.bytes, std::mem::take(&mut self.len))
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        self.len = bytes.len();
    }

    /// Takes bytes and gives the characters that are now whole. Over all calls and `finish` the text is what
    /// `String::from_utf8_lossy` makes of all bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        if self.len == 0
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            return text.to_owned();
        }
        let (before, len) = self.take();
        let mut joined = Vec::with_capacity(len + bytes.len());
        joined.extend_from_slice(&before[..len]);
        joined.extend_from_slice(bytes);
        let whole = joined.len() - incomplete_tail(&joined);
        self.keep(&joined[whole..]);
        joined.truncate(whole);
        String::from_utf8(joined).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// Takes one byte of a character spelled in byte tokens; appends what is now whole. A byte that cannot belong to
    /// a character is one U+FFFD, as in byte-fallback decoders.
    pub(crate) fn push_byte(&mut self, byte: u8, text: &mut String) {
        self.bytes[self.len] = byte;
        self.len += 1;
        while self.len > 0 {
            match std::str::from_utf8(&self.bytes[..self.len]) {
                Ok(character) => {
                    text.push_str(character);
                    self.len = 0;
                }
                Err(error) => {
                    let Some(wrong) = error.error_len() else { return };
                    text.extend(std::iter::repeat_n(REPLACEMENT, wrong));
                    self.bytes.copy_within(wrong..self.len, 0);
                    self.len -= wrong;
                }
            }
        }
    }

    /// The end, for `push`: what is left is one U+FFFD.
    pub(crate) fn finish(&mut self) -> String {
        let (_, len) = self.take();
        if len > 0 { REPLACEMENT.to_string() } else { String::new() }
    }

    /// The end of a run of byte tokens, for `push_byte`: each byte that is left is one U+FFFD.
    pub(crate) fn finish_bytes(&mut self, text: &mut String) {
        let (_, len) = self.take();
        text.extend(std::iter::repeat_n(REPLACEMENT, len));
    }
}

/// How many of the last bytes begin a character that more bytes could complete.
fn incomplete_tail(bytes: &[u8]) -> usize {
    for length in 1..=bytes.len().min(3) {
        let tail = &bytes[bytes.len() - length..];
        if tail[0] & 0b1100_0000 != 0b1000_0000 {
            let incomplete = std::str::from_utf8(tail).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none());
            return if incomplete { length } else { 0 };
        }
    }
    0
}
