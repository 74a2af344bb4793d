//! How a tokenizer's decoder joins tokens into text, as far as a table of tokens can say it.

use serde::Deserialize;
use tokenizers::Tokenizer;

/// How tokens become text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Joining {
    /// Byte-level BPE: a token is bytes, a text is their UTF-8.
    Bytes,
    /// SentencePiece: a token is a piece of text or, with byte fallback, a single byte.
    Pieces(Pieces),
    /// Any other decoder: the library decodes.
    Library,
}

/// The rules of a SentencePiece-like decoder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pieces {
    /// Replaced in every token, in this order; `▁` by a space.
    pub(crate) replacements: Vec<(String, String)>,
    /// Whether tokens named `<0xNN>` are bytes.
    pub(crate) byte_fallback: bool,
    /// What is dropped at the start of a text.
    pub(crate) start: StartRule,
}

/// What a decoder drops at the start of a text: the space that its encoder writes before the first word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum StartRule {
    /// Nothing.
    #[default]
    Keep,
    /// At most so many of this character.
    Strip(char, usize),
    /// Every space mark of the first token.
    DropMarks,
}

impl Joining {
    /// Reads a tokenizer's decoder; whatever is not known by heart is left to the library.
    pub(crate) fn of(tokenizer: &Tokenizer) -> Self {
        let Some(decoder) = tokenizer.get_decoder() else { return Self::Library };
        let Ok(step) = serde_json::to_value(decoder).and_then(serde_json::from_value::<Step>) else {
            return Self::Library;
        };
        let mut steps = Vec::new();
        step.flatten(&mut steps);
        if matches!(steps[..], [Step::ByteLevel {}]) {
            return Self::Bytes;
        }
        pieces(&steps).map_or(Self::Library, Self::Pieces)
    }
}

/// Steps of `tokenizers`' decoders, as they are written in `tokenizer.json`.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum Step {
    ByteLevel {},
    Metaspace {
        replacement: char,
        prepend_scheme: String,
    },
    Sequence {
        decoders: Vec<Step>,
    },
    Replace {
        pattern: Pattern,
        content: String,
    },
    ByteFallback {},
    Fuse {},
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
enum Pattern {
    String(String),
    Regex(#[allow(dead_code)] String),
}

impl Step {
    fn flatten(self, into: &mut Vec<Step>) {
        match self {
            Self::Sequence { decoders } => decoders.into_iter().for_each(|step| step.flatten(into)),
            step => into.push(step),
        }
    }
}

/// `Metaspace` alone, or `Replace`s, `ByteFallback`, `Fuse` and `Strip` in this order, each optional.
fn pieces(steps: &[Step]) -> Option<Pieces> {
    if let [Step::Metaspace { replacement, prepend_scheme }] = steps {
        let start = if prepend_scheme == "never" { StartRule::Keep } else { StartRule::DropMarks };
        let replacements = vec![(replacement.to_string(), " ".to_owned())];
        return Some(Pieces { replacements, byte_fallback: false, start });
    }
    let mut pieces = Pieces::default();
    let mut fused = false;
    for step in steps {
        match step {
            // A replacement after one of these could join what two tokens wrote.
            Step::Replace { pattern: Pattern::String(pattern), content } if !pieces.byte_fallback && !fused => {
                pieces.replacements.push((pattern.clone(), content.clone()));
            }
            Step::ByteFallback {} if !fused => pieces.byte_fallback = true,
            Step::Fuse {} => fused = true,
            // Before `Fuse` it would strip every token, and an end is only known at the end.
            Step::Strip { content, start, stop: 0 } if fused && pieces.start == StartRule::Keep => {
                pieces.start = StartRule::Strip(*content, *start);
            }
            _ => return None,
        }
    }
    Some(pieces)
}
