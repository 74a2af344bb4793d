//! Which parsers a model's answers need: chosen once, at the start of a server.

use std::sync::Arc;

use super::reasoning::ReasoningParserKind;
use super::tools::ToolParserKind;
use crate::input::ModelText;

/// What switches a parser off.
const OFF: &str = "none";

/// The parsers of a server, and the special tokens that each must see.
#[derive(Debug, Clone, Default)]
pub struct Parsers {
    /// Of calls.
    pub tools: Option<Parser<ToolParserKind>>,
    /// Of reasoning.
    pub reasoning: Option<Parser<ReasoningParserKind>>,
}

/// One of them.
#[derive(Debug, Clone)]
pub struct Parser<K> {
    /// How the model writes what is looked for.
    pub kind: K,
    /// Special tokens that carry it; answers leave out all others.
    pub markers: Arc<[u32]>,
}

impl Parsers {
    /// By name; `none` is off, and without a name the chat template tells.
    ///
    /// # Errors
    /// One sentence, when a name is unknown.
    pub fn choose(tools: Option<&str>, reasoning: Option<&str>, model: &ModelText) -> Result<Self, String> {
        let tools = match tools {
            Some(OFF) => None,
            Some(name) => Some(name.parse::<ToolParserKind>().map_err(|error| error.to_string())?),
            None => model.chat_templates().find_map(ToolParserKind::detect),
        };
        let reasoning = match reasoning {
            Some(OFF) => None,
            Some(name) => Some(name.parse::<ReasoningParserKind>().map_err(|error| error.to_string())?),
            None => model.chat_templates().find_map(ReasoningParserKind::detect),
        };
        Ok(Self {
            tools: tools.map(|kind| Parser { kind, markers: special(kind.markers(), model) }),
            reasoning: reasoning.map(|kind| Parser { markers: special(&kind.markers(), model), kind }),
        })
    }
}

/// The special tokens among these texts.
fn special(texts: &[&str], model: &ModelText) -> Arc<[u32]> {
    let ids = texts.iter().filter_map(|text| model.tokenizer().token_to_id(text));
    ids.filter(|&id| model.is_special(id)).collect()
}
