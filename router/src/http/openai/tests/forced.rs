//! Calls under a grammar: whatever a walk writes, the family's own parser reads, and the arguments are valid.

use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};

use crate::grammar::GrammarSource;
use crate::grammar::tests::walk::walk;
use crate::grammar::tests::{DEMO, TINY, compile};
use crate::http::openai::forced::shape;
use crate::http::openai::tools::{Calling, Choice, checked, set};
use crate::output::tools::{ToolEvent, ToolLimits, ToolParserKind as Kind};

static TOOLS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let weather = json!({
        "type": "object",
        "properties": {"city": {"enum": ["Bern", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 5}},
        "required": ["city", "days"],
        "additionalProperties": false,
    });
    let note = json!({
        "$defs": {"Level": {"type": "string", "enum": ["low", "high"]}, "Tag": {"type": "string", "maxLength": 3}},
        "type": "object",
        "properties": {
            "text": {"type": "string", "minLength": 1, "maxLength": 6},
            "level": {"$ref": "#/$defs/Level"},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/Tag"}, "maxItems": 2},
            "code": {"type": "string", "pattern": "^[A-C]{2}$"},
            "at": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]},
            "urgent": {"type": ["boolean", "null"]},
        },
        "required": ["text", "level"],
        "additionalProperties": false,
    });
    let tool = |name: &str, parameters: &Value| json!({"function": {"name": name, "parameters": parameters}});
    let mut tools = vec![tool("weather", &weather), tool("take-note", &note), json!({"function": {"name": "ping"}})];
    tools.iter_mut().for_each(|tool| tool["function"]["strict"] = true.into());
    checked(tools).unwrap()
});

const KINDS: [&str; 14] = [
    "hermes",
    "textgen",
    "qwen3_coder",
    "glm45",
    "llama3_json",
    "pythonic",
    "mistral",
    "mistral_args",
    "deepseek_v3",
    "deepseek_v31",
    "granite",
    "openai",
    "phi4_mini_json",
    "json",
];

/// The calls of a text: names, and arguments, which are valid.
fn calls(kind: Kind, text: &str, tools: &[Value]) -> Vec<String> {
    let set = Arc::new(set(tools, &Choice::Auto));
    let mut parser = kind.parser(Some(Arc::clone(&set)), ToolLimits::default());
    let mut events = Vec::new();
    parser.push(text, &mut events);
    parser.finish(&mut events);
    let mut found: Vec<(String, String)> = Vec::new();
    let mut ended = 0;
    for event in events {
        match event {
            ToolEvent::Text(_) => {}
            ToolEvent::CallBegin { name, .. } => found.push((name, String::new())),
            ToolEvent::Arguments { delta, .. } => found.last_mut().unwrap().1.push_str(&delta),
            ToolEvent::CallEnd { .. } => ended += 1,
        }
    }
    assert_eq!(ended, found.len(), "every call of {text:?} is whole");
    for (name, arguments) in &found {
        let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{arguments}: {error}"));
        let tool = set.iter().find(|tool| tool.name == *name).unwrap();
        assert!(jsonschema::is_valid(&tool.parameters, &arguments), "{}: {name}({arguments}) in {text:?}", kind.name());
    }
    found.into_iter().map(|(name, _)| name).collect()
}

/// What walks under a request's grammar write.
fn walks(kind: Kind, tools: &[Value], calling: &Calling, wanted: Option<GrammarSource>, seeds: u64) -> Vec<String> {
    let source = shape(Some(kind), tools, calling, wanted, false).unwrap().unwrap();
    let grammar = compile(&source, &DEMO).unwrap_or_else(|error| panic!("{}: {error}", kind.name()));
    let texts = (0..seeds).filter_map(|seed| walk(grammar.matcher(), &DEMO, seed));
    let texts: Vec<String> = texts.map(|bytes| String::from_utf8(bytes).unwrap()).collect();
    assert!(!texts.is_empty(), "{}", kind.name());
    texts
}

#[test]
fn forced_calls_are_read_back_and_valid() {
    for name in KINDS {
        let kind: Kind = name.parse().unwrap();
        let mut seen = Vec::new();
        let calling = Calling { choice: Choice::Required, parallel: true };
        for text in walks(kind, &TOOLS, &calling, None, 8) {
            let found = calls(kind, &text, &TOOLS);
            assert!(!found.is_empty(), "{name}: {text:?}");
            seen.extend(found);
        }
        assert!(seen.len() > 4, "{name}: {seen:?}");
        let once = Calling { choice: Choice::Required, parallel: false };
        for text in walks(kind, &TOOLS, &once, None, 4) {
            assert_eq!(calls(kind, &text, &TOOLS).len(), 1, "{name}: {text:?}");
        }
        for (number, tool) in ["weather", "take-note", "ping"].into_iter().enumerate() {
            let named = Calling { choice: Choice::Named(tool.to_owned()), parallel: true };
            for text in walks(kind, &TOOLS, &named, None, 2 + number as u64 % 2 * 4) {
                assert_eq!(calls(kind, &text, &TOOLS), [tool], "{name}: {text:?}");
            }
        }
    }
}

#[test]
fn with_strict_tools_text_is_free_and_calls_are_valid() {
    for name in KINDS {
        let kind: Kind = name.parse().unwrap();
        let calling = Calling { choice: Choice::Auto, parallel: true };
        if kind == Kind::Harmony {
            assert_eq!(shape(Some(kind), &TOOLS, &calling, None, false).unwrap(), None);
            continue;
        }
        for text in walks(kind, &TOOLS, &calling, None, 12) {
            calls(kind, &text, &TOOLS);
        }
    }
    // What no tool asks for is left to the model.
    let mut loose = TOOLS.clone();
    loose.iter_mut().for_each(|tool| tool["function"]["strict"] = false.into());
    let calling = Calling { choice: Choice::Auto, parallel: true };
    assert_eq!(shape(Some(Kind::Hermes), &loose, &calling, None, false).unwrap(), None);
}

#[test]
fn an_answer_has_the_shape_asked_for_or_is_calls() {
    let wanted =
        || Some(GrammarSource::JsonSchema(json!({"type": "array", "items": {"type": "boolean"}, "maxItems": 3})));
    let calling = Calling { choice: Choice::Auto, parallel: true };
    let (mut plain, mut called) = (0, 0);
    for text in walks(Kind::Hermes, &TOOLS, &calling, wanted(), 30) {
        if calls(Kind::Hermes, &text, &TOOLS).is_empty() {
            assert!(serde_json::from_str::<Vec<bool>>(&text).is_ok(), "{text:?}");
            plain += 1;
        } else {
            assert!(text.starts_with("<tool_call>"), "{text:?}");
            called += 1;
        }
    }
    assert!(plain > 0 && called > 0, "{plain} {called}");
    let error = shape(Some(Kind::Llama3Json), &TOOLS, &calling, wanted(), false).unwrap_err().to_string();
    assert!(error.contains("without a marker"), "{error}");
    let lark = Some(GrammarSource::Lark("start: \"a\"".to_owned()));
    let error = shape(Some(Kind::Hermes), &TOOLS, &calling, lark, false).unwrap_err().to_string();
    assert!(error.contains("cannot stand beside calls"), "{error}");
    // Forced calls leave no text to be shaped.
    let forced = Calling { choice: Choice::Required, parallel: true };
    let of = |wanted| shape(Some(Kind::Llama3Json), &TOOLS, &forced, wanted, false);
    assert_eq!(of(wanted()), of(None));
}

#[test]
fn channels_come_before_what_is_asked_for() {
    let begun = |text: &str, kind, calling: &Calling, wanted| {
        let source = shape(kind, &TOOLS, calling, wanted, true).unwrap().unwrap();
        let mut matcher = compile(&source, &TINY).unwrap().matcher();
        // The first 256 ids of this vocabulary are the bytes.
        text.bytes().all(|byte| matcher.advance(u32::from(byte)).is_ok())
    };
    let free = Calling { choice: Choice::Auto, parallel: true };
    let forced = Calling { choice: Choice::Required, parallel: true };
    let list = || Some(GrammarSource::JsonSchema(json!({"type": "array", "items": {"type": "boolean"}})));
    let analysis = "<|channel|>analysis<|message|>Hm, {}.<|end|><|start|>assistant";
    let answer = "<|channel|>final<|message|>[true";
    let call = "<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}<|call|>";
    for before in ["", analysis] {
        assert!(begun(&format!("{before}{answer}"), None, &free, list()));
        assert!(!begun(&format!("{before}{call}"), None, &free, list()));
        assert!(begun(&format!("{before}{call}"), Some(Kind::Harmony), &forced, None));
        assert!(!begun(&format!("{before}{answer}"), Some(Kind::Harmony), &forced, list()));
        assert!(begun(&format!("{before}{call}"), Some(Kind::Harmony), &free, list()));
        assert!(begun(&format!("{before}{answer}"), Some(Kind::Harmony), &free, list()));
    }
    assert!(!begun("[true", None, &free, list()));
    // The token that ends a call may end the answer, and is no text then.
    assert_eq!(calls(Kind::Harmony, call.strip_suffix("<|call|>").unwrap(), &TOOLS), ["ping"]);
}

#[test]
fn a_tool_that_is_not_strict_takes_any_object() {
    let parameters = json!({"type": "object", "properties": {"x": {"type": "array", "uniqueItems": true}}});
    let tool = |strict: Value| {
        checked(vec![json!({"function": {"name": "f", "parameters": parameters, "strict": strict}})]).unwrap()
    };
    let calling = Calling { choice: Choice::Required, parallel: false };
    for strict in [json!(true), json!(null)] {
        let source = shape(Some(Kind::Hermes), &tool(strict), &calling, None, false).unwrap().unwrap();
        assert!(compile(&source, &DEMO).unwrap_err().to_string().contains("uniqueItems"));
    }
    let source = shape(Some(Kind::Hermes), &tool(json!(false)), &calling, None, false).unwrap().unwrap();
    assert!(compile(&source, &DEMO).is_ok());
}

#[test]
fn arguments_written_one_by_one_need_names() {
    let calling = Calling { choice: Choice::Required, parallel: true };
    for (parameters, words) in [
        (json!({"type": "object", "patternProperties": {"a": {}}}), "`patternProperties`"),
        (json!({"anyOf": [{"type": "object"}]}), "`anyOf`"),
        (json!({"type": "object", "properties": {"a": {}}, "required": ["b"]}), "requires the argument `b`"),
    ] {
        let tools = checked(vec![json!({"function": {"name": "f", "parameters": parameters}})]).unwrap();
        let error = shape(Some(Kind::Qwen3Coder), &tools, &calling, None, false).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(shape(Some(Kind::Hermes), &tools, &calling, None, false).is_ok());
    }
    // Definitions are copied for each argument, up to a bound.
    let properties: serde_json::Map<String, Value> =
        (0..100).map(|n| (format!("p{n}"), json!({"$ref": "#/$defs/A"}))).collect();
    let filler = "x".repeat(20_000);
    let parameters = json!({"type": "object", "properties": properties, "$defs": {"A": {"type": "integer"}, "B": {"title": filler}}});
    let tools = checked(vec![json!({"function": {"name": "f", "parameters": parameters}})]).unwrap();
    let error = shape(Some(Kind::Glm), &tools, &calling, None, false).unwrap_err().to_string();
    assert!(error.contains("too large"), "{error}");
}
