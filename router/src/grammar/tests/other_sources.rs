//! Choices, Lark grammars, structural tags, and thinking before the answer.

use serde_json::{Value, json};

use super::walk::{allowed, walk};
use super::{DEMO, PIECES, TINY, compile, refusal};
use crate::grammar::{GrammarError, GrammarSource, Marker, MatchError, StructuralTag, Structure, Thoughts};

fn texts(source: &GrammarSource, walks: u64) -> Vec<String> {
    let mut texts = Vec::new();
    for vocabulary in [&*DEMO, &*TINY, &*PIECES] {
        let grammar = compile(source, vocabulary).unwrap();
        let answers = (0..walks).filter_map(|seed| walk(grammar.matcher(), vocabulary, seed));
        texts.extend(answers.map(|bytes| String::from_utf8(bytes).unwrap()));
    }
    texts
}

#[test]
fn a_choice_is_one_of_its_strings() {
    let choices = ["yes", "no", "yes, but", "(.*)", "naïve 🎈", "a\nb"].map(str::to_owned).to_vec();
    let texts = texts(&GrammarSource::Choice(choices.clone()), 40);
    assert_eq!(texts.len(), 120);
    assert!(texts.iter().all(|text| choices.contains(text)), "{texts:?}");
    assert!(choices.iter().all(|choice| texts.contains(choice)), "{texts:?}");
}

#[test]
fn a_choice_needs_strings() {
    for choices in [vec![], vec![String::new()]] {
        assert!(matches!(refusal(&GrammarSource::Choice(choices)), GrammarError::Invalid(_)));
    }
}

#[test]
fn a_lark_grammar_is_followed() {
    let grammar = "start: expression\nexpression: NUMBER | \"(\" expression OPERATOR expression \")\"\nNUMBER: /[1-9][0-9]{0,2}/\nOPERATOR: \"+\" | \"*\"\n";
    let texts = texts(&GrammarSource::Lark(grammar.to_owned()), 20);
    assert!(texts.len() >= 40);
    for text in &texts {
        let depth = text.chars().try_fold(0_i32, |depth, c| match c {
            '(' => Some(depth + 1),
            ')' => (depth > 0).then_some(depth - 1),
            '0'..='9' | '+' | '*' => Some(depth),
            _ => None,
        });
        assert_eq!(depth, Some(0), "{text}");
        assert_eq!(text.matches('(').count(), text.matches(['+', '*']).count(), "{text}");
    }
    assert!(texts.iter().any(|text| text.starts_with('(')));
}

#[test]
fn a_lark_grammar_may_not_change_more_than_the_shape() {
    for (grammar, name) in [
        ("start[temperature=0.5]: \"a\"", "temperature"),
        ("start: a\na[stop=\"x\"]: /.*/", "stop"),
        ("start[max_tokens=4]: /.*/", "max_tokens"),
        ("%llguidance {\"no_forcing\": true}\nstart: \"a\"", "%llguidance"),
        ("start: %json {\"type\": \"object\", \"x-guidance\": {\"lenient\": true}}", "x-guidance"),
    ] {
        let error = refusal(&GrammarSource::Lark(grammar.to_owned()));
        assert!(matches!(error, GrammarError::Unsupported(_)) && error.to_string().contains(name), "{error:?}");
    }
    // In a string, a comment or a regular expression they mean nothing.
    let grammar = "// temperature=1\nstart: \"temperature=\" /stop=[0-9]/";
    assert!(compile(&GrammarSource::Lark(grammar.to_owned()), &DEMO).is_ok());
}

#[test]
fn a_lark_grammar_that_does_not_parse_is_invalid() {
    for grammar in ["", "start: unknown_rule", "start: \"a", "rule: \"a\"", "start: start start"] {
        let error = refusal(&GrammarSource::Lark(grammar.to_owned()));
        assert!(matches!(error, GrammarError::Invalid(_) | GrammarError::Unsupported(_)), "{error:?} for {grammar}");
    }
}

fn weather() -> Value {
    json!({"type": "object", "properties": {"city": {"enum": ["Bern", "Rome"]}}, "required": ["city"], "additionalProperties": false})
}

fn tag() -> StructuralTag {
    let structure = |begin: &str, schema: Value| Structure { begin: begin.to_owned(), schema, end: "</f>".to_owned() };
    StructuralTag {
        structures: vec![
            structure("<f=weather>", weather()),
            structure("<f=add>", json!({"type": "array", "items": {"type": "integer"}, "maxItems": 2})),
        ],
        triggers: vec!["<f=".to_owned()],
    }
}

/// Free text and the calls in it, or `None` for a text that is not of this shape.
fn parts(text: &str) -> Option<usize> {
    let mut rest = text;
    let mut calls = 0;
    while let Some(at) = rest.find("<f=") {
        let (name, body) = rest[at + 3..].split_once('>')?;
        let (body, after) = body.split_once("</f>")?;
        let value: Value = serde_json::from_str(body).ok()?;
        match name {
            "weather" => drop(value["city"].as_str().filter(|city| ["Bern", "Rome"].contains(city))?),
            "add" => {
                value.as_array().filter(|items| items.len() <= 2 && items.iter().all(Value::is_i64)).map(|_| ())?;
            }
            _ => return None,
        }
        calls += 1;
        rest = after;
    }
    Some(calls)
}

/// A walk that writes `text` first, as far as the grammar lets it.
fn after(source: &GrammarSource, text: &str, seed: u64) -> Option<String> {
    let grammar = compile(source, &TINY).unwrap();
    let mut matcher = grammar.matcher();
    for byte in text.bytes() {
        matcher.advance(u32::from(byte)).ok()?; // The first 256 ids of this vocabulary are the bytes.
    }
    walk(matcher, &TINY, seed).map(|bytes| text.to_owned() + std::str::from_utf8(&bytes).unwrap())
}

#[test]
fn text_is_free_until_a_trigger() {
    let source = GrammarSource::StructuralTag(tag());
    for begin in ["", "Let me see. ", "a < b <f <f>", "<f=", "So: <f=we", "<f=add>[1, 2]</f> and <f=weather>"] {
        for seed in 0..6 {
            let Some(text) = after(&source, begin, seed) else { panic!("{begin} is not allowed") };
            let calls = parts(&text).unwrap_or_else(|| panic!("{text:?}"));
            assert!(calls >= begin.matches("<f=").count(), "{text:?}");
        }
    }
    for begin in ["<f=x", "<f=weather>{\"city\": \"Oslo", "<f=add>[1, 2, 3", "<f=add>[]</g"] {
        assert_eq!(after(&source, begin, 0), None, "{begin} is allowed");
    }
}

#[test]
fn a_special_token_can_be_a_trigger() {
    let structures = vec![Structure { begin: "<s>call".to_owned(), schema: weather(), end: "</s>".to_owned() }];
    let source = GrammarSource::StructuralTag(StructuralTag { structures, triggers: vec!["<s>".to_owned()] });
    // `</s>` ends sequences here, so it cannot end a part as well.
    let ends = |text: &str| TINY.special(text).is_some_and(|token| TINY.is_eos(token));
    assert!(ends("</s>"));
    let grammar = compile(&source, &TINY).unwrap();
    let mut matcher = grammar.matcher();
    matcher.advance(u32::from(b'x')).unwrap();
    matcher.advance(TINY.special("<s>").unwrap()).unwrap();
    assert_eq!(matcher.forced().iter().flat_map(|&token| TINY.bytes_of(token)).copied().collect::<Vec<_>>(), b"call{");
}

#[test]
fn a_structural_tag_that_contradicts_itself_is_invalid() {
    type Change = fn(&mut StructuralTag);
    let changes: [Change; 5] = [
        |tag| tag.structures.clear(),
        |tag| tag.triggers.push(String::new()),
        |tag| tag.triggers.push("<f=a".to_owned()),
        |tag| tag.triggers = vec!["<f=w".to_owned()],
        |tag| tag.structures[0].end.clear(),
    ];
    for change in changes {
        let mut tag = tag();
        change(&mut tag);
        let error = refusal(&GrammarSource::StructuralTag(tag));
        assert!(matches!(error, GrammarError::Invalid(_)), "{error:?}");
    }
}

#[test]
fn thinking_is_free_until_its_marker() {
    let grammar = compile(&GrammarSource::JsonSchema(weather()), &TINY).unwrap();
    let marker = Marker::new("</think>", &TINY).unwrap();
    let mut matcher = grammar.matcher_after(marker);
    let mut mask = vec![0; TINY.mask_words()];
    for byte in b"Hmm, {\"city\": 3}? </thin </thi</think" {
        matcher.fill_mask(&mut mask).unwrap();
        assert!(allowed(&mask).len() > 256 && !allowed(&mask).iter().any(|&token| TINY.is_eos(token)));
        assert!(matcher.is_thinking() && !matcher.is_accepting() && matcher.forced().is_empty());
        matcher.advance(u32::from(*byte)).unwrap();
    }
    let mut other = matcher.fork();
    matcher.advance(u32::from(b'>')).unwrap();
    assert!(!matcher.is_thinking());
    matcher.fill_mask(&mut mask).unwrap();
    assert_eq!(allowed(&mask), [u32::from(b'{')]);
    let text = walk(matcher, &TINY, 3).unwrap();
    assert!(jsonschema::is_valid(&weather(), &serde_json::from_slice(&text).unwrap()));
    // The other one thinks on, and takes back what it thought.
    other.advance(u32::from(b'x')).unwrap();
    other.rollback(1).unwrap();
    other.advance(u32::from(b'>')).unwrap();
    assert!(!other.is_thinking());
    assert_eq!(other.rollback(1), Err(MatchError::Rollback(1)));
}

/// A model that chooses whether to think opens it with a token, or answers at once.
#[test]
fn thinking_may_be_left_out() {
    let grammar = compile(&GrammarSource::JsonSchema(weather()), &TINY).unwrap();
    let start = TINY.special("<s>").unwrap();
    let thoughts = Thoughts { starts: vec!["<s>".to_owned()], ends: vec!["!".to_owned()], ..Thoughts::default() };
    let marker = Marker::of(&thoughts, &TINY).unwrap();
    let mut mask = vec![0; TINY.mask_words()];
    let mut thinks = grammar.matcher_after(marker.clone());
    thinks.fill_mask(&mut mask).unwrap();
    let mut expected = vec![u32::from(b'{'), start];
    expected.sort_unstable();
    assert_eq!(allowed(&mask), expected);
    assert!(thinks.forced().is_empty(), "the model may still choose to think");
    let mut answers = thinks.fork();
    answers.advance(u32::from(b'{')).unwrap();
    let text = [b"{".to_vec(), walk(answers, &TINY, 5).unwrap()].concat();
    assert!(jsonschema::is_valid(&weather(), &serde_json::from_slice(&text).unwrap()));
    thinks.advance(start).unwrap();
    assert!(thinks.is_thinking() && !thinks.is_accepting());
    for byte in b"what? {no" {
        thinks.advance(u32::from(*byte)).unwrap();
    }
    thinks.advance(u32::from(b'!')).unwrap();
    thinks.fill_mask(&mut mask).unwrap();
    assert_eq!(allowed(&mask), [u32::from(b'{')]);
    // Nothing that opens it, or nothing that ends it, is no thinking.
    let unknown = Thoughts { starts: vec!["<none>".to_owned()], ..thoughts };
    assert_eq!(Marker::of(&unknown, &TINY), None);
}

/// Markers may be made of special tokens and text, as those of channels are.
#[test]
fn a_marker_may_span_special_tokens() {
    let grammar = compile(&GrammarSource::JsonSchema(weather()), &TINY).unwrap();
    let start = TINY.special("<s>").unwrap();
    let specials = vec!["<s>".to_owned()];
    let thoughts = Thoughts { inside: true, ends: vec!["<s>ab<s>".to_owned()], specials, ..Thoughts::default() };
    let mut matcher = grammar.matcher_after(Marker::of(&thoughts, &TINY).unwrap());
    let mut mask = vec![0; TINY.mask_words()];
    // The same letters as text are no marker.
    for token in b"<s>ab<s>".map(u32::from).into_iter().chain([start, 97, start, 97, 98]) {
        matcher.fill_mask(&mut mask).unwrap();
        assert!(allowed(&mask).contains(&token) && matcher.is_thinking());
        matcher.advance(token).unwrap();
    }
    matcher.advance(start).unwrap();
    assert!(!matcher.is_thinking());
}

#[test]
fn the_marker_may_be_a_token_of_its_own() {
    let grammar = compile(&GrammarSource::JsonSchema(weather()), &TINY).unwrap();
    let marker = Marker::new("<s>", &TINY).unwrap();
    let mut matcher = grammar.matcher_after(marker);
    let mut mask = vec![0; TINY.mask_words()];
    matcher.fill_mask(&mut mask).unwrap();
    let token = TINY.special("<s>").unwrap();
    assert!(allowed(&mask).contains(&token));
    matcher.advance(token).unwrap();
    assert!(!matcher.is_thinking());
}
