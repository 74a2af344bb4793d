//! Tests of the scheduler: a model shard and a model of its clients under random traces, and the edge cases one by one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod arrival;
mod beams;
mod beams_at_cap;
mod blocks;
mod cache_shares;
mod edges;
mod errors;
mod fork;
mod model_shard;
mod order;
mod preemption;
mod prefix_tree;
mod properties;
mod rebuild;
mod reuse;
mod seatings;
mod step_time;
mod timing;
mod toy;
mod whole;
mod window_tree;
mod world;
mod world_beams;
mod world_plans;

use std::sync::Arc;

use super::*;

/// A small, roomy configuration for the table-driven tests.
fn config() -> SchedulerConfig {
    SchedulerConfig {
        num_blocks: 64,
        block_size: 4,
        max_slots: 4,
        max_step_tokens: 16,
        max_running_tokens: None,
        steps_in_flight: 2,
        ..SchedulerConfig::default()
    }
}

/// A sequence with a prompt of distinct tokens.
fn sequence(id: SequenceId, prompt_len: u32, new_tokens: u32) -> NewSequence {
    let tokens = (0..prompt_len).map(|position| 1000 * id as u32 + position).collect();
    NewSequence { id, tokens, prompt_len, max_len: prompt_len + new_tokens, ..NewSequence::default() }
}

fn scheduler(config: SchedulerConfig, sequences: impl IntoIterator<Item = NewSequence>) -> Scheduler {
    let mut scheduler = Scheduler::new(config).unwrap();
    for sequence in sequences {
        scheduler.enqueue(sequence).unwrap();
    }
    scheduler
}

/// The next plan, with every invariant checked.
fn plan(scheduler: &mut Scheduler) -> Option<Plan> {
    let mut plan = Plan::default();
    let planned = scheduler.plan_into(&mut plan);
    scheduler.check_integrity().unwrap();
    planned.then_some(plan)
}

/// Completes a plan: slot s samples 100 * step + s.
fn complete(scheduler: &mut Scheduler, plan: &Plan) -> Completed {
    let slots: Vec<Slot> = plan.segments.iter().filter(|segment| segment.sample).map(|segment| segment.slot).collect();
    let tokens: Vec<Token> = slots.iter().map(|slot| 100 * plan.step as Token + slot).collect();
    let counts = vec![1; slots.len()];
    let mut completed = Completed::default();
    let results = Results { slots: &slots, counts: &counts, tokens: &tokens, ..Results::default() };
    scheduler.complete(plan.step, &results, &mut completed).unwrap();
    scheduler.check_integrity().unwrap();
    completed
}

/// Who takes which slot.
fn admits(plan: &Plan) -> Vec<(SequenceId, Slot)> {
    plan.admits.iter().map(|admission| (admission.sequence, admission.slot)).collect()
}

/// What a plan runs: (sequence, start, length, last, sample) per segment.
fn shape(plan: &Plan) -> Vec<(SequenceId, u32, u32, bool, bool)> {
    plan.segments
        .iter()
        .map(|segment| (segment.sequence, segment.start, segment.length, segment.last, segment.sample))
        .collect()
}
