//! Answers in the form that each family documents.

use serde_json::{Value, json};

use super::{ToolParserKind as Kind, characters, parse, parse_pieces, tools};

/// What a text must become: text, and calls with their arguments.
type Sample = (Kind, &'static str, &'static str, Vec<(&'static str, Value)>);

fn check(samples: Vec<Sample>) {
    let tools = tools();
    for (kind, input, text, calls) in samples {
        let answer = parse(kind, Some(&tools), input);
        assert_eq!(answer.text, text, "{kind:?} {input:?}");
        let found: Vec<_> = answer.calls.iter().map(|call| (call.name.as_str(), call.value())).collect();
        assert_eq!(found, calls, "{kind:?} {input:?}");
        assert!(answer.calls.iter().all(|call| call.ended), "{kind:?} {input:?}");
        assert_eq!(parse_pieces(kind, Some(&tools), characters(input)), answer, "{kind:?} {input:?}");
    }
}

fn weather() -> Value {
    json!({"city": "Köln", "days": 3})
}

#[test]
fn objects_between_tags() {
    let call = r#"{"name": "get_weather", "arguments": {"city": "Köln", "days": 3}}"#;
    let two = format!("Let me look.\n<tool_call>\n{call}\n</tool_call>\n<tool_call>\n{call}\n</tool_call>\nDone.");
    let two: &str = Box::leak(two.into_boxed_str());
    let both = vec![("get_weather", weather()), ("get_weather", weather())];
    check(vec![
        (Kind::Hermes, two, "Let me look.Done.", both.clone()),
        (Kind::Textgen, two, "Let me look.Done.", both.clone()),
        (Kind::Textgen, r#"<tool_call>{"name": "ping", "arguments": {}}</tool_call>"#, "", vec![("ping", json!({}))]),
        (Kind::Hermes, r#"<tool_call>{"name": "ping"}</tool_call>"#, "", vec![("ping", json!({}))]),
        (Kind::Hermes, r#"<tool_call>{"name": "ping", "arguments": null}</tool_call>"#, "", vec![("ping", json!({}))]),
        (
            Kind::Hermes,
            r#"<tool_call>{"arguments": {"city": "Köln", "days": 3}, "id": [1], "name": "get_weather"}</tool_call>"#,
            "",
            vec![("get_weather", weather())],
        ),
        (
            Kind::Hermes,
            r#"<tool_call>{"name": "get_weather", "arguments": "{\"city\": \"K\u00f6ln\", \"days\": 3}"}</tool_call>"#,
            "",
            vec![("get_weather", weather())],
        ),
        (
            Kind::Hermes,
            r#"<tool_call>{"type": "function", "function": {"name": "ping", "arguments": {}}}</tool_call>!"#,
            "!",
            vec![("ping", json!({}))],
        ),
        // A missing brace, a missing end, a second object, an array.
        (
            Kind::Hermes,
            "<tool_call>{\"name\": \"ping\", \"arguments\": {}\n</tool_call>",
            "",
            vec![("ping", json!({}))],
        ),
        (Kind::Hermes, r#"<tool_call>{"name": "ping", "arguments": {}}"#, "", vec![("ping", json!({}))]),
        (
            Kind::Hermes,
            "<tool_call>{\"name\": \"ping\"}\n{\"name\": \"ping\"}</tool_call>",
            "",
            vec![("ping", json!({})), ("ping", json!({}))],
        ),
        (Kind::Hermes, r#"<tool_call>[{"name": "ping"}]</tool_call>"#, "", vec![("ping", json!({}))]),
        // A brace and a comma too many.
        (Kind::Hermes, "<tool_call>{\"name\": \"ping\"}}\n</tool_call>", "", vec![("ping", json!({}))]),
        (Kind::Hermes, "<tool_call>[{\"name\": \"ping\"},]</tool_call>", "", vec![("ping", json!({}))]),
        (Kind::Hermes, "<tool_call>{\"name\": \"ping\"}} \nis", "} \nis", vec![("ping", json!({}))]),
        // What only looks like a call.
        (Kind::Hermes, "a <tool_call> is a tag", "a <tool_call> is a tag", vec![]),
        (Kind::Hermes, "<tool_call>{\"name\": 1}</tool_call>", "<tool_call>{\"name\": 1}</tool_call>", vec![]),
        (
            Kind::Hermes,
            "<tool_call>{\"name\": \"rm\"}</tool_call>",
            "<tool_call>{\"name\": \"rm\"}</tool_call>",
            vec![],
        ),
        (
            Kind::Hermes,
            "<tool_call><tool_call>{\"name\": \"ping\"}</tool_call>",
            "<tool_call>",
            vec![("ping", json!({}))],
        ),
        (
            Kind::Hermes,
            "<tool_call>{\"name\": \"<tool_call>{\"name\": \"ping\"}</tool_call>",
            "<tool_call>{\"name\": \"",
            vec![("ping", json!({}))],
        ),
        (Kind::Hermes, " \n padded \n", " \n padded \n", vec![]),
    ]);
}

#[test]
fn tags_around_each_argument() {
    let call = "<tool_call>\n<function=typed>\n<parameter=s>\nline \"one\"\n\n  line <two>\n</parameter>\n\
        <parameter=i>\n7\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n<parameter=o>\n{'k': [1, None]}\n</parameter>\n\
        <parameter=z>null</parameter>\n<parameter=m>\nNone\n</parameter>\n<parameter=free>\n12\n</parameter>\n\
        </function>\n</tool_call>";
    let typed = json!({"s": "line \"one\"\n\n  line <two>", "i": 7, "b": true, "o": {"k": [1, null]}, "z": null,
        "m": null, "free": "12"});
    let twice: &str = Box::leak(format!("I will.\n\n{call}\n{call}").into_boxed_str());
    check(vec![
        (Kind::Qwen3Coder, twice, "I will.", vec![("typed", typed.clone()), ("typed", typed)]),
        (Kind::Qwen3Coder, "<function=ping>\n</function>\n</tool_call>", "", vec![("ping", json!({}))]),
        (Kind::Qwen3Coder, "<tool_call><function=rm></function>", "<tool_call><function=rm></function>", vec![]),
        (
            Kind::Qwen3Coder,
            "<function=typed><parameter=i>many</parameter><parameter=a>[1, 2</parameter></function>",
            "",
            vec![("typed", json!({"i": "many", "a": "[1, 2"}))],
        ),
        (
            Kind::Glm,
            "Ok.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n<arg_key>days</arg_key>\n\
             <arg_value>3</arg_value>\n</tool_call>",
            "Ok.",
            vec![("get_weather", weather())],
        ),
        (Kind::Glm, "<tool_call>ping</tool_call>\n<tool_call>ping\n</tool_call>", "", vec![("ping", json!({})); 2]),
        (Kind::Glm, "<tool_call> ping pong </tool_call>", "<tool_call> ping pong </tool_call>", vec![]),
    ]);
}

#[test]
fn bare_objects() {
    let call = r#"{"name": "get_weather", "parameters": {"city": "Köln", "days": 3}}"#;
    let separated: &str = Box::leak(format!("<|python_tag|>{call}; {call}").into_boxed_str());
    let lines: &str = Box::leak(format!("\n{call}\n{call}\n").into_boxed_str());
    let fenced: &str = Box::leak(format!("Sure:\n```json\n[{call}]\n```\nThat is all.").into_boxed_str());
    let functools: &str = Box::leak(format!("functools[{call}, {call}]").into_boxed_str());
    let tokens: &str = Box::leak(format!("<|tool_call|>[{call}]<|/tool_call|>").into_boxed_str());
    let both = vec![("get_weather", weather()), ("get_weather", weather())];
    let one = vec![("get_weather", weather())];
    let answer = r#"{"name": "ping", "age": 3}"#;
    check(vec![
        (Kind::Llama3Json, separated, "", both.clone()),
        (Kind::Llama3Json, lines, "", both.clone()),
        (Kind::Llama3Json, "<|python_tag|>print(1)", "<|python_tag|>print(1)", vec![]),
        (Kind::Llama3Json, answer, answer, vec![]),
        (
            Kind::Llama3Json,
            "Use {\"name\": \"ping\", \"parameters\": {}}",
            "Use {\"name\": \"ping\", \"parameters\": {}}",
            vec![],
        ),
        (Kind::Json, fenced, "Sure:That is all.", one.clone()),
        (Kind::Json, lines, "", both.clone()),
        (Kind::Json, "```python\n{}\n```", "```python\n{}\n```", vec![]),
        (Kind::Json, "[1, 2]", "[1, 2]", vec![]),
        (Kind::Phi4, functools, "", both.clone()),
        (Kind::Phi4, tokens, "", one.clone()),
        (Kind::Phi4, "use functools.partial", "use functools.partial", vec![]),
    ]);
}

#[test]
fn arrays_behind_a_marker() {
    check(vec![
        (
            Kind::Granite,
            r#"<|tool_call|>[{"name": "ping", "arguments": {}}, {"name": "get_weather", "arguments": {"city": "Köln", "days": 3}}]"#,
            "",
            vec![("ping", json!({})), ("get_weather", weather())],
        ),
        (Kind::Granite, r#"<tool_call>[{"name": "ping", "arguments": {}}]"#, "", vec![("ping", json!({}))]),
        (Kind::Granite, "<|tool_call|>[]", "<|tool_call|>[]", vec![]),
        (
            Kind::Granite,
            r#"<|tool_call|>[{"name": "ping", "arguments": {}}, {"name": "rm", "arguments": {}}] ok"#,
            r#", {"name": "rm", "arguments": {}}] ok"#,
            vec![("ping", json!({}))],
        ),
        (
            Kind::Mistral,
            r#"Well. [TOOL_CALLS] [{"name": "ping", "arguments": {}}, {"arguments": {"city": "Köln", "days": 3}, "name": "get_weather", "id": "a1B2c3D4e"}]"#,
            "Well.",
            vec![("ping", json!({})), ("get_weather", weather())],
        ),
    ]);
}

#[test]
fn a_name_behind_a_marker() {
    check(vec![
        (
            Kind::MistralArgs,
            r#"[TOOL_CALLS]ping[ARGS]{}[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{"city": "Köln", "days": 3}"#,
            "",
            vec![("ping", json!({})), ("get_weather", weather())],
        ),
        (Kind::MistralArgs, r#"[TOOL_CALLS]ping{}"#, "", vec![("ping", json!({}))]),
        (Kind::MistralArgs, "[TOOL_CALLS]rm[ARGS]{}", "[TOOL_CALLS]rm[ARGS]{}", vec![]),
        (Kind::MistralArgs, "[TOOL_CALLS] nothing here", "[TOOL_CALLS] nothing here", vec![]),
        (
            Kind::DeepSeekV3,
            "Let me see.\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n\
             {\"city\": \"Köln\", \"days\": 3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n\
             ```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "Let me see.",
            vec![("get_weather", weather()), ("ping", json!({}))],
        ),
        (
            Kind::DeepSeekV31,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Köln\", \"days\": 3}\
             <｜tool▁call▁end｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "",
            vec![("get_weather", weather()), ("ping", json!({}))],
        ),
        (
            Kind::DeepSeekV31,
            "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>",
            "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>",
            vec![],
        ),
    ]);
}

#[test]
fn python_calls() {
    let typed =
        json!({"s": "it's \"so\"\n", "n": -1.5, "b": true, "z": null, "a": [1, "two", [3]], "o": {"k": {"1": false}}});
    check(vec![
        (
            Kind::Pythonic,
            r#"[get_weather(city="Köln", days=3), ping()]"#,
            "",
            vec![("get_weather", weather()), ("ping", json!({}))],
        ),
        (
            Kind::Pythonic,
            "<|python_start|>[typed(s='it\\'s \"so\"\\n', n=-1.5, b=True, z=None, a=[1, 'two', (3,)], o={'k': {1: False}},)]\
             <|python_end|>",
            "",
            vec![("typed", typed)],
        ),
        (
            Kind::Pythonic,
            "<function_calls>\nget_weather(city='''Köln''', days=3)\nping()\n</function_calls>",
            "",
            vec![("get_weather", weather()), ("ping", json!({}))],
        ),
        (Kind::Pythonic, "<|tool_call_start|>[ping()]<|tool_call_end|>Pong.", "Pong.", vec![("ping", json!({}))]),
        // Words, sums and prefixes are text; numbers are made JSON's.
        (
            Kind::Pythonic,
            r#"[typed(s=celsius, x=f(1, "a,b"), n=1_000, i=0x10, o=.5, a=r"\d", z="", b=true)]"#,
            "",
            vec![(
                "typed",
                json!({"s": "celsius", "x": "f(1, \"a,b\")", "n": 1000, "i": 16, "o": 0.5, "a": "\\d", "z": "", "b": true}),
            )],
        ),
        (Kind::Pythonic, "[1, 2, 3]", "[1, 2, 3]", vec![]),
        (Kind::Pythonic, "[ping](https://example.org)", "[ping](https://example.org)", vec![]),
        (Kind::Pythonic, "[ping(x)]", "[ping(x)]", vec![]),
        (Kind::Pythonic, "see [ping()]", "see [ping()]", vec![]),
    ]);
}

#[test]
fn messages_to_functions() {
    let call = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Köln\", \"days\": 3}<|call|>";
    let role = "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{\"city\": \"Köln\", \"days\": 3}";
    let both: &str = Box::leak(format!("{call}{role}").into_boxed_str());
    check(vec![
        (Kind::Harmony, call, "", vec![("get_weather", weather())]),
        (Kind::Harmony, both, "", vec![("get_weather", weather()); 2]),
        (
            Kind::Harmony,
            "<|channel|>commentary to=functions.rm<|message|>{}<|call|>",
            "<|channel|>commentary to=functions.rm<|message|>{}<|call|>",
            vec![],
        ),
        (Kind::Harmony, "<|channel|>final<|message|>Hi", "<|channel|>final<|message|>Hi", vec![]),
    ]);
}

#[test]
fn half_a_marker_behind_a_call_is_text() {
    check(vec![
        (Kind::Hermes, "<tool_call>{\"name\": \"ping\"} </tool call>", "</tool call>", vec![("ping", json!({}))]),
        (Kind::Qwen3Coder, "<function=ping></function>\n</tool call>", "</tool call>", vec![("ping", json!({}))]),
        (Kind::Json, "```\n[{\"name\": \"ping\", \"arguments\": {}}]\n`` `", "`` `", vec![("ping", json!({}))]),
        (Kind::Phi4, "functools[{\"name\": \"ping\"}]<|/tool >", "<|/tool >", vec![("ping", json!({}))]),
        (Kind::Pythonic, "<|python_start|>[ping()]<|python end|>", "<|python end|>", vec![("ping", json!({}))]),
        (Kind::Pythonic, "<|python_start|>ping() <|python end|>", "<|python end|>", vec![("ping", json!({}))]),
        (
            Kind::DeepSeekV31,
            "<｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls end｜>",
            "<｜tool▁calls end｜>",
            vec![("ping", json!({}))],
        ),
        (
            Kind::DeepSeekV31,
            "<｜tool▁call▁begin｜>ping<｜tool▁sep｜>{} <｜tool▁call end｜>",
            "<｜tool▁call end｜>",
            vec![("ping", json!({}))],
        ),
        (
            Kind::Harmony,
            "<|channel|>commentary to=functions.ping<|message|>{}<|ca ll|>",
            "<|ca ll|>",
            vec![("ping", json!({}))],
        ),
    ]);
}

#[test]
fn a_call_that_is_cut_off_does_not_end() {
    let tools = tools();
    for (kind, input, arguments) in [
        (Kind::Hermes, r#"<tool_call>{"name": "ping", "arguments": {"a": "b"#, r#"{"a": "b"#),
        (Kind::Qwen3Coder, "<function=typed><parameter=s>ab</par", r#"{"s": "ab</par"#),
        (Kind::Qwen3Coder, "<function=typed><parameter=i>12", r#"{"i": 12"#),
        (Kind::Pythonic, "[typed(s='ab", r#"{"s": "ab"#),
        (Kind::Pythonic, "[typed(s='ab', , ", r#"{"s": "ab""#),
    ] {
        let answer = parse(kind, Some(&tools), input);
        assert_eq!(answer.calls.len(), 1, "{kind:?} {input:?}");
        assert_eq!((answer.calls[0].arguments.as_str(), answer.calls[0].ended), (arguments, false), "{kind:?}");
    }
}
