//! Filling in the middle: how models that were trained for it are shown a gap and what is around it.

use tokenizers::Tokenizer;

/// The marks of a family of models: before the text in front of the gap, before the text behind it, before what fills it; and
/// what may end a gap beside the model's end of sequence.
struct Convention {
    prefix: &'static str,
    suffix: &'static str,
    middle: Option<&'static str>,
    ends: &'static [&'static str],
}

/// The first whose marks a tokenizer has as tokens is the model's.
const CONVENTIONS: [Convention; 6] = [
    // Qwen 2.5 Coder, CodeGemma, Granite 3 and 4.
    Convention {
        prefix: "<|fim_prefix|>",
        suffix: "<|fim_suffix|>",
        middle: Some("<|fim_middle|>"),
        ends: &["<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"],
    },
    // StarCoder, StarCoder 2, Granite Code.
    Convention {
        prefix: "<fim_prefix>",
        suffix: "<fim_suffix>",
        middle: Some("<fim_middle>"),
        ends: &["<|endoftext|>", "<fim_pad>", "<repo_name>", "<file_sep>"],
    },
    // SantaCoder.
    Convention {
        prefix: "<fim-prefix>",
        suffix: "<fim-suffix>",
        middle: Some("<fim-middle>"),
        ends: &["<|endoftext|>", "<fim-pad>"],
    },
    // Code Llama.
    Convention { prefix: "▁<PRE>", suffix: "▁<SUF>", middle: Some("▁<MID>"), ends: &["▁<EOT>"] },
    // DeepSeek Coder.
    Convention {
        prefix: "<｜fim▁begin｜>",
        suffix: "<｜fim▁hole｜>",
        middle: Some("<｜fim▁end｜>"),
        ends: &["<|EOT|>"],
    },
    // Codestral: what is behind the gap comes first, and the gap needs no mark.
    Convention { prefix: "[PREFIX]", suffix: "[SUFFIX]", middle: None, ends: &[] },
];

/// The marks of one model, as tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Infill {
    prefix: u32,
    suffix: u32,
    /// None where the text behind the gap comes first.
    middle: Option<u32>,
    ends: Vec<u32>,
}

impl Infill {
    /// The model's, when its tokenizer has the marks.
    pub(crate) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let id = |mark: &str| tokenizer.token_to_id(mark);
        CONVENTIONS.iter().find_map(|convention| {
            let middle = match convention.middle {
                Some(mark) => Some(id(mark)?),
                None => None,
            };
            Some(Self {
                prefix: id(convention.prefix)?,
                suffix: id(convention.suffix)?,
                middle,
                ends: convention.ends.iter().filter_map(|end| id(end)).collect(),
            })
        })
    }

    /// Tokens that end what fills a gap.
    pub(crate) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Appends a gap with the texts before and behind it.
    pub(crate) fn arrange(&self, ids: &mut Vec<u32>, before: &[u32], behind: &[u32]) {
        let mut part = |mark: u32, text: &[u32]| {
            ids.push(mark);
            ids.extend(text);
        };
        match self.middle {
            Some(middle) => {
                part(self.prefix, before);
                part(self.suffix, behind);
                part(middle, &[]);
            }
            None => {
                part(self.suffix, behind);
                part(self.prefix, before);
            }
        }
    }
}
