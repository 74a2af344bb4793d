//! What a step costs the router: printed, never asserted. Run with
//! `cargo test --release scheduler::tests::timing -- --ignored --nocapture`.

use std::time::{Duration, Instant};

use super::*;

/// Median time to plan a step in which all decode, and to take its results.
fn steady_decode(running: u32) -> (Duration, Duration) {
    let config = SchedulerConfig {
        num_blocks: running * 40,
        block_size: 16,
        max_slots: running,
        max_step_tokens: running + 8192,
        max_running_tokens: None,
        steps_in_flight: 2,
        prefix_caching: true,
        ..SchedulerConfig::default()
    };
    let mut scheduler = scheduler(config, (0..u64::from(running)).map(|id| sequence(id, 16, 600)));
    let (mut plans, mut completed) = ([Plan::default(), Plan::default()], Completed::default());
    let (mut planning, mut completing) = (Vec::new(), Vec::new());
    assert!(scheduler.plan_into(&mut plans[0]));
    for step in 1..400 {
        let started = Instant::now();
        let planned = scheduler.plan_into(&mut plans[step % 2]);
        let planned_in = started.elapsed();
        let done = &plans[(step - 1) % 2];
        let slots: Vec<Slot> =
            done.segments.iter().filter(|segment| segment.sample).map(|segment| segment.slot).collect();
        let counts = vec![1; slots.len()];
        let results = Results { slots: &slots, counts: &counts, tokens: &slots, ..Results::default() };
        let started = Instant::now();
        scheduler.complete(done.step, &results, &mut completed).unwrap();
        let completed_in = started.elapsed();
        if planned && plans[step % 2].segments.iter().all(|segment| segment.last) && slots.len() == running as usize {
            planning.push(planned_in);
            completing.push(completed_in);
        }
    }
    assert!(planning.len() > 50, "the steady state lasted {} steps", planning.len());
    scheduler.check_integrity().unwrap();
    (median(planning), median(completing))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
#[ignore = "prints timings"]
fn time_of_a_steady_decode_step() {
    for running in [1, 32, 256, 1_000, 10_000] {
        let (planning, completing) = steady_decode(running);
        println!("{running:>6} running: plan {planning:>10.2?}, complete {completing:>10.2?}");
    }
}

/// Median time to hash a prompt, to guess how much of it is cached, and to find it for certain.
fn lookup(tokens: u32) -> [Duration; 3] {
    let config = SchedulerConfig {
        num_blocks: 1 << 14,
        block_size: 16,
        max_slots: 4,
        max_step_tokens: 1 << 16,
        max_running_tokens: None,
        steps_in_flight: 2,
        prefix_caching: true,
        ..SchedulerConfig::default()
    };
    // Many other prompts make the tree as large as it gets.
    let others = (1..).map(|id| sequence(id, tokens, 1)).take((1 << 18) / tokens as usize - 1);
    let mut scheduler = scheduler(config, others);
    while let Some(plan) = plan(&mut scheduler) {
        for output in complete(&mut scheduler, &plan).outputs {
            assert!(scheduler.finish(output.sequence));
        }
    }
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for id in 1..50 {
        let prompt = sequence(id, tokens, 1);
        let (mut chain, mut path) = (Vec::new(), Vec::new());
        let started = Instant::now();
        scheduler.hasher.extend(&mut chain, &prompt.cache_key, &prompt.tokens, 16);
        times[0].push(started.elapsed());
        let started = Instant::now();
        let reach = scheduler.cache.reach(&chain);
        times[1].push(started.elapsed());
        let started = Instant::now();
        scheduler.cache.walk(&prompt.cache_key, &chain, &prompt.tokens, &mut path);
        times[2].push(started.elapsed());
        assert_eq!((reach.0, path.len()), (chain.len(), chain.len()));
    }
    times.map(median)
}

#[test]
#[ignore = "prints timings"]
fn time_to_find_a_prefix() {
    for tokens in [64, 1_024, 4_096] {
        let [hash, guess, find] = lookup(tokens);
        println!("{tokens:>6} tokens: hash {hash:>9.2?} (once), guess {guess:>9.2?}, find {find:>9.2?}");
    }
}
