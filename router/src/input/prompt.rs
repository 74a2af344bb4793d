//! A prompt's tokens.

use super::error::{InputError, invalid};
use super::limits::Limits;
use super::model_text::ModelText;
use super::request::{Parameters, Prompt, Truncate};
use super::validation::check_ids;
use crate::output::joining::Joining;

/// Stands before a text, so that a tokenizer does not take the text for a beginning.
const ANCHOR: &str = "\u{2603}";

/// The prompt's tokens, and its text where it is one.
///
/// # Errors
/// `Validation` or `Template`.
pub(super) fn tokens(
    model: &ModelText,
    limits: &Limits,
    prompt: Prompt,
    parameters: &Parameters,
) -> Result<(Vec<u32>, Option<String>), InputError> {
    let cut = parameters.truncate.is_some();
    let (mut ids, text) = match prompt {
        Prompt::Tokens(ids) => {
            check_ids("prompt", &ids, model)?;
            (ids, None)
        }
        Prompt::Text { text, add_special_tokens } => {
            (encode(model, limits, &text, add_special_tokens, cut)?, Some(text))
        }
        Prompt::Chat(chat) => {
            let text = model.templates().render(&chat)?;
            (encode(model, limits, &text, chat.add_special_tokens, cut)?, Some(text))
        }
        Prompt::Infill { prefix, suffix } => (infill(model, limits, &prefix, &suffix)?, Some(prefix + &suffix)),
    };
    let most = match parameters.truncate {
        Some(Truncate::To(_, length)) => length,
        Some(Truncate::ToFit) => limits.max_input_tokens,
        Some(Truncate::ToAnswer) => {
            let answer = parameters.max_new_tokens.map_or(limits.max_total_tokens / 4, |most| most as usize);
            limits.max_total_tokens.saturating_sub(answer).clamp(1, limits.max_input_tokens)
        }
        None => ids.len(),
    };
    ids.drain(..ids.len().saturating_sub(most));
    match ids.len() {
        0 => Err(invalid("`inputs` cannot be empty")),
        given if given > limits.max_input_tokens => Err(too_long(limits, given)),
        _ => Ok((ids, text)),
    }
}

fn too_long(limits: &Limits, given: impl std::fmt::Display) -> InputError {
    let most = limits.max_input_tokens;
    InputError::TooLong(format!("`inputs` must have less than {most} tokens. Given: {given}"))
}

/// Refuses a text that has too many tokens however it is cut into them.
fn check_length(model: &ModelText, limits: &Limits, bytes: usize) -> Result<(), InputError> {
    match model.longest_token().map(|longest| bytes.div_ceil(longest.max(1))) {
        Some(fewest) if fewest > limits.max_input_tokens => Err(too_long(limits, format_args!("at least {fewest}"))),
        _ => Ok(()),
    }
}

fn encode(
    model: &ModelText,
    limits: &Limits,
    text: &str,
    add_special_tokens: bool,
    cut: bool,
) -> Result<Vec<u32>, InputError> {
    if text.is_empty() {
        return Err(invalid("`inputs` cannot be empty"));
    }
    if !cut {
        check_length(model, limits, text.len())?;
    }
    let ids = model.encode(text, add_special_tokens).map_err(|error| untokenizable(&error))?;
    check_ids("inputs", &ids, model)?;
    Ok(ids)
}

/// What the tokenizer puts before every text, then a gap and what is around it, in the order that the model was taught.
fn infill(model: &ModelText, limits: &Limits, prefix: &str, suffix: &str) -> Result<Vec<u32>, InputError> {
    let Some(infill) = model.infill() else {
        return Err(invalid(
            "`suffix` needs a model that was trained to fill in the middle, and this one has no tokens for it; leave it out",
        ));
    };
    check_length(model, limits, prefix.len() + suffix.len())?;
    let encode = |text: &str, special| model.encode(text, special).map_err(|error| untokenizable(&error));
    let mut ids = encode("", true)?;
    infill.arrange(&mut ids, &encode(prefix, false)?, &encode_inside(model, suffix)?);
    check_ids("prompt", &ids, model)?;
    Ok(ids)
}

/// The tokens of a text that follows another one: without special tokens, and without the space that some tokenizers
/// put before a beginning.
///
/// # Errors
/// `Validation`, when it cannot be tokenized.
pub(super) fn encode_inside(model: &ModelText, text: &str) -> Result<Vec<u32>, InputError> {
    let refused = |error: tokenizers::Error| untokenizable(&error);
    if !matches!(model.joining(), Joining::Pieces(_)) {
        return model.encode(text, false).map_err(refused);
    }
    let encoding = model.tokenizer().encode(format!("{ANCHOR}{text}"), false).map_err(refused)?;
    let ids = encoding.get_ids().iter().zip(encoding.get_offsets());
    Ok(ids.skip_while(|(_, (start, _))| *start < ANCHOR.len()).map(|(&id, _)| id).collect())
}

pub(super) fn untokenizable(error: &tokenizers::Error) -> InputError {
    invalid(format!("`inputs` cannot be tokenized: {error}"))
}
