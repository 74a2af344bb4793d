mod composed;
mod properties;
mod samples;

use super::{ReasoningEvent, ReasoningParserKind as Kind};

/// Every kind of parser.
fn kinds() -> Vec<Kind> {
    let custom = Kind::Custom { start: "<<".to_owned(), end: ">>".to_owned() };
    let named =
        [Kind::DeepSeekR1, Kind::Think, Kind::Qwen3, Kind::SeedOss, Kind::Mistral, Kind::Granite, Kind::Harmony];
    named.into_iter().chain([custom]).collect()
}

/// Reasoning and content of a text that comes in these pieces.
fn parse_pieces<'a>(kind: &Kind, inside: bool, pieces: impl IntoIterator<Item = &'a str>) -> (String, String) {
    let mut parser = kind.parser(inside);
    let mut events = Vec::new();
    for piece in pieces {
        parser.push(piece, &mut events);
    }
    parser.finish(&mut events);
    let (mut reasoning, mut content) = (String::new(), String::new());
    for event in events {
        let (into, text) = match &event {
            ReasoningEvent::Reasoning(text) => (&mut reasoning, text),
            ReasoningEvent::Content(text) => (&mut content, text),
        };
        assert!(!text.is_empty(), "no event without content");
        into.push_str(text);
    }
    (reasoning, content)
}

fn parse(kind: &Kind, inside: bool, text: &str) -> (String, String) {
    parse_pieces(kind, inside, [text])
}

/// The text cut before every character.
fn characters(text: &str) -> impl Iterator<Item = &str> {
    text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()])
}
