//! The families of parsers: their names, how a chat template shows which one a model needs, and what they need to see.

use std::str::FromStr;
use std::sync::Arc;

use super::deepseek::{self, DeepSeek};
use super::glm::Glm;
use super::harmony::{self, Harmony};
use super::json_form::{Frame, JsonForm};
use super::mistral::Mistral;
use super::pythonic::Pythonic;
use super::scanner::{Form, Opener, Scanner};
use super::sink::Calls;
use super::xml::Xml;
use super::{ToolLimits, ToolParser, ToolSet};

/// How a family of models writes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ToolParserKind {
    /// `<tool_call>` around an object on lines of its own: Hermes, Qwen 2.5 and 3, Granite 4.
    Hermes,
    /// The same without line breaks: the built-in model.
    Textgen,
    /// `<function=…>` and `<parameter=…>`: Qwen3-Coder.
    Qwen3Coder,
    /// `<arg_key>` and `<arg_value>`: GLM 4.5 and later.
    Glm,
    /// Objects with `parameters`, bare or behind `<|python_tag|>`: Llama 3.
    Llama3Json,
    /// A Python list of calls: Llama 3.2 and 4, and others.
    Pythonic,
    /// `[TOOL_CALLS]`, with an array.
    Mistral,
    /// `[TOOL_CALLS]name[ARGS]{…}`: Mistral's models since 2025. Read by the same parser.
    MistralArgs,
    /// DeepSeek V3 and R1: JSON in fenced code.
    DeepSeekV3,
    /// DeepSeek V3.1: name and JSON. Read by the same parser.
    DeepSeekV31,
    /// An array behind `<|tool_call|>`: Granite 3.
    Granite,
    /// Channels of gpt-oss.
    Harmony,
    /// An array behind `functools` or `<|tool_call|>`: Phi-4.
    Phi4,
    /// Any JSON object or array of objects with a name and arguments, fenced or not.
    Json,
}

use ToolParserKind as Kind;

/// Names for `--tool-call-parser`, vLLM's where it has the family. The first one of a kind is its own.
const NAMES: &[(&str, Kind)] = &[
    ("hermes", Kind::Hermes),
    ("granite4", Kind::Hermes),
    ("textgen", Kind::Textgen),
    ("qwen3_coder", Kind::Qwen3Coder),
    ("qwen3_xml", Kind::Qwen3Coder),
    ("glm45", Kind::Glm),
    ("glm47", Kind::Glm),
    ("llama3_json", Kind::Llama3Json),
    ("llama4_json", Kind::Llama3Json),
    ("pythonic", Kind::Pythonic),
    ("llama4_pythonic", Kind::Pythonic),
    ("lfm2", Kind::Pythonic),
    ("olmo3", Kind::Pythonic),
    ("mistral", Kind::Mistral),
    ("mistral_args", Kind::MistralArgs),
    ("deepseek_v3", Kind::DeepSeekV3),
    ("deepseek_v31", Kind::DeepSeekV31),
    ("granite", Kind::Granite),
    ("openai", Kind::Harmony),
    ("phi4_mini_json", Kind::Phi4),
    ("json", Kind::Json),
    ("xlam", Kind::Json),
];

/// No parser has that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no tool call parser {name:?}: use one of {}", ToolParserKind::names().collect::<Vec<_>>().join(", "))]
pub struct UnknownToolParser {
    name: String,
}

impl FromStr for ToolParserKind {
    type Err = UnknownToolParser;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, kind)| *kind).ok_or_else(|| UnknownToolParser { name: name.to_owned() })
    }
}

impl ToolParserKind {
    /// All names of all kinds.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// The kind's own name.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// The kind whose calls a chat template writes into its prompts, when it is one of these.
    pub fn detect(chat_template: &str) -> Option<Self> {
        let has = |text: &str| chat_template.contains(text);
        let kind = if has("<|channel|>") && has("<|message|>") {
            Self::Harmony
        } else if has(deepseek::CALLS_BEGIN) {
            if has("```json") { Self::DeepSeekV3 } else { Self::DeepSeekV31 }
        } else if has("[TOOL_CALLS]") {
            if has("[ARGS]") { Self::MistralArgs } else { Self::Mistral }
        } else if has("<function=") && has("<parameter=") {
            Self::Qwen3Coder
        } else if has("<arg_key>") {
            Self::Glm
        } else if PYTHONIC.iter().any(|text| has(text)) {
            Self::Pythonic
        } else if has("<|tool_call|>") {
            if has("<|start_of_role|>") { Self::Granite } else { Self::Phi4 }
        } else if has("functools") {
            Self::Phi4
        } else if has("<tool_call>{\"name\"") {
            Self::Textgen
        } else if has("<tool_call>") {
            Self::Hermes
        } else if has("<|python_tag|>") || (HEADERS.iter().any(|text| has(text)) && has("\"parameters\": ")) {
            Self::Llama3Json
        } else {
            return None;
        };
        Some(kind)
    }

    /// Texts of special tokens that the parser must see, so that the caller does not skip these.
    pub fn markers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes | Self::Textgen => &["<tool_call>", "</tool_call>"],
            Self::Qwen3Coder => &["<tool_call>", "</tool_call>"],
            Self::Glm => &["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
            Self::Llama3Json => &["<|python_tag|>"],
            Self::Pythonic => &["<|python_start|>", "<|python_end|>", "<|tool_call_start|>", "<|tool_call_end|>"],
            Self::Mistral | Self::MistralArgs => &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
            Self::DeepSeekV3 | Self::DeepSeekV31 => &[
                deepseek::CALLS_BEGIN,
                deepseek::CALLS_END,
                deepseek::CALL_BEGIN,
                deepseek::CALL_END,
                deepseek::SEPARATOR,
            ],
            Self::Granite => &["<|tool_call|>", "<tool_call>"],
            Self::Harmony => harmony::MARKERS,
            Self::Phi4 => &["<|tool_call|>", "<|/tool_call|>"],
            Self::Json => &[],
        }
    }

    /// A parser for one answer. With `tools`, only their names make calls; other calls stay text.
    pub fn parser(self, tools: Option<Arc<ToolSet>>, limits: ToolLimits) -> Box<dyn ToolParser> {
        fn boxed(form: impl Form + 'static, calls: Calls) -> Box<dyn ToolParser> {
            Box::new(Scanner::new(form, calls))
        }
        let calls = Calls::new(tools, limits);
        match self {
            Self::Hermes | Self::Textgen => boxed(JsonForm::new(&HERMES), calls),
            Self::Qwen3Coder => boxed(Xml::new(), calls),
            Self::Glm => boxed(Glm::new(), calls),
            Self::Llama3Json => boxed(JsonForm::new(&LLAMA3), calls),
            Self::Pythonic => boxed(Pythonic::new(), calls),
            Self::Mistral | Self::MistralArgs => boxed(Mistral::new(), calls),
            Self::DeepSeekV3 | Self::DeepSeekV31 => boxed(DeepSeek::new(), calls),
            Self::Granite => boxed(JsonForm::new(&GRANITE), calls),
            Self::Harmony => boxed(Harmony::new(), calls),
            Self::Phi4 => boxed(JsonForm::new(&PHI4), calls),
            Self::Json => boxed(JsonForm::new(&JSON), calls),
        }
    }
}

/// What templates for Python calls have in them: a marker, the example they give, or how they write a call.
const PYTHONIC: &[&str] = &[
    "<|python_start|>",
    "<|tool_call_start|>",
    "<function_calls>",
    "[func_name1(",
    "call.name + '('",
    "call.name + \"(\"",
];

/// What opens a message of Llama 3 and of Llama 4.
const HEADERS: &[&str] = &["<|start_header_id|>", "<|header_start|>"];

static HERMES: Frame = Frame {
    openers: &[Opener::marker("<tool_call>")],
    markers: 1,
    fence: None,
    array: true,
    object: true,
    separator: None,
    closers: &["</tool_call>"],
};

static LLAMA3: Frame = Frame {
    openers: &[Opener::marker("<|python_tag|>"), Opener::bare("{")],
    markers: 1,
    fence: None,
    array: false,
    object: true,
    separator: Some(';'),
    closers: &[],
};

/// Granite 3.1 writes its marker without bars.
static GRANITE: Frame = Frame {
    openers: &[Opener::marker("<|tool_call|>"), Opener::marker("<tool_call>"), Opener::bare("[")],
    markers: 2,
    fence: None,
    array: true,
    object: true,
    separator: None,
    closers: &[],
};

static PHI4: Frame = Frame {
    openers: &[Opener::marker("functools"), Opener::marker("<|tool_call|>"), Opener::bare("["), Opener::bare("{")],
    markers: 2,
    fence: None,
    array: true,
    object: true,
    separator: None,
    closers: &["<|/tool_call|>"],
};

static JSON: Frame = Frame {
    openers: &[Opener::line("```"), Opener::bare("["), Opener::bare("{")],
    markers: 0,
    fence: Some(0),
    array: true,
    object: true,
    separator: Some(';'),
    closers: &["```"],
};
