//! What a client may ask an answer to look like.

use llguidance::api::TopLevelGrammar;
use llguidance::regex_to_lark;
use serde_json::{Value, json};

use super::error::GrammarError;
use super::layout::Layout;
use super::limits::GrammarLimits;
use super::structural::StructuralTag;
use super::vocabulary::Vocabulary;
use super::{gbnf, lark, layout, pattern, schema};

/// The shape of an answer, as the client stated it.
#[derive(Debug, Clone, PartialEq)]
pub enum GrammarSource {
    /// JSON that is valid against this schema (draft 2020-12).
    JsonSchema(Value),
    /// Any JSON object.
    JsonObject,
    /// Text that this regular expression matches from end to end.
    Regex(String),
    /// One of these strings.
    Choice(Vec<String>),
    /// Text of a context-free grammar, in `llguidance`'s dialect of Lark.
    Lark(String),
    /// Text of a context-free grammar of characters, in GBNF.
    Gbnf(String),
    /// Free text in which triggers open structured parts.
    StructuralTag(StructuralTag),
    /// Parts in a fixed order.
    Layout(Layout),
}

impl GrammarSource {
    /// A context-free grammar: in GBNF where it defines rules by `::=`, in Lark otherwise.
    #[must_use]
    pub fn grammar(text: String) -> Self {
        if gbnf::is_gbnf(&text) { Self::Gbnf(text) } else { Self::Lark(text) }
    }

    /// Bytes of the source, as far as its size matters: what is written in it, without the names of this type.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::JsonSchema(schema) => length(schema),
            Self::JsonObject => 0,
            Self::Regex(text) | Self::Lark(text) | Self::Gbnf(text) => text.len(),
            Self::Choice(choices) => choices.iter().map(String::len).sum(),
            Self::StructuralTag(tag) => tag.bytes(length),
            Self::Layout(layout) => layout.bytes(&length),
        }
    }

    /// Equal for equal sources.
    pub(super) fn key(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        let mut part = |text: &[u8]| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text);
        };
        match self {
            Self::JsonSchema(schema) => [b"schema".as_slice(), schema.to_string().as_bytes()].map(&mut part).len(),
            Self::JsonObject => [b"object".as_slice()].map(&mut part).len(),
            Self::Regex(regex) => [b"regex".as_slice(), regex.as_bytes()].map(&mut part).len(),
            Self::Lark(text) => [b"lark".as_slice(), text.as_bytes()].map(&mut part).len(),
            Self::Gbnf(text) => [b"gbnf".as_slice(), text.as_bytes()].map(&mut part).len(),
            Self::Choice(choices) => {
                part(b"choice");
                choices.iter().map(|choice| part(choice.as_bytes())).count()
            }
            Self::StructuralTag(tag) => {
                part(b"tag");
                tag.parts().map(|text| part(text.as_bytes())).count()
            }
            // All of it, with strings quoted.
            Self::Layout(layout) => [b"layout".as_slice(), format!("{layout:?}").as_bytes()].map(&mut part).len(),
        };
        hasher.finalize()
    }

    /// Holds the source to its size, before anything else is done with it.
    ///
    /// # Errors
    /// `TooComplex`.
    pub(super) fn check_size(&self, limits: &GrammarLimits) -> Result<(), GrammarError> {
        let (bytes, most) = (self.bytes(), limits.max_bytes);
        if bytes > most {
            let sentence = format!("a grammar of {bytes} bytes is over the limit of {most}; make it smaller");
            return Err(GrammarError::TooComplex(sentence));
        }
        let choices = match self {
            Self::Choice(choices) => choices.len(),
            Self::StructuralTag(tag) => tag.structures.len().max(tag.triggers.len()),
            Self::Layout(layout) => layout.choices(),
            _ => 0,
        };
        if choices > limits.max_choices {
            let most = limits.max_choices;
            return Err(GrammarError::TooComplex(format!(
                "{choices} choices are over the limit of {most}; offer fewer"
            )));
        }
        Ok(())
    }

    /// The grammar as `llguidance` is given it.
    ///
    /// # Errors
    /// All of [`GrammarError`] but `Overloaded`.
    pub(super) fn lower(
        &self,
        vocabulary: &Vocabulary,
        limits: &GrammarLimits,
    ) -> Result<TopLevelGrammar, GrammarError> {
        self.check_size(limits)?;
        Ok(match self {
            Self::JsonSchema(value) => TopLevelGrammar::from_json_schema(schema::lower(value, limits)?),
            Self::JsonObject => TopLevelGrammar::from_json_schema(schema::lower(&json!({"type": "object"}), limits)?),
            Self::Regex(regex) => from_regex(&pattern::whole(regex, limits)?),
            Self::Choice(choices) => from_regex(&layout::alternatives(choices)?),
            Self::Lark(text) => {
                lark::check(text, limits)?;
                TopLevelGrammar::from_lark(text.clone())
            }
            Self::Gbnf(text) => TopLevelGrammar::from_lark(gbnf::lower(text, limits)?),
            Self::StructuralTag(tag) => TopLevelGrammar::from_lark(tag.layout()?.lower(vocabulary, limits)?),
            Self::Layout(layout) => TopLevelGrammar::from_lark(layout.lower(vocabulary, limits)?),
        })
    }
}

/// Bytes of a value's JSON. Equal to its serialization's length, without making one.
fn length(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting cannot fail, and a value has string keys only.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

fn from_regex(regex: &str) -> TopLevelGrammar {
    TopLevelGrammar::from_lark(format!("start: {}", literal_regex(regex)))
}

/// A regular expression as Lark writes it.
fn literal_regex(regex: &str) -> String {
    // Lark has no empty literal between slashes.
    if regex.is_empty() { "\"\"".to_owned() } else { format!("/{}/", regex_to_lark(regex, "")) }
}
