//! Who gives way, to whom, and how often. Blocks hold four tokens.

use super::*;

fn ranked(id: SequenceId, priority: Priority, prompt_len: u32, new_tokens: u32) -> NewSequence {
    NewSequence { priority, ..sequence(id, prompt_len, new_tokens) }
}

fn urgent_first(max_slots: u32, max_passes: u32) -> SchedulerConfig {
    SchedulerConfig { max_slots, max_passes, ..config() }
}

/// Plans a step and completes it; finishes those that have reached their length. Who took a seat, in order.
fn advance(scheduler: &mut Scheduler) -> Option<Vec<SequenceId>> {
    let plan = plan(scheduler)?;
    for output in complete(scheduler, &plan).outputs.iter().filter(|output| output.length_reached) {
        assert!(scheduler.finish(output.sequence));
    }
    Some(admits(&plan).into_iter().map(|(id, _)| id).collect())
}

fn waiting(scheduler: &Scheduler, ids: std::ops::RangeInclusive<SequenceId>) -> Vec<SequenceId> {
    ids.filter(|&id| scheduler.is_waiting(id)).collect()
}

#[test]
fn the_least_urgent_gives_way_then_the_latest() {
    // Each needs a third block for its ninth position, and there are eight.
    for (classes, loser) in [([0, 0, 0, 0], 4), ([0, 1, 0, 0], 2), ([1, 1, 0, 0], 2), ([1, 0, 0, 0], 1)] {
        let tight = SchedulerConfig { num_blocks: 11, ..config() };
        let queue = (1..).zip(classes).map(|(id, class)| ranked(id, class, 4, 9));
        let mut scheduler = scheduler(tight, queue);
        while scheduler.stats().preemptions == 0 {
            let plan = plan(&mut scheduler).unwrap();
            complete(&mut scheduler, &plan);
        }
        assert_eq!(waiting(&scheduler, 1..=4), [loser], "{classes:?}");
    }
}

#[test]
fn who_has_the_most_time_left_gives_way() {
    // Deadlines of four of one class, and who gives way when three can go on.
    let cases = [
        ([None, None, None, None], 4),
        ([Some(50), Some(60), None, Some(70)], 3),
        ([Some(50), Some(90), Some(60), Some(70)], 2),
        ([Some(70), Some(70), Some(60), Some(60)], 2),
        ([None, Some(90), Some(60), Some(70)], 1),
    ];
    for (deadlines, loser) in cases {
        let tight = SchedulerConfig { num_blocks: 11, ..config() };
        let queue = (1..).zip(deadlines).map(|(id, deadline)| NewSequence { deadline, ..sequence(id, 4, 9) });
        let mut scheduler = scheduler(tight, queue);
        while scheduler.stats().preemptions == 0 {
            advance(&mut scheduler).unwrap();
        }
        assert_eq!(waiting(&scheduler, 1..=4), [loser], "{deadlines:?}");
    }
}

#[test]
fn an_urgent_newcomer_takes_the_seat_of_the_least_urgent() {
    // Classes of the two that run and of the newcomer, passes that are allowed, and who loses the seat.
    let cases = [
        ([1, 2], 0, 1, Some(2)),
        ([2, 1], 0, 1, Some(1)),
        ([1, 1], 0, 1, Some(2)),
        ([1, 1], 1, 1, None),
        ([0, 1], 0, 1, Some(2)),
        ([0, 0], 0, 1, None),
        ([1, 2], 0, 0, None),
    ];
    for (running, class, max_passes, loser) in cases {
        let queue = (1..).zip(running).map(|(id, class)| ranked(id, class, 3, 9));
        let mut scheduler = scheduler(urgent_first(2, max_passes), queue);
        advance(&mut scheduler).unwrap();
        scheduler.enqueue(ranked(3, class, 3, 2)).unwrap();
        let seated = advance(&mut scheduler).unwrap();
        assert_eq!(seated, if loser.is_some() { vec![3] } else { vec![] });
        assert_eq!(waiting(&scheduler, 1..=2), loser.into_iter().collect::<Vec<_>>(), "{running:?}, then {class}");
        assert_eq!(scheduler.stats().preemptions, u64::from(loser.is_some()));
    }
}

#[test]
fn as_few_as_make_room_lose_their_blocks() {
    // Each of four holds two of 16 blocks; the prompt of the newcomer, and who gives way: there must be a block for each that
    // stays.
    for (prompt_len, losers) in [(16, vec![]), (17, vec![4]), (28, vec![4]), (29, vec![3, 4]), (41, vec![2, 3, 4])] {
        let narrow = SchedulerConfig { num_blocks: 16, max_step_tokens: 64, ..urgent_first(8, 1) };
        let mut scheduler = scheduler(narrow, (1..=4).map(|id| ranked(id, 1, 5, 9)));
        advance(&mut scheduler).unwrap();
        scheduler.enqueue(ranked(5, 0, prompt_len, 2)).unwrap();
        assert_eq!(advance(&mut scheduler).unwrap(), [5], "a prompt of {prompt_len}");
        assert_eq!(waiting(&scheduler, 1..=4), losers, "a prompt of {prompt_len}");
    }
}

#[test]
fn nobody_gives_way_where_that_is_not_enough() {
    let narrow = SchedulerConfig { num_blocks: 16, max_step_tokens: 64, ..urgent_first(8, 1) };
    let mut scheduler = scheduler(narrow, [ranked(1, 0, 40, 9), ranked(2, 1, 3, 9), ranked(3, 1, 3, 9)]);
    advance(&mut scheduler).unwrap();
    scheduler.enqueue(ranked(4, 0, 30, 2)).unwrap();
    assert!(advance(&mut scheduler).unwrap().is_empty());
    assert_eq!((waiting(&scheduler, 1..=4), scheduler.stats().preemptions), (vec![4], 0));
}

#[test]
fn a_shared_prefix_is_not_room() {
    // Both begin with the same four blocks of 8: those that the first one gives back are those that the second one wants.
    let narrow = SchedulerConfig { num_blocks: 8, prefix_caching: true, max_step_tokens: 64, ..urgent_first(4, 1) };
    let prompt = |id, priority, length: u32, new| NewSequence {
        tokens: (0..length).collect(),
        prompt_len: length,
        max_len: length + new,
        ..ranked(id, priority, length, new)
    };
    let mut scheduler = scheduler(narrow, [prompt(1, 0, 4, 12), prompt(2, 1, 17, 9)]);
    advance(&mut scheduler).unwrap();
    advance(&mut scheduler).unwrap();
    assert_eq!(scheduler.stats().blocks_used, 6, "a block is shared already");
    scheduler.enqueue(prompt(3, 0, 30, 2)).unwrap();
    assert!(advance(&mut scheduler).unwrap().is_empty());
    assert!(scheduler.is_running(2), "its five blocks are not enough, though they seem eight");
}

#[test]
fn nobody_gives_way_without_end() {
    for max_passes in [1, 3] {
        let mut scheduler = scheduler(urgent_first(1, max_passes), [ranked(1, 1, 3, 30)]);
        for id in 2..9 {
            while !scheduler.is_running(1) {
                advance(&mut scheduler).unwrap();
            }
            scheduler.enqueue(ranked(id, 0, 3, 2)).unwrap();
            advance(&mut scheduler).unwrap();
        }
        assert_eq!(scheduler.stats().preemptions, u64::from(max_passes));
        while advance(&mut scheduler).is_some() {}
        assert_eq!(scheduler.stats().waiting, 0);
    }
}

#[test]
fn a_class_reached_by_waiting_disturbs_nobody() {
    let ageing = SchedulerConfig { ageing: Some(10), ..urgent_first(1, 5) };
    let mut scheduler = scheduler(ageing, [ranked(1, 1, 3, 9)]);
    advance(&mut scheduler).unwrap();
    scheduler.enqueue(ranked(2, 3, 3, 9)).unwrap();
    scheduler.advance(30, &mut vec![]);
    assert!(advance(&mut scheduler).unwrap().is_empty());
    assert_eq!(scheduler.queue.lanes().next().unwrap().0, 0, "it waits in the first class");
}
