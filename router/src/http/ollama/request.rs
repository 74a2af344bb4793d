//! Bodies of Ollama's routes, and their translation.

use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::http::anthropic::request::thinking_switches;
use crate::http::errors::ApiError;
use crate::http::native::types::StopStrings;
use crate::http::openai::grammar::FormatPlace;
use crate::http::openai::messages::Message;
use crate::http::openai::sampling::Seed;
use crate::http::openai::types::{ChatRequest, CompletionRequest, Prompts};
use crate::input::MAX_TOP_LOGPROBS;

/// What Ollama draws with when a request does not say.
const TEMPERATURE: f32 = 0.8;
const TOP_K: i32 = 40;
const TOP_P: f32 = 0.9;
/// What OpenAI calls `response_format`.
const FORMAT: FormatPlace = FormatPlace { field: "format", schema: "format" };

/// Body of `POST /api/chat`. Fields not listed here are ignored.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct OllamaChatRequest {
    /// Any name is accepted and repeated in the answer.
    pub model: Option<String>,
    /// The conversation so far; without one nothing is generated.
    pub messages: Option<Vec<OllamaMessage>>,
    /// Functions that the model may call, in OpenAI's form.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// Whether to stream the answer; true when left out.
    pub stream: Option<bool>,
    /// `json`, or a JSON schema that the answer is to be valid against.
    pub format: Option<Value>,
    /// How to draw.
    pub options: Option<OllamaOptions>,
    /// Whether the model thinks before it answers, or how much (`low`, `medium`, `high`), where its template has a switch.
    pub think: Option<Think>,
    /// Whether to report the log-probability of each token of the answer.
    pub logprobs: Option<bool>,
    /// Alternatives to report with each token; needs `logprobs`.
    #[schema(maximum = 20)]
    pub top_logprobs: Option<u32>,
}

/// Body of `POST /api/generate`. Fields not listed here are ignored.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct OllamaGenerateRequest {
    /// Any name is accepted and repeated in the answer.
    pub model: Option<String>,
    /// What the user says; without it nothing is generated.
    pub prompt: Option<String>,
    /// The text behind the one to generate.
    pub suffix: Option<String>,
    /// What the model is told beforehand.
    pub system: Option<String>,
    /// Continue the prompt as it is, without the chat template.
    pub raw: Option<bool>,
    /// Not served: the model's own template is used.
    pub template: Option<String>,
    /// Not served: send the conversation to `/api/chat`.
    pub context: Option<Vec<u32>>,
    /// Not served: this model takes text.
    pub images: Option<Vec<Value>>,
    /// Whether to stream the answer; true when left out.
    pub stream: Option<bool>,
    /// `json`, or a JSON schema that the answer is to be valid against.
    pub format: Option<Value>,
    /// How to draw.
    pub options: Option<OllamaOptions>,
    /// Whether the model thinks before it answers, or how much (`low`, `medium`, `high`), where its template has a switch.
    pub think: Option<Think>,
    /// Whether to report the log-probability of each token of the answer.
    pub logprobs: Option<bool>,
    /// Alternatives to report with each token; needs `logprobs`.
    #[schema(maximum = 20)]
    pub top_logprobs: Option<u32>,
}

/// One message of a conversation.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct OllamaMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// What is said.
    pub content: Option<String>,
    /// What was thought before.
    pub thinking: Option<String>,
    /// Not served: this model takes text.
    pub images: Option<Vec<Value>>,
    /// The calls that the message makes.
    pub tool_calls: Option<Vec<OllamaCall>>,
    /// The tool whose result the message is.
    #[serde(alias = "name")]
    pub tool_name: Option<String>,
    /// The call whose result the message is.
    pub tool_call_id: Option<String>,
}

/// A call of a tool.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct OllamaCall {
    /// Names the call.
    pub id: Option<String>,
    /// What is called.
    pub function: OllamaCalled,
}

/// What a call calls.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct OllamaCalled {
    /// The tool.
    pub name: String,
    /// With what.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub arguments: Map<String, Value>,
}

/// Whether or how much a model thinks.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "`think` must be true, false or a level such as `low`")]
pub enum Think {
    /// Whether.
    Switch(bool),
    /// How much.
    Level(String),
}

/// How to draw. Other options of Ollama's concern how a model is loaded, and are ignored.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct OllamaOptions {
    /// Tokens to generate at most; as many as fit when it is below 0.
    pub num_predict: Option<i64>,
    /// Divides the logits; 0 takes the most likely token. 0.8 when left out.
    pub temperature: Option<f32>,
    /// Draw among so many of the most likely tokens; 0 is off. 40 when left out.
    pub top_k: Option<i32>,
    /// Draw among the most likely tokens of this total probability. 0.9 when left out.
    pub top_p: Option<f32>,
    /// Draw among tokens at least this likely relative to the most likely one.
    pub min_p: Option<f32>,
    /// Draw among the most typical tokens of this total probability.
    pub typical_p: Option<f32>,
    /// Divides the logits of tokens seen before; above 0, 1 is off.
    pub repeat_penalty: Option<f32>,
    /// How many of the last tokens penalties look at; -1, which is all of the text, when left out, and 0 switches them off.
    #[schema(minimum = -1)]
    pub repeat_last_n: Option<i64>,
    /// Lowers a token's logit once it was generated.
    pub presence_penalty: Option<f32>,
    /// Lowers a token's logit for each time it was generated.
    pub frequency_penalty: Option<f32>,
    /// Makes the draws repeatable; below 0 they are not.
    pub seed: Option<i64>,
    /// Strings that end the text, and are not part of it.
    pub stop: Option<StopStrings>,
    /// Not served.
    pub mirostat: Option<i64>,
    /// Not served.
    pub tfs_z: Option<f32>,
}

/// A request to generate; without one there is nothing to say.
pub(super) enum Asked {
    /// A conversation.
    Chat(Box<ChatRequest>),
    /// A text to go on with.
    Text(Box<CompletionRequest>),
    /// Whether the model is there.
    Nothing,
}

impl OllamaChatRequest {
    pub(super) fn streamed(&self) -> bool {
        self.stream.unwrap_or(true)
    }

    pub(super) fn asked(self) -> Result<Asked, ApiError> {
        let logprobs = logprobs(self.logprobs, self.top_logprobs)?;
        let streamed = self.streamed();
        let messages = self.messages.unwrap_or_default();
        if messages.is_empty() {
            return Ok(Asked::Nothing);
        }
        let chat = ChatRequest {
            messages: conversation(messages)?,
            tools: self.tools,
            chat_template_kwargs: self.think.map(switches),
            response_format: format(self.format)?,
            format_place: FORMAT,
            stream: Some(streamed),
            logprobs: self.logprobs,
            top_logprobs: logprobs,
            ..self.options.unwrap_or_default().chat()?
        };
        Ok(Asked::Chat(Box::new(chat)))
    }
}

impl OllamaGenerateRequest {
    pub(super) fn streamed(&self) -> bool {
        self.stream.unwrap_or(true)
    }

    /// `has_template`: without one, a model continues texts only.
    pub(super) fn asked(self, has_template: bool) -> Result<Asked, ApiError> {
        let logprobs = logprobs(self.logprobs, self.top_logprobs)?;
        refuse("template", self.template.as_ref().is_some_and(|template| !template.is_empty()))?;
        refuse("context", self.context.as_ref().is_some_and(|context| !context.is_empty()))?;
        refuse_images(self.images.as_deref())?;
        let streamed = self.streamed();
        let raw = self.raw.unwrap_or_default() || !has_template;
        let suffix = self.suffix.filter(|suffix| !suffix.is_empty());
        let system = self.system.filter(|system| !system.is_empty());
        let Some(prompt) = self.prompt.filter(|prompt| !prompt.is_empty()) else { return Ok(Asked::Nothing) };
        let options = self.options.unwrap_or_default().chat()?;
        if raw || suffix.is_some() {
            refuse_sentence(
                system.is_some(),
                "`system` needs the chat template; leave it out, or send neither `raw` nor `suffix`",
            )?;
            let text = CompletionRequest {
                response_format: format(self.format)?,
                format_place: FORMAT,
                stream: Some(streamed),
                logprobs,
                ..completion(prompt, suffix, options)
            };
            return Ok(Asked::Text(Box::new(text)));
        }
        let spoken = |role: &str, text: String| Message {
            role: role.to_owned(),
            content: Some(Value::String(text)),
            other: Map::new(),
        };
        let mut messages: Vec<Message> = system.into_iter().map(|system| spoken("system", system)).collect();
        messages.push(spoken("user", prompt));
        let chat = ChatRequest {
            messages,
            chat_template_kwargs: self.think.map(switches),
            response_format: format(self.format)?,
            format_place: FORMAT,
            stream: Some(streamed),
            logprobs: self.logprobs,
            top_logprobs: logprobs,
            ..options
        };
        Ok(Asked::Chat(Box::new(chat)))
    }
}

impl OllamaOptions {
    /// A chat without messages.
    fn chat(self) -> Result<ChatRequest, ApiError> {
        refuse("mirostat", self.mirostat.is_some_and(|version| version != 0))?;
        #[allow(clippy::float_cmp)] // The neutral value is exact.
        refuse("tfs_z", self.tfs_z.is_some_and(|z| z != 1.0))?;
        let last = self.repeat_last_n.unwrap_or(-1);
        refuse_sentence(last < -1, "`repeat_last_n` must be a number of tokens, or -1 for all of the text")?;
        // Of no tokens at all there is nothing to penalise.
        let penalty = |given: Option<f32>| given.filter(|_| last != 0);
        Ok(ChatRequest {
            cut_to_fit: true,
            max_tokens: self.num_predict.filter(|most| *most >= 0).map(|most| u32::try_from(most).unwrap_or(u32::MAX)),
            temperature: Some(self.temperature.unwrap_or(TEMPERATURE)),
            top_k: Some(self.top_k.unwrap_or(TOP_K)),
            top_p: Some(self.top_p.unwrap_or(TOP_P)),
            min_p: self.min_p,
            typical_p: self.typical_p,
            repetition_penalty: penalty(self.repeat_penalty),
            presence_penalty: penalty(self.presence_penalty),
            frequency_penalty: penalty(self.frequency_penalty),
            penalty_window: u32::try_from(last.max(0)).unwrap_or(u32::MAX),
            seed: self.seed.filter(|seed| *seed >= 0).map(Seed::Signed),
            stop: self.stop,
            ..ChatRequest::default()
        })
    }
}

/// The same drawing for a text instead of a chat.
fn completion(prompt: String, suffix: Option<String>, options: ChatRequest) -> CompletionRequest {
    CompletionRequest {
        prompt: Prompts::Text(prompt),
        suffix,
        max_tokens: options.max_tokens,
        cut_to_fit: options.cut_to_fit,
        temperature: options.temperature,
        top_k: options.top_k,
        top_p: options.top_p,
        min_p: options.min_p,
        typical_p: options.typical_p,
        repetition_penalty: options.repetition_penalty,
        presence_penalty: options.presence_penalty,
        frequency_penalty: options.frequency_penalty,
        penalty_window: options.penalty_window,
        seed: options.seed,
        stop: options.stop,
        ..CompletionRequest::default()
    }
}

fn conversation(messages: Vec<OllamaMessage>) -> Result<Vec<Message>, ApiError> {
    // Ollama's calls have no ids; some templates need them. Calls that have no result yet, oldest first.
    let mut open: VecDeque<(String, String)> = VecDeque::new();
    let mut count = 0_usize;
    let mut out = Vec::with_capacity(messages.len());
    for message in messages {
        refuse_images(message.images.as_deref())?;
        let mut other = Map::new();
        other.extend(message.thinking.map(|thinking| ("reasoning_content".to_owned(), Value::String(thinking))));
        let calls = message.tool_calls.unwrap_or_default();
        if !calls.is_empty() {
            let call = |call: OllamaCall| {
                // Nine letters and digits, as Mistral's templates want them.
                let id = call.id.unwrap_or_else(|| format!("call{count:05}"));
                count += 1;
                open.push_back((call.function.name.clone(), id.clone()));
                let arguments = Value::Object(call.function.arguments).to_string();
                json!({"id": id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}})
            };
            other.insert("tool_calls".to_owned(), calls.into_iter().map(call).collect());
        }
        if message.role == "tool" {
            let named = |(name, _): &(String, String)| message.tool_name.as_ref().is_none_or(|tool| tool == name);
            let answered = open.iter().position(named).and_then(|place| open.remove(place));
            let id = message.tool_call_id.or(answered.map(|(_, id)| id));
            other.extend(id.map(|id| ("tool_call_id".to_owned(), Value::String(id))));
            other.extend(message.tool_name.map(|name| ("name".to_owned(), Value::String(name))));
        }
        out.push(Message { role: message.role, content: message.content.map(Value::String), other });
    }
    Ok(out)
}

fn switches(think: Think) -> Map<String, Value> {
    match think {
        Think::Switch(on) => thinking_switches(on),
        Think::Level(level) => {
            let mut switches = thinking_switches(true);
            switches.insert("reasoning_effort".to_owned(), Value::String(level));
            switches
        }
    }
}

/// OpenAI's form of Ollama's.
fn format(format: Option<Value>) -> Result<Option<Value>, ApiError> {
    match format {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(word)) if word.is_empty() => Ok(None),
        Some(Value::String(word)) if word == "json" => Ok(Some(json!({"type": "json_object"}))),
        Some(Value::Object(schema)) => {
            let schema = json!({"name": "format", "strict": true, "schema": schema});
            Ok(Some(json!({"type": "json_schema", "json_schema": schema})))
        }
        Some(_) => refuse_sentence(true, "`format` must be `json` or a JSON schema").map(|()| None),
    }
}

/// Alternatives to report with each token; `None` when no tokens are.
fn logprobs(asked: Option<bool>, alternatives: Option<u32>) -> Result<Option<u32>, ApiError> {
    let asked = asked.unwrap_or_default();
    refuse_sentence(
        alternatives.is_some_and(|count| count > MAX_TOP_LOGPROBS),
        &format!("`top_logprobs` must be <= {MAX_TOP_LOGPROBS}. Given: {}", alternatives.unwrap_or_default()),
    )?;
    refuse_sentence(
        !asked && alternatives.is_some_and(|count| count > 0),
        "`top_logprobs` needs `logprobs`; send `\"logprobs\": true` with it",
    )?;
    Ok(asked.then(|| alternatives.unwrap_or(0)))
}

fn refuse(field: &'static str, asked: bool) -> Result<(), ApiError> {
    if asked { Err(ApiError::Unsupported { field, remedy: "leave it out" }) } else { Ok(()) }
}

fn refuse_images(images: Option<&[Value]>) -> Result<(), ApiError> {
    refuse_sentence(
        images.is_some_and(|images| !images.is_empty()),
        "`images` cannot be read by this model; leave them out",
    )
}

fn refuse_sentence(asked: bool, sentence: &str) -> Result<(), ApiError> {
    if asked { Err(ApiError::Validation(format!("Input validation error: {sentence}"))) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(body: Value) -> Result<ChatRequest, String> {
        let body: OllamaChatRequest = serde_json::from_value(body).unwrap();
        match body.asked().map_err(|error| error.to_string())? {
            Asked::Chat(chat) => Ok(*chat),
            _ => Err("no chat".to_owned()),
        }
    }

    #[test]
    fn options_have_ollamas_meaning() {
        let hi = json!([{"role": "user", "content": "hi"}]);
        let plain = chat(json!({"messages": hi})).unwrap();
        assert_eq!((plain.temperature, plain.top_k, plain.top_p), (Some(0.8), Some(40), Some(0.9)));
        assert_eq!((plain.max_tokens, plain.repetition_penalty, plain.stream), (None, None, Some(true)));
        let options = json!({"num_predict": -1, "temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0.1, "repeat_penalty": 1.2,
                             "repeat_last_n": -1, "seed": -1, "stop": ["a"], "num_ctx": 4096, "mirostat": 0, "tfs_z": 1});
        let given = chat(json!({"messages": hi, "options": options, "stream": false})).unwrap();
        assert_eq!((given.temperature, given.top_k, given.top_p), (Some(0.0), Some(0), Some(1.0)));
        assert_eq!((given.max_tokens, given.repetition_penalty, given.stream), (None, Some(1.2), Some(false)));
        assert!(given.seed.is_none() && given.stop.is_some());
        assert_eq!((plain.penalty_window, given.penalty_window), (0, 0));
        let off = json!({"repeat_penalty": 1.2, "presence_penalty": 1.5, "repeat_last_n": 0, "num_predict": 7});
        let off = chat(json!({"messages": hi, "options": off})).unwrap();
        assert_eq!((off.repetition_penalty, off.presence_penalty, off.max_tokens), (None, None, Some(7)));
        let last = chat(json!({"messages": hi, "options": {"repeat_penalty": 1.2, "repeat_last_n": 33}})).unwrap();
        assert_eq!((last.repetition_penalty, last.penalty_window), (Some(1.2), 33));
        for (option, value) in [("mirostat", json!(2)), ("tfs_z", json!(0.5)), ("repeat_last_n", json!(-2))] {
            let error = chat(json!({"messages": hi, "options": {option: value}})).unwrap_err();
            assert!(error.contains(&format!("`{option}`")), "{error}");
        }
    }

    #[test]
    fn calls_and_results_find_each_other() {
        let call = |name: &str| json!({"function": {"name": name, "arguments": {"x": 1}}});
        let body = json!({"think": "low", "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call("a"), call("b")]},
            {"role": "tool", "tool_name": "b", "content": "2"},
            {"role": "tool", "content": "1"},
        ]});
        let chat = chat(body).unwrap();
        let messages: Vec<Value> = chat.messages.into_iter().map(Value::from).collect();
        assert_eq!(messages[1]["tool_calls"][1]["id"], "call00001");
        assert_eq!(messages[1]["tool_calls"][0]["function"], json!({"name": "a", "arguments": "{\"x\":1}"}));
        assert_eq!(messages[1]["reasoning_content"], "Hm.");
        assert_eq!(messages[2], json!({"role": "tool", "content": "2", "tool_call_id": "call00001", "name": "b"}));
        assert_eq!(messages[3]["tool_call_id"], "call00000");
        let switches = Value::Object(chat.chat_template_kwargs.unwrap());
        assert_eq!(switches, json!({"enable_thinking": true, "thinking": true, "reasoning_effort": "low"}));
    }
}
