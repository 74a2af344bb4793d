use super::super::UnknownToolParser;
use super::{KINDS, ToolParserKind as Kind};

#[test]
fn names_lead_to_kinds() {
    for name in Kind::names() {
        assert!(name.parse::<Kind>().is_ok(), "{name}");
    }
    for kind in KINDS {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    assert_eq!("qwen3_xml".parse(), Ok(Kind::Qwen3Coder));
    let error: UnknownToolParser = "hermes2".parse::<Kind>().unwrap_err();
    assert!(error.to_string().starts_with("there is no tool call parser \"hermes2\": use one of hermes, "), "{error}");
}

#[test]
fn templates_show_their_kind() {
    let template = include_str!("../../../../../tools/demo_model/chat_template.jinja");
    for (expected, template) in [
        (Some(Kind::Textgen), template),
        (Some(Kind::Hermes), r#"{{- '\n<tool_call>\n{"name": "' }}{{- '}\n</tool_call>' }}"#),
        (
            Some(Kind::Qwen3Coder),
            r"{{- '\n<tool_call>\n<function=' + name + '>\n' }}{{- '<parameter=' + key + '>\n' }}",
        ),
        (Some(Kind::Glm), "<tool_call>{{ name }}\n<arg_key>{{ k }}</arg_key>"),
        (Some(Kind::Llama3Json), r#"<|start_header_id|>{{ '{"name": "' + name + '", "parameters": ' }}"#),
        (Some(Kind::Pythonic), "{{ '<|python_start|>[' }}<|python_tag|>"),
        (Some(Kind::Pythonic), "<|start_header_id|>assistant<|end_header_id|>\n\n[{{- tool_call.name + '(' -}}"),
        (Some(Kind::Llama3Json), r#"<|header_start|>{{ '"parameters": ' }}"#),
        (Some(Kind::Mistral), "{{ '[TOOL_CALLS][' }}"),
        (Some(Kind::MistralArgs), "{{ '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}"),
        (Some(Kind::DeepSeekV3), "{{ '<｜tool▁calls▁begin｜>' + name + '\\n```json\\n' }}"),
        (Some(Kind::DeepSeekV31), "{{ '<｜tool▁calls▁begin｜>' + name }}"),
        (Some(Kind::Granite), "<|start_of_role|>assistant<|end_of_role|><|tool_call|>"),
        (Some(Kind::Harmony), "<|start|>assistant<|channel|>final<|message|>"),
        (Some(Kind::Phi4), "<|tool|>{{ tools }}<|/tool|><|tool_call|>"),
        (None, "{{ messages[0].content }}"),
    ] {
        assert_eq!(Kind::detect(template), expected, "{template}");
    }
}

#[test]
fn markers_are_what_the_forms_are_written_with() {
    for kind in KINDS {
        let format = kind.forced_format(&super::tools());
        let mut written = format.begin + &format.end;
        for call in &format.calls {
            written += &format!("{}{}", call.begin, call.end);
        }
        // Whatever looks like a special token must be named, or the parser would not see it.
        for (at, _) in written.match_indices("<|").chain(written.match_indices("<｜")) {
            let known = kind.markers().iter().any(|marker| written[at..].starts_with(marker));
            assert!(known, "{kind:?} {}", &written[at..]);
        }
    }
}
