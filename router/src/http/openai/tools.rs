//! The tools of a request: checked, and in the form that chat templates want.

use serde_json::{Map, Value, json};

use super::grammar::invalid;
use crate::http::errors::ApiError;
use crate::output::tools::{Tool, ToolLimits, ToolSet};

/// Checks tools and gives them OpenAI's form: TGI's clients call the schema `arguments`, and some leave out the type.
///
/// # Errors
/// `Validation`, when one is no function with a name.
pub(super) fn checked(tools: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    tools.into_iter().enumerate().map(|(index, tool)| checked_one(index, tool)).collect()
}

fn checked_one(index: usize, tool: Value) -> Result<Value, ApiError> {
    let invalid = |rule: &str| invalid(&format!("`tools[{index}]{rule}"));
    let Value::Object(mut tool) = tool else {
        return Err(invalid("` must be an object like `{\"type\": \"function\", \"function\": {\"name\": …}}`"));
    };
    if tool.get("type").is_some_and(|kind| kind != "function") {
        return Err(invalid(".type` must be `function`; leave other tools out"));
    }
    let Some(Value::Object(function)) = tool.get_mut("function") else {
        return Err(invalid(".function` must be an object with a `name` and, where it takes any, `parameters`"));
    };
    if !function.get("name").and_then(Value::as_str).is_some_and(is_name) {
        return Err(invalid(&format!(
            ".function.name` must be a string of 1 to {} bytes without white space",
            ToolLimits::default().name
        )));
    }
    share_schema(function);
    if !matches!(function.get("parameters"), None | Some(Value::Null | Value::Object(_))) {
        return Err(invalid(".function.parameters` must be a JSON schema of an object"));
    }
    tool.entry("type").or_insert_with(|| "function".into());
    Ok(Value::Object(tool))
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= ToolLimits::default().name && !name.contains(char::is_whitespace)
}

fn share_schema(function: &mut Map<String, Value>) {
    if !function.contains_key("parameters")
        && let Some(schema) = function.remove("arguments")
    {
        function.insert("parameters".to_owned(), schema);
    }
}

/// What a parser and a grammar know of checked tools. Arguments are an object, and a tool without parameters takes none.
/// Only those that may be called are in it.
pub(super) fn set(tools: &[Value], choice: &Choice) -> ToolSet {
    let tool = |tool: &Value| {
        let function = tool.get("function")?;
        let name = function.get("name")?.as_str()?.to_owned();
        Some(Tool { name, parameters: arguments(function.get("parameters")) })
    };
    tools.iter().filter_map(tool).filter(|tool| choice.allows(&tool.name)).collect()
}

fn arguments(schema: Option<&Value>) -> Value {
    let Some(Value::Object(keywords)) = schema else {
        return json!({"type": "object", "properties": {}, "additionalProperties": false});
    };
    let mut keywords = keywords.clone();
    if !["type", "$ref", "anyOf", "oneOf", "allOf"].iter().any(|keyword| keywords.contains_key(*keyword)) {
        keywords.insert("type".to_owned(), "object".into());
    }
    Value::Object(keywords)
}

/// Whether a request asks that the arguments of this tool be valid; some do not say.
pub(super) fn strictness(tools: &[Value], name: &str) -> Option<bool> {
    let functions = tools.iter().filter_map(|tool| tool.get("function"));
    let mut named = functions.filter(|function| function.get("name").and_then(Value::as_str) == Some(name));
    named.next()?.get("strict")?.as_bool()
}

/// What a request says of its tools, as far as it is not the tools themselves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Choice {
    /// The model calls them or not.
    #[default]
    Auto,
    /// The model does not see them.
    Hidden,
    /// The answer is calls.
    Required,
    /// The answer is one call of this function.
    Named(String),
    /// The model may call these alone, or has to.
    Among {
        /// Their names.
        names: Vec<String>,
        /// Whether the answer is calls.
        required: bool,
    },
}

/// How a request wants calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Calling {
    /// Which, and whether.
    pub choice: Choice,
    /// Whether an answer may hold several.
    pub parallel: bool,
}

impl Choice {
    /// Reads `tool_choice`: OpenAI's words and objects, and TGI's plain name of a function.
    ///
    /// # Errors
    /// `Validation`, when it is none of these.
    pub(super) fn read(choice: Option<&Value>) -> Result<Self, ApiError> {
        let name = |function: &Value| function.get("name").and_then(Value::as_str).map(str::to_owned);
        let unreadable = || {
            invalid(
                "`tool_choice` must be `auto`, `none`, `required`, or an object like `{\"type\": \"function\", \"function\": {\"name\": …}}`",
            )
        };
        match choice {
            None | Some(Value::Null) => Ok(Self::Auto),
            Some(Value::String(word)) => Ok(match word.as_str() {
                "auto" => Self::Auto,
                "none" => Self::Hidden,
                "required" => Self::Required,
                name => Self::Named(name.to_owned()),
            }),
            Some(Value::Object(given)) => {
                let kind = given.get("type").and_then(Value::as_str);
                match (kind, given.get("function"), given.get("allowed_tools")) {
                    (Some("function") | None, Some(function), _) => {
                        name(function).map(Self::Named).ok_or_else(unreadable)
                    }
                    (Some("allowed_tools"), _, Some(allowed)) => {
                        let tools = allowed.get("tools").and_then(Value::as_array).into_iter().flatten();
                        let names = tools.map(|tool| tool.get("function").and_then(name)).collect::<Option<_>>();
                        let required = match allowed.get("mode").and_then(Value::as_str) {
                            Some("required") => true,
                            Some("auto") | None => false,
                            Some(_) => return Err(unreadable()),
                        };
                        names.map(|names| Self::Among { names, required }).ok_or_else(unreadable)
                    }
                    _ => Err(unreadable()),
                }
            }
            Some(_) => Err(unreadable()),
        }
    }

    /// Checks the choice against the tools that there are.
    ///
    /// # Errors
    /// `Validation`, when a function is named that is not among them, or calls are wanted and there are no tools.
    pub(super) fn check(&self, tools: &[Value]) -> Result<(), ApiError> {
        let known = |name: &str| {
            tools
                .iter()
                .any(|tool| tool.get("function").and_then(|function| function.get("name")) == Some(&name.into()))
        };
        let named: &[String] = match self {
            Self::Auto | Self::Hidden => return Ok(()),
            Self::Required if tools.is_empty() => {
                return Err(invalid("`tool_choice` is `required`, and there are no `tools`; send some"));
            }
            Self::Required => &[],
            Self::Named(name) => std::slice::from_ref(name),
            Self::Among { names, .. } if names.is_empty() => {
                return Err(invalid("`tool_choice.allowed_tools.tools` names no function; name one, or send `none`"));
            }
            Self::Among { names, .. } => names,
        };
        match named.iter().find(|name| !known(name)) {
            Some(name) => Err(invalid(&format!(
                "`tool_choice` names the function `{name}`, which is not in `tools`; name one of them"
            ))),
            None => Ok(()),
        }
    }

    /// Whether the model may call a function.
    pub(super) fn allows(&self, name: &str) -> bool {
        match self {
            Self::Auto | Self::Required => true,
            Self::Hidden => false,
            Self::Named(named) => named == name,
            Self::Among { names, .. } => names.iter().any(|named| named == name),
        }
    }

    /// Whether the answer is calls and nothing else.
    pub(super) fn forces(&self) -> bool {
        matches!(self, Self::Required | Self::Named(_) | Self::Among { required: true, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_of_both_dialects_take_one_form() {
        let schema = json!({"type": "object", "properties": {"x": {"type": "integer"}}});
        let expected = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
        for tool in [
            json!({"type": "function", "function": {"name": "f", "parameters": schema}}),
            json!({"type": "function", "function": {"name": "f", "arguments": schema}}),
            json!({"function": {"name": "f", "parameters": schema}}),
        ] {
            assert_eq!(checked(vec![tool.clone()]).unwrap(), std::slice::from_ref(&expected), "{tool}");
        }
        let set = set(&checked(vec![expected]).unwrap(), &Choice::Auto);
        assert_eq!(set.argument("f", "x"), Some(&json!({"type": "integer"})));
    }

    #[test]
    fn what_is_no_tool_is_refused_with_its_place() {
        let name = "n".repeat(ToolLimits::default().name + 1);
        for (tool, place) in [
            (json!("f"), "`tools[1]`"),
            (json!({"type": "retrieval"}), "`tools[1].type`"),
            (json!({"type": "function", "name": "f"}), "`tools[1].function`"),
            (json!({"type": "function", "function": {}}), "`tools[1].function.name`"),
            (json!({"type": "function", "function": {"name": ""}}), "`tools[1].function.name`"),
            (json!({"type": "function", "function": {"name": "a b"}}), "`tools[1].function.name`"),
            (json!({"type": "function", "function": {"name": name}}), "`tools[1].function.name`"),
            (json!({"function": {"name": "f", "parameters": []}}), "`tools[1].function.parameters`"),
        ] {
            let good = json!({"function": {"name": "good"}});
            let error = checked(vec![good, tool.clone()]).unwrap_err().to_string();
            assert!(error.starts_with("Input validation error: ") && error.contains(place), "{tool}: {error}");
        }
    }

    fn read(choice: &Value) -> Result<Choice, String> {
        Choice::read(Some(choice)).map_err(|error| error.to_string())
    }

    #[test]
    fn choices_have_many_forms() {
        let among = |required| Choice::Among { names: vec!["f".to_owned()], required };
        let allowed = |mode: &str| json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [{"type": "function", "function": {"name": "f"}}]}});
        for (given, expected) in [
            (json!(null), Choice::Auto),
            (json!("auto"), Choice::Auto),
            (json!("none"), Choice::Hidden),
            (json!("required"), Choice::Required),
            (json!("f"), Choice::Named("f".to_owned())),
            (json!({"type": "function", "function": {"name": "f"}}), Choice::Named("f".to_owned())),
            (json!({"function": {"name": "f"}}), Choice::Named("f".to_owned())),
            (allowed("auto"), among(false)),
            (allowed("required"), among(true)),
        ] {
            assert_eq!(read(&given), Ok(expected), "{given}");
        }
        assert_eq!(Choice::read(None).unwrap(), Choice::Auto);
        for given in [
            json!(3),
            json!({}),
            json!({"type": "function"}),
            json!({"type": "function", "function": {}}),
            allowed("never"),
        ] {
            assert!(read(&given).unwrap_err().contains("`tool_choice` must be"), "{given}");
        }
    }

    #[test]
    fn a_choice_names_tools_that_there_are() {
        let tools = checked(vec![json!({"function": {"name": "f"}}), json!({"function": {"name": "g"}})]).unwrap();
        let named = |name: &str| Choice::Named(name.to_owned());
        let among = |names: &[&str]| Choice::Among {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            required: false,
        };
        for choice in [Choice::Auto, Choice::Hidden, Choice::Required, named("f"), among(&["g"])] {
            assert!(choice.check(&tools).is_ok(), "{choice:?}");
        }
        for (choice, tools, words) in [
            (named("h"), tools.as_slice(), "`h`, which is not in `tools`"),
            (named("f"), &[], "`f`, which is not in `tools`"),
            (among(&["f", "h"]), &tools, "`h`"),
            (among(&[]), &tools, "names no function"),
            (Choice::Required, &[], "there are no `tools`"),
        ] {
            let error = choice.check(tools).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let names = |choice: &Choice| set(&tools, choice).iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&Choice::Required), ["f", "g"]);
        assert_eq!(names(&among(&["g"])), ["g"]);
        assert_eq!(names(&named("f")), ["f"]);
    }
}
