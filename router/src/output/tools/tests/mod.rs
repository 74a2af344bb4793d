mod families;
mod forced;
mod kinds;
mod properties;
mod samples;

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Tool, ToolEvent, ToolLimits, ToolParser, ToolParserKind, ToolSet};

/// Every kind of parser.
const KINDS: [ToolParserKind; 14] = [
    ToolParserKind::Hermes,
    ToolParserKind::Textgen,
    ToolParserKind::Qwen3Coder,
    ToolParserKind::Glm,
    ToolParserKind::Llama3Json,
    ToolParserKind::Pythonic,
    ToolParserKind::Mistral,
    ToolParserKind::MistralArgs,
    ToolParserKind::DeepSeekV3,
    ToolParserKind::DeepSeekV31,
    ToolParserKind::Granite,
    ToolParserKind::Harmony,
    ToolParserKind::Phi4,
    ToolParserKind::Json,
];

/// A call as a client would have it.
#[derive(Debug, Clone, Default, PartialEq)]
struct Called {
    name: String,
    arguments: String,
    ended: bool,
}

impl Called {
    fn value(&self) -> Value {
        serde_json::from_str(&self.arguments).unwrap_or_else(|error| panic!("{error} in {:?}", self.arguments))
    }
}

/// All of an answer: its parts joined, in order.
#[derive(Debug, Clone, Default, PartialEq)]
struct Answer {
    text: String,
    calls: Vec<Called>,
    /// How many calls had begun when each piece of text came.
    places: Vec<(usize, String)>,
}

impl Answer {
    /// Joins events, and checks that their order is possible.
    fn from(events: Vec<ToolEvent>) -> Self {
        let mut answer = Self::default();
        for event in events {
            match event {
                ToolEvent::Text(text) => {
                    assert!(!text.is_empty(), "no event without content");
                    answer.text.push_str(&text);
                    let begun = answer.calls.len();
                    match answer.places.last_mut() {
                        Some((place, last)) if *place == begun => last.push_str(&text),
                        _ => answer.places.push((begun, text)),
                    }
                }
                ToolEvent::CallBegin { index, name } => {
                    assert_eq!(index, answer.calls.len(), "calls are numbered in order");
                    answer.calls.push(Called { name, ..Called::default() });
                }
                ToolEvent::Arguments { index, delta } => {
                    assert!(!delta.is_empty(), "no event without content");
                    assert_eq!(index + 1, answer.calls.len(), "calls do not overlap");
                    assert!(!answer.calls[index].ended);
                    answer.calls[index].arguments.push_str(&delta);
                }
                ToolEvent::CallEnd { index } => {
                    assert_eq!(index + 1, answer.calls.len(), "calls do not overlap");
                    assert!(!std::mem::replace(&mut answer.calls[index].ended, true));
                }
            }
        }
        answer
    }
}

fn parser(kind: ToolParserKind, tools: Option<&ToolSet>) -> Box<dyn ToolParser> {
    kind.parser(tools.map(|tools| Arc::new(tools.clone())), ToolLimits::default())
}

/// The answer of a text that comes in these pieces.
fn parse_pieces<'a>(
    kind: ToolParserKind,
    tools: Option<&ToolSet>,
    pieces: impl IntoIterator<Item = &'a str>,
) -> Answer {
    let mut parser = parser(kind, tools);
    let mut events = Vec::new();
    for piece in pieces {
        parser.push(piece, &mut events);
    }
    parser.finish(&mut events);
    Answer::from(events)
}

fn parse(kind: ToolParserKind, tools: Option<&ToolSet>, text: &str) -> Answer {
    parse_pieces(kind, tools, [text])
}

/// The text cut before every character.
fn characters(text: &str) -> impl Iterator<Item = &str> {
    text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()])
}

/// Tools with arguments of every type.
fn tools() -> ToolSet {
    let any = json!({"type": ["object", "array", "string", "number", "boolean", "null"]});
    let typed = json!({"type": "object", "required": ["s"], "properties": {
        "s": {"type": "string"}, "n": {"type": "number"}, "i": {"type": "integer"}, "b": {"type": "boolean"},
        "o": {"type": "object"}, "a": {"type": "array"}, "z": {"type": "null"},
        "m": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "x": any,
    }});
    let weather = json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}});
    [("typed", typed), ("get_weather", weather), ("ping", Value::Null)]
        .into_iter()
        .map(|(name, parameters)| Tool { name: name.to_owned(), parameters })
        .collect()
}
