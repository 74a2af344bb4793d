//! What planning costs the router in real time and memory, at sizes of a large cluster's node.
//!
//! Unlike everything else here this is measured, not simulated: it differs from run to run and from machine to machine.

use std::time::{Duration, Instant};

use serde::Serialize;
use textgen_router::scheduler::{Completed, NewSequence, Plan, Results, Scheduler, SchedulerConfig, Slot};

use crate::balance::Single;
use crate::device::{H100_X8, LLAMA_8B, LLAMA_8B_H100, Profile};
use crate::experiments::{BLOCK_SIZE, TARGET_ITL, config, ours, timed};
use crate::policy::Ours;
use crate::simulation;
use crate::trace::{self, Trace};

/// Real times of planning one step, in microseconds.
#[derive(Debug, Clone, Serialize)]
pub struct Planning {
    /// What ran.
    pub case: String,
    /// Steps planned.
    pub steps: usize,
    /// Most sequences that ran at once.
    pub running: usize,
    /// The median.
    pub median: f64,
    /// What 99 in 100 stay under.
    pub p99: f64,
    /// The mean.
    pub mean: f64,
}

/// What a long queue costs.
#[derive(Debug, Clone, Serialize)]
pub struct Queued {
    /// Sequences in the queue.
    pub waiting: usize,
    /// Tenants they belong to.
    pub tenants: u64,
    /// Sequences that run.
    pub running: usize,
    /// Microseconds to enqueue one, the mean.
    pub enqueue: f64,
    /// Microseconds to plan a step while all others wait, the median.
    pub plan: f64,
    /// Microseconds to plan a step in which seats are free and newcomers are seated, the median.
    pub plan_admitting: f64,
    /// Bytes of memory per waiting sequence, its prompt of 64 tokens included.
    pub bytes: f64,
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

fn planning(case: &str, trace: &Trace, profile: &Profile, config: SchedulerConfig) -> Planning {
    let (outcome, policies) = simulation::run(trace, profile, vec![ours(trace, config)], &mut Single);
    let mut times: Vec<f64> = policies.iter().flat_map(Ours::planning).map(|&time| micros(time)).collect();
    let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
    times.sort_unstable_by(f64::total_cmp);
    let p99 = times.get(times.len() * 99 / 100).copied().unwrap_or(0.0);
    let running = outcome.done.iter().map(|done| done.most_running).max().unwrap_or(0);
    Planning { case: case.to_owned(), steps: times.len(), running, median: median(times), p99, mean }
}

/// Saturated servers: all seats taken all the time, prompts coming in.
#[must_use]
pub fn plannings() -> Vec<Planning> {
    let few = trace::short_many(10, 3_000, 256, 200);
    let small = SchedulerConfig { max_slots: 256, ..timed(&LLAMA_8B_H100, TARGET_ITL) };
    let many = trace::short_many(11, 16_000, 128, 200);
    let node = Profile { model: LLAMA_8B, device: H100_X8 };
    let large = SchedulerConfig { max_slots: 10_000, max_step_tokens: 32_768, max_passes: 16, ..config(&node) };
    vec![
        planning("256 running, 8B on one H100", &few, &LLAMA_8B_H100, small),
        planning("10,000 running, 8B on eight H100", &many, &node, large),
    ]
}

/// Bytes that the process has in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1_024
}

/// 256 run and `waiting` wait, of `tenants` tenants in turn.
#[must_use]
pub fn queued(waiting: usize, tenants: u64) -> Queued {
    const RUNNING: u32 = 256;
    let config = SchedulerConfig {
        num_blocks: 1 << 16,
        block_size: BLOCK_SIZE,
        max_slots: RUNNING,
        max_step_tokens: 8_192,
        steps_in_flight: 2,
        prefix_caching: true,
        ..SchedulerConfig::default()
    };
    let Ok(mut scheduler) = Scheduler::new(config) else { unreachable!("the limits are ours") };
    let before = resident();
    let started = Instant::now();
    for id in 0..waiting as u64 {
        let first = id as u32;
        let new = NewSequence {
            id,
            tokens: (first..first + 64).collect(),
            prompt_len: 64,
            max_len: 64 + 100 + (id % 100) as u32,
            tenant: id % tenants,
            ..NewSequence::default()
        };
        if let Err(refusal) = scheduler.enqueue(new) {
            unreachable!("each fits alone: {refusal}");
        }
    }
    let enqueue = micros(started.elapsed()) / waiting as f64;
    let bytes = resident().saturating_sub(before) as f64 / waiting as f64;
    let (mut steady, mut admitting) = (Vec::new(), Vec::new());
    let mut completed = Completed::default();
    for _ in 0..600 {
        let mut plan = Plan::default();
        let started = Instant::now();
        if !scheduler.plan_into(&mut plan) {
            break;
        }
        let times = if plan.admits.is_empty() { &mut steady } else { &mut admitting };
        times.push(micros(started.elapsed()));
        let slots: Vec<Slot> = plan.segments.iter().filter(|segment| segment.sample).map(|one| one.slot).collect();
        let counts = vec![1; slots.len()];
        let results = Results { slots: &slots, counts: &counts, tokens: &slots, ..Results::default() };
        if let Err(mismatch) = scheduler.complete(plan.step, &results, &mut completed) {
            unreachable!("the report is made from the plan: {mismatch}");
        }
        for output in completed.outputs.iter().filter(|output| output.length_reached) {
            scheduler.finish(output.sequence);
        }
    }
    let stats = scheduler.stats();
    Queued {
        waiting: stats.waiting,
        tenants,
        running: stats.running,
        enqueue,
        plan: median(steady),
        plan_admitting: median(admitting),
        bytes,
    }
}
