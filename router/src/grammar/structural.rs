//! Structural tags: free text, until a trigger opens a part whose content follows a schema and ends with a tag.

use serde_json::Value;

use super::error::GrammarError;
use super::layout::{Layout, Tagged};

/// One kind of structured part.
#[derive(Debug, Clone, PartialEq)]
pub struct Structure {
    /// How it begins; one of the triggers begins it.
    pub begin: String,
    /// What stands inside: JSON of this schema.
    pub schema: Value,
    /// How it ends.
    pub end: String,
}

/// Free text with structured parts in it. As soon as a trigger has been written, one of the structures that begin with it
/// must follow; after its end the text is free again.
#[derive(Debug, Clone, PartialEq)]
pub struct StructuralTag {
    /// The kinds of structured parts.
    pub structures: Vec<Structure>,
    /// What opens them. The name of a special token stands for that token.
    pub triggers: Vec<String>,
}

impl StructuralTag {
    pub(super) fn bytes(&self, length: impl Fn(&Value) -> usize) -> usize {
        let structures = self.structures.iter().map(|part| part.begin.len() + length(&part.schema) + part.end.len());
        structures.chain(self.triggers.iter().map(String::len)).sum()
    }

    /// All that distinguishes this tag from another, in order.
    pub(super) fn parts(&self) -> impl Iterator<Item = String> + '_ {
        let structures = self.structures.iter();
        let structures = structures.flat_map(|part| [part.begin.clone(), part.schema.to_string(), part.end.clone()]);
        std::iter::once(self.structures.len().to_string()).chain(structures).chain(self.triggers.iter().cloned())
    }

    /// The tag in the terms that all composed answers share.
    ///
    /// # Errors
    /// `Invalid` for a structure without an end.
    pub(super) fn layout(&self) -> Result<Layout, GrammarError> {
        if let Some(structure) = self.structures.iter().find(|structure| structure.end.is_empty()) {
            return Err(GrammarError::Invalid(format!("the structure `{}` needs an end", structure.begin)));
        }
        let part = |structure: &Structure| {
            let (schema, end) = (structure.schema.clone(), structure.end.clone());
            (structure.begin.clone(), Layout::Sequence(vec![Layout::json(schema), Layout::Text(end)]))
        };
        let parts = self.structures.iter().map(part).collect();
        Ok(Layout::Tagged(Tagged { parts, triggers: self.triggers.clone(), ..Tagged::default() }))
    }
}
