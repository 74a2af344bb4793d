//! The chat template: a conversation becomes the text that the model was trained on.

mod environment;
mod generation_tags;
mod messages;
mod methods;
mod python;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::Path;

use minijinja::value::Serde;
use serde_json::{Value, json};

use self::environment::{Bounds, Compiled};
use self::messages::{ContentForm, DEVELOPER, Style, adapt, cut_at_end, mark_end, tests_for_none};
use super::error::{InputError, invalid};
use super::files::{LoadError, read_json, read_text};
use super::request::ChatPrompt;
use super::special_tokens::SpecialTokens;

/// A model's chat templates; each may be missing, or there and unusable.
#[derive(Debug)]
pub(crate) struct ChatTemplates {
    default: Option<Result<ChatTemplate, String>>,
    /// Used when a request has tools.
    tool_use: Option<Result<ChatTemplate, String>>,
    /// Their texts, the one for tools first.
    sources: Vec<String>,
    /// `bos_token` and its like.
    token_names: Vec<(&'static str, String)>,
}

impl ChatTemplates {
    /// Looks for templates in `chat_template.jinja`, `chat_template.json` and the tokenizer's configuration, in this
    /// order.
    pub(crate) fn load(dir: &Path, tokenizer_config: &Value, special: &SpecialTokens) -> Result<Self, LoadError> {
        let (default, tool_use) = sources(dir, tokenizer_config)?;
        let token_names = special.names.clone();
        let compile = |source: Option<String>| {
            let compiled = source.map(|source| ChatTemplate::new(&source, &token_names))?;
            if let Err(reason) = &compiled {
                tracing::warn!(reason, "the chat template cannot be used; chat requests will be refused");
            }
            Some(compiled)
        };
        let sources = [&tool_use, &default].into_iter().flatten().cloned().collect();
        Ok(Self { default: compile(default), tool_use: compile(tool_use), sources, token_names })
    }

    /// Their texts, the one for tools first: they show how the model writes.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().map(String::as_str)
    }

    /// Whether conversations can be rendered.
    pub(crate) fn usable(&self) -> bool {
        matches!(self.default, Some(Ok(_)))
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// `Template` when there is no template or it refuses; `Validation` when the messages are no messages.
    pub(crate) fn render(&self, chat: &ChatPrompt) -> Result<String, InputError> {
        let tools = chat.tools.as_ref().filter(|tools| !tools.is_empty());
        let template = tools.and(self.tool_use.as_ref()).or(self.default.as_ref());
        match template {
            Some(Ok(template)) => template.render(chat, &self.token_names),
            Some(Err(reason)) => Err(InputError::Template(format!("this model's chat template is damaged: {reason}"))),
            None => Err(InputError::Template(
                "this model has no chat template; use a route that takes plain text, or add `chat_template.jinja` to \
                 the model's folder"
                    .to_owned(),
            )),
        }
    }
}

/// The default template and the one for tools.
fn sources(dir: &Path, tokenizer_config: &Value) -> Result<(Option<String>, Option<String>), LoadError> {
    if let Some(source) = read_text(dir, "chat_template.jinja")? {
        return Ok((Some(source), read_text(dir, "additional_chat_templates/tool_use.jinja")?));
    }
    let file = read_json(dir, "chat_template.json")?;
    let given = if file["chat_template"].is_null() { tokenizer_config } else { &file };
    let named = |name: &str| {
        let list = given["chat_template"].as_array()?;
        let entry = list.iter().find(|entry| entry["name"] == name)?;
        entry["template"].as_str().map(str::to_owned)
    };
    Ok(match given["chat_template"].as_str() {
        Some(source) => (Some(source.to_owned()), None),
        None => (named("default"), named("tool_use")),
    })
}

/// One template and how it wants its messages.
#[derive(Debug)]
struct ChatTemplate {
    compiled: Compiled,
    style: Style,
    /// Variables that a request may set: the words of its text that the template language has no other use for. Anything else
    /// could not be read by it, or would stand in for one of its functions.
    open: HashSet<String>,
}

impl ChatTemplate {
    fn new(source: &str, token_names: &[(&'static str, String)]) -> Result<Self, String> {
        let compiled = Compiled::new(source, Bounds::default())?;
        let content = content_form(&compiled, token_names);
        let open: HashSet<String> = words(source).filter(|word| !compiled.provides(word)).map(str::to_owned).collect();
        let knows_developers = open.contains(DEVELOPER);
        Ok(Self { compiled, style: Style { content, tests_for_none: tests_for_none(source), knows_developers }, open })
    }

    fn render(&self, chat: &ChatPrompt, token_names: &[(&'static str, String)]) -> Result<String, InputError> {
        let last = chat.messages.last();
        if chat.continue_final_message && chat.add_generation_prompt {
            return Err(invalid("`continue_final_message` and `add_generation_prompt` cannot both be true"));
        }
        if chat.continue_final_message && last.is_some_and(|message| message["content"].is_null()) {
            return Err(invalid("`continue_final_message` needs a last message with text to continue"));
        }
        let first = self.attempt(chat, token_names, true)?;
        match first {
            (Err(_), true) => self.attempt(chat, token_names, false)?.0,
            (rendered, _) => rendered,
        }
    }

    /// One rendering, and whether another without parsed arguments would be different.
    fn attempt(
        &self,
        chat: &ChatPrompt,
        token_names: &[(&'static str, String)],
        parse_arguments: bool,
    ) -> Result<(Result<String, InputError>, bool), InputError> {
        let mut messages = adapt(&chat.messages, self.style, parse_arguments)?;
        let last = chat.continue_final_message.then(|| mark_end(&mut messages.list)).transpose()?;
        let given = chat.template_kwargs.iter().filter(|(name, _)| self.open.contains(*name));
        let variables = variables(&messages.list, chat, given, token_names);
        let rendered = self.compiled.render(variables).map_err(InputError::Template);
        let rendered = match (rendered, last) {
            (Ok(text), Some(last)) => cut_at_end(text, &last),
            (rendered, _) => rendered,
        };
        Ok((rendered, messages.parsed_arguments))
    }
}

/// What could be a name in a template.
fn words(source: &str) -> impl Iterator<Item = &str> {
    source.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(|word| !word.is_empty())
}

/// Everything a template sees. A request's own variables come before ours, so that ours win.
fn variables<'a>(
    messages: &[Value],
    chat: &ChatPrompt,
    given: impl Iterator<Item = (&'a String, &'a Value)>,
    token_names: &[(&'static str, String)],
) -> minijinja::Value {
    let tools = chat.tools.as_ref().filter(|tools| !tools.is_empty());
    let mut variables: Vec<(&str, minijinja::Value)> = vec![("documents", minijinja::Value::from(()))];
    variables.extend(given.map(|(name, value)| (name.as_str(), Serde(value).into())));
    variables.extend(token_names.iter().map(|(key, name)| (*key, minijinja::Value::from(name.as_str()))));
    variables.extend([
        ("messages", Serde(messages).into()),
        ("tools", Serde(tools).into()),
        ("add_generation_prompt", minijinja::Value::from(chat.add_generation_prompt)),
    ]);
    minijinja::Value::from_pairs(variables)
}

/// Finds out by trying: a template takes lists of parts when it writes the same for them as for plain strings.
fn content_form(compiled: &Compiled, token_names: &[(&'static str, String)]) -> ContentForm {
    const PROBE: &str = "a short text";
    let render = |messages: Value| {
        let list = messages.as_array().map(Vec::as_slice).unwrap_or_default();
        let text = compiled.render(variables(list, &ChatPrompt::default(), std::iter::empty(), token_names)).ok()?;
        text.contains(PROBE).then_some(text)
    };
    let user = |content: &Value| json!([{"role": "user", "content": content}]);
    let both = |content: &Value| json!([{"role": "system", "content": content}, {"role": "user", "content": content}]);
    let (text, parts) = (json!(PROBE), json!([{"type": "text", "text": PROBE}]));
    match (render(user(&text)), render(user(&parts))) {
        (None, Some(_)) => ContentForm::Parts,
        (Some(one), Some(other)) if one == other && render(both(&text)) == render(both(&parts)) => ContentForm::Either,
        _ => ContentForm::Text,
    }
}
