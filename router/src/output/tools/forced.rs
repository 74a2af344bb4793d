//! How each family writes calls, as data: what a grammar needs to force calls that the family's parser reads.

use serde_json::{Value, json};

use super::deepseek::{CALL_BEGIN, CALL_END, CALLS_BEGIN, CALLS_END, SEPARATOR};
use super::harmony;
use super::json::escape;
use super::{Tool, ToolParserKind as Kind, ToolSet};

/// An answer made of calls only: `begin`, one of `calls`, then `between` and another as often as `several` allows, `end`.
///
/// The texts may hold the kind's `markers`, which are single tokens where the tokenizer has them.
#[derive(Debug, Clone, PartialEq)]
pub struct ForcedFormat {
    /// Text before the first call.
    pub begin: String,
    /// One for each tool, in the order of the tools.
    pub calls: Vec<ForcedCall>,
    /// Whether more than one call may come.
    pub several: bool,
    /// Text between two calls.
    pub between: String,
    /// Text behind the last call.
    pub end: String,
}

/// How a call of one tool is written.
#[derive(Debug, Clone, PartialEq)]
pub struct ForcedCall {
    /// The tool's name.
    pub name: String,
    /// Text before the arguments; it names the tool.
    pub begin: String,
    /// The arguments.
    pub body: ForcedBody,
    /// Text behind the arguments.
    pub end: String,
}

/// How arguments are written.
#[derive(Debug, Clone, PartialEq)]
pub enum ForcedBody {
    /// One JSON text that this schema describes.
    Json(Value),
    /// Each argument on its own, in this order; those that are not required may be left out.
    Fields {
        /// The arguments.
        fields: Vec<ForcedField>,
        /// Text between two of them.
        between: &'static str,
    },
}

/// How one argument is written.
#[derive(Debug, Clone, PartialEq)]
pub struct ForcedField {
    /// The argument's name.
    pub name: String,
    /// Text before the value; it names the argument.
    pub begin: String,
    /// The value.
    pub value: FieldValue,
    /// Text behind the value.
    pub end: &'static str,
    /// Whether it must be there.
    pub required: bool,
}

/// What a parser takes for the beginning of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Openings {
    /// What every call or list of calls begins with, where that is a marker.
    pub marker: Option<&'static str>,
    /// Other markers that the parser reads calls behind.
    pub others: &'static [&'static str],
    /// Characters that begin a call where no text stands before them.
    pub bare: &'static str,
}

/// What an argument's value may be.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldValue {
    /// JSON that this schema describes.
    Json(Value),
    /// Any text that does not hold the field's `end`; the schema's further demands on a string apply to it.
    Text(Value),
}

impl Kind {
    /// How this kind writes calls of these tools.
    pub fn forced_format(self, tools: &ToolSet) -> ForcedFormat {
        let (begin, between, end) = self.around();
        let calls = tools.iter().map(|tool| self.forced_call(tool)).collect();
        // gpt-oss stops behind a call.
        let several = self != Self::Harmony;
        ForcedFormat { begin: begin.to_owned(), calls, several, between: between.to_owned(), end: end.to_owned() }
    }

    /// Whether arguments are written one by one, and not as JSON.
    pub fn writes_fields(self) -> bool {
        matches!(self, Self::Qwen3Coder | Self::Glm | Self::Pythonic)
    }

    /// What begins this kind's calls; `None` where an answer with calls in it is more than text and calls.
    pub fn openings(self) -> Option<Openings> {
        let (marker, others, bare): (_, &'static [&'static str], _) = match self {
            Self::Hermes | Self::Textgen | Self::Glm => (Some("<tool_call>"), &[], ""),
            Self::Qwen3Coder => (Some("<tool_call>"), &["<function="], ""),
            Self::Mistral | Self::MistralArgs => (Some("[TOOL_CALLS]"), &[], ""),
            Self::DeepSeekV3 | Self::DeepSeekV31 => (Some(CALLS_BEGIN), &[CALL_BEGIN], ""),
            Self::Granite => (Some("<|tool_call|>"), &["<tool_call>"], "["),
            Self::Phi4 => (Some("functools"), &["<|tool_call|>"], "[{"),
            Self::Llama3Json => (None, &["<|python_tag|>"], "{"),
            Self::Pythonic => (None, &["<|python_start|>", "<|tool_call_start|>", "<function_calls>"], "["),
            Self::Json => (None, &["```"], "[{"),
            Self::Harmony => return None,
        };
        Some(Openings { marker, others, bare })
    }

    /// Text before, between and behind calls.
    fn around(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Hermes | Self::Qwen3Coder | Self::Glm => ("", "\n", ""),
            Self::Textgen | Self::MistralArgs | Self::Harmony => ("", "", ""),
            Self::Llama3Json => ("", "; ", ""),
            Self::Pythonic | Self::Json => ("[", ", ", "]"),
            Self::Mistral => ("[TOOL_CALLS][", ", ", "]"),
            Self::DeepSeekV3 => (CALLS_BEGIN, "\n", CALLS_END),
            Self::DeepSeekV31 => (CALLS_BEGIN, "", CALLS_END),
            Self::Granite => ("<|tool_call|>[", ", ", "]"),
            Self::Phi4 => ("functools[", ", ", "]"),
        }
    }

    fn forced_call(self, tool: &Tool) -> ForcedCall {
        let name = &tool.name;
        let object = |arguments: &str| format!("{{\"name\": {}, \"{arguments}\": ", escape(name));
        let (begin, end) = match self {
            Self::Hermes => (format!("<tool_call>\n{}", object("arguments")), "}\n</tool_call>".to_owned()),
            Self::Textgen => (format!("<tool_call>{}", object("arguments")), "}</tool_call>".to_owned()),
            Self::Llama3Json => (object("parameters"), "}".to_owned()),
            Self::Mistral | Self::Granite | Self::Phi4 | Self::Json => (object("arguments"), "}".to_owned()),
            Self::MistralArgs => (format!("[TOOL_CALLS]{name}[ARGS]"), String::new()),
            Self::DeepSeekV3 => {
                (format!("{CALL_BEGIN}function{SEPARATOR}{name}\n```json\n"), format!("\n```{CALL_END}"))
            }
            Self::DeepSeekV31 => (format!("{CALL_BEGIN}{name}{SEPARATOR}"), CALL_END.to_owned()),
            Self::Harmony => (harmony::call_header(name), harmony::CALL.to_owned()),
            Self::Qwen3Coder => (format!("<tool_call>\n<function={name}>\n"), "</function>\n</tool_call>".to_owned()),
            Self::Glm => (format!("<tool_call>{name}\n"), "</tool_call>".to_owned()),
            Self::Pythonic => (format!("{name}("), ")".to_owned()),
        };
        ForcedCall { name: name.clone(), begin, body: self.forced_body(tool), end }
    }

    fn forced_body(self, tool: &Tool) -> ForcedBody {
        let (before, behind, end, between) = match self {
            Self::Qwen3Coder => ("<parameter=", ">\n", "\n</parameter>\n", ""),
            Self::Glm => ("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", ""),
            Self::Pythonic => ("", "=", "", ", "),
            _ if tool.parameters.is_null() => return ForcedBody::Json(json!({"type": "object"})),
            _ => return ForcedBody::Json(tool.parameters.clone()),
        };
        let arguments = tool.arguments();
        let required = |key: &str| {
            let list = arguments.get("required").and_then(Value::as_array);
            list.is_some_and(|list| list.iter().any(|name| name == key))
        };
        let properties = arguments.get("properties").and_then(Value::as_object);
        let field = |(key, schema): (&String, &Value)| ForcedField {
            name: key.clone(),
            begin: format!("{before}{key}{behind}"),
            value: self.field_value(schema, tool),
            end,
            required: required(key),
        };
        ForcedBody::Fields { fields: properties.into_iter().flatten().map(field).collect(), between }
    }

    fn field_value(self, schema: &Value, tool: &Tool) -> FieldValue {
        // Between tags a string is written as it is; Python's literals have quotes.
        let followed = tool.followed(schema);
        if self != Self::Pythonic && super::typed::is_text(followed) {
            return FieldValue::Text(followed.clone());
        }
        FieldValue::Json(schema.clone())
    }
}
