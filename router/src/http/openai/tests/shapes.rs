//! The fields that ask for a shape.

use serde_json::{Value, json};

use crate::grammar::{GrammarSource, Layout, StructuralTag, Structure, Tagged};
use crate::http::openai::types::{ChatRequest, CompletionRequest};
use crate::input::GenerationRequest;

fn chat(fields: &Value) -> Result<Option<GrammarSource>, String> {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let body: ChatRequest = serde_json::from_value(body).map_err(|error| error.to_string())?;
    let GenerationRequest { parameters, .. } = body.into_generation().map_err(|error| error.to_string())?;
    Ok(parameters.grammar)
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]})
}

#[test]
fn every_form_is_understood() {
    let json_of = |schema: Value| Some(GrammarSource::JsonSchema(schema));
    let regex = || Some(GrammarSource::Regex("[ab]+".to_owned()));
    let lark = || Some(GrammarSource::Lark("start: \"a\"".to_owned()));
    let gbnf = || Some(GrammarSource::Gbnf("root ::= \"a\"".to_owned()));
    let choice = || Some(GrammarSource::Choice(vec!["yes".to_owned(), "no".to_owned()]));
    let spaced = |spacing: &str| {
        Some(GrammarSource::Layout(Layout::Json { schema: schema(), spacing: Some(spacing.to_owned()) }))
    };
    for (fields, expected) in [
        (json!({}), None),
        (json!({"response_format": null, "grammar": null, "guided_json": null, "structured_outputs": null}), None),
        (json!({"response_format": {"type": "text"}}), None),
        (json!({"response_format": {"type": "json_object"}}), Some(GrammarSource::JsonObject)),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema(), "strict": true}}}),
            json_of(schema()),
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}),
            Some(GrammarSource::JsonObject),
        ),
        (json!({"response_format": {"type": "json_object", "value": schema()}}), json_of(schema())),
        (json!({"response_format": {"type": "json", "value": schema().to_string()}}), json_of(schema())),
        (
            json!({"response_format": {"type": "json_schema", "value": {"name": "n", "schema": schema()}}}),
            json_of(schema()),
        ),
        (json!({"response_format": {"type": "regex", "value": "[ab]+"}}), regex()),
        (json!({"response_format": {"type": "regex", "pattern": "[ab]+"}}), regex()),
        (json!({"response_format": {"type": "grammar", "grammar": "start: \"a\""}}), lark()),
        (json!({"response_format": {"type": "grammar", "grammar": "root ::= \"a\""}}), gbnf()),
        (json!({"grammar": {"type": "json", "value": schema()}}), json_of(schema())),
        (json!({"grammar": {"type": "regex", "value": "[ab]+"}}), regex()),
        (json!({"guided_json": schema()}), json_of(schema())),
        (json!({"guided_json": schema().to_string()}), json_of(schema())),
        (json!({"guided_json": {}}), json_of(json!({}))),
        (json!({"guided_json": schema(), "response_format": {"type": "text"}}), json_of(schema())),
        (json!({"guided_regex": "[ab]+"}), regex()),
        (json!({"guided_choice": ["yes", "no"]}), choice()),
        (json!({"guided_grammar": "start: \"a\""}), lark()),
        (json!({"guided_grammar": "root ::= \"a\""}), gbnf()),
        (json!({"grammar": {"type": "grammar", "value": "start: \"a\""}}), lark()),
        (json!({"grammar": {"type": "grammar", "value": "root ::= \"a\""}}), gbnf()),
        (json!({"guided_json": schema(), "guided_whitespace_pattern": "[ ]?"}), spaced("[ ]?")),
        (json!({"structured_outputs": {"json": schema()}}), json_of(schema())),
        (json!({"structured_outputs": {"json_object": true}}), Some(GrammarSource::JsonObject)),
        (json!({"structured_outputs": {"json_object": false, "regex": "[ab]+"}}), regex()),
        (json!({"structured_outputs": {"choice": ["yes", "no"]}}), choice()),
        (json!({"structured_outputs": {"grammar": "start: \"a\""}}), lark()),
        (json!({"structured_outputs": {"grammar": "root ::= \"a\""}}), gbnf()),
        (json!({"structured_outputs": {"json": schema(), "whitespace_pattern": "[ ]?"}}), spaced("[ ]?")),
        (json!({"structured_outputs": {"json": schema(), "disable_any_whitespace": true}}), spaced("")),
        (json!({"structured_outputs": {}}), None),
    ] {
        assert_eq!(chat(&fields), Ok(expected), "{fields}");
    }
}

#[test]
fn completions_have_the_same_fields() {
    let body = json!({"prompt": ["a", "b"], "response_format": {"type": "json_object"}});
    let body: CompletionRequest = serde_json::from_value(body).unwrap();
    let requests = body.into_generations(4).unwrap();
    assert!(requests.iter().all(|request| request.parameters.grammar == Some(GrammarSource::JsonObject)));
}

#[test]
fn structural_tags_have_two_forms() {
    let old = json!({"type": "structural_tag", "structures": [{"begin": "<f>", "schema": schema(), "end": "</f>"}], "triggers": ["<f"]});
    let structure = Structure { begin: "<f>".to_owned(), schema: schema(), end: "</f>".to_owned() };
    let expected = StructuralTag { structures: vec![structure], triggers: vec!["<f".to_owned()] };
    let expected = Ok(Some(GrammarSource::StructuralTag(expected)));
    assert_eq!(chat(&json!({"response_format": old})), expected);
    assert_eq!(chat(&json!({"structured_outputs": {"structural_tag": old.to_string()}})), expected);

    let format = json!({"type": "sequence", "elements": [
        {"type": "const_string", "value": "So: "},
        {"type": "or", "elements": [{"type": "regex", "pattern": "a+"}, {"type": "json_schema", "json_schema": {}}]},
        {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"},
        {"type": "triggered_tags", "triggers": ["<f"], "at_least_one": true, "tags": [
            {"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": schema()}, "end": "</f>"},
        ]},
    ]});
    let layout = Layout::Sequence(vec![
        Layout::text("So: "),
        Layout::Choice(vec![Layout::Regex("a+".to_owned()), Layout::json(json!({}))]),
        Layout::Sequence(vec![Layout::text("<t>"), Layout::Until { rules: vec![], end: "</t>".to_owned() }]),
        Layout::Tagged(Tagged {
            parts: vec![("<f>".to_owned(), Layout::Sequence(vec![Layout::json(schema()), Layout::text("</f>")]))],
            triggers: vec!["<f".to_owned()],
            at_least_one: true,
            ..Tagged::default()
        }),
    ]);
    let tag = json!({"type": "structural_tag", "format": format});
    assert_eq!(chat(&json!({"response_format": tag})), Ok(Some(GrammarSource::Layout(layout))));
}

#[test]
fn what_cannot_be_read_is_refused_with_its_place() {
    let tag = |format: Value| json!({"response_format": {"type": "structural_tag", "format": format}});
    for (fields, words) in [
        (json!({"response_format": {"type": "xml"}}), "`response_format.type` is `xml`"),
        (json!({"response_format": {"type": "json_schema"}}), "`response_format.json_schema` must be an object"),
        (json!({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}), "must be a JSON schema"),
        (json!({"response_format": {"type": "regex"}}), "must be a regular expression"),
        (json!({"response_format": {"type": "regex", "value": 3}}), "must be a regular expression"),
        (json!({"response_format": {"type": "grammar"}}), "must be a grammar in Lark or GBNF"),
        (json!({"response_format": "json"}), "`response_format.type`"),
        (json!({"guided_json": "{"}), "`guided_json` is not valid JSON"),
        (json!({"guided_json": [1]}), "`guided_json` must be a JSON schema"),
        (json!({"guided_regex": 3}), "expected a string"),
        (json!({"guided_choice": "yes"}), "expected a sequence"),
        (json!({"guided_regex": "a", "guided_choice": ["a"]}), "`guided_regex` and `guided_choice` both ask"),
        (json!({"structured_outputs": {"regex": "a", "json": {}}}), "both ask"),
        (json!({"response_format": {"type": "json_object"}, "grammar": {"type": "regex", "value": "a"}}), "both ask"),
        (json!({"guided_whitespace_pattern": " "}), "no JSON is asked for"),
        (json!({"guided_regex": "a", "guided_whitespace_pattern": " "}), "no JSON is asked for"),
        (
            json!({"structured_outputs": {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": true}}),
            "contradict each other",
        ),
        (json!({"structured_outputs": {"json": {}, "disable_additional_properties": true}}), "additionalProperties"),
        (tag(json!({"type": "any_text"})), "outside a tag"),
        (
            tag(json!({"type": "sequence", "elements": [{"type": "poem"}]})),
            "`response_format.format.elements[0].type` is `poem`",
        ),
        (tag(json!({"type": "tag", "begin": "<", "end": ">"})), "`response_format.format.content.type`"),
        (
            tag(json!({"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": ""})),
            "nothing ends the text",
        ),
        (json!({"response_format": {"type": "structural_tag"}}), "`response_format.structures` must be a list"),
    ] {
        let error = chat(&fields).unwrap_err();
        assert!(error.contains(words), "{fields}: {error}");
    }
}
