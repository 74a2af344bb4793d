use proptest::prelude::*;
use proptest::test_runner::Config;

use super::{Kind, characters, kinds, parse, parse_pieces};

fn config(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}

/// Pieces of every kind's markers, and words.
fn piece() -> impl Strategy<Value = String> {
    let mut markers: Vec<String> =
        kinds().iter().flat_map(|kind| kind.markers().into_iter().map(str::to_owned).collect::<Vec<_>>()).collect();
    markers
        .extend(["Here is my ", "thought process:", "response:", "<tool_call>", "to=functions.f "].map(str::to_owned));
    let half = (prop::sample::select(markers), any::<prop::sample::Index>()).prop_map(|(marker, cut)| {
        let ends: Vec<_> = marker.char_indices().map(|(at, c)| at + c.len_utf8()).collect();
        marker[..*cut.get(&ends)].to_owned()
    });
    prop_oneof![2 => half, 2 => "[a-zé🌍{}\"]{1,4}", 1 => "[ \n]{1,2}", 1 => "\\PC{0,2}"]
}

fn soup() -> impl Strategy<Value = String> {
    prop::collection::vec(piece(), 0..16).prop_map(|pieces| pieces.concat())
}

/// Text that holds no whole marker and neither begins nor ends with white space.
fn plain() -> impl Strategy<Value = String> {
    soup().prop_map(|text| format!("I {text} u")).prop_filter("marker", |text| {
        let ends = ["my response:", "<tool_call>", "my thought process:"];
        !kinds().iter().any(|kind| kind.markers().iter().any(|marker| text.contains(marker)))
            && !ends.iter().any(|end| text.contains(end))
    })
}

/// The answer as each family writes it.
fn write(kind: &Kind, reasoning: &str, content: &str) -> String {
    match kind {
        Kind::DeepSeekR1 => format!("{reasoning}\n</think>\n\n{content}"),
        Kind::Think | Kind::Qwen3 => format!("<think>\n{reasoning}\n</think>\n\n{content}"),
        Kind::SeedOss => format!("<seed:think>{reasoning}</seed:think>{content}"),
        Kind::Mistral => format!("[THINK]{reasoning}[/THINK]{content}"),
        Kind::Granite => format!("Here is my thought process: {reasoning} Here is my response: {content}"),
        Kind::Harmony => format!(
            "<|channel|>analysis<|message|>{reasoning}<|end|><|start|>assistant<|channel|>final<|message|>{content}<|return|>"
        ),
        Kind::Custom { start, end } => format!("{start}{reasoning}{end}{content}"),
    }
}

#[test]
fn reasoning_and_content_come_back_as_they_were_written() {
    for kind in kinds() {
        let inside = kind == Kind::DeepSeekR1;
        proptest!(config(150), |(reasoning in plain(), content in plain())| {
            let written = write(&kind, &reasoning, &content);
            prop_assert_eq!(parse(&kind, inside, &written), (reasoning, content), "{:?} {:?}", kind, written);
        });
    }
}

#[test]
fn an_answer_is_the_same_wherever_it_is_cut() {
    for kind in kinds() {
        for inside in [false, true] {
            proptest!(config(60), |(text in soup())| {
                let whole = parse(&kind, inside, &text);
                prop_assert_eq!(&parse_pieces(&kind, inside, characters(&text)), &whole, "{:?} {:?}", kind, text);
                for (at, _) in text.char_indices() {
                    let (left, right) = text.split_at(at);
                    prop_assert_eq!(&parse_pieces(&kind, inside, [left, right]), &whole, "{:?} {:?}", kind, text);
                }
            });
        }
    }
}

#[test]
fn nothing_is_lost_but_tags_and_the_space_around_them() {
    for kind in kinds().into_iter().filter(|kind| *kind != Kind::Harmony) {
        for inside in [false, true] {
            proptest!(config(150), |(text in soup())| {
                let (reasoning, content) = parse(&kind, inside, &text);
                // What comes first is reasoning, and both stand in the text as they are.
                let behind = text.find(&reasoning).map(|at| &text[at + reasoning.len()..]);
                prop_assert!(behind.is_some_and(|behind| behind.ends_with(&content)), "{:?} {:?}", kind, text);
                let rest: usize = text.len() - reasoning.len() - content.len();
                let spaces = text.chars().filter(|c| c.is_whitespace()).map(char::len_utf8).sum::<usize>();
                prop_assert!(rest <= spaces + 60, "{:?} {:?}", kind, text);
            });
        }
    }
}
