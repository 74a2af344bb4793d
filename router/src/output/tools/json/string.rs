//! JSON strings: taking them apart and writing them.

/// Takes the escapes out of a string whose opening quote was read.
#[derive(Debug, Default)]
pub(in super::super) struct Decoder {
    escape: Escape,
    /// First half of a surrogate pair.
    high: Option<u16>,
}

#[derive(Debug, Default)]
enum Escape {
    #[default]
    None,
    Begun,
    /// `\u` with some of its four digits.
    Unicode {
        digits: u8,
        unit: u16,
    },
}

impl Decoder {
    /// Takes a character; adds what it makes certain to `into`. Whether it is the closing quote.
    pub(in super::super) fn step(&mut self, c: char, into: &mut String) -> bool {
        match std::mem::take(&mut self.escape) {
            Escape::None if c == '\\' => self.escape = Escape::Begun,
            Escape::None if c == '"' => {
                self.plain(None, into);
                return true;
            }
            Escape::None => self.plain(Some(c), into),
            Escape::Begun if c == 'u' => self.escape = Escape::Unicode { digits: 0, unit: 0 },
            Escape::Begun => self.plain(Some(simple(c)), into),
            Escape::Unicode { digits, unit } => match c.to_digit(16) {
                Some(digit) => self.digit(digits + 1, (unit << 4) | u16::try_from(digit).unwrap_or(0), into),
                None => {
                    self.plain(Some(char::REPLACEMENT_CHARACTER), into);
                    return self.step(c, into);
                }
            },
        }
        false
    }

    fn digit(&mut self, digits: u8, unit: u16, into: &mut String) {
        if digits < 4 {
            self.escape = Escape::Unicode { digits, unit };
            return;
        }
        match (self.high.take(), unit) {
            (Some(high), 0xDC00..=0xDFFF) => {
                into.extend(char::decode_utf16([high, unit]).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)));
            }
            (high, unit) => {
                self.high = high;
                if matches!(unit, 0xD800..=0xDBFF) {
                    self.plain(None, into);
                    self.high = Some(unit);
                } else {
                    self.plain(char::from_u32(u32::from(unit)).or(Some(char::REPLACEMENT_CHARACTER)), into);
                }
            }
        }
    }

    /// Adds a character behind half a surrogate pair that will not be whole.
    fn plain(&mut self, c: Option<char>, into: &mut String) {
        if self.high.take().is_some() {
            into.push(char::REPLACEMENT_CHARACTER);
        }
        into.extend(c);
    }
}

/// What a backslash and this character mean.
fn simple(c: char) -> char {
    match c {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'b' => '\u{8}',
        'f' => '\u{c}',
        other => other,
    }
}

/// Adds the characters as they stand between the quotes of a JSON string.
pub(in super::super) fn escape_into(text: &str, into: &mut String) {
    for c in text.chars() {
        match c {
            '"' => into.push_str("\\\""),
            '\\' => into.push_str("\\\\"),
            '\n' => into.push_str("\\n"),
            '\r' => into.push_str("\\r"),
            '\t' => into.push_str("\\t"),
            c if c < ' ' => into.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => into.push(c),
        }
    }
}

/// The text as a JSON string, quotes included.
pub(in super::super) fn escape(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    escape_into(text, &mut json);
    json.push('"');
    json
}
