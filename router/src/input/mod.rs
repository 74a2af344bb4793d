//! What turns a body into a valid request: template, tokens, then every rule. What leaves here is valid.

pub(crate) mod encoder;
pub mod error;
mod files;
mod infill;
pub mod limits;
pub mod model_text;
mod pool;
mod prompt;
pub mod request;
mod sampling;
mod special_tokens;
mod template;
#[cfg(test)]
pub(crate) mod test_models;
#[cfg(test)]
mod tests;
mod token_rules;
mod validation;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use error::InputError;
pub use limits::Limits;
pub use model_text::{LoadError, ModelText};
pub use request::{BeamSearch, ChatPrompt, GenerationRequest, Parameters, Prompt, Reasoning, Truncate};
pub use validation::{MAX_STOP_BYTES, MAX_STOP_TOKENS, MAX_TOP_LOGPROBS};

use self::pool::{Pool, guarded};
use crate::grammar::{GrammarSource, Thoughts};
use crate::output::TextParams;
use crate::request::ValidRequest;

/// Longest text, in bytes, that is tokenized where it arrives: that takes about as long as to wake another thread and to be
/// woken by it.
const SHORT_TEXT: usize = 256;

/// A request that may go to the engine, and what the answer needs to know about it.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// For the engine.
    pub request: ValidRequest,
    /// What the answer must look like, to be compiled before the engine takes the request.
    pub grammar: Option<WantedGrammar>,
    /// For the detokenizer.
    pub text: TextParams,
    /// The prompt as text, template applied; `None` for token ids.
    pub prompt_text: Option<String>,
    /// Characters of that text; 0 for token ids.
    pub prompt_characters: usize,
    /// Tokens of the prompt, or of the encoder's input, after `truncate`.
    pub input_length: usize,
    /// The seed used, drawn when the client gave none; `None` when greedy.
    pub seed: Option<u64>,
    /// Time between the call and the answer, waiting included.
    pub validation_time: Duration,
}

/// A grammar as the client stated it, and what may come before it.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedGrammar {
    /// The grammar.
    pub source: GrammarSource,
    /// The reasoning.
    pub thoughts: Option<Thoughts>,
    /// The fields that asked for it, for errors.
    pub fields: Vec<&'static str>,
}

/// One token of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSpan {
    /// Vocabulary id.
    pub id: u32,
    /// The piece of the text it stands for; empty for tokens that the tokenizer added.
    pub text: String,
    /// First character, counted in characters (not bytes) from the start of the text.
    pub start: usize,
    /// One past the last character.
    pub stop: usize,
}

/// Turns requests into valid ones on a bounded pool of threads. Cheap to clone; the threads end with the last clone.
#[derive(Debug, Clone)]
pub struct Preparer {
    model: Arc<ModelText>,
    limits: Arc<Limits>,
    pool: Pool,
}

impl Preparer {
    /// Starts `limits.validation_workers` threads.
    #[must_use]
    pub fn new(model: Arc<ModelText>, limits: Limits) -> Self {
        let pool = Pool::new(limits.validation_workers, limits.max_waiting_validations);
        Self { model, limits: Arc::new(limits), pool }
    }

    /// Renders, tokenizes and checks a request. A short text needs no other thread.
    ///
    /// # Errors
    /// `Overloaded` at once when the pool is full; else what is wrong with the request.
    pub async fn prepare(&self, request: GenerationRequest) -> Result<Prepared, InputError> {
        let since = Instant::now();
        let (model, limits) = (Arc::clone(&self.model), Arc::clone(&self.limits));
        let short = matches!(&request.prompt, Prompt::Text { text, .. } if text.len() <= SHORT_TEXT);
        let job = move || validation::prepare(&model, &limits, request, since);
        if short { guarded(job) } else { self.pool.run(job).await }
    }

    /// The tokens of a text, with character offsets.
    ///
    /// # Errors
    /// `Overloaded` at once when the pool is full; `Validation` when the text cannot be tokenized.
    pub async fn tokenize(&self, text: String, add_special_tokens: bool) -> Result<Vec<TokenSpan>, InputError> {
        let model = Arc::clone(&self.model);
        self.pool.run(move || validation::tokenize(&model, &text, add_special_tokens)).await
    }

    /// The text of some tokens.
    ///
    /// # Errors
    /// `Overloaded` at once when the pool is full; `Validation` when one of them is not in the vocabulary.
    pub async fn detokenize(&self, tokens: Vec<u32>, skip_special_tokens: bool) -> Result<String, InputError> {
        let model = Arc::clone(&self.model);
        self.pool.run(move || validation::detokenize(&model, tokens, skip_special_tokens)).await
    }

    /// How many tokens a part of a text has.
    ///
    /// # Errors
    /// `Overloaded` at once when the pool is full; `Validation` when the text cannot be tokenized.
    pub async fn count(&self, text: String) -> Result<usize, InputError> {
        let model = Arc::clone(&self.model);
        let short = text.len() <= SHORT_TEXT;
        let job = move || prompt::encode_inside(&model, &text).map(|ids| ids.len());
        if short { guarded(job) } else { self.pool.run(job).await }
    }

    /// A conversation as the model sees it.
    ///
    /// # Errors
    /// `Overloaded` at once when the pool is full; `Template` or `Validation` when it cannot be rendered.
    pub async fn render_chat(&self, chat: ChatPrompt) -> Result<String, InputError> {
        let model = Arc::clone(&self.model);
        self.pool.run(move || model.templates().render(&chat)).await
    }
}
