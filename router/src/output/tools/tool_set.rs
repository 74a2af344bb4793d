//! The tools that a request offers.

use std::collections::HashMap;

use serde_json::Value;

/// Hops from one `$ref` to the next before they are taken for a circle.
const MOST_HOPS: usize = 16;

/// One tool: its name and the JSON schema of its arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// What a call names.
    pub name: String,
    /// JSON schema of an object; null when the request gives none.
    pub parameters: Value,
}

/// The tools of a request, in their order. Of two with one name the first counts.
#[derive(Debug, Clone, Default)]
pub struct ToolSet {
    tools: Vec<Tool>,
    by_name: HashMap<String, usize>,
}

impl ToolSet {
    /// The tools in the order they are offered.
    pub fn iter(&self) -> impl Iterator<Item = &Tool> {
        self.tools.iter()
    }

    /// Whether a tool has that name.
    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Schema of the argument `key` of the tool `name`.
    pub fn argument(&self, name: &str, key: &str) -> Option<&Value> {
        let tool = self.by_name.get(name).and_then(|&at| self.tools.get(at))?;
        Some(tool.followed(tool.arguments().get("properties")?.get(key)?))
    }
}

impl Tool {
    /// The schema of the arguments, which may stand elsewhere in `parameters`.
    pub fn arguments(&self) -> &Value {
        self.followed(&self.parameters)
    }

    /// What a schema in `parameters` refers to; itself when it refers to nothing there.
    pub fn followed<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let mut schema = schema;
        for _ in 0..MOST_HOPS {
            let place = schema.get("$ref").and_then(Value::as_str).and_then(|place| place.strip_prefix('#'));
            let Some(target) = place.and_then(|place| self.parameters.pointer(place)) else { break };
            schema = target;
        }
        schema
    }
}

impl FromIterator<Tool> for ToolSet {
    fn from_iter<I: IntoIterator<Item = Tool>>(tools: I) -> Self {
        let mut set = Self::default();
        for tool in tools {
            if !set.contains(&tool.name) {
                set.by_name.insert(tool.name.clone(), set.tools.len());
                set.tools.push(tool);
            }
        }
        set
    }
}
