//! Answers under regular expressions, judged by the `regex` crate.

use super::walk::walk;
use super::{DEMO, PIECES, TINY, compile, refusal};
use crate::grammar::{GrammarError, GrammarSource};

const PATTERNS: [&str; 67] = [
    "a",
    "abc",
    "a|b",
    "a*",
    "a+b?",
    "a{3}",
    "a{2,4}",
    "a{0,2}b{1,}",
    "(ab)+",
    "(a|bc)*d",
    "[abc]",
    "[^abc]",
    "[a-z]+",
    "[a-zA-Z_][a-zA-Z0-9_]*",
    "[0-9]{1,3}(\\.[0-9]{1,3}){3}",
    "\\d+",
    "\\d{4}-\\d{2}-\\d{2}",
    "\\w+",
    "\\w+\\s\\w+",
    "\\S{1,5}@\\S{1,5}\\.com",
    ".",
    ".*",
    ".{5}",
    "(?s:.{3})",
    "(?i:yes|no)",
    "(?i)hello",
    "hello world",
    "\\$[0-9]+\\.[0-9]{2}",
    "\\(\\d{3}\\) \\d{3}-\\d{4}",
    "[+-]?\\d+(\\.\\d+)?([eE][+-]?\\d+)?",
    "#[0-9a-fA-F]{6}",
    "true|false|null",
    "yes|no|maybe|yesterday",
    "ü+",
    "[äöüß]{2}",
    "日本|中国",
    "🎈{2}",
    "\\u{e9}t\\u{e9}",
    "[\\u{4e00}-\\u{4e10}]+",
    "\\p{L}{3}",
    "\\p{Lu}\\p{Ll}*",
    "[\\p{N}&&[^0-9]]",
    "[[:alpha:]]{2}",
    "[a-z&&[^aeiou]]+",
    "\\x41\\x42",
    "\\t\\n",
    "a/b/c",
    "\"[^\"]*\"",
    "'(?:\\\\.|[^\\\\']){0,9}'",
    "<b>[^<]{0,9}</b>",
    "^anchored$",
    "^start",
    "end$",
    "(?:ab){2}(?:cd){2}",
    "((a|b)(c|d))+",
    "\\w|(\\w|\\p{L}|ab)",
    "(\\w|\\p{L}|)|\\w",
    "a(?P<stop>b|c)d",
    "(x(y(z)?)?)?",
    "a??b",
    "a*?b",
    "a+?",
    "[-a]",
    "[\\]\\[]",
    "\\\\d",
    "(one|two|three)(, (one|two|three)){0,3}",
    "x{0}y",
];

#[test]
fn every_answer_that_finishes_matches() {
    let mut finished = 0;
    for pattern in PATTERNS {
        let judge = regex::Regex::new(&format!("^(?:{pattern})$")).unwrap();
        let source = GrammarSource::Regex(pattern.to_owned());
        let mut of_this = 0;
        for vocabulary in [&*DEMO, &*TINY, &*PIECES] {
            let grammar = compile(&source, vocabulary).unwrap_or_else(|error| panic!("{error}: {pattern}"));
            for seed in 0..4 {
                let Some(bytes) = walk(grammar.matcher(), vocabulary, seed) else { continue };
                let text = String::from_utf8(bytes).unwrap();
                assert!(judge.is_match(&text), "seed {seed}: {text:?} does not match {pattern}");
                of_this += 1;
            }
        }
        assert!(of_this >= 6, "only {of_this} of 12 walks came to an end: {pattern}");
        finished += of_this;
    }
    assert!(finished >= 680, "{finished}");
}

#[test]
fn what_no_automaton_follows_is_named() {
    for (pattern, name) in [
        ("(?=a)b", "look-ahead"),
        ("a(?!b)", "look-ahead"),
        ("(?<=a)b", "look-behind"),
        ("(?<!a)b", "look-behind"),
        (r"(a)\1", "back reference"),
        (r"(?<n>a)\k<n>", "back reference"),
        (r"\bword", "word boundary"),
        ("a|^b", "anchor"),
        (r"a\z|b", "anchor"),
    ] {
        let error = refusal(&GrammarSource::Regex(pattern.to_owned()));
        assert!(matches!(error, GrammarError::Unsupported(_)), "{error:?} for {pattern}");
        assert!(error.to_string().contains(name), "{error} does not name {name}");
    }
}

#[test]
fn what_does_not_parse_is_invalid() {
    for pattern in ["a(", "[", "*", "a{2,1}", "\\", "(?P<>a)", "\\p{Nothing}", "[z-a]"] {
        let error = refusal(&GrammarSource::Regex(pattern.to_owned()));
        assert!(matches!(error, GrammarError::Invalid(_)), "{error:?} for {pattern}");
    }
}

#[test]
fn an_escaped_dollar_is_no_anchor() {
    let grammar = compile(&GrammarSource::Regex(r"a\$".to_owned()), &DEMO).unwrap();
    assert_eq!(walk(grammar.matcher(), &DEMO, 1).unwrap(), b"a$");
}

#[test]
fn what_the_library_fails_on_is_refused_with_a_way_out() {
    let terminal = |groups: &str| GrammarSource::Lark(format!("start: T \";\"\nT: /\\w|{groups}\\w|\\p{{L}}|ab)/\n"));
    let GrammarError::Unsupported(sentence) = refusal(&terminal("(")) else { panic!("it has another name") };
    assert!(sentence.contains("`(?:...)`"), "{sentence}");
    compile(&terminal("(?:"), &DEMO).unwrap();
}
