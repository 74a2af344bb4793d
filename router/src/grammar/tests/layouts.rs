//! Answers put together from parts.

use serde_json::{Value, json};

use super::walk::walk;
use super::{DEMO, PIECES, TINY, compile, refusal};
use crate::grammar::{GrammarError, GrammarSource, Layout, Tagged};

fn texts(layout: Layout, walks: u64) -> Vec<String> {
    let source = GrammarSource::Layout(layout);
    let mut texts = Vec::new();
    for vocabulary in [&*DEMO, &*TINY, &*PIECES] {
        let grammar = compile(&source, vocabulary).unwrap();
        let answers = (0..walks).filter_map(|seed| walk(grammar.matcher(), vocabulary, seed));
        texts.extend(answers.map(|bytes| String::from_utf8(bytes).unwrap()));
    }
    assert!(!texts.is_empty());
    texts
}

fn small() -> Layout {
    Layout::json(json!({"type": "array", "items": {"type": "integer"}, "maxItems": 2}))
}

#[test]
fn parts_come_in_their_order() {
    let several = Layout::Several { one: Box::new(small()), between: "; ".to_owned() };
    let layout = Layout::Sequence(vec![
        Layout::text("a/b \"q\"\n"),
        several,
        Layout::Optional(Box::new(Layout::Regex("x{2,3}".to_owned()))),
        Layout::OneOf(vec![".".to_owned(), "!?".to_owned()]),
    ]);
    for text in texts(layout, 12) {
        let rest = text.strip_prefix("a/b \"q\"\n").unwrap_or_else(|| panic!("{text:?}"));
        let rest = rest.strip_suffix('.').or_else(|| rest.strip_suffix("!?")).unwrap();
        let lists = rest.trim_end_matches('x');
        assert!(matches!(rest.len() - lists.len(), 0 | 2 | 3), "{text:?}");
        for list in lists.split("; ") {
            let value: Value = serde_json::from_str(list).unwrap_or_else(|_| panic!("{text:?}"));
            assert!(value.as_array().is_some_and(|list| list.len() <= 2 && list.iter().all(Value::is_number)));
        }
    }
}

/// Whether an answer may be this text, which ends there.
fn is_whole(layout: &Layout, text: &str) -> bool {
    let mut matcher = compile(&GrammarSource::Layout(layout.clone()), &TINY).unwrap().matcher();
    // The first 256 ids of this vocabulary are the bytes.
    text.bytes().all(|byte| matcher.advance(u32::from(byte)).is_ok()) && matcher.is_accepting()
}

#[test]
fn free_text_ends_where_its_end_is() {
    let until = |rules: &[&str]| {
        let rules = rules.iter().map(|rule| (*rule).to_owned()).collect();
        Layout::Sequence(vec![Layout::Until { rules, end: "\n</p>\n".to_owned() }, Layout::text("<end>")])
    };
    for (rules, text, right) in [
        (vec![], "", true),
        (vec![], "a <b> </q>\n\n x</p", true),
        (vec![], "a </p> b", false),
        (vec![], "a\n</p>\n", false),
        (vec!["(?s:.{2,5})"], "a\n日", true),
        (vec!["(?s:.{2,5})"], "a", false),
        (vec!["(?s:.{2,5})"], "abcdef", false),
        (vec!["(?s:.{0,3})", "[ab]+"], "aba", true),
        (vec!["(?s:.{0,3})", "[ab]+"], "abab", false),
        (vec!["(?s:.{0,3})", "[ab]+"], "", false),
    ] {
        assert_eq!(is_whole(&until(&rules), &format!("{text}\n</p>\n<end>")), right, "{rules:?}: {text:?}");
    }
}

#[test]
fn free_text_may_end_at_a_special_token() {
    let until = Layout::Until { rules: Vec::new(), end: "<s>\n".to_owned() };
    let grammar = compile(&GrammarSource::Layout(Layout::Sequence(vec![until, small()])), &TINY).unwrap();
    let mut ended = 0;
    for seed in 0..20 {
        let Some(text) = walk(grammar.matcher(), &TINY, seed) else { continue };
        let text = String::from_utf8(text).unwrap();
        let (_, list) = text.rsplit_once("<s>\n").unwrap_or_else(|| panic!("{text:?}"));
        assert!(serde_json::from_str::<Vec<i64>>(list).is_ok(), "{text:?}");
        ended += 1;
    }
    assert!(ended > 0);
}

#[test]
fn an_end_is_not_written() {
    let layout = Layout::Sequence(vec![small(), Layout::text("!</s>")]);
    assert!(is_whole(&layout, "[1]!"));
    assert!(!is_whole(&layout, "[1]") && !is_whole(&layout, "[1]!</s>"));
}

#[test]
fn fields_keep_their_order_and_may_be_left_out() {
    let field = |name: &str, required| {
        (required, Layout::Sequence(vec![Layout::text(name), Layout::Regex("[0-9]".to_owned())]))
    };
    for (between, wanted) in [(", ", true), ("", false)] {
        let fields = vec![field("a=", false), field("b=", true), field("c=", false), field("d=", wanted)];
        let layout = Layout::Fields { fields, between: between.to_owned() };
        let mut seen = std::collections::HashSet::new();
        for text in texts(Layout::Sequence(vec![Layout::text("f("), layout, Layout::text(")")]), 20) {
            let inner = text.strip_prefix("f(").and_then(|text| text.strip_suffix(')')).unwrap();
            let names: String = inner.chars().filter(char::is_ascii_alphabetic).collect();
            let expected = names.chars().map(|name| format!("{name}=_")).collect::<Vec<_>>().join(between);
            assert_eq!(inner.chars().map(|c| if c.is_ascii_digit() { '_' } else { c }).collect::<String>(), expected);
            assert!(["abcd", "abc", "abd", "ab", "bcd", "bc", "bd", "b"].contains(&names.as_str()), "{text:?}");
            assert!(!wanted || names.ends_with('d'));
            seen.insert(names);
        }
        assert!(seen.len() > 2, "{seen:?}");
    }
    let none = texts(
        Layout::Sequence(vec![
            Layout::text("f("),
            Layout::Fields { fields: vec![], between: ",".to_owned() },
            Layout::text(")"),
        ]),
        1,
    );
    assert!(none.iter().all(|text| text == "f()"));
}

#[test]
fn white_space_in_json_is_what_is_asked_for() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "null"}, "maxItems": 2}}, "required": ["a", "b"], "additionalProperties": false});
    for (spacing, allowed) in [("", ""), ("[ ]?", " "), ("\\n*", "\n")] {
        let layout = Layout::Json { schema: schema.clone(), spacing: Some(spacing.to_owned()) };
        for text in texts(layout, 10) {
            assert!(jsonschema::is_valid(&schema, &serde_json::from_str(&text).unwrap()), "{text:?}");
            assert!(text.chars().filter(|c| c.is_whitespace()).all(|c| allowed.contains(c)), "{spacing:?}: {text:?}");
        }
    }
}

#[test]
fn what_may_be_a_call_begins_no_free_text() {
    let layout = Layout::Choice(vec![
        Layout::Sequence(vec![Layout::text("{\"name\": "), small(), Layout::text("}")]),
        Layout::Free { avoided: vec!["<call>".to_owned()], not_first: "{[".to_owned() },
    ]);
    let grammar = compile(&GrammarSource::Layout(layout), &TINY).unwrap();
    for (text, allowed) in [
        ("{\"name\": [1]}", true),
        ("{\"nope\": ", false),
        (" {", false),
        ("\n\n[", false),
        ("so {\"nope\" [", true),
        ("so <call", true),
        ("so <call>", false),
    ] {
        let mut matcher = grammar.matcher();
        let taken = text.bytes().all(|byte| matcher.advance(u32::from(byte)).is_ok());
        assert_eq!(taken, allowed, "{text:?}");
    }
}

#[test]
fn parts_in_free_text_may_be_wanted_once_or_at_least_once() {
    let part = || vec![("<f>".to_owned(), Layout::Sequence(vec![small(), Layout::text("</f>")]))];
    for (at_least_one, only_first) in [(false, false), (true, false), (false, true), (true, true)] {
        let tagged =
            Tagged { parts: part(), triggers: vec!["<f>".to_owned()], at_least_one, only_first, ..Tagged::default() };
        let grammar = compile(&GrammarSource::Layout(Layout::Tagged(tagged)), &TINY).unwrap();
        for (text, parts) in [("", 0), ("hm", 0), ("a <f>[1]</f>", 1), ("<f>[]</f><f>[2]</f>", 2), ("<f>[]</f> so", 1)]
        {
            let mut matcher = grammar.matcher();
            let taken = text.bytes().all(|byte| matcher.advance(u32::from(byte)).is_ok());
            let whole = taken && matcher.is_accepting();
            let wanted =
                (parts > 0 || !at_least_one) && !(only_first && (parts > 1 || (parts == 1 && !text.ends_with("</f>"))));
            assert_eq!(whole, wanted, "{text:?}, at least one: {at_least_one}, only the first: {only_first}");
        }
    }
}

#[test]
fn a_layout_that_cannot_be_written_is_refused() {
    let mut deep = Layout::text("x");
    for _ in 0..70 {
        deep = Layout::Optional(Box::new(deep));
    }
    for (layout, complex) in [
        (deep, true),
        (Layout::Choice(vec![]), false),
        (Layout::OneOf(vec![]), false),
        (Layout::OneOf(vec!["x".to_owned(); 5000]), true),
        (Layout::Regex("(".to_owned()), false),
        (Layout::json(json!(3)), false),
        (Layout::text("x".repeat(300 << 10)), true),
    ] {
        let error = refusal(&GrammarSource::Layout(layout));
        assert_eq!(matches!(error, GrammarError::TooComplex(_)), complex, "{error:?}");
        assert!(complex || matches!(error, GrammarError::Invalid(_)), "{error:?}");
    }
}
