//! What comes of a sequence: its tokens one by one, and all of it.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::shard::handle::{PromptScore, Token};

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// It reached `max_new_tokens`.
    Length,
    /// The model ended it.
    EosToken,
    /// A stop string or a stop token of the client's ended it.
    StopSequence,
}

/// One token and the text it made visible.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The token.
    pub token: Token,
    /// Whether it is a special one, which has no visible text.
    pub special: bool,
    /// Characters that became visible with it; may be empty.
    pub text: String,
    /// Set on the last step.
    pub finish: Option<FinishReason>,
    /// The stop string that ended the text, on the last step.
    pub stopped_by: Option<Box<str>>,
    /// Tokens of the prompt that were in the prefix cache; the same on every step.
    pub cached_tokens: u32,
    /// What was said of the prompt's tokens, on the first step of a stream that asked for it.
    pub prompt_scores: Vec<Option<PromptScore>>,
}

/// What is known of a sequence before its first token.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Its number among the sequences of its prompt.
    pub choice: usize,
    /// Tokens of the prompt.
    pub input_length: usize,
    /// Characters of the prompt.
    pub prompt_characters: usize,
    /// The prompt as text, where it was text.
    pub prompt_text: Option<Arc<str>>,
    /// The prompt's tokens, kept only where the answer needs them.
    pub prompt_tokens: Vec<u32>,
    /// The seed, unless greedy.
    pub seed: Option<u64>,
    /// Time to template, tokenize and validate.
    pub validation: Duration,
}

impl Facts {
    /// A count of the prompt, where it is to be counted: with the first of its sequences.
    #[must_use]
    pub const fn once(&self, count: usize) -> usize {
        if self.choice == 0 { count } else { 0 }
    }
}

/// Where the time of a sequence went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// Since the call arrived.
    pub total: Duration,
    /// Validation.
    pub validation: Duration,
    /// Waiting for the first step.
    pub queue: Duration,
    /// From the first step to the last token.
    pub inference: Duration,
    /// When the first step began, and when the first and the last token came; `None` where none did.
    pub moments: Option<Moments>,
}

/// Seconds since the call arrived.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Moments {
    /// When the first step began.
    pub started: f64,
    /// When the first token was there.
    pub first: f64,
    /// When the last token was there.
    pub last: f64,
}

/// A whole sequence.
#[derive(Debug, Clone)]
pub struct Completed {
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub steps: Vec<Step>,
    /// Why it ended.
    pub finish: FinishReason,
    /// What was said of the prompt's tokens, when asked for; the first follows nothing.
    pub prompt_scores: Vec<Option<PromptScore>>,
    /// Tokens of the prompt that were in the prefix cache.
    pub cached_tokens: u32,
    /// What was known before.
    pub facts: Facts,
    /// Where the time went.
    pub times: Times,
}

impl Completed {
    /// Its tokens, the one that ended it included.
    #[must_use]
    pub fn token_ids(&self) -> Vec<u32> {
        self.steps.iter().map(|step| step.token.id).collect()
    }

    /// The mean log-probability of its tokens, by which the best of several is chosen.
    #[must_use]
    pub fn mean_logprob(&self) -> f32 {
        let mean = self.steps.iter().map(|step| step.token.logprob).sum::<f32>() / self.steps.len() as f32;
        if mean.is_nan() { f32::NEG_INFINITY } else { mean }
    }
}

/// Splits off the best `count` sequences, best first by mean log-probability; of equals the first is better. The others stay
/// in their order, and so do all when there are no others.
#[must_use]
pub fn best(all: Vec<Completed>, count: usize) -> (Vec<Completed>, Vec<Completed>) {
    if count >= all.len() {
        return (all, Vec::new());
    }
    let mut ranking: Vec<(usize, f32)> = all.iter().map(Completed::mean_logprob).enumerate().collect();
    ranking.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let mut left: Vec<Option<Completed>> = all.into_iter().map(Some).collect();
    let chosen = ranking.iter().take(count).filter_map(|&(place, _)| left.get_mut(place)?.take()).collect();
    (chosen, left.into_iter().flatten().collect())
}

/// A prompt is scored once, with its first sequence; the others report the same.
pub fn share_prompt_scores(all: &mut [Completed]) {
    for place in 1..all.len() {
        let (before, from) = all.split_at_mut(place);
        if let (Some(last), Some(one)) = (before.last(), from.first_mut().filter(|one| one.facts.choice > 0)) {
            one.prompt_scores.clone_from(&last.prompt_scores);
        }
    }
}
