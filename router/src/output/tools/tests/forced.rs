use serde_json::json;

use super::super::{FieldValue, ForcedBody};
use super::{KINDS, ToolParserKind as Kind, tools};

#[test]
fn every_tool_has_a_form_that_names_it() {
    let tools = tools();
    for kind in KINDS {
        let format = kind.forced_format(&tools);
        let names: Vec<_> = format.calls.iter().map(|call| call.name.as_str()).collect();
        assert_eq!(names, tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>());
        assert!(format.calls.iter().all(|call| call.begin.contains(&call.name)), "{kind:?}");
        assert_eq!(format.several, kind != Kind::Harmony);
    }
}

#[test]
fn json_bodies_carry_the_schema() {
    let tools = tools();
    let format = Kind::Hermes.forced_format(&tools);
    let weather = tools.iter().nth(1).unwrap();
    assert_eq!(format.calls[1].begin, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": ");
    assert_eq!(format.calls[1].body, ForcedBody::Json(weather.parameters.clone()));
    assert_eq!(format.calls[2].body, ForcedBody::Json(json!({"type": "object"})));
}

#[test]
fn fields_say_what_may_stand_in_them() {
    let format = Kind::Qwen3Coder.forced_format(&tools());
    let ForcedBody::Fields { fields, .. } = &format.calls[0].body else { panic!("{:?}", format.calls[0]) };
    assert_eq!(fields[0].begin, "<parameter=s>\n");
    assert!(fields[0].required && !fields[1].required);
    assert_eq!(fields[0].value, FieldValue::Text(json!({"type": "string"})));
    assert_eq!(fields[1].value, FieldValue::Json(json!({"type": "number"})));
    let python = Kind::Pythonic.forced_format(&tools());
    let ForcedBody::Fields { fields, between } = &python.calls[0].body else { panic!("{:?}", python.calls[0]) };
    assert_eq!((fields[0].begin.as_str(), *between), ("s=", ", "));
    assert_eq!(fields[0].value, FieldValue::Json(json!({"type": "string"})));
}
