//! Numbers that say how a trace went.

use std::collections::BTreeMap;

use serde::Serialize;
use textgen_router::scheduler::{Micros, TenantId};

use crate::device::Parts;
use crate::simulation::Outcome;
use crate::trace::{Class, SECOND, Trace};

/// When an answer counts as good: its first token in time, and the mean time of the others.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// For chats.
    pub first: Micros,
    /// For long prompts.
    pub first_long: Micros,
    /// Mean time per token after the first.
    pub per_token: Micros,
}

impl Default for Limits {
    /// One second, five seconds, 25 ms.
    fn default() -> Self {
        Self { first: SECOND, first_long: 5 * SECOND, per_token: SECOND / 40 }
    }
}

/// How a trace went. Times are in milliseconds, rates per second.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Summary {
    /// Requests that ended.
    pub requests: usize,
    /// From the first arrival to the last token.
    pub seconds: f64,
    /// Prompt and answer tokens of all requests per second.
    pub tokens_per_second: f64,
    /// Answer tokens per second.
    pub output_per_second: f64,
    /// Requests per second that met the limits.
    pub goodput: f64,
    /// Their share of all.
    pub good_share: f64,
    /// Time to the first token of a chat.
    pub ttft_p50: f64,
    /// See `ttft_p50`.
    pub ttft_p99: f64,
    /// Time to the first token of a long prompt.
    pub ttft_long_p50: f64,
    /// See `ttft_long_p50`.
    pub ttft_long_p99: f64,
    /// Time between two tokens of an answer.
    pub itl_p50: f64,
    /// See `itl_p50`.
    pub itl_p90: f64,
    /// See `itl_p50`.
    pub itl_p99: f64,
    /// See `itl_p50`.
    pub itl_max: f64,
    /// Prompt tokens that were run, recomputed ones included.
    pub prompt_computed: u64,
    /// Share of the prompt tokens that were not run.
    pub hit_rate: f64,
    /// Sequences that lost their blocks.
    pub preemptions: u64,
    /// Most that ran at once, of any replica.
    pub most_running: usize,
    /// Jain's index over tenants of what they got of their fair share, mean over ten-second windows: 1 is fair.
    pub fairness: f64,
    /// Steps run.
    pub steps: u64,
    /// Share of the time that devices were busy.
    pub busy: f64,
    /// What that time was spent on.
    pub parts: Parts,
}

/// The value that `share` of all do not exceed: the nearest rank, of numbers in rising order; 0 of none.
#[must_use]
pub fn percentile(sorted: &[Micros], share: f64) -> Micros {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

fn sorted(values: impl Iterator<Item = Micros>) -> Vec<Micros> {
    let mut values: Vec<Micros> = values.collect();
    values.sort_unstable();
    values
}

/// All times between two tokens of one answer, rising.
#[must_use]
pub fn gaps(outcome: &Outcome) -> Vec<Micros> {
    sorted(outcome.records.iter().flat_map(|record| record.tokens.windows(2).map(|pair| pair[1] - pair[0])))
}

/// Times to the first token of requests of some class, rising.
#[must_use]
pub fn first_tokens(trace: &Trace, outcome: &Outcome, wanted: impl Fn(Class) -> bool) -> Vec<Micros> {
    let pairs = trace.requests.iter().zip(&outcome.records).filter(|(request, _)| wanted(request.class));
    sorted(pairs.filter_map(|(_, record)| Some(record.tokens.first()? - record.came)))
}

/// Requests that met the limits.
fn good(trace: &Trace, outcome: &Outcome, limits: &Limits) -> usize {
    let pairs = trace.requests.iter().zip(&outcome.records);
    let met = pairs.filter(|(request, record)| {
        let (Some(first), Some(last)) = (record.tokens.first(), record.tokens.last()) else { return false };
        let limit = if request.class == Class::Long { limits.first_long } else { limits.first };
        first - record.came <= limit && last - first <= limits.per_token * (record.tokens.len() as u64 - 1)
    });
    met.count()
}

/// Sums up.
#[must_use]
pub fn summary(trace: &Trace, outcome: &Outcome, limits: &Limits) -> Summary {
    let millis = |time: Micros| time as f64 / 1e3;
    let first = outcome.records.iter().map(|record| record.came).min().unwrap_or(0);
    let last = outcome.records.iter().filter_map(|record| record.tokens.last()).max().copied().unwrap_or(first);
    let seconds = ((last - first) as f64 / SECOND as f64).max(1e-6);
    let gaps = gaps(outcome);
    let chats = first_tokens(trace, outcome, |class| class != Class::Long);
    let long = first_tokens(trace, outcome, |class| class == Class::Long);
    let computed: u64 = outcome.done.iter().map(|done| done.prompt_computed).sum();
    let good = good(trace, outcome, limits);
    Summary {
        requests: outcome.records.iter().filter(|record| !record.tokens.is_empty()).count(),
        seconds,
        tokens_per_second: (trace.prompt_tokens() + trace.output_tokens()) as f64 / seconds,
        output_per_second: trace.output_tokens() as f64 / seconds,
        goodput: good as f64 / seconds,
        good_share: good as f64 / trace.requests.len().max(1) as f64,
        ttft_p50: millis(percentile(&chats, 0.5)),
        ttft_p99: millis(percentile(&chats, 0.99)),
        ttft_long_p50: millis(percentile(&long, 0.5)),
        ttft_long_p99: millis(percentile(&long, 0.99)),
        itl_p50: millis(percentile(&gaps, 0.5)),
        itl_p90: millis(percentile(&gaps, 0.9)),
        itl_p99: millis(percentile(&gaps, 0.99)),
        itl_max: millis(percentile(&gaps, 1.0)),
        prompt_computed: computed,
        hit_rate: 1.0 - computed as f64 / trace.prompt_tokens().max(1) as f64,
        preemptions: outcome.done.iter().map(|done| done.preemptions).sum(),
        most_running: outcome.done.iter().map(|done| done.most_running).max().unwrap_or(0),
        fairness: fairness(trace, outcome),
        steps: outcome.steps,
        busy: outcome.busy as f64 / ((last - first) as f64 * outcome.done.len() as f64).max(1.0),
        parts: outcome.parts,
    }
}

/// Jain's index: 1 when all are equal, 1/n when one has all.
#[must_use]
pub fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), share| (sum + share, squares + share * share));
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// What each gets when `capacity` is shared out by max-min fairness: nobody more than wanted, nobody less than another that
/// gets more than an equal share.
#[must_use]
pub fn fair_shares(demands: &[f64], capacity: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by(|&one, &other| demands[one].total_cmp(&demands[other]));
    let mut shares = vec![0.0; demands.len()];
    let mut left = capacity;
    for (place, &who) in order.iter().enumerate() {
        shares[who] = demands[who].min(left / (order.len() - place) as f64);
        left -= shares[who];
    }
    shares
}

/// Window of [`fairness`].
const WINDOW: Micros = 10 * SECOND;

/// For each window: tokens that each tenant was served (a prompt counts when its first token is there), against what max-min
/// fairness would have given it of all that was served, with what it had waiting as its demand. The mean of Jain's index of
/// these shares, over the windows in which several tenants wanted something.
fn fairness(trace: &Trace, outcome: &Outcome) -> f64 {
    let mut served: BTreeMap<(u64, TenantId), f64> = BTreeMap::new();
    let mut asked: BTreeMap<(u64, TenantId), f64> = BTreeMap::new();
    let mut last = 0;
    for (request, record) in trace.requests.iter().zip(&outcome.records) {
        let total = f64::from(request.prompt_len() + request.output_len());
        *asked.entry((record.came / WINDOW, request.tenant)).or_default() += total;
        for (place, at) in record.tokens.iter().enumerate() {
            let tokens = if place == 0 { f64::from(request.prompt_len()) + 1.0 } else { 1.0 };
            *served.entry((at / WINDOW, request.tenant)).or_default() += tokens;
            last = last.max(at / WINDOW);
        }
    }
    let mut backlog: BTreeMap<TenantId, f64> = BTreeMap::new();
    let mut indices = Vec::new();
    for window in 0..=last {
        for (&(_, tenant), tokens) in asked.range((window, 0)..(window + 1, 0)) {
            *backlog.entry(tenant).or_default() += tokens;
        }
        let wanting: Vec<(TenantId, f64)> =
            backlog.iter().filter(|(_, tokens)| **tokens > 0.5).map(|(&tenant, &tokens)| (tenant, tokens)).collect();
        let got: Vec<f64> =
            wanting.iter().map(|(tenant, _)| served.get(&(window, *tenant)).copied().unwrap_or(0.0)).collect();
        if wanting.len() > 1 {
            let demands: Vec<f64> = wanting.iter().map(|&(_, tokens)| tokens).collect();
            let fair = fair_shares(&demands, got.iter().sum());
            let shares: Vec<f64> = got
                .iter()
                .zip(&fair)
                .filter(|(_, fair)| **fair > 0.0)
                .map(|(got, fair)| (got / fair).min(1.0))
                .collect();
            indices.push(jain(&shares));
        }
        for ((tenant, _), got) in wanting.iter().zip(&got) {
            backlog.entry(*tenant).and_modify(|tokens| *tokens -= got);
        }
    }
    if indices.is_empty() { 1.0 } else { indices.iter().sum::<f64>() / indices.len() as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occur() {
        let values: Vec<Micros> = (1..=200).collect();
        assert_eq!(percentile(&values, 0.5), 100);
        assert_eq!(percentile(&values, 0.99), 198);
        assert_eq!(percentile(&values, 1.0), 200);
        assert_eq!(percentile(&values, 0.0), 1);
        assert_eq!(percentile(&[7], 0.99), 7);
        assert_eq!(percentile(&[], 0.99), 0);
    }

    #[test]
    fn shares_are_fair() {
        assert_eq!(fair_shares(&[10.0, 100.0, 100.0], 110.0), [10.0, 50.0, 50.0]);
        assert_eq!(fair_shares(&[10.0, 20.0], 100.0), [10.0, 20.0]);
        assert!((jain(&[1.0, 1.0, 1.0]) - 1.0).abs() < 1e-12);
        assert!((jain(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
    }
}
