//! What a sequence may or may not draw: every rule about `logit_bias`, `allowed_token_ids`, `bad_words`, minimum lengths and
//! watermarks, and their translation into tokens.

use std::sync::Arc;

use super::error::{InputError, invalid};
use super::limits::Limits;
use super::model_text::ModelText;
use super::prompt::encode_inside;
use super::request::{Parameters, Reasoning};
use super::validation::check_ids;
use crate::request::{ThinkingBudget, TokenRules};

/// Largest bias of a token, by OpenAI's rule.
const MAX_BIAS: f32 = 100.0;

/// Longest string in `bad_words`, in bytes.
const MAX_BAD_WORD_BYTES: usize = 1024;

/// Most tokens of all banned sequences of a request.
const MAX_BANNED_TOKENS: usize = 1024;

/// The rules that a request states.
///
/// # Errors
/// `Validation`, for the first that is broken.
pub(super) fn rules(parameters: &Parameters, model: &ModelText, limits: &Limits) -> Result<TokenRules, InputError> {
    Ok(TokenRules {
        bias: bias(parameters, model, limits)?,
        allowed: allowed(parameters, model)?,
        banned: banned(parameters, model, limits)?,
        min_tokens: parameters.min_new_tokens.map_or(0, |(_, count)| count),
        watermark: parameters.watermark.then_some(limits.watermark),
        thinking: None,
    })
}

/// The rules as the engine takes them, with the one that only the prompt tells: whether the answer begins by reasoning.
///
/// # Errors
/// `Validation`, when reasoning is to be bounded that cannot be told from the answer.
pub(super) fn with_thinking(
    mut rules: TokenRules,
    parameters: &Parameters,
    prompt: Option<&str>,
    model: &ModelText,
) -> Result<Option<Arc<TokenRules>>, InputError> {
    if let Some(budget) = parameters.thinking_budget {
        let found = thinking(budget, parameters, prompt.unwrap_or_default(), model);
        rules.thinking = if parameters.lenient_budget { found.unwrap_or_default() } else { found? };
    }
    Ok((rules != TokenRules::default()).then(|| Arc::new(rules)))
}

/// `None` where the prompt says that nothing is thought.
fn thinking(
    budget: u32,
    parameters: &Parameters,
    prompt: &str,
    model: &ModelText,
) -> Result<Option<ThinkingBudget>, InputError> {
    let refused = || {
        invalid(
            "`thinking_budget` needs a model that marks where its reasoning begins and ends, with a parser for it \
             (`--reasoning-parser`); leave it out",
        )
    };
    let Reasoning { kind, inside } = parameters.reasoning.as_ref().ok_or_else(refused)?;
    let Some(edges) = kind.edges(prompt, *inside) else { return Ok(None) };
    let token = |name: &str| model.tokenizer().token_to_id(name);
    if edges.marks.iter().any(|mark| token(mark).is_none()) {
        return Err(refused());
    }
    let spelled = |text: &String| match token(text) {
        Some(token) => Ok(vec![token]),
        None => encode_inside(model, text),
    };
    // A phrase that begins an answer may be spelled in more than one way, so an opening has a token of its own.
    let is_mark = |text: &&String| token(text).is_some() || edges.marks.iter().any(|mark| text.starts_with(mark));
    let openings = edges.openings.iter().filter(is_mark).map(spelled).collect::<Result<Vec<_>, _>>()?;
    let end = edges.ends.iter().find(|end| token(end).is_some()).or(edges.ends.first());
    let end = end.map(spelled).transpose()?.unwrap_or_default();
    let closings = edges.closings.iter().map(spelled).collect::<Result<Vec<_>, _>>()?;
    if end.is_empty() || (openings.is_empty() && !edges.inside) {
        return Err(refused());
    }
    for ids in openings.iter().chain([&end]).chain(&closings) {
        check_ids("thinking_budget", ids, model)?;
    }
    Ok(Some(ThinkingBudget { budget, openings, end, closings }))
}

/// # Errors
/// `Validation`, when more tokens must be generated than may be.
pub(super) fn check_min_tokens(parameters: &Parameters, max_new_tokens: u32) -> Result<(), InputError> {
    match parameters.min_new_tokens {
        Some((name, given)) if given > max_new_tokens => Err(invalid(format!(
            "`{name}` must be at most `max_new_tokens`, which is {max_new_tokens}. Given: {given}"
        ))),
        _ => Ok(()),
    }
}

fn bias(parameters: &Parameters, model: &ModelText, limits: &Limits) -> Result<Vec<(u32, f32)>, InputError> {
    let given = parameters.logit_bias.len();
    if given > limits.max_logit_bias {
        let most = limits.max_logit_bias;
        return Err(invalid(format!("`logit_bias` may have {most} tokens at most. Given: {given}")));
    }
    let size = model.vocab_size();
    let mut entries = Vec::with_capacity(given);
    for (key, &bias) in &parameters.logit_bias {
        let Some(token) = key.parse().ok().filter(|&token: &u32| token < size) else {
            // What is no number is as long as it likes.
            let shown: String = key.chars().take(32).collect();
            return Err(invalid(format!("a key of `logit_bias` must be a token id below {size}. Given: `{shown}`")));
        };
        if !(-MAX_BIAS..=MAX_BIAS).contains(&bias) {
            return Err(invalid(format!(
                "a value of `logit_bias` must be between -{MAX_BIAS} and {MAX_BIAS}. Given: {bias}"
            )));
        }
        entries.push((token, bias));
    }
    entries.sort_unstable_by_key(|&(token, _)| token);
    match entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(invalid(format!("`logit_bias` names token {} more than once", pair[0].0))),
        None => Ok(entries),
    }
}

fn allowed(parameters: &Parameters, model: &ModelText) -> Result<Vec<u32>, InputError> {
    let Some(ids) = &parameters.allowed_token_ids else { return Ok(Vec::new()) };
    let size = model.vocab_size();
    if ids.is_empty() {
        return Err(invalid("`allowed_token_ids` must not be empty; leave it out to allow all tokens"));
    }
    if ids.len() > size as usize {
        let given = ids.len();
        return Err(invalid(format!("`allowed_token_ids` may have {size} ids at most. Given: {given}")));
    }
    check_ids("allowed_token_ids", ids, model)?;
    let mut bits = vec![0; size.div_ceil(u32::BITS) as usize];
    for id in ids {
        bits[(id / u32::BITS) as usize] |= 1 << (id % u32::BITS);
    }
    Ok(bits)
}

/// Each word as it is spelled inside of a text, with and without a space before it.
fn banned(parameters: &Parameters, model: &ModelText, limits: &Limits) -> Result<Vec<Vec<u32>>, InputError> {
    let given = parameters.bad_words.len();
    if given > limits.max_bad_words {
        let most = limits.max_bad_words;
        return Err(invalid(format!("`bad_words` may have {most} strings at most. Given: {given}")));
    }
    let mut banned: Vec<Vec<u32>> = Vec::new();
    for word in &parameters.bad_words {
        let trimmed = word.strip_prefix(' ').filter(|rest| !rest.is_empty()).unwrap_or(word);
        if trimmed.is_empty() {
            return Err(invalid("`bad_words` must not have an empty string"));
        }
        if word.len() > MAX_BAD_WORD_BYTES {
            let given = word.len();
            return Err(invalid(format!(
                "a string of `bad_words` may have {MAX_BAD_WORD_BYTES} bytes at most. Given: {given}"
            )));
        }
        for spelled in [encode_inside(model, trimmed)?, encode_inside(model, &format!(" {trimmed}"))?] {
            check_ids("bad_words", &spelled, model)?;
            if !spelled.is_empty() && !banned.contains(&spelled) {
                banned.push(spelled);
            }
        }
    }
    let tokens: usize = banned.iter().map(Vec::len).sum();
    if tokens > MAX_BANNED_TOKENS {
        return Err(invalid(format!(
            "`bad_words` may have {MAX_BANNED_TOKENS} tokens at most, with and without a space before. Given: {tokens}"
        )));
    }
    Ok(banned)
}
