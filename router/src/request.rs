//! A request that has passed validation: what `input` hands to the engine. Later code cannot doubt it.

use std::sync::Arc;
use std::time::Instant;

use crate::grammar::Guide;
use crate::scheduler::{CacheKey, EarlyStopping, Priority, TenantId};

/// How the next token is drawn; neutral values switch a processor off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 is off.
    pub top_k: u32,
    /// 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub min_p: f32,
    /// 1 is off.
    pub typical_p: f32,
    /// 1 is off.
    pub repetition_penalty: f32,
    /// 0 is off.
    pub frequency_penalty: f32,
    /// 0 is off.
    pub presence_penalty: f32,
    /// How many of the last tokens penalties look at; 0 is all of them.
    pub penalty_window: u32,
    /// Every draw is a function of this and the position.
    pub seed: u64,
}

impl SamplingParams {
    /// The most likely token, always.
    #[must_use]
    pub const fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: 0,
            seed: 0,
        }
    }

    /// Whether it is the likeliest token of the model's own numbers.
    #[must_use]
    pub fn takes_likeliest(&self) -> bool {
        self.temperature == 0.0 && !self.needs_history()
    }

    /// Whether the shard must know the tokens so far.
    #[must_use]
    #[allow(clippy::float_cmp)] // Neutral values are exact.
    pub fn needs_history(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// The same for one of several sequences of a request, which draws on its own; the first one is the request's own.
    #[must_use]
    pub const fn for_choice(self, choice: u64) -> Self {
        Self { seed: derived(self.seed, choice), ..self }
    }
}

/// A seed for each choice. The mixer is SplitMix64's (Steele et al., "Fast Splittable Pseudorandom Number Generators",
/// 2014): neighbouring seeds and choices give unrelated ones.
const fn derived(seed: u64, choice: u64) -> u64 {
    if choice == 0 {
        return seed;
    }
    let mut z = seed.wrapping_add(choice.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// What a sequence may or may not draw whatever the model says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenRules {
    /// Tokens and what is added to their logits, ascending by token.
    pub bias: Vec<(u32, f32)>,
    /// Bits by token id of the only tokens that may be drawn; empty is all.
    pub allowed: Vec<u32>,
    /// Sequences of tokens, none empty, that may not be completed.
    pub banned: Vec<Vec<u32>>,
    /// Tokens that are generated before one may end the sequence.
    pub min_tokens: u32,
    /// A bias by which the text can be told from others.
    pub watermark: Option<Watermark>,
    /// A bound for the reasoning.
    pub thinking: Option<ThinkingBudget>,
}

impl TokenRules {
    /// Whether the shard must know the tokens so far.
    #[must_use]
    pub fn needs_history(&self) -> bool {
        self.watermark.is_some() || self.thinking.is_some() || self.banned.iter().any(|tokens| tokens.len() > 1)
    }
}

/// Reasoning that may not be longer than so many tokens: then what ends it is forced. No sequence of tokens here is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThinkingBudget {
    /// Tokens, those that open the reasoning not counted.
    pub budget: u32,
    /// An answer that begins with any of them reasons; without any it has begun to.
    pub openings: Vec<Vec<u32>>,
    /// What is forced; where it stands, the reasoning is over.
    pub end: Vec<u32>,
    /// Where any of these stands, it is over too.
    pub closings: Vec<Vec<u32>>,
}

/// A share of the vocabulary, chosen by the token before, becomes likelier (Kirchenbauer et al., arXiv 2301.10226).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Watermark {
    /// The share, between 0 and 1.
    pub gamma: f32,
    /// Added to the logits of its tokens; finite.
    pub delta: f32,
}

/// Whose a request is, how urgent it is, and how long an answer is of use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    /// Who is to get a fair share.
    pub tenant: TenantId,
    /// Whose cached prefixes it may use.
    pub cache_key: CacheKey,
    /// Its class; 0 goes first.
    pub priority: Priority,
    /// When it is to be given up, whether it waits or runs.
    pub deadline: Option<Instant>,
}

/// A beam search, which draws nothing: several continuations are followed at once, and the likeliest are the answers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BeamParams {
    /// Continuations that are followed.
    pub width: u32,
    /// Answers that are wanted, at least one and at most `width`.
    pub returned: u32,
    /// Scores are divided by the number of generated tokens to this power; finite.
    pub length_penalty: f32,
    /// When the search is over.
    pub early_stopping: EarlyStopping,
}

/// A valid request for one sequence: tokens in, tokens out. Text stays with `output`.
#[derive(Debug, Clone)]
pub struct ValidRequest {
    /// Prompt ids, at least one, at most `max_input_tokens`. Of a model with an encoder those that its decoder starts with.
    pub prompt: Vec<u32>,
    /// What the encoder reads, where the model has one: at least one token, at most `max_input_tokens`.
    pub source: Option<Arc<[u32]>>,
    /// How to draw.
    pub sampling: SamplingParams,
    /// What may be drawn, unless everything.
    pub rules: Option<Arc<TokenRules>>,
    /// Tokens to generate at most; prompt and output together fit `max_total_tokens`.
    pub max_new_tokens: u32,
    /// Tokens that end the sequence (end-of-sequence ids and the client's stop ids).
    pub stop_tokens: Arc<[u32]>,
    /// Alternatives to report with each token.
    pub top_n_tokens: u32,
    /// Whether to report log-probabilities of the prompt's tokens, and of how many alternatives to each.
    pub prompt_top_n: Option<u32>,
    /// Whether nobody looks at the log-probabilities of its tokens. Those that the grammar forces, whose would take the model's
    /// head over all of them, have none then.
    pub unscored: bool,
    /// What the answer must look like.
    pub grammar: Option<Guide>,
    /// Search instead of drawing.
    pub beams: Option<BeamParams>,
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn choices_draw_apart_and_the_first_as_ever(seed: u64) {
            let drawn = SamplingParams { temperature: 1.0, seed, ..SamplingParams::greedy() };
            prop_assert_eq!(drawn.for_choice(0), drawn);
            let seeds: HashSet<u64> = (0..64).map(|choice| drawn.for_choice(choice).seed).collect();
            prop_assert_eq!(seeds.len(), 64);
            prop_assert!(!seeds.contains(&drawn.for_choice(1).for_choice(1).seed));
        }
    }
}
