use super::super::{ReasoningCounts, UnknownReasoningParser};
use super::{Kind, characters, kinds, parse, parse_pieces};

#[test]
fn reasoning_and_content_of_each_family() {
    let custom: Kind = "<<...>>".parse().unwrap();
    for (kind, inside, input, reasoning, content) in [
        (&Kind::DeepSeekR1, true, "So: 2.\n</think>\n\nTwo.", "So: 2.", "Two."),
        (&Kind::DeepSeekR1, true, "<think>\nSo: 2.\n</think>\n\nTwo.", "So: 2.", "Two."),
        (&Kind::DeepSeekR1, true, "So", "So", ""),
        (&Kind::DeepSeekR1, false, "Two.", "", "Two."),
        (&Kind::Qwen3, false, "<think>\n\n</think>\n\nTwo. <think> is a tag.", "", "Two. <think> is a tag."),
        (&Kind::Qwen3, false, "<think>I call</thin>\n\n<tool_call>{}", "I call</thin>", "<tool_call>{}"),
        (&Kind::Think, false, "\n<think>a < b\n\nc</think> d", "a < b\n\nc", "d"),
        (&Kind::Think, false, "\n <thinking> out loud", "", "\n <thinking> out loud"),
        (&Kind::Think, true, "<thi", "<thi", ""),
        (&Kind::SeedOss, false, "<seed:think>x</seed:think>y", "x", "y"),
        (&Kind::Mistral, false, "[THINK]x[1][/THINK]y", "x[1]", "y"),
        (
            &Kind::Granite,
            false,
            "Here is my thought process: Here is one.\nHere's my response: Yes.",
            "Here is one.",
            "Yes.",
        ),
        (&Kind::Granite, false, "Here is my advice:", "", "Here is my advice:"),
        (&custom, false, "<<x > y>>z", "x > y", "z"),
        (
            &Kind::Harmony,
            false,
            "<|channel|>analysis<|message|>Sum.<|end|><|start|>assistant<|channel|>analysis<|message|>It is 4.<|end|>\
             <|start|>assistant<|channel|>final<|message|>4.<|return|>",
            "Sum.\nIt is 4.",
            "4.",
        ),
        (
            &Kind::Harmony,
            false,
            "<|channel|>analysis to=python<|message|>print(4)<|end|><|start|>assistant<|channel|>commentary<|message|>Plan.",
            "print(4)",
            "Plan.",
        ),
        (
            &Kind::Harmony,
            false,
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": \"<|end|>\"}<|call|>",
            "",
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": \"<|end|>\"}<|call|>",
        ),
        (
            &Kind::Harmony,
            false,
            "<|channel|>analysis<|end|><|start|>assistant<|channel|>final<|message|>A header alone is nothing.",
            "",
            "A header alone is nothing.",
        ),
        (&Kind::Harmony, false, "No header < here", "", "No header < here"),
    ] {
        let expected = (reasoning.to_owned(), content.to_owned());
        assert_eq!(parse(kind, inside, input), expected, "{kind:?} {input:?}");
        assert_eq!(parse_pieces(kind, inside, characters(input)), expected, "{kind:?} {input:?}");
    }
}

#[test]
fn pushes_are_counted() {
    for (kind, inside, tokens, reasoning, content) in [
        (Kind::DeepSeekR1, true, &["So", ":", " 2", "</think>", "\n", "Two"][..], 4, 2),
        (Kind::Qwen3, false, &["<think>", "x", "</think>", "y", ""], 3, 2),
        (Kind::Qwen3, false, &["x", "y"], 0, 2),
        (Kind::Harmony, false, &["<|channel|>", "final", "<|message|>", "x"], 3, 1),
    ] {
        let mut parser = kind.parser(inside);
        tokens.iter().for_each(|token| parser.push(token, &mut Vec::new()));
        assert_eq!(parser.counts(), ReasoningCounts { reasoning, content }, "{kind:?}");
    }
}

#[test]
fn the_prompt_says_whether_the_answer_begins_inside() {
    for (kind, prompt, inside) in [
        (Kind::DeepSeekR1, "<｜Assistant｜>", true),
        (Kind::DeepSeekR1, "<｜Assistant｜><think>\n", true),
        (Kind::DeepSeekR1, "<｜Assistant｜><think>\n\n</think>\n\n", false),
        (Kind::Qwen3, "<|im_start|>assistant\n<think>\n", true),
        (Kind::Qwen3, "<|im_start|>assistant\n", false),
        (Kind::Harmony, "<|start|>assistant", false),
    ] {
        assert_eq!(kind.starts_inside(prompt), inside, "{kind:?} {prompt:?}");
    }
}

#[test]
fn names_lead_to_kinds() {
    for name in Kind::names() {
        assert!(name.parse::<Kind>().is_ok(), "{name}");
    }
    for kind in kinds() {
        let markers = kind.markers();
        assert!(kind == Kind::Granite || !markers.is_empty(), "{kind:?}");
    }
    assert_eq!("glm45".parse(), Ok(Kind::Think));
    for wrong in ["qwen4", "...", "<a>...", "...</a>", " <a>...</a>"] {
        let error: UnknownReasoningParser = wrong.parse::<Kind>().unwrap_err();
        assert!(error.to_string().contains("use one of deepseek_r1, "), "{error}");
    }
}

#[test]
fn templates_show_their_kind() {
    for (expected, template) in [
        (Some(Kind::Harmony), "<|start|>assistant<|channel|>analysis<|message|>"),
        (Some(Kind::Mistral), "{{ '[THINK]' + block + '[/THINK]' }}"),
        (Some(Kind::SeedOss), "{{ '<seed:think>' }}"),
        (Some(Kind::Granite), "after \"Here is my thought process:\" and"),
        (Some(Kind::Qwen3), "{{ content.split('</think>') }}<tool_call>"),
        (Some(Kind::Think), "<think></think><tool_call>{{ name }}<arg_key>"),
        (Some(Kind::DeepSeekR1), "{{ content.split('</think>')[-1] }}<｜Assistant｜><think>\\n"),
        (Some(Kind::Think), "{% if thinking %}<｜Assistant｜><think>{% else %}</think>{% endif %}"),
        (None, include_str!("../../../../../tools/demo_model/chat_template.jinja")),
    ] {
        assert_eq!(Kind::detect(template), expected, "{template}");
    }
}
