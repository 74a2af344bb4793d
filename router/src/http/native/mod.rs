//! TGI's own routes.

pub mod generate;
pub mod grammar;
pub mod stream;
pub mod tokenize;
pub mod types;

use self::types::{GenerateParameters, NativeFinishReason, TokenInfo};
use super::errors::ApiError;
use super::generation::{FinishReason, Step};
use crate::input::{GenerationRequest, ModelText, Parameters, Prompt, Truncate};

/// What the answer holds beside the text.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// `details`.
    pub details: bool,
    /// The prompt before the text.
    pub full_text: bool,
    /// The most likely tokens at each position.
    pub top_tokens: bool,
}

/// Translates a native request.
pub(in crate::http) fn translate(
    inputs: String,
    parameters: Option<GenerateParameters>,
    stream: bool,
) -> Result<(GenerationRequest, Wanted), ApiError> {
    // TGI draws when there are no parameters at all, and takes the most likely token when there are.
    let do_sample = parameters.is_none();
    let given = parameters.unwrap_or_default();
    if let Some(adapter) = given.adapter_id {
        return Err(ApiError::UnknownAdapter(adapter));
    }
    let grammar = given.grammar.map(|grammar| grammar.source("grammar")).transpose()?;
    let prompt_logprobs = given.decoder_input_details.unwrap_or_default();
    let wanted = Wanted {
        details: given.details.unwrap_or_default() || prompt_logprobs,
        full_text: given.return_full_text.unwrap_or_default(),
        top_tokens: given.top_n_tokens.is_some_and(|count| count > 0),
    };
    let parameters = Parameters {
        beams: None,
        n: None,
        best_of: given.best_of,
        temperature: given.temperature,
        repetition_penalty: given.repetition_penalty,
        frequency_penalty: given.frequency_penalty,
        presence_penalty: given.presence_penalty,
        top_k: given.top_k,
        top_p: given.top_p,
        min_p: given.min_p,
        typical_p: given.typical_p,
        do_sample: Some(given.do_sample.unwrap_or(do_sample)),
        max_new_tokens: given.max_new_tokens,
        stop: given.stop.map(Vec::from).unwrap_or_default(),
        stop_token_ids: given.stop_token_ids.unwrap_or_default(),
        ignore_eos: given.ignore_eos.unwrap_or_default(),
        include_stop: true,
        truncate: given.truncate.map(|length| Truncate::To("truncate", length)),
        seed: given.seed,
        top_n_tokens: given.top_n_tokens,
        top_logprobs: None,
        prompt_logprobs: prompt_logprobs.then_some(("decoder_input_details", 0)),
        unscored: !stream && !wanted.details,
        keep_prompt_tokens: prompt_logprobs,
        watermark: given.watermark.unwrap_or_default(),
        logit_bias: given.logit_bias.unwrap_or_default(),
        allowed_token_ids: given.allowed_token_ids,
        bad_words: given.bad_words.unwrap_or_default(),
        min_new_tokens: given.min_new_tokens.map(|count| ("min_new_tokens", count)),
        stream,
        greedy_at_zero: false,
        priority: given.priority,
        cache_salt: given.cache_salt,
        grammar,
        grammar_fields: vec!["grammar"],
        ..Parameters::default()
    };
    let prompt = Prompt::Text { text: inputs, add_special_tokens: true };
    Ok((GenerationRequest { prompt, parameters }, wanted))
}

impl From<FinishReason> for NativeFinishReason {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Length => Self::Length,
            FinishReason::EosToken => Self::EosToken,
            FinishReason::StopSequence => Self::StopSequence,
        }
    }
}

fn token_info(step: &Step, model: &ModelText) -> TokenInfo {
    let text = if step.special { model.token_text(step.token.id) } else { step.text.clone() };
    TokenInfo { id: step.token.id, text, logprob: step.token.logprob, special: step.special }
}

fn top_tokens(step: &Step, model: &ModelText) -> Vec<TokenInfo> {
    let info = |&(id, logprob): &(u32, f32)| TokenInfo {
        id,
        text: model.token_text(id),
        logprob,
        special: model.is_special(id),
    };
    step.token.top.iter().map(info).collect()
}
