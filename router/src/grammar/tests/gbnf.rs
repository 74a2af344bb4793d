//! Grammars in GBNF, as people write them.

use serde_json::Value;

use super::walk::walk;
use super::{DEMO, PIECES, TINY, compile, refusal, unhurried};
use crate::grammar::{CompiledGrammar, GrammarError, GrammarSource, gbnf};

pub(super) fn source(text: &str) -> GrammarSource {
    let source = GrammarSource::grammar(text.to_owned());
    assert!(matches!(source, GrammarSource::Gbnf(_)), "{text}");
    source
}

/// Whether a text is one of the grammar's; byte by byte, as the first 256 ids of this vocabulary are the bytes.
pub(super) fn takes(grammar: &CompiledGrammar, text: &str) -> bool {
    let mut matcher = grammar.matcher();
    text.bytes().all(|byte| matcher.advance(u32::from(byte)).is_ok()) && matcher.is_accepting()
}

const JSON: &str = r#"
# JSON, of which the answer is an object.
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (
             string ":" ws value
             ("," ws string ":" ws value)*
           )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,2})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"#;

#[test]
fn texts_are_told_apart() {
    let cases: [(&str, &[&str], &[&str]); 22] = [
        (r#"root ::= "a""#, &["a"], &["", "b", "aa"]),
        (r#"root ::= [a-z]+ "b""#, &["ab", "bb", "abcb"], &["b", "a", "abc"]),
        (r#"root ::= [a-z]* [b-y]? "z" "z"?"#, &["z", "zz", "azz", "bzzz"], &["", "a"]),
        (r#"root ::= ("ab" | "abc") ("c" | "d")"#, &["abc", "abd", "abcc", "abcd"], &["ab", "abcdd"]),
        (r#"root ::= "if" | [a-z]+ | "i" "9""#, &["if", "i", "ifs", "i9"], &["", "9", "if9"]),
        (
            r#"root ::= word (" " word)*
            word ::= [a-z]+ | [a-z] "-"+ [a-z]"#,
            &["a", "ab cd", "a--b c"],
            &["", "a-", "ab-c", "a "],
        ),
        (
            r#"root ::= item ("," root)?
            item ::= [0-9]+"#,
            &["1", "1,22,3"],
            &["", "1,", ",1"],
        ),
        (
            r#"root ::= root "+" term | term
            term ::= [0-9] | "(" root ")""#,
            &["1", "1+2+3", "(1+2)+3"],
            &["", "+1", "1+", "(1"],
        ),
        (
            r#"root ::= a
            a ::= b "x" | "y"
            b ::= a "z" | "w""#,
            &["y", "wx", "yzx", "wxzx"],
            &["", "x", "yz"],
        ),
        (r#"root ::= "a" root "b" |"#, &["", "ab", "aaabbb"], &["a", "aab", "ba"]),
        (
            r#"root ::= a "." a
            a ::= "x" a | "x""#,
            &["x.x", "xxx.xx"],
            &["x.", "xx"],
        ),
        (r#"root ::= "a"{2} "b"{1,} "c"{,2} "d"{0,1} "e"{0}"#, &["aab", "aabbbccd"], &["ab", "aa", "aabccc", "aabe"]),
        (r#"root ::= [^a-y0-9\n] . [\]\-\\]"#, &["z\n]", "Zé-", "é🎈\\"], &["a]]", "z]", "\nx]"]),
        (r#"root ::= [-a] [a-]"#, &["-a", "a-"], &["ab"]),
        (r#"root ::= "\x41é\U0001F388\n\t\"\\""#, &["Aé🎈\n\t\"\\"], &["A"]),
        (r#"root ::= (( "a" | ) "b"?)+"#, &["", "a", "ab", "babab"], &["c"]),
        (
            r#"root::="a"|"b" # one of two
            # nothing more"#,
            &["a", "b"],
            &["ab"],
        ),
        ("root ::=\n  \"a\"\n  | \"b\"\n  \"c\"\n\nother-rule ::= \"d\"", &["a", "bc"], &["b", "d"]),
        (
            r#"root ::= snake_case "/" 2nd
            snake_case ::= "," [/]
            2nd ::= "é" [é-ü]"#,
            &[",//éü"],
            &[",/éü"],
        ),
        (r#"root ::= ("a"*)* ("b"+)?"#, &["", "aaa", "aabb", "b"], &["ba"]),
        (r#"root ::= "x" ("" | "y") ("" | "y" "z")"#, &["x", "xy", "xyz", "xyyz"], &["xz", "xyy"]),
        (
            r#"root ::= t+
            t ::= "aa" | "aab" "c" | "(" t ")""#,
            &["aa", "aaaa", "aabc(aa)", "aaaabc"],
            &["a", "aab", "(aa"],
        ),
    ];
    for (text, accepted, refused) in cases {
        let grammar = compile(&source(text), &TINY).unwrap_or_else(|error| panic!("{error} for {text}"));
        for one in accepted {
            assert!(takes(&grammar, one), "{one:?} is not taken by {text}");
        }
        for one in refused {
            assert!(!takes(&grammar, one), "{one:?} is taken by {text}");
        }
    }
}

#[test]
fn json_written_under_a_grammar_is_json() {
    let mut finished = 0;
    for vocabulary in [&*DEMO, &*TINY, &*PIECES] {
        let grammar = compile(&source(JSON), vocabulary).unwrap();
        for bytes in (0..20).filter_map(|seed| walk(grammar.matcher(), vocabulary, seed)) {
            let value: Value = serde_json::from_slice(&bytes).unwrap();
            assert!(value.is_object());
            finished += 1;
        }
    }
    assert!(finished >= 30, "{finished}");
}

/// A mask follows a string of JSON by one terminal, not by each character.
#[test]
fn what_is_regular_is_not_taken_apart() {
    let lowered = gbnf::lower(JSON, &unhurried()).unwrap();
    let terminals = lowered.lines().filter(|line| line.starts_with('T')).count();
    assert!(terminals <= 20, "{lowered}");
    assert!(lowered.lines().any(|line| line.starts_with('T') && line.contains("{0,15}")), "{lowered}");
}

#[test]
fn what_is_wrong_is_said_with_what_to_change() {
    type Kind = fn(&GrammarError) -> bool;
    let invalid: Kind = |error| matches!(error, GrammarError::Invalid(_));
    let unsupported: Kind = |error| matches!(error, GrammarError::Unsupported(_));
    let complex: Kind = |error| matches!(error, GrammarError::TooComplex(_));
    let cases = [
        ("start ::= \"a\"", invalid, "begins with the rule `root`"),
        ("root ::= \"a\"\nroot ::= \"b\"", invalid, "line 2 of the grammar is wrong: the rule `root` is defined twice"),
        ("root ::= \"a\"\n  | missing", invalid, "line 2 of the grammar refers to the rule `missing`"),
        ("root ::= \"a\" root", invalid, "`root` of the grammar refers to itself and never ends"),
        ("root ::= \"a\" | b\nb ::= c\nc ::= b", invalid, "never ends"),
        ("root ::= \"a", invalid, "a string is not closed"),
        ("root ::= [a", invalid, "a class of characters is not closed"),
        ("root ::= []", invalid, "has none"),
        ("root ::= [^\\x00-\\U0010FFFF]", invalid, "has none"),
        ("root ::= [z-a]", invalid, "swap its ends"),
        ("root ::= (\"a\"", invalid, "a `(` is not closed"),
        ("root ::= \"a\")", invalid, "a `)` closes nothing"),
        ("root ::= * \"a\"", invalid, "nothing before it to repeat"),
        ("root ::= \"a\"{2,1}", invalid, "not smaller"),
        ("root ::= \"a\"{}", invalid, "needs a number"),
        ("root ::= \"a\"{2", invalid, "write it so"),
        ("root ::= \"a\"*****", invalid, "more than 4 marks"),
        ("root ::= 'a'", invalid, "between double quotes"),
        ("root ::= \"\\q\"", invalid, "the escape `\\q` is unknown"),
        ("root ::= \"\\xZZ\"", invalid, "2 hexadecimal digits"),
        ("root ::= \"\\uD800\"", invalid, "4 hexadecimal digits"),
        ("root ::= \"a\" ; \"b\"", invalid, "`;` is not expected"),
        ("root ::= \"a\" = \"b\"", invalid, "`=` is not expected"),
        ("root ::= <think> \"a\"", unsupported, "a token of the model's"),
        ("root ::= (=\"a\") \"a\"", unsupported, "a look-ahead"),
        ("root ::= \"a\"{70000}", complex, "more than 65536 times"),
        ("root ::= \"a\"{20000}", complex, "more than 16384 characters"),
        ("root ::= (((\"a\"{100}){100}){100}", complex, "multiply to more than 65536"),
        ("root ::= a{0,300}\na ::= b{0,300}\nb ::= \"x\"", complex, "multiply to more than 65536"),
    ];
    for (text, kind, words) in cases {
        let text =
            if words.starts_with("multiply") && text.contains("(((") { format!("{text})") } else { text.to_owned() };
        let error = refusal(&source(&text));
        assert!(kind(&error) && error.to_string().contains(words), "{error:?} for {text}");
    }
}

#[test]
fn lark_stays_lark() {
    for text in
        ["start: \"::=\"", "start: /a ::= b/", "// root ::= \"a\"\nstart: \"a\"", "start: \"a\"\n  | \"b ::=\"", ""]
    {
        assert_eq!(GrammarSource::grammar(text.to_owned()), GrammarSource::Lark(text.to_owned()));
    }
    for text in ["\n  root   ::= \"a\"", "# a comment\nroot::=x\nx::=\"a\"", "a-b_c ::= \"x\""] {
        source(text);
    }
}
