//! The families of reasoning parsers: their names, and how a chat template or a prompt shows what a model will write.

use std::str::FromStr;

use super::super::tools::harmony;
use super::channels::{self, ChannelSplit};
use super::tags::{TagSplit, Tags};
use super::{Edges, ReasoningParser, Splitter};
use crate::grammar::Thoughts;

/// How a family of models writes reasoning.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReasoningParserKind {
    /// `<think>`, which the prompt has opened: DeepSeek R1 and others that always think.
    DeepSeekR1,
    /// `<think>`, where the model chooses or the prompt says so: DeepSeek V3, GLM, Kimi K2.
    Think,
    /// The same, and a call of a tool ends it too: Qwen 3.
    Qwen3,
    /// `<seed:think>`: Seed-OSS.
    SeedOss,
    /// `[THINK]`: Magistral.
    Mistral,
    /// Phrases instead of tags: Granite 3.2.
    Granite,
    /// Channels of gpt-oss.
    Harmony,
    /// Tags of one's own.
    Custom {
        /// What begins the reasoning.
        start: String,
        /// What ends it.
        end: String,
    },
}

use ReasoningParserKind as Kind;

/// Names for `--reasoning-parser`, vLLM's where it has the family. The first one of a kind is its own.
const NAMES: &[(&str, Kind)] = &[
    ("deepseek_r1", Kind::DeepSeekR1),
    ("step3", Kind::DeepSeekR1),
    ("minimax_m2", Kind::DeepSeekR1),
    ("think", Kind::Think),
    ("deepseek_v3", Kind::Think),
    ("glm45", Kind::Think),
    ("glm47", Kind::Think),
    ("kimi_k2", Kind::Think),
    ("qwen3", Kind::Qwen3),
    ("mimo", Kind::Qwen3),
    ("seed_oss", Kind::SeedOss),
    ("mistral", Kind::Mistral),
    ("granite", Kind::Granite),
    ("openai_gptoss", Kind::Harmony),
];

/// Between the start and the end of a custom kind's name.
const ELLIPSIS: &str = "...";

/// No parser has that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no reasoning parser {name:?}: use one of {}, or the texts around the reasoning as START...END",
    ReasoningParserKind::names().collect::<Vec<_>>().join(", ")
)]
pub struct UnknownReasoningParser {
    name: String,
}

impl FromStr for ReasoningParserKind {
    type Err = UnknownReasoningParser;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        if let Some((_, kind)) = NAMES.iter().find(|(known, _)| *known == name) {
            return Ok(kind.clone());
        }
        match name.split_once(ELLIPSIS) {
            // A start that white space begins would never be found behind the white space it is looked for after.
            Some((start, end))
                if start.trim() == start && end.trim() == end && !start.is_empty() && !end.is_empty() =>
            {
                Ok(Self::Custom { start: start.to_owned(), end: end.to_owned() })
            }
            _ => Err(UnknownReasoningParser { name: name.to_owned() }),
        }
    }
}

impl ReasoningParserKind {
    /// All names of all kinds.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// The kind whose reasoning a chat template knows, when it is one of these.
    pub fn detect(chat_template: &str) -> Option<Self> {
        let has = |text: &str| chat_template.contains(text);
        let kind = if has(harmony::CHANNEL) && has(harmony::MESSAGE) {
            Self::Harmony
        } else if has("[THINK]") {
            Self::Mistral
        } else if has("<seed:think>") {
            Self::SeedOss
        } else if has("Here is my thought process:") {
            Self::Granite
        } else if !has("<think>") && !has("</think>") {
            return None;
        } else if has("<tool_call>") && !has("<arg_key>") {
            Self::Qwen3
        } else if has("<｜Assistant｜>") && !has("thinking") {
            Self::DeepSeekR1
        } else {
            Self::Think
        };
        Some(kind)
    }

    /// Texts of special tokens that the parser must see, so that the caller does not skip these.
    pub fn markers(&self) -> Vec<&str> {
        match self {
            Self::Harmony => harmony::MARKERS.to_vec(),
            Self::DeepSeekR1 | Self::Think | Self::Qwen3 => vec!["<think>", "</think>"],
            Self::SeedOss => vec!["<seed:think>", "</seed:think>"],
            Self::Mistral => vec!["[THINK]", "[/THINK]"],
            Self::Granite => Vec::new(),
            Self::Custom { start, end } => vec![start, end],
        }
    }

    /// Whether an answer to this prompt begins inside the reasoning: the prompt ends with an open or a closed tag, or
    /// the family always does.
    pub fn starts_inside(&self, prompt: &str) -> bool {
        let Some(tags) = self.tags() else { return false };
        let prompt = prompt.trim_end();
        let ends_with = |tags: &[String]| tags.iter().any(|tag| prompt.ends_with(tag.as_str()));
        ends_with(&tags.start) || (*self == Self::DeepSeekR1 && !ends_with(&tags.end))
    }

    /// Whether an assistant's message, which the model is to continue, ends inside the reasoning.
    pub fn leaves_open(&self, message: &str) -> bool {
        let Some(tags) = self.tags() else { return false };
        let last = |tags: &[String]| tags.iter().filter_map(|tag| message.rfind(tag.as_str())).max();
        last(&tags.start) > last(&tags.end)
    }

    /// What a grammar for the answer to this prompt has to wait for, or may have to; `None` where the answer begins at once.
    /// The answer is `inside` the reasoning, whatever the prompt ends with, or where the prompt says.
    pub fn thoughts(&self, prompt: &str, inside: bool) -> Option<Thoughts> {
        let Some(Tags { start, end, .. }) = self.tags() else {
            let specials = [harmony::START, harmony::CHANNEL, harmony::MESSAGE, harmony::END, harmony::CONSTRAIN];
            let final_channel = format!("{}final", harmony::CHANNEL);
            let ends = vec![
                format!("{final_channel}{}", harmony::MESSAGE),
                format!("{final_channel} {}json{}", harmony::CONSTRAIN, harmony::MESSAGE),
            ];
            return Some(Thoughts {
                starts: vec![],
                inside: true,
                ends,
                specials: specials.map(str::to_owned).to_vec(),
            });
        };
        let is_over = end.iter().any(|end| prompt.trim_end().ends_with(end.as_str()));
        let inside = inside || self.starts_inside(prompt);
        (inside || !is_over).then_some(Thoughts { starts: start, inside, ends: end, specials: vec![] })
    }

    /// How the reasoning of an answer to this prompt is ended where it has become too long; `None` where nothing is thought.
    /// The answer is `inside` the reasoning, whatever the prompt ends with, or where the prompt says.
    pub fn edges(&self, prompt: &str, inside: bool) -> Option<Edges> {
        if *self == Self::Harmony {
            return channels::edges(prompt);
        }
        let Thoughts { starts, inside, ends, .. } = self.thoughts(prompt, inside)?;
        Some(Edges { openings: if inside { Vec::new() } else { starts }, inside, ends, ..Edges::default() })
    }

    /// A parser for one answer, which begins inside the reasoning or not.
    pub fn parser(&self, starts_inside: bool) -> Box<dyn ReasoningParser> {
        match self.tags() {
            Some(tags) => Box::new(Splitter::new(TagSplit::new(tags, starts_inside))),
            None => Box::new(Splitter::new(ChannelSplit::new())),
        }
    }

    fn tags(&self) -> Option<Tags> {
        let (start, end): (&[&str], &[&str]) = match self {
            Self::Harmony => return None,
            Self::DeepSeekR1 | Self::Think | Self::Qwen3 => (&["<think>"], &["</think>"]),
            Self::SeedOss => (&["<seed:think>"], &["</seed:think>"]),
            Self::Mistral => (&["[THINK]"], &["[/THINK]"]),
            Self::Granite => (
                &["Here is my thought process:", "Here's my thought process:"],
                &["Here is my response:", "Here's my response:"],
            ),
            Self::Custom { start, end } => (&[start.as_str()], &[end.as_str()]),
        };
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let breaks: &[&str] = if *self == Self::Qwen3 { &["<tool_call>"] } else { &[] };
        Some(Tags { start: owned(start), end: owned(end), breaks })
    }
}
