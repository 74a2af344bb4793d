//! What every HTTP dialect translates its body into. Nothing here is checked yet; `validation` does that.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::grammar::GrammarSource;
use crate::output::reasoning::ReasoningParserKind;
use crate::scheduler::EarlyStopping;

/// What the model continues.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Plain text.
    Text {
        /// The text.
        text: String,
        /// Whether the tokenizer adds its own special tokens (a beginning-of-sequence token, for most models).
        add_special_tokens: bool,
    },
    /// A conversation, rendered by the model's chat template.
    Chat(ChatPrompt),
    /// Token ids, taken as they are.
    Tokens(Vec<u32>),
    /// A gap to be filled.
    Infill {
        /// The text before it.
        prefix: String,
        /// The text behind it.
        suffix: String,
    },
}

/// A conversation for the chat template.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChatPrompt {
    /// `role`/`content` objects, as templates want them.
    pub messages: Vec<Value>,
    /// Tool definitions, as templates want them.
    pub tools: Option<Vec<Value>>,
    /// Whether the template ends with the opening of an assistant message.
    pub add_generation_prompt: bool,
    /// Whether the model continues the last message instead of starting a new one.
    pub continue_final_message: bool,
    /// Whether the tokenizer adds its own special tokens to those that the template has written.
    pub add_special_tokens: bool,
    /// More variables for the template; they never replace the ones above.
    pub template_kwargs: Map<String, Value>,
}

/// A request for one sequence, as the client stated it.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationRequest {
    /// What the model continues.
    pub prompt: Prompt,
    /// How.
    pub parameters: Parameters,
}

/// Generation parameters; `None` is "not given". Every rule about them is in `validation`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parameters {
    /// Answers to return.
    pub n: Option<u32>,
    /// Sequences to generate, of which the best `n` are returned; the width of a beam search.
    pub best_of: Option<u32>,
    /// Search with beams instead of drawing.
    pub beams: Option<BeamSearch>,
    /// Divides the logits.
    pub temperature: Option<f32>,
    /// Divides the logits of tokens seen before.
    pub repetition_penalty: Option<f32>,
    /// Lowers a token's logit by this for each time it was generated.
    pub frequency_penalty: Option<f32>,
    /// Lowers a token's logit by this once it was generated.
    pub presence_penalty: Option<f32>,
    /// How many of the last tokens the three penalties look at; 0 is all of them.
    pub penalty_window: u32,
    /// Draw among so many of the most likely tokens.
    pub top_k: Option<i32>,
    /// Draw among the most likely tokens of this total probability.
    pub top_p: Option<f32>,
    /// Draw among tokens at least this likely relative to the most likely one.
    pub min_p: Option<f32>,
    /// Draw among the most typical tokens of this total probability.
    pub typical_p: Option<f32>,
    /// Draw instead of taking the most likely token.
    pub do_sample: Option<bool>,
    /// Tokens to generate at most.
    pub max_new_tokens: Option<u32>,
    /// Whether a limit that leaves no room for the prompt is cut to what does, instead of being refused.
    pub cut_to_fit: bool,
    /// Strings that end the text.
    pub stop: Vec<String>,
    /// Tokens that end the text, beside the model's end-of-sequence tokens.
    pub stop_token_ids: Vec<u32>,
    /// Whether to go on past the model's end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Whether the stop string stays in the text: yes on native routes, no on OpenAI's.
    pub include_stop: bool,
    /// Keep only some of the prompt's last tokens.
    pub truncate: Option<Truncate>,
    /// Makes the draws repeatable.
    pub seed: Option<u64>,
    /// Alternatives to report with each token, by TGI's field and limit.
    pub top_n_tokens: Option<u32>,
    /// The same, by OpenAI's limit and under the name that the route has for it.
    pub top_logprobs: Option<(&'static str, u32)>,
    /// Alternatives to report with each token of the prompt, whose log-probabilities are reported then, and the name that the
    /// route has for it.
    pub prompt_logprobs: Option<(&'static str, u32)>,
    /// Whether the answer tells no log-probability of its tokens, and no sum of them.
    pub unscored: bool,
    /// Whether the answer needs the prompt's tokens.
    pub keep_prompt_tokens: bool,
    /// Whether special tokens are part of the text.
    pub show_special_tokens: bool,
    /// Whether to mark the text by a bias on its tokens.
    pub watermark: bool,
    /// Token ids, as text, and what is added to their logits.
    pub logit_bias: BTreeMap<String, f32>,
    /// The only tokens that may be drawn.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Strings that may not be written.
    pub bad_words: Vec<String>,
    /// Most tokens of reasoning.
    pub thinking_budget: Option<u32>,
    /// Whether the budget has no effect where reasoning cannot be told from the answer, instead of being refused.
    pub lenient_budget: bool,
    /// Tokens that are generated before one may end the text, and the name that the route has for it.
    pub min_new_tokens: Option<(&'static str, u32)>,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// OpenAI's rule: temperature 0 is greedy and everything else draws. Native routes refuse 0.
    pub greedy_at_zero: bool,
    /// Its class: 0 goes first.
    pub priority: Option<i64>,
    /// Special tokens that are part of the text, because something will look for them.
    pub shown_tokens: Arc<[u32]>,
    /// What the answer must look like; after the reasoning, where there is some.
    pub grammar: Option<GrammarSource>,
    /// The fields that ask for that, by the names that the route has for them.
    pub grammar_fields: Vec<&'static str>,
    /// How the model writes its reasoning, where it may reason before it answers.
    pub reasoning: Option<Reasoning>,
    /// Keeps its cached prefixes apart from those of requests with another salt.
    pub cache_salt: Option<String>,
}

/// The reasoning before an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reasoning {
    /// How the model writes it.
    pub kind: ReasoningParserKind,
    /// The answer begins inside it, whatever the prompt ends with.
    pub inside: bool,
}

/// How many of a prompt's last tokens are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truncate {
    /// So many, and the name that the route has for it.
    To(&'static str, usize),
    /// As many as are allowed.
    ToFit,
    /// As many as leave room for the answer that is asked for, or for one of a quarter of all tokens.
    ToAnswer,
}

/// A beam search, as the client stated it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BeamSearch {
    /// Scores are divided by the number of generated tokens to this power; 1 when not given.
    pub length_penalty: Option<f32>,
    /// When the search is over.
    pub early_stopping: EarlyStopping,
}

impl Parameters {
    /// Answers to return.
    #[must_use]
    pub fn answers(&self) -> usize {
        self.n.unwrap_or(1) as usize
    }

    /// Sequences to generate for them; those of a beam search run at once.
    #[must_use]
    pub fn sequences(&self) -> usize {
        self.answers().max(self.best_of.unwrap_or(1) as usize)
    }

    /// Whether there are more sequences than answers, and the likeliest are returned.
    pub(super) fn compares_answers(&self) -> bool {
        self.beams.is_some() || self.sequences() > self.answers()
    }

    /// Sequences of which something comes back: of a beam search only the answers.
    #[must_use]
    pub fn reported(&self) -> usize {
        if self.beams.is_some() { self.answers() } else { self.sequences() }
    }
}
