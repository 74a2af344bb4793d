//! TGI's own request and answer bodies.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::grammar::Grammar;

/// Body of `POST /generate` and `POST /generate_stream`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct GenerateRequest {
    /// The prompt.
    #[schema(example = "What is a paged KV cache?")]
    pub inputs: String,
    /// How to continue it. Without this object tokens are drawn; with it, `do_sample` is false by default.
    pub parameters: Option<GenerateParameters>,
}

/// Body of `POST /`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct CompatGenerateRequest {
    /// The prompt.
    pub inputs: String,
    /// How to continue it; here `return_full_text` is true by default.
    pub parameters: Option<GenerateParameters>,
    /// Whether to stream the answer.
    #[serde(default)]
    pub stream: Option<bool>,
}

/// Generation parameters; leaving one out and sending null are the same.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct GenerateParameters {
    /// Sequences to generate, of which the one with the highest mean log-probability is returned; `details` has the others.
    #[schema(minimum = 1, example = 1)]
    pub best_of: Option<u32>,
    /// Divides the logits; above 0.
    #[schema(exclusive_minimum = 0.0, example = 0.7)]
    pub temperature: Option<f32>,
    /// Divides the logits of tokens seen before; above 0, 1 is off.
    #[schema(exclusive_minimum = 0.0, example = 1.05)]
    pub repetition_penalty: Option<f32>,
    /// Lowers a token's logit for each time it was generated.
    #[schema(minimum = -2.0, maximum = 2.0)]
    pub frequency_penalty: Option<f32>,
    /// Lowers a token's logit once it was generated.
    #[schema(minimum = -2.0, maximum = 2.0)]
    pub presence_penalty: Option<f32>,
    /// Draw among so many of the most likely tokens.
    #[schema(exclusive_minimum = 0, example = 40)]
    pub top_k: Option<i32>,
    /// Draw among the most likely tokens of this total probability.
    #[schema(exclusive_minimum = 0.0, maximum = 1.0, example = 0.95)]
    pub top_p: Option<f32>,
    /// Draw among tokens at least this likely relative to the most likely one.
    #[schema(minimum = 0.0, maximum = 1.0)]
    pub min_p: Option<f32>,
    /// Draw among the most typical tokens of this total probability.
    #[schema(exclusive_minimum = 0.0, maximum = 1.0)]
    pub typical_p: Option<f32>,
    /// Draw tokens instead of taking the most likely one.
    pub do_sample: Option<bool>,
    /// Tokens to generate at most; as many as fit when left out.
    #[schema(minimum = 1, example = 64)]
    pub max_new_tokens: Option<u32>,
    /// Whether `generated_text` begins with the prompt.
    pub return_full_text: Option<bool>,
    /// Strings that end the text, and stay in it.
    pub stop: Option<StopStrings>,
    /// Tokens that end the text, beside the model's end-of-sequence tokens.
    pub stop_token_ids: Option<Vec<u32>>,
    /// Go on past the model's end-of-sequence tokens.
    pub ignore_eos: Option<bool>,
    /// Keep only so many of the prompt's last tokens.
    #[schema(minimum = 1)]
    pub truncate: Option<usize>,
    /// Mark the text by a bias on its tokens, which a detector finds.
    pub watermark: Option<bool>,
    /// Token ids, as text, and what is added to their logits, between -100 and 100.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// The only tokens that may be drawn, at least one.
    #[schema(min_items = 1)]
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Strings that may not be written, as the tokenizer spells them with and without a space before.
    pub bad_words: Option<Vec<String>>,
    /// Tokens to generate before one may end the text; stop strings are not looked for in them.
    #[schema(minimum = 0)]
    pub min_new_tokens: Option<u32>,
    /// Whether the answer has `details`.
    pub details: Option<bool>,
    /// Whether `details` has the prompt's tokens and their log-probabilities; not on streams.
    pub decoder_input_details: Option<bool>,
    /// Makes the draws repeatable.
    pub seed: Option<u64>,
    /// Alternatives to report with each token.
    pub top_n_tokens: Option<u32>,
    /// What the text must look like.
    pub grammar: Option<Grammar>,
    /// The adapter to use.
    pub adapter_id: Option<String>,
    /// Class of urgency: 0 goes first and is the default.
    #[schema(minimum = 0, maximum = 3)]
    pub priority: Option<i64>,
    /// Only requests with the same salt (and the same API key) share cached prefixes.
    #[schema(max_length = 256)]
    pub cache_salt: Option<String>,
}

/// One stop string, or several.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "`stop` must be a string or a list of strings")]
pub enum StopStrings {
    /// One.
    One(String),
    /// Several.
    Several(Vec<String>),
}

impl From<StopStrings> for Vec<String> {
    fn from(stop: StopStrings) -> Self {
        match stop {
            StopStrings::One(one) => vec![one],
            StopStrings::Several(several) => several,
        }
    }
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = FinishReason)]
pub enum NativeFinishReason {
    /// It reached `max_new_tokens`.
    Length,
    /// The model ended it.
    EosToken,
    /// A stop string ended it.
    StopSequence,
}

/// A token of the prompt.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct PrefillToken {
    /// Vocabulary id.
    pub id: u32,
    /// Its text.
    pub text: String,
    /// Natural logarithm of its probability; null for the first token, which follows nothing.
    pub logprob: Option<f32>,
}

/// A generated token.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Token)]
pub struct TokenInfo {
    /// Vocabulary id.
    pub id: u32,
    /// The characters that became visible with it; a special token's name.
    pub text: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Whether it is a special token, which `generated_text` leaves out.
    pub special: bool,
}

/// Answer of `POST /generate`, and the one element of `POST /`'s.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct GenerateResponse {
    /// The text.
    pub generated_text: String,
    /// What it is made of, when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Details>,
}

/// What a text is made of.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Details {
    /// Why it ended.
    pub finish_reason: NativeFinishReason,
    /// Tokens generated.
    pub generated_tokens: u32,
    /// The seed of its draws; null when greedy.
    pub seed: Option<u64>,
    /// The prompt's tokens; empty unless asked for.
    pub prefill: Vec<PrefillToken>,
    /// The text's tokens.
    pub tokens: Vec<TokenInfo>,
    /// The most likely tokens at each position; left out unless asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_tokens: Vec<Vec<TokenInfo>>,
    /// The sequences that were not the best; left out unless there are some.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub best_of_sequences: Vec<BestOfSequence>,
}

/// A sequence that was not the best.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct BestOfSequence {
    /// The text.
    pub generated_text: String,
    /// Why it ended.
    pub finish_reason: NativeFinishReason,
    /// Tokens generated.
    pub generated_tokens: u32,
    /// The seed of its draws.
    pub seed: Option<u64>,
    /// The prompt's tokens; empty unless asked for.
    pub prefill: Vec<PrefillToken>,
    /// The text's tokens.
    pub tokens: Vec<TokenInfo>,
    /// The most likely tokens at each position; left out unless asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_tokens: Vec<Vec<TokenInfo>>,
}

/// One event of a stream.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct StreamResponse {
    /// Its number, from 1.
    pub index: u32,
    /// The token.
    pub token: TokenInfo,
    /// The most likely tokens at this position; left out unless asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_tokens: Vec<TokenInfo>,
    /// The whole text, on the last event.
    pub generated_text: Option<String>,
    /// On the last event, when asked for.
    pub details: Option<StreamDetails>,
}

/// `details` of a stream's last event.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct StreamDetails {
    /// Why the text ended.
    pub finish_reason: NativeFinishReason,
    /// Tokens generated.
    pub generated_tokens: u32,
    /// The seed of its draws; null when greedy.
    pub seed: Option<u64>,
    /// Tokens of the prompt.
    pub input_length: u32,
}

/// One token of a text, with its place in it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SimpleToken {
    /// Vocabulary id.
    pub id: u32,
    /// Its piece of the text.
    pub text: String,
    /// First character.
    pub start: usize,
    /// One past the last character.
    pub stop: usize,
}

/// Body of `POST /detokenize`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct DetokenizeRequest {
    /// Vocabulary ids.
    #[schema(example = json!([9707, 1879]))]
    pub tokens: Vec<u32>,
    /// Whether special tokens are left out: by default they are written by name.
    pub skip_special_tokens: Option<bool>,
}

/// Answer of `POST /detokenize`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct DetokenizeResponse {
    /// The text.
    pub prompt: String,
}

/// Answer of `POST /chat_tokenize`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ChatTokenizeResponse {
    /// The tokens of the templated text.
    pub tokenize_response: Vec<SimpleToken>,
    /// The conversation as the model sees it.
    pub templated_text: String,
}
