//! The limits that validation holds requests to.

use crate::request::Watermark;
use crate::settings::Settings;

/// What a request may ask for, and how much validation work may wait.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Most sequences that continue one prompt, on native routes.
    pub max_best_of: usize,
    /// Most sequences that continue one prompt, drawn or searched, on OpenAI's routes.
    pub max_choices: usize,
    /// Most stop sequences in one request.
    pub max_stop_sequences: usize,
    /// Most tokens in `logit_bias`.
    pub max_logit_bias: usize,
    /// Most strings in `bad_words`.
    pub max_bad_words: usize,
    /// How texts are marked.
    pub watermark: Watermark,
    /// Largest `top_n_tokens`.
    pub max_top_n_tokens: u32,
    /// Longest prompt, in tokens.
    pub max_input_tokens: usize,
    /// Longest prompt plus output, in tokens.
    pub max_total_tokens: usize,
    /// Threads that tokenize, template and validate.
    pub validation_workers: usize,
    /// Requests that may wait for one of those threads; one more is `Overloaded`.
    pub max_waiting_validations: usize,
}

impl From<&Settings> for Limits {
    fn from(settings: &Settings) -> Self {
        Self {
            max_best_of: settings.max_best_of,
            max_choices: settings.max_choices,
            max_stop_sequences: settings.max_stop_sequences,
            max_logit_bias: settings.max_logit_bias,
            max_bad_words: settings.max_bad_words,
            watermark: Watermark { gamma: settings.watermark_gamma, delta: settings.watermark_delta },
            max_top_n_tokens: settings.max_top_n_tokens,
            max_input_tokens: settings.max_input_tokens,
            max_total_tokens: settings.max_total_tokens,
            validation_workers: settings.validation_workers,
            // A request in the house waits here at most once, so a burst that admission accepts is never refused here.
            max_waiting_validations: settings.max_concurrent_requests.max(1),
        }
    }
}
