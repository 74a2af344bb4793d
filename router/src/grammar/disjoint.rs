//! `oneOf` is `anyOf` when no value fits two branches. `llguidance` sees that only of branches that are written in place; this
//! also follows references, as the unions of data classes with a discriminator are written.

use serde_json::Value;

/// How many references are followed for one branch.
const REFERENCES: usize = 8;

/// Turns every `oneOf` of the schema whose branches exclude each other into `anyOf`; the others stay.
pub(super) fn relax(schema: &mut Value) {
    let root = schema.clone();
    relax_inside(schema, &root);
}

fn relax_inside(value: &mut Value, root: &Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| relax_inside(item, root)),
        Value::Object(fields) => {
            let exclusive =
                fields.get("oneOf").and_then(Value::as_array).is_some_and(|all| exclude_each_other(all, root));
            // One that has an `anyOf` beside it would need both.
            if exclusive && !fields.contains_key("anyOf") {
                // In its old place: the order of keywords is the order of properties.
                let renamed = |name: String| if name == "oneOf" { "anyOf".to_owned() } else { name };
                *fields = std::mem::take(fields).into_iter().map(|(name, field)| (renamed(name), field)).collect();
            }
            // Constants look like schemas and are none.
            let schemas = fields
                .iter_mut()
                .filter(|(name, _)| !matches!(name.as_str(), "const" | "enum" | "default" | "examples"));
            schemas.for_each(|(_, field)| relax_inside(field, root));
        }
        _ => {}
    }
}

fn exclude_each_other(branches: &[Value], root: &Value) -> bool {
    let branches: Option<Vec<&Value>> = branches.iter().map(|branch| resolved(branch, root)).collect();
    branches.is_some_and(|branches| {
        let mut pairs =
            branches.iter().enumerate().flat_map(|(at, one)| branches[at + 1..].iter().map(move |other| (one, other)));
        pairs.all(|(one, other)| exclude(one, other, root))
    })
}

/// The schema behind a local reference; `None` when it is somewhere else, or has rules beside it.
fn resolved<'a>(schema: &'a Value, root: &'a Value) -> Option<&'a Value> {
    let mut schema = schema;
    for _ in 0..REFERENCES {
        let Some(reference) = schema.get("$ref") else { return Some(schema) };
        schema = root.pointer(reference.as_str()?.strip_prefix('#')?)?;
    }
    None
}

/// Whether no value fits both, as far as types, constants and required properties tell.
fn exclude(one: &Value, other: &Value, root: &Value) -> bool {
    let (Some(one), Some(other)) = (resolved(one, root), resolved(other, root)) else { return false };
    if let (Some(one), Some(other)) = (types(one), types(other))
        && !one.iter().any(|a| other.iter().any(|b| overlap(a, b)))
    {
        return true;
    }
    if let (Some(one), Some(other)) = (constants(one), constants(other)) {
        return !one.iter().any(|value| other.contains(value)) && !numbers(&one, &other);
    }
    // Only of objects does a required property tell something.
    let objects = types(one) == Some(vec!["object"]) && types(other) == Some(vec!["object"]);
    let required =
        |schema: &Value, name: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|n| n == name));
    let Some(properties) = one["properties"].as_object().filter(|_| objects) else { return false };
    properties.iter().any(|(name, property)| {
        let of_other = other["properties"].get(name);
        required(one, name)
            && required(other, name)
            && of_other.is_some_and(|of_other| exclude_leaf(property, of_other, root))
    })
}

/// As [`exclude`], for discriminators: constants and types, no objects in turn.
fn exclude_leaf(one: &Value, other: &Value, root: &Value) -> bool {
    let (Some(one), Some(other)) = (resolved(one, root), resolved(other, root)) else { return false };
    match (constants(one), constants(other)) {
        (Some(one), Some(other)) => !one.iter().any(|value| other.contains(value)) && !numbers(&one, &other),
        _ => {
            matches!((types(one), types(other)), (Some(one), Some(other)) if !one.iter().any(|a| other.iter().any(|b| overlap(a, b))))
        }
    }
}

fn types(schema: &Value) -> Option<Vec<&str>> {
    match &schema["type"] {
        Value::String(name) => Some(vec![name]),
        Value::Array(names) => names.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

fn overlap(one: &str, other: &str) -> bool {
    one == other || matches!((one, other), ("integer", "number") | ("number", "integer"))
}

fn constants(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

/// 1 and 1.0 are one value and two texts, so numbers are not told apart here.
fn numbers(one: &[&Value], other: &[&Value]) -> bool {
    let has = |values: &[&Value]| values.iter().any(|value| value.is_number() || value.is_array() || value.is_object());
    has(one) && has(other)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn relaxed(mut schema: Value) -> bool {
        relax(&mut schema);
        schema.get("anyOf").is_some()
    }

    #[test]
    fn branches_that_exclude_each_other_are_seen() {
        let cat = json!({"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]});
        let dog = json!({"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}}, "required": ["kind"]});
        let definitions = json!({"cat": cat, "dog": dog});
        let union = json!([{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}]);
        assert!(relaxed(json!({"oneOf": union, "$defs": definitions})));
        assert!(relaxed(json!({"oneOf": [{"type": "string"}, {"type": ["null", "integer"]}]})));
        assert!(relaxed(json!({"oneOf": [{"const": "a"}, {"enum": ["b", "c"]}]})));
    }

    #[test]
    fn others_stay() {
        let cat = json!({"type": "object", "properties": {"kind": {"const": "cat"}}});
        let dog = json!({"type": "object", "properties": {"kind": {"const": "dog"}}});
        assert!(!relaxed(json!({"oneOf": [cat, dog]})), "kind is not required");
        assert!(!relaxed(json!({"oneOf": [{"type": "integer"}, {"type": "number"}]})));
        assert!(!relaxed(json!({"oneOf": [{"const": 1}, {"const": 1.0}]})));
        assert!(!relaxed(
            json!({"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": {"$ref": "#/$defs/a"}}})
        ));
        assert!(!relaxed(json!({"oneOf": [{"$ref": "elsewhere"}, {"type": "null"}]})));
        assert!(!relaxed(json!({"const": {"oneOf": [{"type": "null"}, {"type": "string"}]}})));
    }
}
