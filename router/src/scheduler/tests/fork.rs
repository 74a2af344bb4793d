//! Sequences that go on from one prompt. Blocks hold four tokens.

use super::*;

fn forked(config: SchedulerConfig, prompt_len: u32) -> Scheduler {
    let mut scheduler = scheduler(config, [sequence(1, prompt_len, 9)]);
    scheduler.fork(1, &[2, 3]).unwrap();
    scheduler
}

#[test]
fn forks_share_the_prompt_and_copy_its_end() {
    // prompt, whether there is a cache, copies per fork, blocks in use after the second step
    for (prompt_len, prefix_caching, copies, blocks) in [
        (14, false, 1, 3 + 3),
        (13, false, 0, 3 + 3),
        (12, false, 1, 2 + 2 + 2),
        (14, true, 1, 3 + 3),
        (2, false, 1, 3),
    ] {
        let config = SchedulerConfig { prefix_caching, max_step_tokens: 64, ..config() };
        let mut scheduler = forked(config, prompt_len);
        let first = plan(&mut scheduler).unwrap();
        assert_eq!(admits(&first), [(1, 0)], "the others wait for what it computes");
        let second = plan(&mut scheduler).unwrap();
        let (rest, last) = (prompt_len - 1, prompt_len);
        assert_eq!(shape(&second), [(1, last, 1, true, true), (2, rest, 1, false, true), (3, rest, 1, false, true)]);
        assert_eq!(second.copies.len(), 2 * copies);
        let stats = scheduler.stats();
        assert_eq!(stats.blocks_used, blocks, "a prompt of {prompt_len} tokens");
        complete(&mut scheduler, &first);
        complete(&mut scheduler, &second);
        assert!(scheduler.finish(1));
        scheduler.check_integrity().unwrap();
        while scheduler.stats().running > 0 {
            let plan = plan(&mut scheduler).unwrap();
            complete(&mut scheduler, &plan);
        }
        assert_eq!(scheduler.stats().blocks_used, 0);
    }
}

#[test]
fn a_fork_without_relatives_runs_the_prompt_itself() {
    let mut scheduler = forked(config(), 14);
    let first = plan(&mut scheduler).unwrap();
    assert!(scheduler.finish(1));
    complete(&mut scheduler, &first);
    assert_eq!(shape(&plan(&mut scheduler).unwrap()), [(2, 0, 14, false, true)]);
    let later = plan(&mut scheduler).unwrap();
    assert_eq!((later.admits[0].sequence, later.admits[0].cached_tokens), (3, 13), "from the other fork");
}

#[test]
fn who_takes_the_id_of_the_first_is_no_relative() {
    let mut scheduler = forked(SchedulerConfig { max_slots: 1, ..config() }, 14);
    plan(&mut scheduler).unwrap();
    assert!(scheduler.finish(1) && scheduler.finish(2));
    scheduler.enqueue(NewSequence { priority: 0, ..sequence(1, 14, 9) }).unwrap();
    assert_eq!(plan(&mut scheduler).unwrap().admits[0].cached_tokens, 0);
}

#[test]
fn a_long_prompt_is_waited_for() {
    let mut scheduler = forked(config(), 40);
    let chunks: Vec<Vec<SequenceId>> = (0..4)
        .map(|_| {
            let plan = plan(&mut scheduler).unwrap();
            complete(&mut scheduler, &plan);
            plan.segments.iter().map(|segment| segment.sequence).collect()
        })
        .collect();
    assert_eq!(chunks, [vec![1], vec![1], vec![1], vec![1, 2, 3]]);
}

#[test]
fn a_failure_reaches_the_forks_that_rest_on_it() {
    for prefix_caching in [false, true] {
        let mut scheduler = forked(SchedulerConfig { prefix_caching, ..config() }, 14);
        let first = plan(&mut scheduler).unwrap();
        let second = plan(&mut scheduler).unwrap();
        assert_eq!(second.admits.len(), 2);
        let failed = Results { failed: &[0], ..Results::default() };
        scheduler.complete(first.step, &failed, &mut Completed::default()).unwrap();
        scheduler.check_integrity().unwrap();
        assert!(scheduler.is_waiting(2) && scheduler.is_waiting(3));
        assert_eq!((scheduler.stats().blocks_cached, scheduler.stats().blocks_used), (0, 0));
        assert_eq!(complete(&mut scheduler, &second).outputs, []);
        assert_eq!(plan(&mut scheduler).unwrap().admits[0].cached_tokens, 0);
    }
}

#[test]
fn forks_are_refused_whole() {
    let mut scheduler = forked(config(), 14);
    assert_eq!(scheduler.fork(7, &[8]), Err(Refusal::Unknown { id: 7 }));
    assert_eq!(scheduler.fork(1, &[8, 3]), Err(Refusal::Duplicate { id: 3 }));
    assert_eq!(scheduler.fork(1, &[8, 9, 8]), Err(Refusal::Duplicate { id: 8 }));
    assert_eq!(scheduler.stats().waiting, 3);
    assert_eq!(scheduler.fork(1, &[]), Ok(()));
}

#[test]
fn what_is_copied_in_a_step_is_copied_on_in_a_later_one() {
    let alone = SchedulerConfig { prefix_caching: true, ..config() };
    let mut scheduler = scheduler(alone, [sequence(1, 14, 9)]);
    while scheduler.tokens(1).is_some_and(|tokens| tokens.len() < 20) {
        let plan = plan(&mut scheduler).unwrap();
        complete(&mut scheduler, &plan);
    }
    scheduler.fork(1, &[2, 3]).unwrap();
    assert!(scheduler.finish(1));
    // Three blocks and a token of the fourth are cached.
    let first = plan(&mut scheduler).unwrap();
    assert_eq!((shape(&first), first.copies.len()), (vec![(2, 13, 1, false, true)], 1));
    let second = plan(&mut scheduler).unwrap();
    assert_eq!((shape(&second)[1], second.copies.len()), ((3, 13, 1, false, true), 1));
    assert_eq!(second.copies[0].0, first.copies[0].1, "the copy of a copy");
}
