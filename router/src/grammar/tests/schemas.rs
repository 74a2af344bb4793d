//! Answers under JSON schemas, judged by the `jsonschema` crate.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

use super::walk::walk;
use super::{DEMO, PIECES, TINY, compile, refusal};
use crate::grammar::schema::REFUSED;
use crate::grammar::{GrammarError, GrammarSource};

fn written() -> Vec<Value> {
    let schemas: Vec<Value> = serde_json::from_str(include_str!("schemas.json")).unwrap();
    assert!(schemas.len() >= 100, "{}", schemas.len());
    schemas
}

fn judge(schema: &Value) -> jsonschema::Validator {
    jsonschema::options().with_draft(jsonschema::Draft::Draft202012).build(schema).unwrap()
}

/// How many of the walks came to an end; those that did must be valid.
fn walks(schema: &Value, seeds: std::ops::Range<u64>) -> usize {
    let source = GrammarSource::JsonSchema(schema.clone());
    let judge = judge(schema);
    let mut finished = 0;
    for vocabulary in [&*DEMO, &*TINY, &*PIECES] {
        let grammar = compile(&source, vocabulary).unwrap_or_else(|error| panic!("{error}: {schema}"));
        for seed in seeds.clone() {
            let Some(bytes) = walk(grammar.matcher(), vocabulary, seed) else { continue };
            let text = String::from_utf8(bytes).unwrap();
            let value: Value = match serde_json::from_str(&text) {
                Ok(value) => value,
                // JSON bounds no exponent, this parser does: nobody here can judge such an answer.
                Err(error) if error.to_string().contains("number out of range") => continue,
                Err(error) => panic!("{error}: {text} for {schema}"),
            };
            assert!(judge.is_valid(&value), "seed {seed}: {text} is not valid against {schema}");
            finished += 1;
        }
    }
    finished
}

#[test]
fn every_answer_that_finishes_is_valid() {
    let mut finished = 0;
    for schema in written() {
        let of_this = walks(&schema, 0..3);
        assert!(of_this >= 5, "only {of_this} of 9 walks came to an end: {schema}");
        finished += of_this;
    }
    assert!(finished >= 850, "{finished}");
}

#[test]
fn so_is_every_answer_under_a_random_schema() {
    for seed in 0..60 {
        let schema = random_schema(&mut StdRng::seed_from_u64(seed), 3);
        assert!(walks(&schema, seed..seed + 1) >= 2, "seed {seed}: {schema}");
    }
}

fn random_schema(random: &mut StdRng, depth: u32) -> Value {
    let kinds = if depth == 0 { 5 } else { 9 };
    match random.random_range(0..kinds) {
        0 => json!({"type": "boolean"}),
        1 => json!({"type": ["null", "integer"], "minimum": -50, "maximum": random.random_range(0..500)}),
        2 => json!({"type": "string", "minLength": random.random_range(0..4), "maxLength": random.random_range(4..20)}),
        3 => json!({"enum": ["red", "gr\"een", 7, null, -2.5, {"a": [1, "x"]}]}),
        4 => json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
        5 => json!({"anyOf": [random_schema(random, depth - 1), random_schema(random, depth - 1)]}),
        6 => {
            let least = random.random_range(0..3);
            json!({"type": "array", "items": random_schema(random, depth - 1), "minItems": least, "maxItems": least + 2})
        }
        7 => json!({"type": "array", "prefixItems": [random_schema(random, depth - 1)], "items": false, "minItems": 1}),
        _ => random_object(random, depth),
    }
}

fn random_object(random: &mut StdRng, depth: u32) -> Value {
    let names = ["id", "name", "a b", "größe", "\"quoted\"", "x/y"];
    let mut properties = Map::new();
    for name in &names[..random.random_range(1..=names.len())] {
        properties.insert((*name).to_owned(), random_schema(random, depth - 1));
    }
    let required: Vec<&String> = properties.keys().filter(|_| random.random_range(0..2) == 0).collect();
    let open = random.random_range(0..2) == 0;
    json!({"type": "object", "required": required, "properties": properties, "additionalProperties": open})
}

#[test]
fn what_cannot_be_enforced_is_named() {
    for keyword in REFUSED {
        let schema = json!({"type": "object", "properties": {"inner": {keyword: true}}});
        let error = refusal(&GrammarSource::JsonSchema(schema));
        let GrammarError::Unsupported(sentence) = &error else { panic!("{error:?}") };
        assert!(sentence.contains(&format!("`{keyword}`")) && sentence.contains("#/properties/inner"), "{sentence}");
    }
}

#[test]
fn so_is_what_only_some_schemas_cannot_enforce() {
    for (schema, name) in [
        (json!({"type": "string", "format": "color"}), "color"),
        (json!({"type": "integer", "maximum": 1_u64 << 60}), "2^53"),
        (json!({"const": 123_456_789_012_345_678_u64}), "2^53"),
        (json!({"type": "object", "minProperties": 3}), "minProperties"),
        (json!({"type": "string", "pattern": "(?=a)b"}), "look-ahead"),
        (json!({"type": "string", "pattern": r"(a)\1"}), "back reference"),
        (json!({"type": "string", "pattern": r"\bword\b"}), "word boundary"),
        (json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "oneOf"),
        (json!({"type": "object", "properties": {"a\u{1}b": true}}), "control characters"),
        (json!({"$schema": "https://example.com/mine", "type": "string"}), "example.com"),
        (json!({"type": "object", "x-guidance": {"lenient": true}}), "x-guidance"),
    ] {
        let error = refusal(&GrammarSource::JsonSchema(schema.clone()));
        assert!(matches!(error, GrammarError::Unsupported(_)), "{error:?} for {schema}");
        assert!(error.to_string().contains(name), "{error} does not name {name}");
    }
}

#[test]
fn what_is_no_schema_is_invalid() {
    for schema in [
        json!(7),
        json!({"type": "objekt"}),
        json!({"properties": []}),
        json!({"anyOf": {}}),
        json!({"type": "string", "pattern": "a("}),
        json!({"$ref": "#/$defs/missing"}),
        json!({"$ref": "https://example.com/schema.json"}),
        json!({"type": "object", "properties": {"a": false}, "required": ["a"]}),
        json!({"type": "integer", "minimum": 5, "maximum": 4}),
        json!(false),
    ] {
        let error = refusal(&GrammarSource::JsonSchema(schema.clone()));
        assert!(matches!(error, GrammarError::Invalid(_)), "{error:?} for {schema}");
        assert!(!error.to_string().contains('\n'));
    }
}

#[test]
fn any_object_is_an_object() {
    let grammar = compile(&GrammarSource::JsonObject, &DEMO).unwrap();
    let answers = (0..30).filter_map(|seed| walk(grammar.matcher(), &DEMO, seed));
    let objects = answers.filter_map(|bytes| match serde_json::from_slice(&bytes) {
        // JSON all the same: its reader knows no such number.
        Err(error) if error.to_string().contains("number out of range") => None,
        object => Some(object.unwrap()),
    });
    let objects: Vec<Value> = objects.collect();
    assert!(objects.len() >= 20 && objects.iter().all(Value::is_object), "{objects:?}");
}
