//! The fields that OpenAI's two generation routes share, and what is refused for now.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::http::errors::ApiError;
use crate::input::{BeamSearch, Truncate};
use crate::scheduler::EarlyStopping;

/// Declares a request body: its own fields and the ones that both routes have. Not a flattened struct, because serde then
/// forgets which field an error is about.
macro_rules! openai_request {
    (
        $(#[$meta:meta])*
        pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, serde::Deserialize, utoipa::ToSchema)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
            /// Any name is accepted and repeated in the answer; `tgi` stands for the model served.
            pub model: Option<String>,
            /// Tokens to generate at most; as many as fit when left out.
            #[schema(minimum = 1)]
            pub max_tokens: Option<u32>,
            /// Divides the logits; 0 takes the most likely token.
            #[schema(minimum = 0.0)]
            pub temperature: Option<f32>,
            /// Draw among the most likely tokens of this total probability.
            #[schema(exclusive_minimum = 0.0, maximum = 1.0)]
            pub top_p: Option<f32>,
            /// Draw among so many of the most likely tokens; 0 and -1 are off.
            #[schema(minimum = -1)]
            pub top_k: Option<i32>,
            /// Draw among tokens at least this likely relative to the most likely one.
            #[schema(minimum = 0.0, maximum = 1.0)]
            pub min_p: Option<f32>,
            /// Draw among the most typical tokens of this total probability.
            #[schema(exclusive_minimum = 0.0, maximum = 1.0)]
            pub typical_p: Option<f32>,
            /// Divides the logits of tokens seen before; above 0, 1 is off.
            #[schema(exclusive_minimum = 0.0)]
            pub repetition_penalty: Option<f32>,
            /// Lowers a token's logit for each time it was generated.
            #[schema(minimum = -2.0, maximum = 2.0)]
            pub frequency_penalty: Option<f32>,
            /// Lowers a token's logit once it was generated.
            #[schema(minimum = -2.0, maximum = 2.0)]
            pub presence_penalty: Option<f32>,
            /// Makes the draws repeatable.
            pub seed: Option<$crate::http::openai::sampling::Seed>,
            /// Strings that end the text, and are not part of it.
            pub stop: Option<$crate::http::native::types::StopStrings>,
            /// Tokens that end the text, beside the model's end-of-sequence tokens.
            pub stop_token_ids: Option<Vec<u32>>,
            /// Whether stop strings and stop tokens are part of the text after all.
            pub include_stop_str_in_output: Option<bool>,
            /// Go on past the model's end-of-sequence tokens.
            pub ignore_eos: Option<bool>,
            /// Whether to stream the answer.
            pub stream: Option<bool>,
            /// What a stream holds beside the text.
            pub stream_options: Option<$crate::http::openai::sampling::StreamOptions>,
            /// Answers to return.
            #[schema(minimum = 1)]
            pub n: Option<u32>,
            /// Sequences to generate for each prompt, of which the best `n` by mean log-probability are returned; with
            /// `use_beam_search` the number of beams. `n` by default.
            #[schema(minimum = 1)]
            pub best_of: Option<u32>,
            /// Class of urgency: 0 goes first and is the default.
            #[schema(minimum = 0, maximum = 3)]
            pub priority: Option<i64>,
            /// Only requests with the same salt (and the same API key) share cached prefixes.
            #[schema(max_length = 256)]
            pub cache_salt: Option<String>,
            /// Adapters are not served yet.
            pub adapter_id: Option<String>,
            /// What the answer must look like: `text`, `json_object`, `json_schema`, `regex`, `grammar` or `structural_tag`.
            pub response_format: Option<serde_json::Value>,
            /// Token ids, as text, and what is added to their logits, between -100 and 100.
            pub logit_bias: Option<std::collections::BTreeMap<String, f32>>,
            /// The only tokens that may be drawn, at least one.
            #[schema(min_items = 1)]
            pub allowed_token_ids: Option<Vec<u32>>,
            /// Strings that may not be written, as the tokenizer spells them with and without a space before.
            pub bad_words: Option<Vec<String>>,
            /// Tokens to generate before one may end the text; stop strings are not looked for in them.
            #[schema(minimum = 0)]
            pub min_tokens: Option<u32>,
            /// What the answer must look like, in TGI's form.
            pub grammar: Option<$crate::http::native::grammar::Grammar>,
            /// What the answer must look like, in vLLM's form.
            pub structured_outputs: Option<$crate::http::openai::grammar::StructuredOutputs>,
            /// The answer is JSON of this schema, an object or its text.
            pub guided_json: Option<serde_json::Value>,
            /// This regular expression matches the answer from end to end.
            pub guided_regex: Option<String>,
            /// The answer is one of these strings.
            pub guided_choice: Option<Vec<String>>,
            /// The answer is text of this grammar, in Lark or GBNF (EBNF whose rules are written `name ::= ...`).
            pub guided_grammar: Option<String>,
            /// A regular expression for what may stand between two parts of the JSON that is asked for.
            pub guided_whitespace_pattern: Option<String>,
            /// Report the log-probability of each token of the prompt and of so many alternatives; not on streams.
            #[schema(minimum = 0, maximum = 20)]
            pub prompt_logprobs: Option<u32>,
            /// Keep only so many of the prompt's last tokens; -1 keeps as many as are allowed.
            #[schema(minimum = -1)]
            pub truncate_prompt_tokens: Option<i64>,
            /// Whether the tokenizer adds its own special tokens to the prompt: by default to a text, and not to a conversation,
            /// whose template writes them.
            pub add_special_tokens: Option<bool>,
            /// Whether special tokens are left out of the text; true by default.
            pub skip_special_tokens: Option<bool>,
            /// Whether to report the tokens of prompt and answer.
            pub return_token_ids: Option<bool>,
            /// Follow the `best_of` likeliest texts at once and return the best `n` of them, instead of drawing.
            pub use_beam_search: Option<bool>,
            /// Beam search divides scores by the number of tokens to this power: more than 0 favours long answers. 1 by default.
            pub length_penalty: Option<f64>,
            /// No field of a body: other dialects cut a limit of tokens that does not fit.
            #[serde(skip)]
            pub cut_to_fit: bool,
            /// No field of a body: the answer tells how likely it is as a whole.
            #[serde(skip)]
            pub sums_logprobs: bool,
            /// No field of a body: how many of the last tokens Ollama's penalties look at; 0 is all of them.
            #[serde(skip)]
            pub penalty_window: u32,
            /// No field of a body: what other dialects call `response_format`.
            #[serde(skip)]
            pub format_place: $crate::http::openai::grammar::FormatPlace,
            /// When a beam search is over.
            pub early_stopping: Option<$crate::http::openai::sampling::Stopping>,
        }

        impl $name {
            /// Whether the answer is streamed.
            #[must_use]
            pub fn streamed(&self) -> bool {
                self.stream.unwrap_or_default()
            }

            /// Answers to return for each prompt.
            #[must_use]
            pub fn answers(&self) -> usize {
                self.n.unwrap_or(1).max(1) as usize
            }

            /// Sequences for each prompt, as far as they are allowed: what a call takes before it is checked.
            #[must_use]
            pub fn sequences(&self, most: usize) -> usize {
                self.answers().max(self.best_of.unwrap_or(1) as usize).clamp(1, most.max(1))
            }

            /// Of these sequences those that answer something: of a beam search, as many as it returns.
            #[must_use]
            pub fn reported(&self, sequences: usize) -> usize {
                if self.use_beam_search.unwrap_or_default() { self.answers().min(sequences) } else { sequences }
            }

            /// Where a stream counts tokens.
            #[must_use]
            pub fn stream_usage(&self) -> $crate::http::openai::sampling::StreamUsage {
                $crate::http::openai::sampling::StreamUsage::of(self.stream_options.as_ref())
            }

            /// What the answer holds beside the text.
            #[must_use]
            pub fn extras(&self) -> $crate::http::openai::sampling::Extras {
                $crate::http::openai::sampling::Extras {
                    prompt_logprobs: self.prompt_logprobs,
                    token_ids: self.return_token_ids.unwrap_or_default(),
                }
            }

            /// Refuses what is understood but not served yet.
            fn check_shared(&self) -> Result<(), $crate::http::errors::ApiError> {
                match &self.adapter_id {
                    Some(adapter) => Err($crate::http::errors::ApiError::UnknownAdapter(adapter.clone())),
                    None => Ok(()),
                }
            }

            /// The beam search that is asked for.
            fn beams(&self) -> Result<Option<$crate::input::BeamSearch>, $crate::http::errors::ApiError> {
                let asked = self.use_beam_search.unwrap_or_default();
                $crate::http::openai::sampling::beam_search(asked, self.length_penalty, self.early_stopping)
            }

            /// What the answer must look like, and the field that says so.
            fn shape(
                &self,
            ) -> Result<Option<(&'static str, $crate::grammar::GrammarSource)>, $crate::http::errors::ApiError> {
                $crate::http::openai::grammar::source(&$crate::http::openai::grammar::Asked {
                    response_format: self.response_format.as_ref(),
                    format_place: self.format_place,
                    structured_outputs: self.structured_outputs.as_ref(),
                    grammar: self.grammar.as_ref(),
                    guided_json: self.guided_json.as_ref(),
                    guided_regex: self.guided_regex.as_deref(),
                    guided_choice: self.guided_choice.as_deref(),
                    guided_grammar: self.guided_grammar.as_deref(),
                    guided_whitespace_pattern: self.guided_whitespace_pattern.as_deref(),
                })
            }

            /// The shared fields as `input` wants them.
            fn shared_parameters(&self) -> Result<$crate::input::Parameters, $crate::http::errors::ApiError> {
                let shape = self.shape()?;
                Ok($crate::input::Parameters {
                    n: self.n,
                    best_of: self.best_of,
                    beams: self.beams()?,
                    priority: self.priority,
                    cache_salt: self.cache_salt.clone(),
                    temperature: self.temperature,
                    repetition_penalty: self.repetition_penalty,
                    frequency_penalty: self.frequency_penalty,
                    presence_penalty: self.presence_penalty,
                    penalty_window: self.penalty_window,
                    // vLLM's clients say "off" by 0 or -1.
                    top_k: self.top_k.filter(|top_k| !matches!(top_k, -1 | 0)),
                    top_p: self.top_p,
                    min_p: self.min_p,
                    typical_p: self.typical_p,
                    max_new_tokens: self.max_tokens,
                    stop: self.stop.clone().map(Vec::from).unwrap_or_default(),
                    stop_token_ids: self.stop_token_ids.clone().unwrap_or_default(),
                    ignore_eos: self.ignore_eos.unwrap_or_default(),
                    include_stop: self.include_stop_str_in_output.unwrap_or_default(),
                    truncate: self
                        .truncate_prompt_tokens
                        .map(|given| $crate::http::openai::sampling::truncate(given, self.cut_to_fit)),
                    prompt_logprobs: self.prompt_logprobs.map(|count| ("prompt_logprobs", count)),
                    keep_prompt_tokens: self.prompt_logprobs.is_some() || self.return_token_ids.unwrap_or_default(),
                    show_special_tokens: self.skip_special_tokens == Some(false),
                    logit_bias: self.logit_bias.clone().unwrap_or_default(),
                    allowed_token_ids: self.allowed_token_ids.clone(),
                    bad_words: self.bad_words.clone().unwrap_or_default(),
                    min_new_tokens: self.min_tokens.map(|count| ("min_tokens", count)),
                    cut_to_fit: self.cut_to_fit,
                    seed: self.seed.map(u64::from),
                    stream: self.streamed(),
                    greedy_at_zero: true,
                    grammar_fields: shape.iter().map(|(field, _)| *field).collect(),
                    grammar: shape.map(|(_, source)| source),
                    ..$crate::input::Parameters::default()
                })
            }
        }
    };
}
pub(super) use openai_request;

/// A seed: any integer of 64 bits, signed or not.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(untagged, expecting = "`seed` must be an integer of 64 bits")]
pub enum Seed {
    /// As it is.
    Unsigned(u64),
    /// Its bits.
    Signed(i64),
}

impl From<Seed> for u64 {
    fn from(seed: Seed) -> Self {
        match seed {
            Seed::Unsigned(seed) => seed,
            Seed::Signed(seed) => seed.cast_unsigned(),
        }
    }
}

/// When a beam search is over.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(untagged, expecting = "`early_stopping` must be true, false or `never`")]
pub enum Stopping {
    /// True: as soon as there are as many answers as beams. False: then, when the best beam would not do better if it ended now.
    Soon(bool),
    /// Then, when no beam can do better at any length.
    Late(StoppingWord),
}

/// A word for when a beam search is over.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum StoppingWord {
    /// When no beam can do better at any length.
    Never,
}

impl From<Stopping> for EarlyStopping {
    fn from(stopping: Stopping) -> Self {
        match stopping {
            Stopping::Soon(true) => Self::WhenFull,
            Stopping::Soon(false) => Self::WhenUnlikely,
            Stopping::Late(StoppingWord::Never) => Self::Never,
        }
    }
}

/// The beam search that is asked for. As in vLLM, what only matters to one is refused without one, unless it is neutral.
#[allow(clippy::float_cmp)] // The neutral value is exact.
pub(super) fn beam_search(
    asked: bool,
    length_penalty: Option<f64>,
    early_stopping: Option<Stopping>,
) -> Result<Option<BeamSearch>, ApiError> {
    let early_stopping = early_stopping.map(EarlyStopping::from).unwrap_or_default();
    if asked {
        // What is too large becomes infinite, which validation refuses.
        return Ok(Some(BeamSearch { length_penalty: length_penalty.map(|penalty| penalty as f32), early_stopping }));
    }
    let idle = |field: &str| {
        let sentence = format!("`{field}` has no effect without a beam search; leave it out or send `use_beam_search`");
        Err(ApiError::Validation(format!("Input validation error: {sentence}")))
    };
    match (length_penalty, early_stopping) {
        (Some(penalty), _) if penalty != 1.0 => idle("length_penalty"),
        (_, EarlyStopping::WhenUnlikely) => Ok(None),
        _ => idle("early_stopping"),
    }
}

/// What a stream holds beside the text.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// Whether it ends with a chunk that counts tokens.
    pub include_usage: Option<bool>,
    /// With `include_usage`, whether every chunk counts the tokens of its own answer so far.
    pub continuous_usage_stats: Option<bool>,
}

/// Where a stream counts tokens.
#[derive(Debug, Clone, Copy, Default)]
pub struct StreamUsage {
    /// In a last chunk for all answers.
    pub last: bool,
    /// In every chunk.
    pub every: bool,
}

impl StreamUsage {
    /// As in vLLM, there is nothing in every chunk without something in the last.
    #[must_use]
    pub fn of(options: Option<&StreamOptions>) -> Self {
        let is_set = |of: fn(&StreamOptions) -> Option<bool>| options.and_then(of).unwrap_or_default();
        let last = is_set(|options| options.include_usage);
        Self { last, every: last && is_set(|options| options.continuous_usage_stats) }
    }
}

/// What an answer holds beside the text, on both routes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extras {
    /// Log-probabilities of the prompt and of so many alternatives.
    pub prompt_logprobs: Option<u32>,
    /// The tokens of prompt and answer.
    pub token_ids: bool,
}

/// How much of a prompt is kept; what is no number of tokens is refused with the limit. `cut_to_fit`: the answer is to have room.
pub(super) fn truncate(given: i64, cut_to_fit: bool) -> Truncate {
    match given {
        -1 if cut_to_fit => Truncate::ToAnswer,
        -1 => Truncate::ToFit,
        _ => Truncate::To("truncate_prompt_tokens", usize::try_from(given).unwrap_or(0)),
    }
}

/// Refuses a field that asks for something; null, false, 0 and empty values ask for nothing.
pub(super) fn refuse(field: &'static str, value: Option<&Value>, remedy: &'static str) -> Result<(), ApiError> {
    let asks = match value {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(list)) => !list.is_empty(),
        Some(Value::Object(map)) => !map.is_empty(),
        Some(Value::Bool(true)) => true,
    };
    if asks { Err(ApiError::Unsupported { field, remedy }) } else { Ok(()) }
}
