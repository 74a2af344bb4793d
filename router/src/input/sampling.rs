//! How tokens are drawn: every rule about the sampling parameters, and the seed.

use super::error::{InputError, invalid};
use super::request::Parameters;
use crate::request::SamplingParams;

/// Below this, logits divided by the temperature could overflow; the most likely token is drawn either way.
const MIN_TEMPERATURE: f32 = 1e-4;

/// Checks the sampling parameters. The seed in them is the client's or, when there is none, a random one; a greedy
/// request has temperature 0 and no use for a seed.
///
/// # Errors
/// `Validation`, for the first parameter that is out of range.
pub(super) fn sampling(parameters: &Parameters) -> Result<SamplingParams, InputError> {
    check(parameters)?;
    let penalized = SamplingParams {
        repetition_penalty: parameters.repetition_penalty.unwrap_or(1.0),
        frequency_penalty: parameters.frequency_penalty.unwrap_or(0.0),
        presence_penalty: parameters.presence_penalty.unwrap_or(0.0),
        penalty_window: parameters.penalty_window,
        ..SamplingParams::greedy()
    };
    if parameters.beams.is_some() || !draws(parameters) {
        return Ok(penalized);
    }
    Ok(SamplingParams {
        temperature: parameters.temperature.unwrap_or(1.0).max(MIN_TEMPERATURE),
        top_k: parameters.top_k.map_or(0, i32::unsigned_abs),
        top_p: parameters.top_p.unwrap_or(1.0),
        min_p: parameters.min_p.unwrap_or(0.0),
        typical_p: parameters.typical_p.unwrap_or(1.0),
        seed: parameters.seed.unwrap_or_else(rand::random),
        ..penalized
    })
}

fn check(parameters: &Parameters) -> Result<(), InputError> {
    let share = |value: f32| value > 0.0 && value <= 1.0;
    let penalty = |value: f32| (-2.0..=2.0).contains(&value);
    if parameters.greedy_at_zero {
        number("temperature", parameters.temperature, |t| t >= 0.0, "be 0 (greedy) or more")?;
    } else {
        let rule = "be strictly positive; leave out every sampling parameter for greedy decoding";
        number("temperature", parameters.temperature, |t| t > 0.0, rule)?;
    }
    number("repetition_penalty", parameters.repetition_penalty, |p| p > 0.0, "be strictly positive")?;
    number("frequency_penalty", parameters.frequency_penalty, penalty, "be between -2.0 and 2.0")?;
    number("presence_penalty", parameters.presence_penalty, penalty, "be between -2.0 and 2.0")?;
    number("top_p", parameters.top_p, share, "be > 0.0 and <= 1.0")?;
    number("typical_p", parameters.typical_p, share, "be > 0.0 and <= 1.0")?;
    number("min_p", parameters.min_p, |p| (0.0..=1.0).contains(&p), "be between 0.0 and 1.0")?;
    match parameters.top_k {
        Some(k) if k <= 0 => Err(invalid(format!("`top_k` must be strictly positive. Given: {k}"))),
        _ => Ok(()),
    }
}

/// A number that is not given is fine; not-a-number and the infinities never are.
fn number(name: &str, value: Option<f32>, holds: impl Fn(f32) -> bool, rule: &str) -> Result<(), InputError> {
    match value {
        Some(value) if !(value.is_finite() && holds(value)) => {
            Err(invalid(format!("`{name}` must {rule}. Given: {value}")))
        }
        _ => Ok(()),
    }
}

/// Parameters that shape what is drawn have no place in a beam search, unless they are neutral. A temperature of 0 draws
/// nothing, and is what clients send with a search.
///
/// # Errors
/// `Validation`, for the first that is set.
#[allow(clippy::float_cmp)] // Neutral values are exact.
pub(super) fn check_searched(parameters: &Parameters) -> Result<(), InputError> {
    let set = |value: Option<f32>, neutral: f32| value.is_some_and(|value| value != neutral);
    let shaping = [
        ("temperature", set(parameters.temperature, 1.0) && set(parameters.temperature, 0.0)),
        ("top_k", parameters.top_k.is_some()),
        ("top_p", set(parameters.top_p, 1.0)),
        ("typical_p", set(parameters.typical_p, 1.0)),
        ("min_p", set(parameters.min_p, 0.0)),
        ("repetition_penalty", set(parameters.repetition_penalty, 1.0)),
        ("frequency_penalty", set(parameters.frequency_penalty, 0.0)),
        ("presence_penalty", set(parameters.presence_penalty, 0.0)),
        ("logit_bias", !parameters.logit_bias.is_empty()),
        ("allowed_token_ids", parameters.allowed_token_ids.is_some()),
        ("bad_words", !parameters.bad_words.is_empty()),
        ("thinking_budget", parameters.thinking_budget.is_some()),
        ("min_tokens", parameters.min_new_tokens.is_some_and(|(_, count)| count > 0)),
    ];
    match shaping.iter().find(|(_, is_set)| *is_set) {
        Some((name, _)) => Err(invalid(format!("`{name}` has no place in a beam search; leave it out"))),
        None => Ok(()),
    }
}

/// Whether tokens are drawn. OpenAI's routes draw unless the temperature is 0; native ones when asked to, or when a
/// parameter is set that only makes sense then. A neutral value is the same as none.
#[allow(clippy::float_cmp)] // Neutral values are exact.
fn draws(parameters: &Parameters) -> bool {
    let set = |value: Option<f32>, neutral: f32| value.is_some_and(|value| value != neutral);
    let asked = parameters.do_sample == Some(true)
        || set(parameters.temperature, 1.0)
        || parameters.top_k.is_some()
        || set(parameters.top_p, 1.0)
        || set(parameters.typical_p, 1.0)
        || set(parameters.min_p, 0.0);
    if parameters.greedy_at_zero {
        parameters.temperature != Some(0.0) && (asked || parameters.do_sample.is_none())
    } else {
        asked
    }
}
