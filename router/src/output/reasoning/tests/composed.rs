use super::super::{AnswerEvent, AnswerParser, ReasoningParserKind};
use super::characters;
use crate::output::tools::{ToolEvent, ToolLimits, ToolParserKind};

/// Reasoning, text, and calls written as `name(arguments)`.
fn parse<'a>(
    reasoning: &str,
    tools: &str,
    inside: bool,
    pieces: impl IntoIterator<Item = &'a str>,
) -> (String, String, String) {
    let reasoning: ReasoningParserKind = reasoning.parse().unwrap();
    let tools: ToolParserKind = tools.parse().unwrap();
    let tools = tools.parser(None, ToolLimits::default());
    let mut parser = AnswerParser::new(Some(reasoning.parser(inside)), Some(tools));
    let mut events = Vec::new();
    for piece in pieces {
        parser.push(piece, &mut events);
    }
    parser.finish(&mut events);
    let (mut thoughts, mut text, mut calls) = (String::new(), String::new(), String::new());
    for event in events {
        match event {
            AnswerEvent::Reasoning(more) => thoughts += &more,
            AnswerEvent::Content(ToolEvent::Text(more)) => text += &more,
            AnswerEvent::Content(ToolEvent::CallBegin { name, .. }) => calls += &(name + "("),
            AnswerEvent::Content(ToolEvent::Arguments { delta, .. }) => calls += &delta,
            AnswerEvent::Content(ToolEvent::CallEnd { .. }) => calls += ")",
        }
    }
    (thoughts, text, calls)
}

#[test]
fn reasoning_comes_before_calls() {
    for (reasoning, tools, inside, input, expected) in [
        (
            "qwen3",
            "hermes",
            false,
            "<think>\nI may use <tool.\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"</think>\"}}\n</tool_call>",
            ("I may use <tool.", "", "f({\"a\": \"</think>\"})"),
        ),
        (
            "qwen3",
            "hermes",
            true,
            "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
            ("I look.", "", "f({})"),
        ),
        (
            "deepseek_r1",
            "deepseek_v3",
            true,
            "Maybe <｜tool▁calls▁begin｜>?</think>Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n\
             ```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ("Maybe <｜tool▁calls▁begin｜>?", "Yes.", "f({})"),
        ),
        (
            "openai_gptoss",
            "openai",
            false,
            "<|channel|>analysis<|message|>Need f.<|end|><|start|>assistant<|channel|>commentary<|message|>I will.<|end|>\
             <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": \"<|end|> x <|end|>\"}<|call|>",
            ("Need f.", "I will.", "f({\"a\": \"<|end|> x <|end|>\"})"),
        ),
        ("mistral", "mistral", false, "[THINK]x[/THINK][TOOL_CALLS]f[ARGS]{}", ("x", "", "f({})")),
    ] {
        let expected = (expected.0.to_owned(), expected.1.to_owned(), expected.2.to_owned());
        assert_eq!(parse(reasoning, tools, inside, [input]), expected, "{input}");
        assert_eq!(parse(reasoning, tools, inside, characters(input)), expected, "{input}");
    }
}

#[test]
fn without_parsers_all_is_text() {
    let mut events = Vec::new();
    let mut parser = AnswerParser::new(None, None);
    parser.push("<think>", &mut events);
    parser.finish(&mut events);
    assert_eq!(events, [AnswerEvent::Content(ToolEvent::Text("<think>".to_owned()))]);
}
