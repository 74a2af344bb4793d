//! What goes into a step: chunks, budget, one step ahead, blocks, limits.

use super::*;

#[test]
fn a_prompt_is_cut_to_the_budget() {
    /// start, length, sample
    type Chunk = (u32, u32, bool);
    let cases: [(u32, u32, &[Chunk]); 5] = [
        // prompt, budget, chunks
        (1, 16, &[(0, 1, true)]),
        (16, 16, &[(0, 16, true)]),
        (17, 16, &[(0, 16, false), (16, 1, true)]),
        (10, 4, &[(0, 4, false), (4, 4, false), (8, 2, true)]),
        (3, 1, &[(0, 1, false), (1, 1, false), (2, 1, true)]),
    ];
    for (prompt_len, max_step_tokens, chunks) in cases {
        let mut scheduler = scheduler(SchedulerConfig { max_step_tokens, ..config() }, [sequence(1, prompt_len, 4)]);
        for &(start, length, sample) in chunks {
            let plan = plan(&mut scheduler).unwrap();
            assert_eq!(shape(&plan), [(1, start, length, false, sample)]);
            let ids: Vec<Token> = (1000 + start..1000 + start + length).collect();
            assert_eq!(plan.tokens_of(&plan.segments[0]), ids);
            complete(&mut scheduler, &plan);
        }
        assert_eq!(scheduler.tokens(1).unwrap().len() as u32, prompt_len + 1);
    }
}

#[test]
fn prompts_have_a_share_of_a_step_beside_streams() {
    // streams, tokens of prompts for each, tokens of prompts in a step of 64
    let cases =
        [(0, Some(8), 64), (1, Some(8), 32), (4, Some(8), 32), (6, Some(8), 48), (7, Some(9), 57), (1, None, 63)];
    for (streams, max_prefill_per_stream, expected) in cases {
        let limits = SchedulerConfig { num_blocks: 200, max_slots: 16, max_step_tokens: 64, ..config() };
        let config = SchedulerConfig { max_prefill_per_stream, ..limits };
        let mut scheduler = scheduler(config, (1..=streams).map(|id| sequence(id, 4, 50)));
        if streams > 0 {
            let first = plan(&mut scheduler).unwrap();
            complete(&mut scheduler, &first);
        }
        scheduler.enqueue(sequence(20, 20, 2)).unwrap();
        scheduler.enqueue(sequence(21, 100, 2)).unwrap();
        let step = plan(&mut scheduler).unwrap();
        let prompts: Vec<u32> = step.segments.iter().filter(|each| !each.last).map(|each| each.length).collect();
        assert_eq!(prompts, [20, expected - 20], "{streams} streams");
    }
}

#[test]
fn a_step_goes_on_from_what_the_one_before_is_sampling() {
    let mut scheduler = scheduler(config(), [sequence(1, 3, 8)]);
    let first = plan(&mut scheduler).unwrap();
    let second = plan(&mut scheduler).unwrap();
    assert_eq!(shape(&second), [(1, 3, 1, true, true)]);
    assert!(second.tokens.is_empty() && second.admits.is_empty());
    assert_eq!(plan(&mut scheduler), None, "a third step while two are in flight");
    assert_eq!(scheduler.stats().running_tokens, 5);

    assert_eq!(complete(&mut scheduler, &first).outputs[0].position, 3);
    let third = plan(&mut scheduler).unwrap();
    assert_eq!(shape(&third), [(1, 4, 1, true, true)]);
    let output = complete(&mut scheduler, &second).outputs[0];
    assert_eq!((output.token, output.position, output.length_reached), (200, 4, false));
    assert_eq!(scheduler.tokens(1).unwrap(), [1000, 1001, 1002, 100, 200]);
}

#[test]
fn one_step_in_flight_is_enough() {
    let mut scheduler = scheduler(SchedulerConfig { steps_in_flight: 1, ..config() }, [sequence(1, 3, 3)]);
    for (start, length) in [(0, 3), (3, 1), (4, 1)] {
        let step = plan(&mut scheduler).unwrap();
        assert_eq!((step.segments[0].start, step.segments[0].length), (start, length));
        assert_eq!(plan(&mut scheduler), None);
        complete(&mut scheduler, &step);
    }
    assert_eq!(plan(&mut scheduler), None);
}

#[test]
fn nothing_is_planned_beyond_the_length() {
    for new_tokens in 1..4 {
        let mut scheduler = scheduler(config(), [sequence(1, 5, new_tokens)]);
        let mut in_flight = VecDeque::new();
        let mut outputs = vec![];
        loop {
            match plan(&mut scheduler) {
                Some(plan) => in_flight.push_back(plan),
                None if in_flight.is_empty() => break,
                None => outputs.extend(complete(&mut scheduler, &in_flight.pop_front().unwrap()).outputs),
            }
        }
        let reached: Vec<bool> = outputs.iter().map(|output| output.length_reached).collect();
        let expected: Vec<bool> = (1..=new_tokens).map(|token| token == new_tokens).collect();
        assert_eq!(reached, expected);
        assert!(!scheduler.is_running(1) && !scheduler.is_waiting(1));
        assert_eq!(scheduler.stats().blocks_used, 0, "a complete sequence holds blocks");
        assert_eq!(scheduler.tokens(1).unwrap().len() as u32, 5 + new_tokens, "its tokens stay until it is finished");
        scheduler.reset();
        assert_eq!(plan(&mut scheduler), None, "a complete sequence runs again after a reset");
        assert!(scheduler.finish(1) && !scheduler.finish(1));
        assert_eq!(scheduler.tokens(1), None);
    }
}

#[test]
fn a_stream_never_waits_for_a_long_prompt() {
    let mut scheduler = scheduler(config(), [sequence(1, 3, 40)]);
    let first = plan(&mut scheduler).unwrap();
    scheduler.enqueue(sequence(2, 40, 4)).unwrap();
    scheduler.enqueue(sequence(3, 2, 4)).unwrap();
    let second = plan(&mut scheduler).unwrap();
    assert_eq!(shape(&second), [(1, 3, 1, true, true), (2, 0, 15, false, false)]);
    complete(&mut scheduler, &first);
    let third = plan(&mut scheduler).unwrap();
    assert_eq!(shape(&third), [(1, 4, 1, true, true), (2, 15, 15, false, false)]);
    complete(&mut scheduler, &second);
    let fourth = plan(&mut scheduler).unwrap();
    assert_eq!(shape(&fourth), [(1, 5, 1, true, true), (2, 30, 10, false, true), (3, 0, 2, false, true)]);
    assert_eq!(fourth.token_count(), 13);
}

#[test]
fn blocks_are_allocated_when_positions_need_them() {
    let mut scheduler = scheduler(config(), [sequence(1, 7, 9)]);
    let mut new_blocks = vec![];
    while let Some(plan) = plan(&mut scheduler) {
        new_blocks.push(plan.blocks.len());
        complete(&mut scheduler, &plan);
    }
    // Position 15 is sampled and never run: the fourth block ends with position 15 and is opened at 12.
    assert_eq!(new_blocks, [2, 0, 1, 0, 0, 0, 1, 0, 0]);
}

#[test]
fn slots_are_a_limit_and_the_budget_is_a_limit_of_slots() {
    let sequences = || (1..=6).map(|id| sequence(id, 2, 9));
    for (max_slots, max_step_tokens, expected) in [(4, 16, 4), (6, 16, 6), (6, 12, 6), (6, 3, 2), (2, 16, 2)] {
        let config = SchedulerConfig { max_slots, max_step_tokens, ..config() };
        let mut scheduler = scheduler(config, sequences());
        assert_eq!(plan(&mut scheduler).unwrap().admits.len(), expected);
        assert_eq!(scheduler.config().max_slots, max_slots.min(max_step_tokens));
    }
}

#[test]
fn the_token_cap_holds_like_a_small_pool() {
    let capped = SchedulerConfig { max_running_tokens: Some(12), ..config() };
    let mut scheduler = scheduler(capped, [sequence(1, 4, 8), sequence(2, 4, 8), sequence(3, 1, 1)]);
    let first = plan(&mut scheduler).unwrap();
    assert_eq!(admits(&first), [(1, 0), (2, 1)], "the third would leave no room to grow");
    assert_eq!(scheduler.stats().running_tokens, 10);
    let second = plan(&mut scheduler).unwrap();
    assert_eq!(scheduler.stats().running_tokens, 12);
    complete(&mut scheduler, &first);
    let third = plan(&mut scheduler).unwrap();
    assert_eq!(shape(&third), [(1, 5, 1, true, true)], "the later one gives way");
    assert_eq!(third.freed, [1]);
    assert!(scheduler.is_waiting(2));
    complete(&mut scheduler, &second);
    assert_eq!(scheduler.tokens(2).unwrap().len(), 5, "a token of the old seat was taken");
}

#[test]
fn a_newcomer_leaves_the_running_ones_room_to_grow() {
    // Each has a prompt of two blocks; the first one's nine tokens, with the one it samples, are there when the second asks.
    for (num_blocks, max_running_tokens, joins) in
        [(4, None, false), (5, None, true), (64, Some(18), false), (64, Some(19), true)]
    {
        let config = SchedulerConfig { num_blocks, max_running_tokens, ..config() };
        let mut scheduler = scheduler(config, [sequence(1, 8, 8), sequence(2, 8, 8)]);
        let admitted = plan(&mut scheduler).unwrap().admits.len();
        assert_eq!(admitted, if joins { 2 } else { 1 }, "{num_blocks} blocks, {max_running_tokens:?} tokens");
    }
}

#[test]
fn a_started_prompt_goes_on_in_what_is_left() {
    // The first takes a block in each step, the second, of eight blocks, up to two.
    let tight = SchedulerConfig { num_blocks: 11, block_size: 1, max_step_tokens: 3, ..config() };
    let mut scheduler = scheduler(tight, [sequence(1, 1, 10), sequence(2, 8, 1)]);
    for (start, length) in [(0, 2), (2, 2), (4, 2), (6, 1)] {
        let plan = plan(&mut scheduler).unwrap();
        assert_eq!(shape(&plan)[1], (2, start, length, false, false));
        complete(&mut scheduler, &plan);
    }
    let last = plan(&mut scheduler).unwrap();
    assert_eq!((shape(&last), last.freed.as_slice()), (vec![(1, 4, 1, true, true)], [1].as_slice()));
}

#[test]
fn a_prompt_that_does_not_sample_yet_goes_on_at_the_token_cap() {
    let capped = SchedulerConfig { max_running_tokens: Some(17), max_step_tokens: 4, ..config() };
    let mut scheduler = scheduler(capped, [sequence(1, 2, 9), sequence(2, 12, 1)]);
    for (start, length, running_tokens) in [(0, 2, 15), (2, 3, 16), (5, 3, 17)] {
        let plan = plan(&mut scheduler).unwrap();
        assert_eq!(shape(&plan)[1], (2, start, length, false, false));
        assert_eq!(scheduler.stats().running_tokens, running_tokens);
        complete(&mut scheduler, &plan);
    }
    assert_eq!(shape(&plan(&mut scheduler).unwrap()).len(), 1, "the first needs the place of a token");
}

#[test]
fn prompt_logprobs_are_asked_for_until_they_were_reported() {
    let scored = NewSequence { prompt_logprobs: true, ..sequence(1, 20, 8) };
    let mut scheduler = scheduler(config(), [scored.clone()]);
    let mut flags = vec![];
    for _ in 0..3 {
        let plan = plan(&mut scheduler).unwrap();
        flags.push(plan.segments[0].prompt_logprobs);
        complete(&mut scheduler, &plan);
    }
    assert_eq!(flags, [true, true, false]);
    scheduler.reset();
    assert!(!plan(&mut scheduler).unwrap().segments[0].prompt_logprobs, "reported before, with the first output");

    let mut early = Scheduler::new(config()).unwrap();
    early.enqueue(scored).unwrap();
    plan(&mut early).unwrap();
    early.reset();
    assert!(plan(&mut early).unwrap().segments[0].prompt_logprobs, "never reported: the shard died before");
}

#[test]
fn a_resumed_sequence_runs_prompt_and_output_as_one_prompt() {
    let resumed = NewSequence { prompt_len: 3, max_len: 8, ..sequence(1, 6, 1) };
    let mut scheduler = scheduler(config(), [resumed]);
    let first = plan(&mut scheduler).unwrap();
    assert_eq!(shape(&first), [(1, 0, 6, false, true)]);
    assert_eq!(complete(&mut scheduler, &first).outputs[0].position, 6);
    assert_eq!(scheduler.prompt_len(1), Some(3));
}

#[test]
fn the_memory_of_a_plan_is_used_again() {
    let mut scheduler = scheduler(config(), [sequence(1, 12, 30)]);
    let mut plan = Plan::default();
    assert!(scheduler.plan_into(&mut plan));
    let memory = (plan.tokens.as_ptr(), plan.segments.as_ptr());
    complete(&mut scheduler, &plan);
    assert!(scheduler.plan_into(&mut plan));
    assert_eq!((plan.tokens.as_ptr(), plan.segments.as_ptr()), memory);
    assert_eq!((plan.step, plan.tokens.len(), plan.admits.len()), (2, 0, 0));
    complete(&mut scheduler, &plan);
    assert_eq!(scheduler.spare.len(), 1);
}
