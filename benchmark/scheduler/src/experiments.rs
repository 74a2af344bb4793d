//! Which traces run on what, under which policies.

use serde::Serialize;
use textgen_router::scheduler::{Micros, SchedulerConfig};

use crate::balance::{Balance, LeastTokens, PrefixAffinity, RoundRobin, Single};
use crate::device::{LLAMA_8B_H100, Profile};
use crate::ideal::least_prompt_tokens;
use crate::policy::{Ours, Policy, Tgi, TgiSettings, Vllm, VllmSettings};
use crate::simulation::{self, Outcome};
use crate::summary::{Limits, Summary, first_tokens, gaps, percentile, summary};
use crate::trace::{self, Class, Trace};

/// Positions per block, where a policy does not want its own.
pub const BLOCK_SIZE: u32 = 16;
/// What the scheduler is to keep to.
pub const TARGET_ITL: Micros = 20_000;
/// Targets to see the cost of, in milliseconds.
const TARGETS: [Micros; 6] = [15, 20, 25, 30, 50, 100];
/// Sequences that may run at once.
const SEATS: u32 = 1_024;
/// Points of a distribution that are written out.
const POINTS: u32 = 200;

/// Who runs a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    /// The real scheduler with a target for the time between tokens.
    Target,
    /// The real scheduler with a fixed budget, first come, first served.
    Fixed(u32),
    /// vLLM's policy with a budget.
    Vllm(u32),
    /// TGI's policy, with chunked prompts or without.
    Tgi {
        /// Whether prompts are cut.
        chunking: bool,
    },
}

/// All of them.
pub const EVERYBODY: [Contender; 7] = [
    Contender::Target,
    Contender::Fixed(2_048),
    Contender::Fixed(8_192),
    Contender::Vllm(2_048),
    Contender::Vllm(8_192),
    Contender::Tgi { chunking: true },
    Contender::Tgi { chunking: false },
];

impl Contender {
    /// For tables.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Target => "target 20 ms".to_owned(),
            Self::Fixed(budget) => format!("fixed {budget}"),
            Self::Vllm(budget) => format!("vLLM {budget}"),
            Self::Tgi { chunking: true } => "TGI chunking".to_owned(),
            Self::Tgi { chunking: false } => "TGI pausing".to_owned(),
        }
    }

    /// A server with nothing to do.
    #[must_use]
    pub fn policy<'t>(self, trace: &'t Trace, profile: &Profile) -> Box<dyn Policy + 't> {
        let blocks = profile.blocks(BLOCK_SIZE);
        match self {
            Self::Target => Box::new(ours(trace, timed(profile, TARGET_ITL))),
            Self::Fixed(max_step_tokens) => {
                Box::new(ours(trace, SchedulerConfig { max_step_tokens, ..config(profile) }))
            }
            Self::Vllm(batched_tokens) => {
                let seqs = SEATS as usize;
                Box::new(Vllm::new(trace, VllmSettings { batched_tokens, seqs, blocks, block_size: BLOCK_SIZE }))
            }
            Self::Tgi { chunking } => {
                let longest = trace.requests.iter().map(trace::Request::prompt_len).max().unwrap_or(0);
                // Without chunking a prompt beyond the budget is refused: the operator sets it to the longest.
                let prefill_tokens = if chunking { 4_096 } else { longest.max(4_096) };
                let positions = blocks * BLOCK_SIZE;
                let settings =
                    TgiSettings { prefill_tokens, served_ratio: 0.3, waiting_tokens: 20, chunking, positions };
                Box::new(Tgi::new(trace, settings))
            }
        }
    }

    /// Only the scheduler with a target shares between tenants; all others know only who came first.
    fn sees(self, trace: &Trace) -> Trace {
        if self == Self::Target { trace.clone() } else { trace.of_one_tenant() }
    }
}

/// The scheduler's limits on a device.
#[must_use]
pub fn config(profile: &Profile) -> SchedulerConfig {
    SchedulerConfig {
        num_blocks: profile.blocks(BLOCK_SIZE),
        block_size: BLOCK_SIZE,
        max_slots: SEATS,
        max_step_tokens: 8_192,
        steps_in_flight: 2,
        prefix_caching: true,
        ..SchedulerConfig::default()
    }
}

/// The same with a target, and with passing as it is by default.
#[must_use]
pub fn timed(profile: &Profile, target_itl: Micros) -> SchedulerConfig {
    SchedulerConfig { target_itl: Some(target_itl), max_passes: 16, ..config(profile) }
}

/// A scheduler with these limits.
#[must_use]
pub fn ours(trace: &Trace, config: SchedulerConfig) -> Ours<'_> {
    match Ours::new(trace, config) {
        Ok(ours) => ours,
        Err(invalid) => unreachable!("the limits are ours: {invalid}"),
    }
}

/// A trace under one policy.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// Who ran it.
    pub policy: String,
    /// How it went.
    pub summary: Summary,
    /// Times between tokens in ms, at equal steps of their distribution.
    pub itl: Vec<f64>,
    /// Times to the first token in ms, likewise.
    pub ttft: Vec<f64>,
}

/// A trace under several policies.
#[derive(Debug, Clone, Serialize)]
pub struct Experiment {
    /// The trace.
    pub trace: String,
    /// What it was made from.
    pub seed: u64,
    /// Requests.
    pub requests: usize,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Tokens of all answers.
    pub output_tokens: u64,
    /// What an unbounded cache would leave to compute.
    pub least_prompt_tokens: u64,
    /// Replicas.
    pub replicas: usize,
    /// Requests per second, where the trace has a rate.
    pub rate: Option<f64>,
    /// By policy.
    pub runs: Vec<Run>,
}

fn points(sorted: &[Micros]) -> Vec<f64> {
    let shares = (1..=POINTS).map(|place| f64::from(place) / f64::from(POINTS));
    shares.map(|share| percentile(sorted, share) as f64 / 1e3).collect()
}

pub(crate) fn describe(policy: String, trace: &Trace, outcome: &Outcome) -> Run {
    Run {
        policy,
        summary: summary(trace, outcome, &Limits::default()),
        itl: points(&gaps(outcome)),
        ttft: points(&first_tokens(trace, outcome, |class| class != Class::Long)),
    }
}

pub(crate) fn experiment(trace: &Trace, replicas: usize, rate: Option<f64>, runs: Vec<Run>) -> Experiment {
    Experiment {
        trace: trace.name.clone(),
        seed: trace.seed,
        requests: trace.requests.len(),
        prompt_tokens: trace.prompt_tokens(),
        output_tokens: trace.output_tokens(),
        least_prompt_tokens: least_prompt_tokens(trace),
        replicas,
        rate,
        runs,
    }
}

/// Runs a trace under one policy on one replica.
#[must_use]
pub fn run_one(contender: Contender, trace: &Trace, profile: &Profile) -> Run {
    let seen = contender.sees(trace);
    let (outcome, _) = simulation::run(&seen, profile, vec![contender.policy(&seen, profile)], &mut Single);
    describe(contender.name(), trace, &outcome)
}

/// Runs a trace under several policies on one replica.
#[must_use]
pub fn compare(trace: &Trace, contenders: &[Contender], rate: Option<f64>) -> Experiment {
    let runs = contenders.iter().map(|&contender| run_one(contender, trace, &LLAMA_8B_H100));
    let runs = runs.collect();
    experiment(trace, 1, rate, runs)
}

/// What targets cost: long prompts among chats, all there from the start, under each of them and without one.
#[must_use]
pub fn targets() -> Experiment {
    let (trace, profile) = (trace::long_among_chats(3, 2_500, LONG_RATE, 20.0).at_once(), LLAMA_8B_H100);
    let passing = SchedulerConfig { max_passes: 16, ..config(&profile) };
    let configs = TARGETS.map(|target| (format!("target {target} ms"), timed(&profile, target * 1_000)));
    let runs = configs.into_iter().chain([("no target".to_owned(), passing)]).map(|(name, config)| {
        let (outcome, _) = simulation::run(&trace, &profile, vec![ours(&trace, config)], &mut Single);
        describe(name, &trace, &outcome)
    });
    let runs = runs.collect();
    experiment(&trace, 1, None, runs)
}

/// Runs a trace on many replicas of the real scheduler, by the way in which they are chosen.
#[must_use]
pub fn cluster(trace: &Trace, replicas: usize, rate: f64) -> Experiment {
    let profile = LLAMA_8B_H100;
    let config = timed(&profile, TARGET_ITL);
    let ways: [(&str, Box<dyn Balance>); 3] = [
        ("round robin", Box::new(RoundRobin::new(replicas))),
        ("least tokens", Box::new(LeastTokens::new(replicas))),
        ("prefix affinity", Box::new(PrefixAffinity::new(replicas))),
    ];
    let runs = ways.into_iter().map(|(name, mut balance)| {
        let policies = (0..replicas).map(|_| ours(trace, config)).collect();
        let (outcome, _) = simulation::run(trace, &profile, policies, balance.as_mut());
        describe(name.to_owned(), trace, &outcome)
    });
    let runs = runs.collect();
    experiment(trace, replicas, Some(rate), runs)
}

/// The traces on one replica: name, trace, rate.
#[must_use]
pub fn traces() -> Vec<(Trace, Option<f64>)> {
    let long = trace::long_among_chats(3, 2_500, LONG_RATE, 20.0);
    let long_at_once = long.at_once();
    vec![
        (trace::chats(1, 6_000, 24.0), Some(24.0)),
        (trace::bursts(2, 12, 200, 15.0), None),
        (long, Some(LONG_RATE)),
        (long_at_once, None),
        (trace::shared_prefixes(4, 6_000, 40.0, 64), Some(40.0)),
        (trace::multi_turn(5, 800, 4.0), None),
        (trace::flood(6, 90, 12.0, 1_500), None),
        (trace::day(7, 15, 12.0), None),
    ]
}

/// Requests per second of long prompts among chats.
pub const LONG_RATE: f64 = 9.0;

/// Requests per second at which that trace is run to see where each policy gives way.
pub const SWEEP: [f64; 6] = [3.0, 6.0, 9.0, 12.0, 15.0, 18.0];

/// The trace of long prompts among chats at a rate, for a minute and a half.
#[must_use]
pub fn sweep(rate: f64) -> Trace {
    trace::long_among_chats(8, (rate * 90.0) as usize, rate, 20.0)
}

/// Multi-turn chats for many replicas.
#[must_use]
pub fn cluster_trace(conversations: usize, rate: f64) -> Trace {
    trace::multi_turn(9, conversations, rate)
}
