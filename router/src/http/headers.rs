//! TGI's answer headers: what a call cost. Times are whole milliseconds unless said otherwise.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::generation::Completed;
use crate::settings::Settings;

const COMPUTE_TYPE: HeaderName = HeaderName::from_static("x-compute-type");
const COMPUTE_CHARACTERS: HeaderName = HeaderName::from_static("x-compute-characters");
/// Seconds, with a fraction.
const COMPUTE_TIME: HeaderName = HeaderName::from_static("x-compute-time");
const TOTAL_TIME: HeaderName = HeaderName::from_static("x-total-time");
const VALIDATION_TIME: HeaderName = HeaderName::from_static("x-validation-time");
const QUEUE_TIME: HeaderName = HeaderName::from_static("x-queue-time");
const INFERENCE_TIME: HeaderName = HeaderName::from_static("x-inference-time");
const TIME_PER_TOKEN: HeaderName = HeaderName::from_static("x-time-per-token");
const PROMPT_TOKENS: HeaderName = HeaderName::from_static("x-prompt-tokens");
const GENERATED_TOKENS: HeaderName = HeaderName::from_static("x-generated-tokens");

/// The headers that every generation has, streamed ones too.
pub fn describe_prompt(headers: &mut HeaderMap, settings: &Settings, characters: usize) {
    // The launcher's word, not a client's; still, a value that no header can hold is left out.
    let compute = settings.compute_type.as_ref().unwrap_or(&settings.model_device_type);
    if let Ok(compute) = HeaderValue::from_str(compute) {
        headers.insert(COMPUTE_TYPE, compute);
    }
    headers.insert(COMPUTE_CHARACTERS, HeaderValue::from(characters));
}

/// The headers of the whole sequences of one prompt.
pub fn describe(headers: &mut HeaderMap, settings: &Settings, all: &[Completed]) {
    describe_all(headers, settings, all);
    let total = all.iter().map(|one| one.times.total).max().unwrap_or_default();
    if let Ok(seconds) = HeaderValue::from_str(&total.as_secs_f64().to_string()) {
        headers.insert(COMPUTE_TIME, seconds);
    }
}

/// The headers of several sequences: sums, as TGI has them, in which a prompt counts once.
pub fn describe_all(headers: &mut HeaderMap, settings: &Settings, all: &[Completed]) {
    let count = |of: fn(&Completed) -> usize| all.iter().map(of).sum::<usize>();
    let time = |of: fn(&Completed) -> Duration| milliseconds(all.iter().map(of).sum());
    describe_prompt(headers, settings, count(|one| one.facts.once(one.facts.prompt_characters)));
    headers.insert(TOTAL_TIME, time(|one| one.times.total));
    headers.insert(VALIDATION_TIME, time(|one| one.times.validation));
    headers.insert(QUEUE_TIME, time(|one| one.times.queue));
    headers.insert(INFERENCE_TIME, time(|one| one.times.inference));
    headers.insert(TIME_PER_TOKEN, time(time_per_token));
    headers.insert(PROMPT_TOKENS, HeaderValue::from(count(|one| one.facts.once(one.facts.input_length))));
    headers.insert(GENERATED_TOKENS, HeaderValue::from(count(|one| one.steps.len())));
}

fn time_per_token(completed: &Completed) -> Duration {
    let tokens = u32::try_from(completed.steps.len()).unwrap_or(u32::MAX).max(1);
    completed.times.inference / tokens
}

fn milliseconds(time: Duration) -> HeaderValue {
    HeaderValue::from(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}
