//! TGI's `grammar`: its forms, and what they ask for.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::grammar::GrammarSource;
use crate::http::errors::ApiError;

/// What the answer must look like.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct Grammar {
    /// What `value` is.
    pub r#type: GrammarKind,
    /// For `json` and `json_object` a JSON schema, for `json_schema` an object with the schema under `schema`, for `regex` a
    /// regular expression that the whole answer matches, for `grammar` a grammar in Lark or GBNF. Without it, `json_object` is any object.
    pub value: Option<Value>,
}

/// The forms of a grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrammarKind {
    /// A JSON schema.
    Json,
    /// The same.
    JsonObject,
    /// A JSON schema with a name.
    JsonSchema,
    /// A regular expression.
    Regex,
    /// A context-free grammar, in Lark or GBNF.
    Grammar,
}

impl Grammar {
    /// What it asks for. `field` is where it stands in the request.
    ///
    /// # Errors
    /// `Validation`, when the value is not what the type says.
    pub fn source(self, field: &str) -> Result<GrammarSource, ApiError> {
        let invalid = |what: &str| Err(ApiError::Validation(format!("Input validation error: `{field}.value` {what}")));
        match (self.r#type, self.value) {
            (GrammarKind::Json | GrammarKind::JsonObject, Some(schema @ (Value::Object(_) | Value::Bool(_)))) => {
                Ok(GrammarSource::JsonSchema(schema))
            }
            // Older clients of TGI send the schema as text.
            (GrammarKind::Json | GrammarKind::JsonObject, Some(Value::String(text))) => {
                match serde_json::from_str(&text) {
                    Ok(schema @ Value::Object(_)) => Ok(GrammarSource::JsonSchema(schema)),
                    _ => invalid("must be a JSON schema, or one written as a string"),
                }
            }
            (GrammarKind::JsonObject, None) => Ok(GrammarSource::JsonObject),
            (GrammarKind::Json | GrammarKind::JsonObject, _) => invalid("must be a JSON schema"),
            (GrammarKind::JsonSchema, Some(Value::Object(mut named))) => match named.remove("schema") {
                Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(GrammarSource::JsonSchema(schema)),
                _ => invalid("must have a JSON schema under `schema`"),
            },
            (GrammarKind::JsonSchema, _) => invalid("must be an object with a JSON schema under `schema`"),
            (GrammarKind::Regex, Some(Value::String(regex))) => Ok(GrammarSource::Regex(regex)),
            (GrammarKind::Regex, _) => invalid("must be a regular expression, as a string"),
            (GrammarKind::Grammar, Some(Value::String(text))) => Ok(GrammarSource::grammar(text)),
            (GrammarKind::Grammar, _) => invalid("must be a grammar in Lark or GBNF, as a string"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn source(grammar: Value) -> Result<GrammarSource, String> {
        let grammar: Grammar = serde_json::from_value(grammar).map_err(|error| error.to_string())?;
        grammar.source("grammar").map_err(|error| error.to_string())
    }

    #[test]
    fn every_form_of_tgi_is_understood() {
        let schema = json!({"type": "object", "properties": {"x": {"type": "integer"}}});
        let wanted = Ok(GrammarSource::JsonSchema(schema.clone()));
        for grammar in [
            json!({"type": "json", "value": schema}),
            json!({"type": "json_object", "value": schema}),
            json!({"type": "json", "value": schema.to_string()}),
            json!({"type": "json_schema", "value": {"name": "x", "schema": schema}}),
            json!({"type": "json_schema", "value": {"schema": schema}}),
        ] {
            assert_eq!(source(grammar.clone()), wanted, "{grammar}");
        }
        assert_eq!(source(json!({"type": "json_object"})), Ok(GrammarSource::JsonObject));
        let regex = source(json!({"type": "regex", "value": "a+"}));
        assert_eq!(regex, Ok(GrammarSource::Regex("a+".to_owned())));
        for (text, wanted) in [
            ("start: \"a\"", GrammarSource::Lark as fn(String) -> GrammarSource),
            ("root ::= \"a\"", GrammarSource::Gbnf),
        ] {
            assert_eq!(source(json!({"type": "grammar", "value": text})), Ok(wanted(text.to_owned())));
        }
    }

    #[test]
    fn what_is_none_is_refused_with_a_sentence() {
        for (grammar, words) in [
            (json!({"type": "json"}), "must be a JSON schema"),
            (json!({"type": "json", "value": 3}), "must be a JSON schema"),
            (json!({"type": "json", "value": "{"}), "written as a string"),
            (json!({"type": "json_schema", "value": {"name": "x"}}), "under `schema`"),
            (json!({"type": "json_schema", "value": []}), "under `schema`"),
            (json!({"type": "regex", "value": {}}), "as a string"),
            (json!({"type": "grammar", "value": ["start"]}), "in Lark or GBNF"),
            (json!({"type": "xml", "value": {}}), "unknown variant `xml`"),
            (json!({"value": {}}), "missing field `type`"),
        ] {
            let error = source(grammar.clone()).unwrap_err();
            assert!(error.contains(words), "{grammar}: {error}");
        }
    }
}
