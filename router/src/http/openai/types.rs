//! Request bodies of OpenAI's routes.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::async_tools::AsyncTools;
use super::messages::Message;
use super::sampling::{Extras, StreamUsage, openai_request, refuse};
use super::tools::{self, Calling, Choice};
use crate::http::errors::ApiError;
use crate::input::{ChatPrompt, GenerationRequest, Parameters, Prompt};

openai_request! {
    /// Body of `POST /v1/chat/completions`. Fields not listed here are ignored.
    #[derive(Default)]
    pub struct ChatRequest {
        /// The conversation so far.
        pub messages: Vec<Message>,
        /// Newer name of `max_tokens`, which it overrules.
        #[schema(minimum = 1)]
        pub max_completion_tokens: Option<u32>,
        /// Whether to report the log-probability of each token.
        pub logprobs: Option<bool>,
        /// Alternatives to report with each token; needs `logprobs`.
        pub top_logprobs: Option<u32>,
        /// Functions that the model may call, in OpenAI's form; the chat template tells it about them.
        pub tools: Option<Vec<Value>>,
        /// `auto`, `none` to keep the tools from the model, `required` for an answer made of calls, or the function to call.
        pub tool_choice: Option<Value>,
        /// With false an answer holds one call at most.
        pub parallel_tool_calls: Option<bool>,
        /// Whether calls run while the answer goes on; needs `stream`. Their results are sent to
        /// `/v1/chat/completions/{id}/tool_results`.
        pub async_tools: Option<AsyncTools>,
        /// What to tell the model of the `tools` behind the last message, as TGI does; the chat template presents them itself.
        pub tool_prompt: Option<String>,
        /// Whether the template opens an assistant message; by default unless the last message is the assistant's.
        pub add_generation_prompt: Option<bool>,
        /// Whether the model continues the last message; by default when that is the assistant's.
        pub continue_final_message: Option<bool>,
        /// More variables for the chat template; not those that the server sets itself.
        pub chat_template_kwargs: Option<Map<String, Value>>,
        /// How much the model is to think, for templates that ask for it; `none` switches thinking off.
        pub reasoning_effort: Option<ReasoningEffort>,
        /// How much the model is to say, a variable for templates that ask for it.
        pub verbosity: Option<Verbosity>,
        /// Most tokens of reasoning; then its end is written.
        #[schema(minimum = 0)]
        pub thinking_budget: Option<u32>,
        /// Not served: send `tools`.
        pub functions: Option<Value>,
        /// Not served: send `tool_choice`.
        pub function_call: Option<Value>,
        /// Not served: answers are text.
        pub audio: Option<Value>,
        /// Not served but for `["text"]`: answers are text.
        pub modalities: Option<Vec<String>>,
        /// Not served: tools run where the client is.
        pub web_search_options: Option<Value>,
        /// Not served.
        pub moderation: Option<Value>,
        /// No field of a body: the budget has no effect on a model whose reasoning cannot be told from its answer.
        #[serde(skip)]
        pub lenient_budget: bool,
    }
}

impl ChatRequest {
    /// Whether the answer holds log-probabilities.
    #[must_use]
    pub fn wants_logprobs(&self) -> bool {
        self.logprobs.unwrap_or_default()
    }

    /// What is said of calls, apart from the tools.
    ///
    /// # Errors
    /// When `tool_choice` is not readable.
    pub(super) fn calling(&self) -> Result<Calling, ApiError> {
        let choice = Choice::read(self.tool_choice.as_ref())?;
        Ok(Calling { choice, parallel: self.parallel_tool_calls.unwrap_or(true) })
    }

    /// The conversation for the template.
    ///
    /// # Errors
    /// When a tool is none, or the choice of tools names another one.
    pub fn into_prompt(self) -> Result<ChatPrompt, ApiError> {
        let can_continue = self.messages.last().is_some_and(Message::can_continue);
        let continued = match (self.continue_final_message, self.add_generation_prompt) {
            (Some(continued), _) => continued,
            (None, opens) => can_continue && opens != Some(true),
        };
        let choice = Choice::read(self.tool_choice.as_ref())?;
        let template_kwargs = template_kwargs(self.chat_template_kwargs, self.reasoning_effort, self.verbosity)?;
        let tools = self.tools.filter(|_| choice != Choice::Hidden).map(tools::checked).transpose()?;
        choice.check(tools.as_deref().unwrap_or_default())?;
        let mut messages = self.messages;
        let told =
            self.tool_prompt.filter(|text| !text.is_empty() && tools.as_ref().is_some_and(|all| !all.is_empty()));
        // What the assistant began is its own.
        let last = messages.iter_mut().rev().find(|message| message.role != "assistant");
        if let (Some(text), Some(last)) = (told, last) {
            last.append(&format!("\n---\n{text}"));
        }
        Ok(ChatPrompt {
            messages: messages.into_iter().map(Value::from).collect(),
            tools,
            add_generation_prompt: self.add_generation_prompt.unwrap_or(!continued),
            add_special_tokens: self.add_special_tokens.unwrap_or_default(),
            continue_final_message: continued,
            template_kwargs,
        })
    }

    /// Refuses what only chats have, and is understood but not served.
    fn check_chat(&self) -> Result<(), ApiError> {
        for (field, value, remedy) in [
            ("functions", &self.functions, "send `tools`"),
            ("function_call", &self.function_call, "send `tool_choice`"),
            ("audio", &self.audio, "leave it out: answers are text"),
            ("web_search_options", &self.web_search_options, "send a tool that searches as one of `tools`"),
            ("moderation", &self.moderation, "leave it out"),
        ] {
            refuse(field, value.as_ref(), remedy)?;
        }
        if self.modalities.iter().flatten().any(|kind| kind != "text") {
            return Err(ApiError::Unsupported { field: "modalities", remedy: "send `[\"text\"]` or leave it out" });
        }
        Ok(())
    }

    /// The request as `input` wants it.
    ///
    /// # Errors
    /// When a field is understood but not served yet.
    pub fn into_generation(self) -> Result<GenerationRequest, ApiError> {
        self.check_shared()?;
        self.check_chat()?;
        if self.top_logprobs.is_some_and(|count| count > 0) && !self.wants_logprobs() {
            return Err(ApiError::Validation(
                "Input validation error: `top_logprobs` needs `logprobs`; send `\"logprobs\": true` with it".to_owned(),
            ));
        }
        let parameters = Parameters {
            max_new_tokens: self.max_completion_tokens.or(self.max_tokens),
            top_logprobs: self.top_logprobs.map(|count| ("top_logprobs", count)),
            unscored: !self.wants_logprobs() && !self.sums_logprobs,
            thinking_budget: self.thinking_budget,
            lenient_budget: self.lenient_budget,
            ..self.shared_parameters()?
        };
        Ok(GenerationRequest { prompt: Prompt::Chat(self.into_prompt()?), parameters })
    }
}

openai_request! {
    /// Body of `POST /v1/completions`. Fields not listed here are ignored.
    #[derive(Default)]
    pub struct CompletionRequest {
        /// One prompt or several, each a text or token ids.
        pub prompt: Prompts,
        /// Report the log-probability of each token and of so many alternatives.
        pub logprobs: Option<u32>,
        /// The text behind the gap that is to be filled; for models that were trained for it.
        pub suffix: Option<String>,
        /// Whether the text begins with the prompt. With `logprobs` the prompt's are reported too, and `max_tokens` may be 0.
        pub echo: Option<bool>,
    }
}

/// How much a model is to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // OpenAI's words.
pub enum ReasoningEffort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

/// How much a model is to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // OpenAI's words.
pub enum Verbosity {
    Low,
    Medium,
    High,
}

/// What a template is told by the server, and by no client.
const RESERVED: [&str; 13] = [
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "tokenize",
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// A client's variables for the template, which takes those that it names. Effort and verbosity are two too, and templates that only know on and off have their own name for
/// `none`; what the client set itself stays.
fn template_kwargs(
    given: Option<Map<String, Value>>,
    effort: Option<ReasoningEffort>,
    verbosity: Option<Verbosity>,
) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs = given.unwrap_or_default();
    if let Some(name) = RESERVED.iter().find(|name| kwargs.contains_key(**name)) {
        return Err(ApiError::Validation(format!(
            "Input validation error: `chat_template_kwargs` must not set `{name}`, which the request's own fields or the model's \
             files do; leave it out"
        )));
    }
    if let Some(verbosity) = verbosity {
        kwargs.entry("verbosity").or_insert_with(|| serde_json::to_value(verbosity).unwrap_or_default());
    }
    if let Some(effort) = effort {
        kwargs.entry("reasoning_effort").or_insert_with(|| serde_json::to_value(effort).unwrap_or_default());
        if effort == ReasoningEffort::None {
            for name in ["enable_thinking", "thinking"] {
                kwargs.entry(name).or_insert(Value::Bool(false));
            }
        }
    }
    Ok(kwargs)
}

/// What the answers of a completion hold beside the text.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// Log-probabilities of the tokens and of so many alternatives.
    pub logprobs: Option<usize>,
    /// The prompt before the text.
    pub echo: bool,
    /// Whether nothing of a prompt was cut off.
    pub whole_prompt: bool,
    /// Whether special tokens are part of the text.
    pub shows_special_tokens: bool,
    /// Nothing that was generated.
    pub of_prompt: bool,
    /// Where a stream counts tokens.
    pub usage: StreamUsage,
    /// What both routes may tell.
    pub extras: Extras,
}

impl CompletionRequest {
    /// One request for each prompt.
    ///
    /// # Errors
    /// When a field is understood but not served yet, or the number of prompts is not allowed.
    pub fn into_generations(self, max_prompts: usize) -> Result<Vec<GenerationRequest>, ApiError> {
        self.check_shared()?;
        self.check_suffix()?;
        let given = self.prompt.len();
        if given == 0 {
            return Err(ApiError::Validation("Input validation error: `prompt` holds no prompt; send one".to_owned()));
        }
        if given > max_prompts {
            return Err(ApiError::TooManyPrompts { given, limit: max_prompts });
        }
        let top_logprobs = self.logprobs.map(|count| ("logprobs", count));
        let shared = self.shared_parameters()?;
        // The scores of a prompt that is repeated are among those of the text.
        let echoed = self.logprobs.filter(|_| self.echoes()).map(|count| ("logprobs", count));
        let parameters = Parameters {
            top_logprobs,
            unscored: self.logprobs.is_none() && !self.sums_logprobs,
            prompt_logprobs: match (shared.prompt_logprobs, echoed) {
                (Some((field, asked)), Some((_, echoed))) => Some((field, asked.max(echoed))),
                (asked, echoed) => asked.or(echoed),
            },
            keep_prompt_tokens: shared.keep_prompt_tokens || self.echoes(),
            // One token is generated and not told: what was asked for is the prompt.
            max_new_tokens: if self.is_of_prompt() { Some(1) } else { shared.max_new_tokens },
            ..shared
        };
        let request = |prompt| GenerationRequest { prompt, parameters: parameters.clone() };
        let (special, suffix) = (self.add_special_tokens.unwrap_or(true), self.suffix.filter(|text| !text.is_empty()));
        Ok(self.prompt.into_prompts(special, suffix.as_deref()).into_iter().map(request).collect())
    }

    /// Whether the text begins with the prompt.
    #[must_use]
    pub fn echoes(&self) -> bool {
        self.echo.unwrap_or_default()
    }

    /// Whether the answer is about the prompt alone.
    #[must_use]
    pub fn is_of_prompt(&self) -> bool {
        self.max_tokens == Some(0) && (self.echoes() || self.prompt_logprobs.is_some())
    }

    /// What the answers hold beside the text.
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        Wanted {
            logprobs: self.logprobs.map(|count| count as usize),
            echo: self.echoes(),
            whole_prompt: self.truncate_prompt_tokens.is_none(),
            shows_special_tokens: self.skip_special_tokens == Some(false),
            of_prompt: self.is_of_prompt(),
            usage: self.stream_usage(),
            extras: self.extras(),
        }
    }

    /// A gap has a text before it, and only what fills it is returned.
    fn check_suffix(&self) -> Result<(), ApiError> {
        let refused = |sentence: &str| Err(ApiError::Validation(format!("Input validation error: {sentence}")));
        if self.suffix.as_ref().is_none_or(String::is_empty) {
            return Ok(());
        }
        match &self.prompt {
            Prompts::Tokens(_) | Prompts::TokenLists(_) => {
                refused("`suffix` needs a `prompt` that is text, not token ids")
            }
            _ if self.echoes() => refused("`suffix` and `echo` cannot be used together; leave one of them out"),
            _ if self.truncate_prompt_tokens.is_some() => {
                refused("`suffix` and `truncate_prompt_tokens` cannot be used together; send less text")
            }
            _ => Ok(()),
        }
    }
}

/// One prompt or several, each a text or token ids.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "`prompt` must be a string, a list of strings, a list of token ids, or a list of such lists"
)]
pub enum Prompts {
    /// One text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// One list of token ids.
    Tokens(Vec<u32>),
    /// Several lists of token ids.
    TokenLists(Vec<Vec<u32>>),
}

impl Default for Prompts {
    fn default() -> Self {
        Self::Tokens(Vec::new())
    }
}

impl Prompts {
    /// How many prompts there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Text(_) => 1,
            Self::Texts(texts) => texts.len(),
            Self::Tokens(ids) => usize::from(!ids.is_empty()),
            Self::TokenLists(lists) => lists.len(),
        }
    }

    /// Whether there is no prompt.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn into_prompts(self, add_special_tokens: bool, suffix: Option<&str>) -> Vec<Prompt> {
        let text = |text| match suffix {
            Some(suffix) => Prompt::Infill { prefix: text, suffix: suffix.to_owned() },
            None => Prompt::Text { text, add_special_tokens },
        };
        match self {
            Self::Text(one) => vec![text(one)],
            Self::Texts(several) => several.into_iter().map(text).collect(),
            Self::Tokens(ids) => vec![Prompt::Tokens(ids)],
            Self::TokenLists(lists) => lists.into_iter().map(Prompt::Tokens).collect(),
        }
    }
}
