use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::super::ToolLimits;
use super::super::scanner::WORK;
use super::families::{Conversation, conversation, lookalike};
use super::{Answer, KINDS, ToolEvent, ToolParserKind as Kind, characters, parse, parse_pieces, parser, tools};

fn config(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}

/// Runs a property for every kind.
fn for_each_kind(cases: u32, check: impl Fn(&Conversation) -> Result<(), TestCaseError>) {
    for kind in KINDS {
        let run = TestRunner::new(config(cases)).run(&conversation(kind), |conversation| check(&conversation));
        run.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
    }
}

fn visible(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

#[test]
fn calls_and_text_come_back_as_they_were_written() {
    let tools = tools();
    for_each_kind(200, |conversation| {
        let written = conversation.written();
        let answer = parse(conversation.kind, Some(&tools), &written);
        prop_assert_eq!(&answer.text, &conversation.text(), "of {}", written);
        let names: Vec<_> = answer.calls.iter().map(|call| call.name.as_str()).collect();
        prop_assert_eq!(names, conversation.calls.iter().map(|call| call.0).collect::<Vec<_>>(), "of {}", written);
        let between_tags = matches!(conversation.kind, Kind::Qwen3Coder | Kind::Glm | Kind::Pythonic);
        for (called, (_, arguments)) in answer.calls.iter().zip(&conversation.calls) {
            prop_assert!(called.ended);
            prop_assert_eq!(called.value(), serde_json::Value::from(arguments.clone()), "of {}", written);
            if !between_tags {
                prop_assert_eq!(&called.arguments, &conversation.verbatim(arguments));
            }
        }
        Ok(())
    });
}

#[test]
fn an_answer_is_the_same_wherever_it_is_cut() {
    let tools = tools();
    for_each_kind(16, |conversation| {
        let (kind, written) = (conversation.kind, conversation.written());
        let whole = parse(kind, Some(&tools), &written);
        prop_assert_eq!(&parse_pieces(kind, Some(&tools), characters(&written)), &whole);
        for (at, _) in written.char_indices() {
            let (left, right) = written.split_at(at);
            prop_assert_eq!(&parse_pieces(kind, Some(&tools), [left, right]), &whole, "cut at {}", at);
        }
        Ok(())
    });
}

#[test]
fn nothing_is_lost_when_an_answer_ends_early() {
    let tools = tools();
    for_each_kind(16, |conversation| {
        let (kind, written) = (conversation.kind, conversation.written());
        let whole = parse(kind, Some(&tools), &written);
        for (at, _) in written.char_indices() {
            let cut = &written[..at];
            let answer = parse(kind, Some(&tools), cut);
            prop_assert_eq!(&parse_pieces(kind, Some(&tools), characters(cut)), &answer);
            prop_assert!(answer.calls.len() <= whole.calls.len());
            for (called, full) in answer.calls.iter().zip(&whole.calls) {
                prop_assert_eq!(&called.name, &full.name);
                if called.ended {
                    prop_assert_eq!(&called.arguments, &full.arguments);
                }
            }
            if answer.calls.is_empty() {
                prop_assert_eq!(&answer.text, cut, "what is no call is text, whole");
            } else {
                // Behind the text before the calls only a call that has just begun can be text.
                let shown = visible(&answer.text);
                let rest = shown.strip_prefix(&visible(&conversation.before));
                prop_assert!(rest.is_some_and(|rest| visible(cut).ends_with(rest)), "{} of {}", shown, cut);
            }
        }
        Ok(())
    });
}

/// Any mixture of markers, halves of markers, JSON and characters.
fn soup() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => lookalike(),
        1 => prop::sample::select(vec![
            "ping", "typed", "{}", "}", "]", ")", "(", ",", ";", ":", ">", "=", "\n", " ", "s=", "```json\n", "[ping(", "null",
            "{\"name\": \"ping\", \"arguments\": {", "<function=ping>", "<parameter=s>", "'", "<|message|>", "function", "\"ping\"",
            "<|channel|>commentary to=functions.ping<|message|>",
        ]).prop_map(str::to_owned),
        1 => "\\PC{0,3}",
        1 => any::<Vec<u8>>().prop_map(|bytes| String::from_utf8_lossy(&bytes[..bytes.len().min(8)]).into_owned()),
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

#[test]
fn no_text_breaks_a_parser() {
    let tools = tools();
    for kind in KINDS {
        for tools in [Some(&tools), None] {
            proptest!(config(400), |(text in soup(), at in any::<prop::sample::Index>())| {
                let whole = parse(kind, tools, &text);
                prop_assert_eq!(&parse_pieces(kind, tools, characters(&text)), &whole, "{:?} {:?}", kind, text);
                if whole.calls.is_empty() {
                    prop_assert_eq!(&whole.text, &text, "{:?}", kind);
                } else {
                    let mut rest = text.chars();
                    prop_assert!(whole.text.chars().all(|c| rest.any(|other| other == c)), "{:?} invents text of {:?}", kind, text);
                }
                if !text.is_empty() {
                    let cut = (0..=at.index(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
                    let (left, right) = text.split_at(cut);
                    prop_assert_eq!(&parse_pieces(kind, tools, [left, right]), &whole, "{:?} {:?}", kind, text);
                }
            });
        }
    }
}

/// Texts that make a parser go back as often as possible.
fn hard_texts(kind: Kind, length: usize) -> Vec<String> {
    let format = kind.forced_format(&tools());
    let call = &format.calls[0];
    let begin = format!("{}{}", format.begin, call.begin);
    let halves = begin.char_indices().map(|(at, _)| &begin[..at]).filter(|half| !half.is_empty());
    let nested = format!("{begin}{}", "{\"a\":[".repeat(length / 6));
    let early = format!("{}{{\"arguments\": \"", format.begin);
    let mut texts: Vec<String> = halves.map(|half| half.repeat(length / half.len())).collect();
    texts.extend(
        ["{", "[", "<", "\"", "\n", "`", "[[{", "\\", "'", "<|"].map(|piece| piece.repeat(length / piece.len())),
    );
    texts.extend([nested, early.repeat(length / early.len()), format!("{early}{}", "a".repeat(length))]);
    texts.push(format!("{}\n```{}", format.begin, "a".repeat(length)));
    texts
}

#[test]
fn work_grows_with_the_length_alone() {
    let tools = tools();
    for kind in KINDS {
        // Longer than what a parser may hold, so that holding is part of it.
        for text in hard_texts(kind, 20_000) {
            WORK.with(|work| work.set(0));
            let limits = ToolLimits { held: 4_000, ..ToolLimits::default() };
            let mut parser = kind.parser(Some(Arc::new(tools.clone())), limits);
            parser.push(&text, &mut Vec::new());
            let work = WORK.with(std::cell::Cell::get);
            assert!(work < 40 * text.len(), "{kind:?} {:?}: {work} for {}", text.get(..60), text.len());
        }
    }
}

#[test]
fn a_parser_holds_no_more_than_it_may() {
    let tools = tools();
    let limits = ToolLimits { held: 512, ..ToolLimits::default() };
    for kind in KINDS {
        for text in hard_texts(kind, 20_000) {
            let mut parser = kind.parser(Some(Arc::new(tools.clone())), limits);
            let (mut taken, mut events) = (0, Vec::new());
            let mut shown = 0;
            for piece in characters(&text) {
                parser.push(piece, &mut events);
                taken += piece.len();
                let new: usize = events.drain(..).map(|event| size(&event)).sum();
                shown += new;
                assert!(taken < shown + limits.held + 300, "{kind:?} holds {} of {:?}", taken - shown, text.get(..60));
            }
        }
    }
}

fn size(event: &ToolEvent) -> usize {
    match event {
        ToolEvent::Text(text) | ToolEvent::Arguments { delta: text, .. } => text.len(),
        // Its markers are not shown.
        ToolEvent::CallBegin { .. } => 100,
        ToolEvent::CallEnd { .. } => 0,
    }
}

#[test]
fn deltas_come_as_soon_as_they_are_certain() {
    let mut parser = parser(Kind::Hermes, Some(&tools()));
    let mut step = |delta: &str| {
        let mut events = Vec::new();
        parser.push(delta, &mut events);
        events
    };
    assert_eq!(step("Hello"), [ToolEvent::Text("Hello".to_owned())]);
    assert_eq!(step(" <tool"), []);
    assert_eq!(step("box"), [ToolEvent::Text(" <toolbox".to_owned())]);
    assert_eq!(step("\n<tool_call>\n{\"name\": \"ping\", \"arg"), []);
    let begin = ToolEvent::CallBegin { index: 0, name: "ping".to_owned() };
    let more = |delta: &str| ToolEvent::Arguments { index: 0, delta: delta.to_owned() };
    assert_eq!(step("uments\": {\"a\""), [begin, more("{\"a\"")]);
    assert_eq!(step(": \"b"), [more(": \"b")]);
    assert_eq!(step("\"}"), [more("\"}"), ToolEvent::CallEnd { index: 0 }]);
    assert_eq!(step("}\n</tool_call>\n"), []);
    let mut events = Vec::new();
    parser.finish(&mut events);
    assert_eq!(Answer::from(events), Answer::default());
}
