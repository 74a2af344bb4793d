//! What sequences take from the cache and what they leave in it, one case at a time. Blocks hold four tokens.

use super::arrival::Arrival;
use super::world::World;
use super::*;

fn caching() -> SchedulerConfig {
    SchedulerConfig { prefix_caching: true, max_step_tokens: 64, ..config() }
}

/// A sequence whose prompt is `0..shared` and then its own.
fn alike(id: SequenceId, shared: u32, prompt_len: u32, new_tokens: u32) -> NewSequence {
    let own = sequence(id, prompt_len, new_tokens);
    let tokens = (0..shared).chain(own.tokens[shared as usize..].iter().copied()).collect();
    NewSequence { tokens, ..own }
}

/// Runs all there is, two steps in flight; returns the cached tokens of each admission in order.
fn run(scheduler: &mut Scheduler) -> Vec<(SequenceId, u32)> {
    let (mut admitted, mut in_flight) = (vec![], VecDeque::new());
    loop {
        while let Some(plan) = plan(scheduler) {
            admitted.extend(plan.admits.iter().map(|admission| (admission.sequence, admission.cached_tokens)));
            in_flight.push_back(plan);
        }
        let Some(first) = in_flight.pop_front() else { return admitted };
        for output in complete(scheduler, &first).outputs.iter().filter(|output| output.length_reached) {
            assert!(scheduler.finish(output.sequence));
        }
    }
}

#[test]
fn what_was_computed_is_not_computed_again() {
    // shared tokens, length of the second prompt, tokens that it need not run
    let cases =
        [(0, 12, 0), (4, 12, 4), (11, 12, 11), (12, 12, 11), (9, 12, 9), (8, 9, 8), (8, 8, 7), (3, 9, 3), (1, 4, 1)];
    for (shared, prompt_len, cached) in cases {
        let mut scheduler = scheduler(caching(), [alike(1, 12, 12, 2)]);
        assert_eq!(run(&mut scheduler), [(1, 0)]);
        scheduler.enqueue(alike(2, shared, prompt_len, 2)).unwrap();
        let second = plan(&mut scheduler).unwrap();
        assert_eq!(second.admits[0].cached_tokens, cached, "{shared} of {prompt_len} tokens are shared");
        assert_eq!(shape(&second), [(2, cached, prompt_len - cached, false, true)]);
        assert_eq!(second.blocks.len() as u32, prompt_len.div_ceil(4), "the shard is told of all blocks");
        assert_eq!(second.copies.len(), usize::from(!cached.is_multiple_of(4)));
        if let [(from, to)] = second.copies[..] {
            assert!(second.blocks.contains(&to) && !second.blocks.contains(&from));
        }
        let stats = scheduler.stats();
        assert_eq!((stats.queried_tokens, stats.hit_tokens), (u64::from(12 + prompt_len), u64::from(cached)));
    }
}

#[test]
fn output_is_cached_like_a_prompt() {
    let mut scheduler = scheduler(caching(), [sequence(1, 5, 8)]);
    let mut in_flight = VecDeque::new();
    let mut known = vec![];
    while scheduler.is_waiting(1) || scheduler.is_running(1) {
        while let Some(plan) = plan(&mut scheduler) {
            in_flight.push_back(plan);
        }
        complete(&mut scheduler, &in_flight.pop_front().unwrap());
        known = scheduler.tokens(1).unwrap().to_vec();
    }
    scheduler.finish(1);
    // The last token was never run: twelve positions are there.
    let prompt_len = known.len() as u32 + 3;
    known.extend([1, 2, 3]);
    scheduler.enqueue(NewSequence { tokens: known, prompt_len, max_len: 30, ..sequence(2, 1, 1) }).unwrap();
    assert_eq!(plan(&mut scheduler).unwrap().admits[0].cached_tokens, 12);
}

#[test]
fn only_an_equal_key_finds_a_prefix() {
    let keyed = |id, salt: &[u8]| NewSequence { cache_key: CacheKey::of(&[salt]), ..alike(id, 12, 12, 2) };
    let mut scheduler = scheduler(caching(), [keyed(1, b"one")]);
    run(&mut scheduler);
    scheduler.enqueue(keyed(2, b"two")).unwrap();
    assert_eq!(run(&mut scheduler), [(2, 0)]);
    scheduler.enqueue(keyed(3, b"one")).unwrap();
    assert_eq!(run(&mut scheduler), [(3, 11)]);
}

#[test]
fn nothing_is_cached_unless_asked() {
    let off = SchedulerConfig { prefix_caching: false, ..caching() };
    let mut scheduler = scheduler(off, [alike(1, 12, 12, 2)]);
    run(&mut scheduler);
    scheduler.enqueue(alike(2, 12, 12, 2)).unwrap();
    assert_eq!(run(&mut scheduler), [(2, 0)]);
    assert_eq!(scheduler.stats().blocks_cached, 0);
}

#[test]
fn a_prompt_that_is_scored_is_run_in_full_until_it_was() {
    let mut scheduler = scheduler(caching(), [alike(1, 12, 12, 2)]);
    run(&mut scheduler);
    scheduler.enqueue(NewSequence { prompt_logprobs: true, ..alike(2, 12, 12, 4) }).unwrap();
    assert_eq!(run(&mut scheduler), [(2, 0)]);
    let resumed = NewSequence { prompt_logprobs: true, prompt_len: 10, ..alike(3, 12, 12, 2) };
    scheduler.enqueue(resumed).unwrap();
    assert_eq!(run(&mut scheduler), [(3, 11)]);
}

#[test]
fn whoever_could_read_what_the_step_writes_waits_for_the_next() {
    let mut scheduler = scheduler(caching(), [alike(1, 12, 14, 9), alike(2, 12, 14, 9), alike(3, 12, 14, 9)]);
    let first = plan(&mut scheduler).unwrap();
    assert_eq!(admits(&first), [(1, 0)]);
    let second = plan(&mut scheduler).unwrap();
    assert_eq!(shape(&second), [(1, 14, 1, true, true), (2, 12, 2, false, true), (3, 12, 2, false, true)]);
    assert_eq!(second.copies, [], "the first one's last block is not full");
    assert_eq!(scheduler.stats().blocks_used, 3 + 3);
    complete(&mut scheduler, &first);
    complete(&mut scheduler, &second);
}

#[test]
fn what_is_shared_takes_no_room_twice() {
    // Eight blocks are shared, each of the two has one of its own, and there is one to grow.
    for (num_blocks, joins) in [(10, false), (11, true)] {
        let mut scheduler = scheduler(SchedulerConfig { num_blocks, ..caching() }, [alike(1, 32, 34, 2)]);
        plan(&mut scheduler).unwrap();
        scheduler.enqueue(alike(2, 32, 34, 2)).unwrap();
        assert_eq!(plan(&mut scheduler).unwrap().admits.len(), usize::from(joins), "{num_blocks} blocks");
    }
}

#[test]
fn two_that_compute_the_same_leave_it_once() {
    let scored = |id| NewSequence { prompt_logprobs: true, ..alike(id, 12, 12, 2) };
    let mut scheduler = scheduler(caching(), [scored(1), scored(2)]);
    assert_eq!(admits(&plan(&mut scheduler).unwrap()), [(1, 0), (2, 1)]);
    assert_eq!((scheduler.stats().blocks_used, scheduler.stats().blocks_cached), (6, 3));
}

#[test]
fn cached_blocks_are_given_up_from_the_end_of_what_was_left_first() {
    let tight = SchedulerConfig { num_blocks: 8, ..caching() };
    let mut scheduler = scheduler(tight, [sequence(1, 11, 2)]);
    run(&mut scheduler);
    scheduler.enqueue(sequence(2, 11, 2)).unwrap();
    run(&mut scheduler);
    assert_eq!((scheduler.stats().blocks_cached, scheduler.stats().blocks_used), (6, 0));
    scheduler.enqueue(sequence(3, 15, 2)).unwrap();
    run(&mut scheduler);
    assert_eq!((scheduler.stats().evictions, scheduler.stats().blocks_cached), (2, 8));
    // The copy that the second one starts from takes the last block of the first.
    for (again, cached) in [(2, 10), (1, 0)] {
        scheduler.enqueue(NewSequence { id: 10 + again, ..sequence(again, 11, 2) }).unwrap();
        assert_eq!(run(&mut scheduler), [(10 + again, cached)]);
    }
}

#[test]
fn a_copy_needs_no_block_but_the_one_it_is_made_from() {
    let tight = SchedulerConfig { num_blocks: 3, ..caching() };
    let mut scheduler = scheduler(tight, [alike(1, 11, 11, 2)]);
    run(&mut scheduler);
    scheduler.enqueue(alike(2, 11, 11, 2)).unwrap();
    let second = plan(&mut scheduler).unwrap();
    assert_eq!((second.admits[0].cached_tokens, second.copies.len()), (10, 0), "the block itself is taken");
}

#[test]
fn whoever_gave_way_finds_its_own_blocks() {
    let tight = SchedulerConfig { num_blocks: 9, ..caching() };
    let mut scheduler = scheduler(tight, [sequence(1, 12, 16), sequence(2, 12, 8)]);
    let admitted = run(&mut scheduler);
    assert_eq!(scheduler.stats().preemptions, 1);
    assert!(matches!(admitted[..], [(1, 0), (2, 0), (2, cached)] if cached >= 4), "{admitted:?}");
}

#[test]
fn a_dead_shard_takes_the_cache_with_it() {
    let mut scheduler = scheduler(caching(), [alike(1, 12, 12, 9)]);
    plan(&mut scheduler).unwrap();
    assert_eq!(scheduler.stats().blocks_cached, 3);
    scheduler.reset();
    assert_eq!(scheduler.stats().blocks_cached, 0);
    assert_eq!(plan(&mut scheduler).unwrap().admits[0].cached_tokens, 0);
}

#[test]
fn a_failure_takes_what_rests_on_it() {
    let mut scheduler = scheduler(caching(), [alike(1, 12, 12, 9)]);
    let first = plan(&mut scheduler).unwrap();
    scheduler.enqueue(alike(2, 8, 14, 9)).unwrap();
    scheduler.enqueue(sequence(3, 8, 9)).unwrap();
    let second = plan(&mut scheduler).unwrap();
    assert_eq!(second.admits[0].cached_tokens, 8, "it reads what the first step is to write");
    let mut completed = Completed::default();
    scheduler.complete(first.step, &Results { failed: &[0], ..Results::default() }, &mut completed).unwrap();
    scheduler.check_integrity().unwrap();
    assert_eq!(completed.failed, [1]);
    assert!(scheduler.is_waiting(2) && scheduler.is_running(3));
    assert_eq!(scheduler.stats().blocks_cached, 2, "only what the third wrote is left");
    let third = plan(&mut scheduler).unwrap();
    assert_eq!((third.admits[0].sequence, third.admits[0].cached_tokens), (2, 0));
    let outputs = complete(&mut scheduler, &second).outputs;
    assert_eq!(outputs.iter().map(|output| output.sequence).collect::<Vec<_>>(), [3]);
}

#[test]
fn what_a_failed_one_has_read_is_not_trusted_either() {
    let mut scheduler = scheduler(caching(), [alike(1, 12, 12, 2), sequence(2, 12, 2)]);
    run(&mut scheduler);
    assert_eq!(scheduler.stats().blocks_cached, 6);
    scheduler.enqueue(alike(3, 8, 14, 9)).unwrap();
    let step = plan(&mut scheduler).unwrap();
    let failed = Results { failed: &[step.segments[0].slot], ..Results::default() };
    scheduler.complete(step.step, &failed, &mut Completed::default()).unwrap();
    scheduler.check_integrity().unwrap();
    assert_eq!(scheduler.stats().blocks_cached, 3, "what others computed apart from it stays");
}

#[test]
fn a_failure_after_the_end_still_counts() {
    let mut scheduler = scheduler(caching(), [alike(1, 12, 12, 9)]);
    let first = plan(&mut scheduler).unwrap();
    assert!(scheduler.finish(1));
    assert_eq!(scheduler.stats().blocks_cached, 3);
    let failed = Results { failed: &[0], ..Results::default() };
    scheduler.complete(first.step, &failed, &mut Completed::default()).unwrap();
    scheduler.check_integrity().unwrap();
    assert_eq!(scheduler.stats().blocks_cached, 0);
}

#[test]
fn whoever_copied_from_a_failed_one_starts_over() {
    let mut scheduler = scheduler(caching(), [alike(1, 8, 8, 9)]);
    let first = plan(&mut scheduler).unwrap();
    scheduler.enqueue(alike(2, 3, 9, 9)).unwrap();
    assert_eq!(plan(&mut scheduler).unwrap().copies.len(), 1);
    let failed = Results { failed: &[0], ..Results::default() };
    scheduler.complete(first.step, &failed, &mut Completed::default()).unwrap();
    assert!(scheduler.is_waiting(2));
    assert_eq!(plan(&mut scheduler).unwrap().admits[0].cached_tokens, 0);
}

/// The same requests with the cache cold, warm and off: the same outputs, which the world compares with what each would
/// generate alone, and the work that is saved.
#[test]
fn hit_or_miss_makes_no_difference_but_in_work() {
    let computed = |prefix_caching| {
        let mut world = World::new(SchedulerConfig { prefix_caching, num_blocks: 200, ..caching() });
        [(); 3].map(|()| {
            let before = world.computed;
            for script in 0..4 {
                for shared in [40, 33, 21, 6] {
                    assert!(world.arrive(Arrival {
                        prompt_len: 40,
                        new_tokens: 9,
                        script,
                        shared,
                        ..Arrival::default()
                    }));
                }
            }
            world.drain();
            (world.computed - before, world.copies)
        })
    };
    let [off, off_again, _] = computed(false);
    let [cold, warm, warmer] = computed(true);
    println!("tokens run: {off:?} off, {cold:?} cold, {warm:?} warm, {warmer:?} warmer");
    assert_eq!((off.1, off_again.1), (0, 0));
    assert!(cold.0 + 100 < off.0 && warm.0 * 3 < off.0 * 2 && warmer.1 > warm.1);
}

#[test]
fn a_copy_of_what_failed_is_not_kept_for_one_that_has_gone() {
    let mut scheduler = scheduler(caching(), [alike(1, 8, 8, 9)]);
    let first = plan(&mut scheduler).unwrap();
    scheduler.enqueue(alike(2, 3, 9, 9)).unwrap();
    assert_eq!(plan(&mut scheduler).unwrap().copies.len(), 1);
    assert!(scheduler.finish(2));
    assert_eq!(scheduler.stats().blocks_cached, 4);
    let failed = Results { failed: &[0], ..Results::default() };
    scheduler.complete(first.step, &failed, &mut Completed::default()).unwrap();
    scheduler.check_integrity().unwrap();
    assert_eq!(scheduler.stats().blocks_cached, 0);
}
