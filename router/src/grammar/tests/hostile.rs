//! Sources that are made to cost much: each ends with an answer or an error, and takes nothing else down. Without the limits
//! some of them take minutes, or all memory.

use std::time::Duration;

use serde_json::{Value, json};

use super::walk::walk;
use super::{DEMO, FAILING, UNSPEAKABLE, compile};
use crate::grammar::{CompiledGrammar, Compiler, GrammarError, GrammarLimits, GrammarSource, MatchError};

fn schema(value: Value) -> GrammarSource {
    GrammarSource::JsonSchema(value)
}

/// `a` intersected with `b`, nested.
fn doubling(levels: usize) -> Value {
    let names: Vec<String> = (0..=levels).map(|level| format!("d{level}")).collect();
    let mut definitions = serde_json::Map::new();
    for pair in names.windows(2) {
        let next = format!("#/$defs/{}", pair[1]);
        definitions.insert(pair[0].clone(), json!({"anyOf": [{"type": "array", "items": {"$ref": next}}, {"$ref": next}, {"allOf": [{"$ref": next}, {"$ref": next}]}]}));
    }
    definitions.insert(names[levels].clone(), json!({"type": "string"}));
    json!({"$defs": definitions, "$ref": "#/$defs/d0"})
}

fn nested(levels: usize, wrap: impl Fn(Value) -> Value) -> Value {
    (0..levels).fold(json!({"type": "integer"}), |inner, _| wrap(inner))
}

fn objects(count: usize) -> Value {
    let properties: serde_json::Map<_, _> =
        (0..count).map(|number| (format!("property_{number}"), json!({"type": "integer"}))).collect();
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

/// Rules in GBNF of which each says the next one twice.
fn doubled(levels: usize) -> String {
    let rules: String = (0..levels).map(|level| format!("r{level} ::= r{next} r{next}\n", next = level + 1)).collect();
    format!("root ::= r0\n{rules}r{levels} ::= [a-z]?\n")
}

/// Terminals that all may be wanted behind each other.
fn met(count: usize) -> String {
    let rules: String = (0..count)
        .map(|n| format!("t{n} ::= [a-{}]+ \"{n}\"* [b-z]+ r?\n", if n % 2 == 0 { 'm' } else { 'z' }))
        .collect();
    let names: Vec<String> = (0..count).map(|n| format!("t{n}")).collect();
    format!("root ::= ({0})+\nr ::= \"(\" ({0}) \")\"\n{rules}", names.join(" | "))
}

pub(super) fn bombs() -> Vec<(&'static str, GrammarSource)> {
    let regex = |text: &str| GrammarSource::Regex(text.to_owned());
    let lark = |text: String| GrammarSource::Lark(text);
    let gbnf = |text: String| GrammarSource::Gbnf(text);
    let chain = |count: usize, upper: bool| {
        let name = |number: usize| if upper { format!("T{number}") } else { format!("r{number}") };
        let rules: String = (0..count).map(|number| format!("{}: {}\n", name(number), name(number + 1))).collect();
        format!("start: {}\n{rules}{}: \"x\"\n", name(0), name(count))
    };
    vec![
        ("refs that double", schema(doubling(24))),
        ("deep objects", schema(nested(30, |inner| json!({"type": "object", "properties": {"a": inner}})))),
        ("very deep arrays", schema(nested(500, |inner| json!({"items": inner})))),
        (
            "anyOf of anyOf",
            schema(nested(12, |inner| json!({"anyOf": [inner.clone(), {"type": "array", "items": inner}]}))),
        ),
        (
            "allOf of anyOf",
            schema(
                json!({"allOf": (0..12).map(|n| json!({"anyOf": (0..8).map(|m| json!({"required": [format!("k{n}_{m}")]})).collect::<Vec<_>>()})).collect::<Vec<_>>()}),
            ),
        ),
        ("a ref to itself", schema(json!({"$ref": "#"}))),
        (
            "refs in a circle",
            schema(json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"})),
        ),
        (
            "circles that meet",
            schema(
                json!({"$defs": {"a": {"properties": {"c": {"$ref": "#/$defs/a"}}}, "b": {"properties": {"c": {"$ref": "#/$defs/b"}}}}, "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}),
            ),
        ),
        ("many properties", schema(objects(3000))),
        ("many items", schema(json!({"type": "array", "items": {"type": "string"}, "minItems": 100_000}))),
        (
            "bounded items of bounded items",
            schema(nested(6, |inner| json!({"type": "array", "items": inner, "minItems": 50, "maxItems": 60}))),
        ),
        ("a long string", schema(json!({"type": "string", "minLength": 1_000_000}))),
        ("a bounded long string", schema(json!({"type": "string", "minLength": 5000, "maxLength": 9000}))),
        ("a large enum", schema(json!({"enum": (0..20_000).map(|n| format!("value {n}")).collect::<Vec<_>>()}))),
        (
            "patterns that meet",
            schema(
                json!({"allOf": (0..12).map(|n| json!({"pattern": format!("(a|b)*a(a|b){{{n}}}$")})).collect::<Vec<_>>()}),
            ),
        ),
        (
            "pattern properties",
            schema(
                json!({"patternProperties": (0..60).map(|n| (format!("^(a|b)*{n}(a|b){{12}}"), json!(true))).collect::<serde_json::Map<_, _>>()}),
            ),
        ),
        (
            "multiples",
            schema(
                json!({"type": "integer", "multipleOf": 999_983, "minimum": 0, "maximum": 9_007_199_254_740_991_u64}),
            ),
        ),
        (
            "lcm of multiples",
            schema(
                json!({"allOf": [{"type": "number", "multipleOf": 0.000_000_7}, {"type": "number", "multipleOf": 0.000_001_1}, {"type": "number", "multipleOf": 1234.5}]}),
            ),
        ),
        ("nested stars", regex("(((a*)*)*)*b")),
        ("overlapping plus", regex("(x+x+)+y")),
        ("powers of repeats", regex("((((a{100}){100}){100}){100}){100}")),
        ("a large repeat", regex("(abc|de){1000000}")),
        ("a subset automaton", regex("(a|b)*a(a|b){40}")),
        ("a subset automaton of any", regex(".*a.{200}b")),
        ("any of unicode, often", regex(r"(\p{L}|\p{N}|\p{P}){5000}")),
        ("alternatives in repeats", regex("((a|ab|abc|abcd){1,100}x?){1,100}")),
        ("deep groups", regex(&format!("{}a{}", "(".repeat(5000), ")".repeat(5000)))),
        ("many classes", regex(&"[a-zA-Z0-9]?".repeat(2000))),
        ("a chain of rules", lark(chain(10_000, false))),
        ("a chain of tokens", lark(chain(10_000, true))),
        ("ambiguity", lark("start: s\ns: s s | \"a\" | \"a\" s | s \"a\"\n".to_owned())),
        ("ambiguity in threes", lark("start: s\ns: s s s | s s | \"\" | \"a\"\n".to_owned())),
        ("deep brackets", lark(format!("start: {}\"a\"{}", "(".repeat(20_000), ")".repeat(20_000)))),
        ("repeats of rules", lark("start: a{1000}\na: b{1000}\nb: c{1000}\nc: \"x\" | \"y\"\n".to_owned())),
        (
            "many alternatives",
            lark(format!("start: {}", (0..15_000).map(|n| format!("\"w{n}\"")).collect::<Vec<_>>().join(" | "))),
        ),
        ("negations", lark("start: A\nA: ~(~(/(a|b)*a(a|b){20}/) & /(a|b)*b(a|b){22}/)\n".to_owned())),
        ("repeats behind a letter", lark("start: /[xy]/ D\nD: /(((ab{100}){100}){100}){100}/\n".to_owned())),
        ("repeats of one rule", lark("start: a{1000}\na: b{1000}\nb: c{1000}\nc: \"x\"\n".to_owned())),
        (
            "optional repeats of rules",
            lark("start: a{0,1000}\na: b{0,1000}\nb: c{0,1000}\nc: \"x\" | \"y\"\n".to_owned()),
        ),
        ("one long repeat", lark("start: \"a\"{2000000000}\n".to_owned())),
        ("one long optional repeat", lark("start: (\"a\" | \"b\"){0,2000000000}\n".to_owned())),
        ("nested repeats", gbnf("root ::= (((\"a\"{100}){100}){100}){100}".to_owned())),
        ("repeats through rules", gbnf("root ::= a{200}\na ::= b{200}\nb ::= c{200}\nc ::= \"x\"\n".to_owned())),
        ("optional repeats", gbnf("root ::= (([a-c]{0,30}){0,30}){0,30} [b-d]".to_owned())),
        (
            "repeats of what may be nothing",
            gbnf("root ::= ((a? b?){0,200}){0,200}\na ::= \"a\"*\nb ::= \"b\"* a\n".to_owned()),
        ),
        ("rules that double", gbnf(doubled(40))),
        (
            "a chain of GBNF's rules",
            gbnf(
                (0..4000).map(|n| format!("r{n} ::= \"x\" r{}\n", n + 1)).collect::<String>()
                    + "r4000 ::= \"y\"\nroot ::= r0\n",
            ),
        ),
        ("too many rules", gbnf((0..9000).map(|n| format!("r{n} ::= \"x\"\n")).collect::<String>() + "root ::= r0\n")),
        ("ambiguity of characters", gbnf("root ::= s\ns ::= s s | s s s | \"\" | [a-z]".to_owned())),
        (
            "words that begin each other",
            gbnf(format!(
                "root ::= (w [a-z]*)+\nw ::= {}",
                (0..800).map(|n| format!("\"w{n}\"")).collect::<Vec<_>>().join(" | ")
            )),
        ),
        ("terminals that meet", gbnf(met(300))),
        ("deep brackets of GBNF", gbnf(format!("root ::= {}\"a\"{}", "(".repeat(20_000), ")".repeat(20_000)))),
        ("marks upon marks", gbnf(format!("root ::= \"a\"{}", "*".repeat(100_000)))),
        (
            "a subset automaton of GBNF",
            gbnf("root ::= [ab]* \"a\" [ab]{40} r\nr ::= \"(\" r \")\" | \"a\"\n".to_owned()),
        ),
        ("a long string of GBNF", gbnf(format!("root ::= \"{}\"", "a".repeat(100_000)))),
        ("many choices", GrammarSource::Choice((0..4000).map(|n| format!("choice number {n} of many")).collect())),
    ]
}

/// Sources of which nothing but the time tells that they cost too much: what they force is found before any fuel is counted.
fn slow_bombs() -> Vec<(&'static str, GrammarSource)> {
    let lark = |text: String| GrammarSource::Lark(text);
    vec![
        ("repeats of a token", lark("start: D\nD: C{100}\nC: B{100}\nB: A{100}\nA: \"a\"\n".to_owned())),
        ("repeats between tildes", lark("start: D\nD: C ~ 100\nC: B ~ 100\nB: (\"a\" ~ 100..100) ~ 100\n".to_owned())),
        ("repeats in a token's pattern", lark("start: /(((a{100}){100}){100}){100}/\n".to_owned())),
    ]
}

#[test]
fn what_takes_too_long_is_stopped() {
    let limits = GrammarLimits { compile_timeout: Duration::from_millis(20), ..GrammarLimits::default() };
    for (name, source) in slow_bombs() {
        let error = CompiledGrammar::compile(&source, &DEMO, &limits).expect_err(name);
        assert_eq!(error, GrammarError::slow(limits.compile_timeout), "{name}");
    }
}

#[test]
fn every_bomb_ends() {
    for (name, source) in bombs() {
        // A thread like the compiler's: recursion has as much room as there.
        let run = std::thread::Builder::new().stack_size(256 << 20).spawn(move || {
            let started = std::time::Instant::now();
            let grammar = compile(&source, &DEMO);
            let took = started.elapsed();
            if let Ok(grammar) = &grammar {
                // What compiled can be followed, or says that it cannot.
                let mut matcher = grammar.matcher();
                let mut mask = vec![0; DEMO.mask_words()];
                for _ in 0..20 {
                    if matcher.fill_mask(&mut mask).is_err() {
                        break;
                    }
                    let tokens = super::walk::allowed(&mask);
                    let Some(&token) = tokens.first() else { break };
                    if matcher.advance(token).is_err() {
                        break;
                    }
                }
            }
            (took, grammar.map(|_| ()))
        });
        let (took, outcome) = run.unwrap().join().unwrap_or_else(|_| panic!("{name} panicked"));
        // Seen with `--nocapture`; no test can say how long is too long on every machine.
        println!("{name}: {took:?}, {outcome:?}");
    }
}

/// Two ways to go on, of which one makes the library panic.
fn explosive() -> GrammarSource {
    GrammarSource::Regex(format!("a[0-9]{{3}}|b{UNSPEAKABLE}[0-9]"))
}

#[test]
fn a_panic_while_a_mask_is_followed_is_no_fault_of_the_grammars_size() {
    let grammar = compile(&explosive(), &FAILING).unwrap();
    let mut mask = vec![0; FAILING.mask_words()];
    let (a, b) = (FAILING.named("a").unwrap(), FAILING.named("b").unwrap());
    for jumps in [false, true] {
        let mut failing = grammar.matcher();
        let mut other = failing.fork();
        failing.advance(b).unwrap();
        if jumps {
            assert!(failing.forced().is_empty());
        }
        assert_eq!(failing.fill_mask(&mut mask), Err(MatchError::Failed));
        assert_eq!(failing.fill_mask(&mut mask), Err(MatchError::Failed), "it stays so");
        assert_eq!(failing.advance(a), Err(MatchError::Failed));
        // Whoever else follows the same grammar goes on, and so does whoever comes.
        other.advance(a).unwrap();
        other.fill_mask(&mut mask).unwrap();
    }
    assert!(!grammar.is_worn());
}

#[test]
fn a_panic_at_the_first_step_refuses_the_grammar() {
    let error = compile(&GrammarSource::Regex(format!("{UNSPEAKABLE}[0-9]")), &FAILING).unwrap_err();
    assert!(matches!(&error, GrammarError::Unsupported(reason) if reason.contains("the compiler fails")), "{error}");
}

#[tokio::test]
async fn bombs_do_not_keep_others_waiting() {
    let limits = GrammarLimits {
        compile_timeout: Duration::from_secs(600),
        max_waiting_compiles: 1000,
        ..GrammarLimits::default()
    };
    let compiler = Compiler::new(std::sync::Arc::clone(&DEMO), limits);
    let bombs = bombs().into_iter().map(|(_, source)| compiler.compile(source));
    let honest = compiler.compile(GrammarSource::Regex("[a-z]{3}".to_owned()));
    let (outcomes, grammar) = tokio::join!(futures::future::join_all(bombs), honest);
    assert!(outcomes.iter().filter(|outcome| outcome.is_err()).count() >= 8);
    assert_eq!(walk(grammar.unwrap().matcher(), &DEMO, 1).unwrap().len(), 3);
}
