//! JSON Schema, draft 2020-12: every keyword is enforced, is a remark, or is refused by name with the place where it stands.

use std::collections::BTreeSet;

use serde_json::{Map, Number, Value};

use super::disjoint;
use super::error::GrammarError;
use super::limits::GrammarLimits;
use super::pattern;

/// Keywords that state a rule which no grammar of ours can keep. Any other unknown keyword is a remark, as the standard says.
pub(super) const REFUSED: [&str; 19] = [
    "$dynamicAnchor",
    "$dynamicRef",
    "$recursiveAnchor",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    "x-guidance",
];
/// Keywords that hold schemas: by name, in a list, or one.
const BY_NAME: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
const SINGLE: [&str; 3] = ["items", "additionalItems", "additionalProperties"];
/// Keywords that hold a number which the grammar compares with.
const NUMBERS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
/// Whole numbers up to here are exact in a 64-bit float, which bounds are compared as.
const EXACT: f64 = 9_007_199_254_740_992.0;
/// What may stand between two parts of JSON: a space, or a new line with its indentation. More would let a model that is not
/// sure of its answer write white space until it has no tokens left.
const WHITESPACE: &str = r"\x20|\x0A(?:\x20{1,24}|\x09{1,6})?";
const DRAFTS: [&str; 5] = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
];

/// The schema as `llguidance` is given it.
///
/// # Errors
/// `Unsupported` names the keyword and its place; `Invalid` for what is no schema; `TooComplex` when it nests too deeply.
pub(super) fn lower(schema: &Value, limits: &GrammarLimits) -> Result<Value, GrammarError> {
    lower_spaced(schema, None, limits)
}

/// The same, with another regular expression for what may stand between two parts of the JSON; an empty one is nothing at
/// all.
///
/// # Errors
/// Those of `lower`.
pub(super) fn lower_spaced(
    schema: &Value,
    spacing: Option<String>,
    limits: &GrammarLimits,
) -> Result<Value, GrammarError> {
    if depth(schema) > limits.max_depth {
        let limit = limits.max_depth;
        return Err(GrammarError::TooComplex(format!("a JSON schema nests deeper than {limit}; flatten it")));
    }
    let mut schema = schema.clone();
    let mut walk = Walk { limits, multiples: BTreeSet::new() };
    walk.schema(&mut schema, "#")?;
    walk.multiples()?;
    disjoint::relax(&mut schema);
    if schema.is_object() {
        let spacing = spacing.unwrap_or_else(|| WHITESPACE.to_owned());
        let options = llguidance::JsonCompileOptions {
            whitespace_flexible: !spacing.is_empty(),
            whitespace_pattern: Some(spacing).filter(|spacing| !spacing.is_empty()),
            ..Default::default()
        };
        options.apply_to(&mut schema);
    }
    Ok(schema)
}

/// Levels of arrays and objects. Recursion is bounded: what parsed as JSON nests at most 128 deep.
fn depth(value: &Value) -> usize {
    let deepest = match value {
        Value::Array(items) => items.iter().map(depth).max(),
        Value::Object(fields) => fields.values().map(depth).max(),
        _ => return 0,
    };
    1 + deepest.unwrap_or(0)
}

struct Walk<'a> {
    limits: &'a GrammarLimits,
    /// The digits of every `multipleOf`, which may all come together in one number.
    multiples: BTreeSet<u64>,
}

impl Walk<'_> {
    fn schema(&mut self, schema: &mut Value, place: &str) -> Result<(), GrammarError> {
        let Value::Object(keywords) = schema else {
            return if schema.is_boolean() {
                Ok(())
            } else {
                Err(invalid(place, "a schema is an object or a boolean"))
            };
        };
        // It says nothing, and would be refused below.
        keywords.retain(|keyword, value| keyword != "uniqueItems" || *value != Value::Bool(false));
        for (keyword, value) in keywords.iter_mut() {
            self.keyword(keyword, value, place)?;
        }
        distinct_properties(keywords, place)
    }

    fn keyword(&mut self, keyword: &str, value: &mut Value, place: &str) -> Result<(), GrammarError> {
        if REFUSED.contains(&keyword) {
            return Err(refused(place, &format!("`{keyword}` cannot be enforced")));
        }
        let place = format!("{place}/{keyword}");
        if BY_NAME.contains(&keyword) {
            return self.by_name(keyword, value, &place);
        }
        if LISTS.contains(&keyword) || (keyword == "items" && value.is_array()) {
            let Value::Array(schemas) = value else { return Err(invalid(&place, "it must be a list of schemas")) };
            let mut schemas = schemas.iter_mut().enumerate();
            return schemas.try_for_each(|(index, schema)| self.schema(schema, &format!("{place}/{index}")));
        }
        if SINGLE.contains(&keyword) {
            return self.schema(value, &place);
        }
        if let ("pattern", Value::String(regex)) = (keyword, &mut *value) {
            *regex = self.pattern(regex, &place)?;
            return Ok(());
        }
        match (keyword, &*value) {
            ("$schema", Value::String(draft)) if !DRAFTS.contains(&draft.trim_end_matches('#')) => {
                Err(refused(&place, &format!("`$schema` names the unknown dialect `{draft}`")))
            }
            ("const" | "enum", value) => constant(value, &place),
            (keyword, Value::Number(number)) if NUMBERS.contains(&keyword) => {
                if keyword == "multipleOf" {
                    self.multiples.insert(digits(number));
                }
                constant(value, &place)
            }
            _ => Ok(()),
        }
    }

    fn by_name(&mut self, keyword: &str, value: &mut Value, place: &str) -> Result<(), GrammarError> {
        let Value::Object(schemas) = value else { return Err(invalid(place, "it must be an object of schemas")) };
        for (name, mut schema) in std::mem::take(schemas) {
            let name = match keyword {
                "patternProperties" => self.pattern(&name, place)?,
                "properties" => plain_name(&name, place).map(|()| name)?,
                _ => name,
            };
            self.schema(&mut schema, &format!("{place}/{name}"))?;
            schemas.insert(name, schema);
        }
        Ok(())
    }

    fn multiples(&self) -> Result<(), GrammarError> {
        let (product, most) =
            (self.multiples.iter().fold(1, |all: u64, one| all.saturating_mul(*one)), self.limits.max_multiple);
        if product > most {
            let sentence = format!("the `multipleOf`s of a JSON schema multiply to more than {most}; use smaller ones");
            return Err(GrammarError::TooComplex(sentence));
        }
        Ok(())
    }

    fn pattern(&self, regex: &str, place: &str) -> Result<String, GrammarError> {
        pattern::part(regex, self.limits).map_err(|error| match error {
            GrammarError::Unsupported(reason) => refused(place, &reason),
            GrammarError::Invalid(reason) => invalid(place, &reason),
            other => other,
        })
    }
}

/// A control character has several spellings in JSON, and the others could be written as a property of another name.
fn plain_name(name: &str, place: &str) -> Result<(), GrammarError> {
    if name.chars().any(char::is_control) {
        return Err(refused(place, "a property name with control characters cannot be enforced"));
    }
    Ok(())
}

/// Names that the schema leaves open may come twice, and a parser counts them once.
fn distinct_properties(keywords: &Map<String, Value>, place: &str) -> Result<(), GrammarError> {
    let required = keywords.get("required").and_then(Value::as_array).map_or(0, Vec::len) as u64;
    let least = keywords.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
    if least > required + 1 {
        return Err(refused(place, "`minProperties` beyond the required properties cannot be enforced"));
    }
    Ok(())
}

fn constant(value: &Value, place: &str) -> Result<(), GrammarError> {
    match value {
        Value::Number(number) if number.as_f64().is_none_or(|number| number.abs() > EXACT && number.fract() == 0.0) => {
            Err(refused(place, &format!("the number {number} is beyond ±2^53 and cannot be enforced")))
        }
        Value::Array(items) => items.iter().try_for_each(|item| constant(item, place)),
        Value::Object(fields) => fields.iter().try_for_each(|(name, field)| {
            plain_name(name, place)?;
            constant(field, place)
        }),
        _ => Ok(()),
    }
}

/// A number's decimal digits as a whole number, at least 1; one that has too many for that is as large as can be.
fn digits(number: &Number) -> u64 {
    let text = number.to_string();
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    if text.contains(['e', 'E']) { u64::MAX } else { digits.parse().unwrap_or(u64::MAX).max(1) }
}

fn refused(place: &str, reason: &str) -> GrammarError {
    GrammarError::Unsupported(format!("{reason} ({} of the JSON schema); remove it", shortened(place)))
}

fn invalid(place: &str, reason: &str) -> GrammarError {
    GrammarError::Invalid(format!("the JSON schema is wrong at {}: {reason}", shortened(place)))
}

fn shortened(place: &str) -> String {
    const LONGEST: usize = 120;
    if place.chars().count() <= LONGEST {
        place.to_owned()
    } else {
        place.chars().take(LONGEST).chain(['…']).collect()
    }
}
