//! Who sits where: late results, slots that change hands, giving way, dead shards.

use super::*;

#[test]
fn a_late_result_of_a_finished_sequence_is_dropped() {
    let mut scheduler = scheduler(config(), [sequence(1, 3, 9), sequence(2, 3, 9)]);
    let first = plan(&mut scheduler).unwrap();
    let second = plan(&mut scheduler).unwrap();
    complete(&mut scheduler, &first);
    assert!(scheduler.finish(1));
    let outputs = complete(&mut scheduler, &second).outputs;
    assert_eq!(outputs.len(), 1);
    assert_eq!((outputs[0].sequence, outputs[0].row, outputs[0].place, outputs[0].token), (2, 1, 1, 201));
}

#[test]
fn a_late_result_never_reaches_the_next_occupant() {
    let one_slot = SchedulerConfig { max_slots: 1, ..config() };
    let mut scheduler = scheduler(one_slot, [sequence(1, 3, 9), sequence(2, 3, 9)]);
    let first = plan(&mut scheduler).unwrap();
    let second = plan(&mut scheduler).unwrap();
    complete(&mut scheduler, &first);
    assert!(scheduler.finish(1));
    let third = plan(&mut scheduler).unwrap();
    assert_eq!(admits(&third), [(2, 0)]);
    assert!(third.freed.is_empty(), "a slot that is taken again is not freed");
    assert!(complete(&mut scheduler, &second).outputs.is_empty(), "slot 0 is another's now");
    assert_eq!(scheduler.tokens(2).unwrap(), [2000, 2001, 2002]);
    assert_eq!(complete(&mut scheduler, &third).outputs[0].token, 300);
}

#[test]
fn a_late_result_never_reaches_a_sequence_that_has_the_old_ones_id_and_slot() {
    let mut scheduler = scheduler(config(), [sequence(1, 3, 9)]);
    let first = plan(&mut scheduler).unwrap();
    assert!(scheduler.finish(1));
    scheduler.enqueue(sequence(1, 5, 9)).unwrap();
    let second = plan(&mut scheduler).unwrap();
    assert_eq!(admits(&second), [(1, 0)]);
    assert!(complete(&mut scheduler, &first).outputs.is_empty());
    assert_eq!(complete(&mut scheduler, &second).outputs[0].position, 5);
}

#[test]
fn freed_slots_ride_on_the_next_plan_once() {
    let mut scheduler = scheduler(config(), (1..=4).map(|id| sequence(id, 2, 9)));
    let first = plan(&mut scheduler).unwrap();
    for id in [2, 3] {
        assert!(scheduler.finish(id));
    }
    assert_eq!(scheduler.stats().running, 2);
    complete(&mut scheduler, &first);
    scheduler.enqueue(sequence(5, 2, 9)).unwrap();
    let second = plan(&mut scheduler).unwrap();
    assert_eq!((admits(&second).as_slice(), second.freed.as_slice()), ([(5, 2)].as_slice(), [1].as_slice()));
    assert!(plan(&mut scheduler).unwrap().freed.is_empty());
}

#[test]
fn a_cancelled_sequence_leaves_the_queue() {
    let mut scheduler = scheduler(SchedulerConfig { max_slots: 1, ..config() }, (1..=3).map(|id| sequence(id, 2, 1)));
    assert!(scheduler.finish(2));
    assert!(!scheduler.finish(2) && !scheduler.finish(77));
    assert_eq!((scheduler.stats().waiting, scheduler.stats().waiting_tokens), (2, 4));
    let mut order = vec![];
    while let Some(plan) = plan(&mut scheduler) {
        order.extend(plan.admits.iter().map(|admit| admit.sequence));
        complete(&mut scheduler, &plan);
    }
    assert_eq!(order, [1, 3]);
}

#[test]
fn the_latest_gives_way_and_comes_back_before_all_that_never_ran() {
    // Two sequences of 4 + 9 tokens need 3 blocks each, and there are 4.
    let tight = SchedulerConfig { num_blocks: 4, ..config() };
    let mut scheduler = scheduler(tight, [sequence(1, 4, 9), sequence(2, 4, 9), sequence(3, 4, 1)]);
    let mut admits = vec![];
    let mut lost_at = None;
    let mut in_flight = VecDeque::new();
    while scheduler.stats().waiting + scheduler.stats().running > 0 {
        while let Some(plan) = plan(&mut scheduler) {
            admits.extend(plan.admits.iter().map(|admit| admit.sequence));
            in_flight.push_back(plan);
        }
        if lost_at.is_none() && scheduler.stats().preemptions == 1 {
            assert!(scheduler.is_running(1) && scheduler.is_waiting(2));
            // Three tokens were on their way or known when the second block was needed a second time.
            lost_at = scheduler.tokens(2).map(<[Token]>::len);
        }
        complete(&mut scheduler, &in_flight.pop_front().unwrap());
    }
    assert_eq!(admits, [1, 2, 2, 3]);
    assert!(lost_at.is_some_and(|known| known > 4), "{lost_at:?}");
    let output = |id| scheduler.tokens(id).unwrap().len();
    assert_eq!((output(1), output(2), output(3)), (13, 13, 5));
}

#[test]
fn whoever_gives_way_is_not_seated_again_in_the_same_step() {
    let capped = SchedulerConfig { max_running_tokens: Some(16), steps_in_flight: 3, ..config() };
    let mut scheduler = scheduler(capped, [sequence(1, 4, 12), sequence(2, 4, 12)]);
    let mut in_flight = VecDeque::new();
    while scheduler.stats().preemptions == 0 {
        match plan(&mut scheduler) {
            Some(plan) => in_flight.push_back(plan),
            None => drop(complete(&mut scheduler, &in_flight.pop_front().unwrap())),
        }
    }
    assert!(scheduler.is_waiting(2));
}

#[test]
fn a_dead_shard_sends_all_back_in_their_old_order() {
    let mut scheduler = scheduler(config(), (1..=6).map(|id| sequence(id, 3, 9)));
    let first = plan(&mut scheduler).unwrap();
    let second = plan(&mut scheduler).unwrap();
    complete(&mut scheduler, &first);
    assert!(scheduler.finish(3));
    scheduler.reset();
    scheduler.check_integrity().unwrap();
    assert_eq!((scheduler.stats().steps_in_flight, scheduler.stats().blocks_used), (0, 0));
    assert_eq!(scheduler.stats().preemptions, 0, "a dead shard is no want of blocks");

    let third = plan(&mut scheduler).unwrap();
    assert_eq!(third.step, second.step + 1);
    assert!(third.freed.is_empty());
    let order: Vec<SequenceId> = third.admits.iter().map(|admit| admit.sequence).collect();
    assert_eq!(order, [1, 2, 4, 5]);
    assert_eq!(shape(&third)[0], (1, 0, 4, false, true), "the first token is known, the second one was in flight");
    assert_eq!(third.tokens_of(&third.segments[0]), [1000, 1001, 1002, 100]);

    let late = scheduler.complete(second.step, &Results::default(), &mut Completed::default());
    assert_eq!(late, Err(StepMismatch::WrongStep { got: second.step, expected: Some(third.step) }));
}

#[test]
fn the_place_of_a_finished_sequence_is_used_again() {
    let mut scheduler = scheduler(config(), [sequence(1, 3, 9)]);
    for id in 2..100 {
        scheduler.enqueue(sequence(id, 3, 9)).unwrap();
        assert!(scheduler.store.find(id).unwrap() < 2);
        assert!(scheduler.finish(id - 1));
    }
}
