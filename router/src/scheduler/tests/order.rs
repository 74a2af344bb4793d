//! Who goes first: classes, ageing, deadlines, tenants, passing, longest prefixes.

use proptest::prelude::*;

use super::*;

fn ranked(id: SequenceId, priority: Priority, prompt_len: u32, new_tokens: u32) -> NewSequence {
    NewSequence { priority, ..sequence(id, prompt_len, new_tokens) }
}

fn of_tenant(id: SequenceId, tenant: TenantId, prompt_len: u32, new_tokens: u32) -> NewSequence {
    NewSequence { tenant, ..sequence(id, prompt_len, new_tokens) }
}

fn one_seat() -> SchedulerConfig {
    SchedulerConfig { max_slots: 1, ..config() }
}

/// Runs to the end, one step at a time; returns who took a seat, in order.
fn seatings(scheduler: &mut Scheduler) -> Vec<SequenceId> {
    let mut order = vec![];
    while let Some(plan) = plan(scheduler) {
        order.extend(admits(&plan).into_iter().map(|(id, _)| id));
        for output in complete(scheduler, &plan).outputs.iter().filter(|output| output.length_reached) {
            assert!(scheduler.finish(output.sequence));
        }
    }
    order
}

#[test]
fn the_most_urgent_class_goes_first() {
    let queue = [ranked(1, 2, 3, 2), ranked(2, 0, 3, 2), ranked(3, 1, 3, 2), ranked(4, 0, 3, 2), ranked(5, 1, 3, 2)];
    assert_eq!(seatings(&mut scheduler(one_seat(), queue)), [2, 4, 3, 5, 1]);
}

#[test]
fn who_waits_goes_up_a_class() {
    // waited before the second one comes, who is seated first
    for (waited, first) in [(0, 2), (19, 2), (20, 1), (25, 1)] {
        let ageing = SchedulerConfig { ageing: Some(10), ..one_seat() };
        let mut scheduler = scheduler(ageing, [ranked(1, 2, 3, 2)]);
        scheduler.advance(waited, &mut vec![]);
        scheduler.enqueue(ranked(2, 0, 3, 2)).unwrap();
        assert_eq!(seatings(&mut scheduler)[0], first, "after {waited}");
    }
}

#[test]
fn who_gave_way_keeps_its_age() {
    let ageing = SchedulerConfig { ageing: Some(10), ..one_seat() };
    let mut scheduler = scheduler(ageing, [ranked(1, 2, 3, 9)]);
    plan(&mut scheduler).unwrap();
    scheduler.advance(30, &mut vec![]);
    scheduler.enqueue(ranked(2, 0, 3, 2)).unwrap();
    scheduler.reset();
    assert_eq!(seatings(&mut scheduler), [1, 2]);
}

#[test]
fn time_never_goes_back() {
    let ageing = SchedulerConfig { ageing: Some(10), ..one_seat() };
    let mut scheduler = scheduler(ageing, []);
    scheduler.advance(50, &mut vec![]);
    scheduler.enqueue(ranked(1, 1, 3, 9)).unwrap();
    plan(&mut scheduler).unwrap();
    scheduler.advance(20, &mut vec![]);
    scheduler.reset();
    scheduler.enqueue(ranked(2, 0, 3, 2)).unwrap();
    assert_eq!(seatings(&mut scheduler), [2, 1], "the first one has not waited at all");
}

#[test]
fn an_urgent_newcomer_does_not_wait_for_a_prompt_that_was_begun() {
    // Classes of the long prompt and of the newcomer, and whether it takes part in the next step.
    for (long, short, joins) in [(1, 0, true), (0, 0, false), (0, 1, false), (3, 2, true)] {
        let mut scheduler = scheduler(config(), [ranked(1, long, 50, 2)]);
        let first = plan(&mut scheduler).unwrap();
        complete(&mut scheduler, &first);
        scheduler.enqueue(ranked(2, short, 4, 3)).unwrap();
        let second = shape(&plan(&mut scheduler).unwrap());
        let alone = vec![(1, 16, 16, false, false)];
        let together = vec![(2, 0, 4, false, true), (1, 16, 12, false, false)];
        assert_eq!(second, if joins { together } else { alone });
    }
}

#[test]
fn a_short_newcomer_passes_what_is_left_of_a_longer_prompt() {
    // Steps planned before it comes, its prompt, what is allowed, and whether it goes first. The fourth step keeps to the rank.
    let cases =
        [(1, 4, 1, true), (1, 41, 1, true), (1, 42, 1, false), (1, 4, 0, false), (2, 33, 9, true), (3, 4, 9, false)];
    for (steps, short, max_passes, passes) in cases {
        let mut scheduler = scheduler(SchedulerConfig { max_passes, ..config() }, [sequence(1, 100, 2)]);
        for _ in 0..steps {
            let plan = plan(&mut scheduler).unwrap();
            complete(&mut scheduler, &plan);
        }
        scheduler.enqueue(sequence(2, short, 3)).unwrap();
        let first = shape(&plan(&mut scheduler).unwrap())[0];
        let expected =
            if passes { (2, 0, short.min(16), false, short <= 16) } else { (1, 16 * steps, 16, false, false) };
        assert_eq!(first, expected, "{short} tokens after {steps} steps, {max_passes} passes");
    }
}

#[test]
fn shorter_prompts_that_were_begun_go_first() {
    let passing = SchedulerConfig { max_passes: 1, ..config() };
    let mut scheduler = scheduler(passing, [sequence(1, 100, 2), sequence(2, 40, 2)]);
    let mut order = vec![];
    for step in 0..4 {
        if step == 1 {
            scheduler.enqueue(sequence(3, 10, 2)).unwrap();
        }
        let plan = plan(&mut scheduler).unwrap();
        order.push(shape(&plan).into_iter().map(|(id, start, length, ..)| (id, start, length)).collect::<Vec<_>>());
        complete(&mut scheduler, &plan);
    }
    // Shortest first, while that lasts; the fourth step keeps to the rank.
    assert_eq!(order[..3], [vec![(1, 0, 16)], vec![(2, 0, 16)], vec![(3, 0, 10), (2, 16, 6)]]);
    assert_eq!(order[3], [(3, 10, 1), (1, 16, 15)]);
}

/// However many shorter ones come, a long prompt has one step in four.
#[test]
fn a_long_prompt_is_not_passed_for_ever() {
    let passing = SchedulerConfig { max_passes: 1_000_000, ..config() };
    let mut scheduler = scheduler(passing, [sequence(1, 160, 1)]);
    let mut steps = 0;
    while scheduler.tokens(1).is_some() {
        // All that a step can run.
        scheduler.enqueue(sequence(2 + 2 * steps, 8, 1)).unwrap();
        scheduler.enqueue(sequence(3 + 2 * steps, 8, 1)).unwrap();
        let plan = plan(&mut scheduler).unwrap();
        for output in complete(&mut scheduler, &plan).outputs {
            scheduler.finish(output.sequence);
        }
        steps += 1;
        assert!(steps <= 40, "160 tokens, 16 a step");
    }
    assert!(steps > 30, "it was passed: {steps}");
}

#[test]
fn a_deadline_counts_while_waiting() {
    let due = |id, deadline| NewSequence { deadline: Some(deadline), ..sequence(id, 3, 9) };
    let mut scheduler = scheduler(one_seat(), [due(1, 50), due(2, 50), due(3, 70), sequence(4, 3, 9)]);
    plan(&mut scheduler).unwrap();
    let mut overdue = vec![];
    scheduler.advance(49, &mut overdue);
    assert!(overdue.is_empty());
    scheduler.advance(50, &mut overdue);
    scheduler.advance(20, &mut overdue);
    assert_eq!(overdue, [2], "the first one runs");
    scheduler.check_integrity().unwrap();
    scheduler.reset();
    scheduler.advance(60, &mut overdue);
    assert_eq!(overdue, [2, 1], "and then waits again");
    assert_eq!((scheduler.is_waiting(3), scheduler.tokens(2)), (true, None));
}

#[test]
fn tenants_take_turns_whoever_came_first() {
    let flood = (1..=6).map(|id| of_tenant(id, 7, 4, 2));
    let late = (7..=9).map(|id| of_tenant(id, 8, 4, 2));
    assert_eq!(seatings(&mut scheduler(one_seat(), flood.chain(late))), [1, 7, 2, 8, 3, 9, 4, 5, 6]);
}

#[test]
fn a_tenant_pays_by_token() {
    let large = (1..=3).map(|id| of_tenant(id, 7, 14, 2));
    let small = (4..=12).map(|id| of_tenant(id, 8, 4, 1));
    assert_eq!(seatings(&mut scheduler(one_seat(), large.chain(small))), [1, 4, 5, 6, 7, 2, 8, 9, 10, 11, 3, 12]);
}

#[test]
fn idle_time_is_not_saved_up() {
    let mut scheduler = scheduler(one_seat(), (1..=5).map(|id| of_tenant(id, 7, 4, 2)));
    for _ in 0..8 {
        let plan = plan(&mut scheduler).unwrap();
        for output in complete(&mut scheduler, &plan).outputs.iter().filter(|output| output.length_reached) {
            scheduler.finish(output.sequence);
        }
    }
    // The first tenant was served twenty tokens by now; the second one starts from its last seating and not from zero.
    for id in 6..=9 {
        scheduler.enqueue(of_tenant(id, 8, 4, 2)).unwrap();
    }
    for id in 10..=12 {
        scheduler.enqueue(of_tenant(id, 7, 4, 2)).unwrap();
    }
    assert_eq!(seatings(&mut scheduler), [6, 5, 7, 8, 10, 9, 11, 12]);
}

#[test]
fn accounts_of_tenants_that_are_gone_are_dropped() {
    let mut scheduler = scheduler(one_seat(), []);
    for id in 1..10_000 {
        scheduler.enqueue(of_tenant(id, id, 4, 1)).unwrap();
        seatings(&mut scheduler);
    }
    assert!(scheduler.tenants.len() <= 4_096, "{} accounts", scheduler.tenants.len());
}

/// A long sequence that waits for room, and short ones.
fn crowd(max_passes: u32) -> Scheduler {
    let narrow = SchedulerConfig { num_blocks: 12, max_passes, ..config() };
    let mut scheduler = scheduler(narrow, [sequence(1, 15, 20)]);
    plan(&mut scheduler).unwrap();
    scheduler.enqueue(sequence(2, 36, 4)).unwrap();
    for id in 3..40 {
        scheduler.enqueue(sequence(id, 3, 1)).unwrap();
    }
    let first = Plan { step: 1, ..Plan::default() };
    let results = Results { slots: &[0], counts: &[1], tokens: &[5], ..Results::default() };
    scheduler.complete(first.step, &results, &mut Completed::default()).unwrap();
    scheduler
}

#[test]
fn a_few_may_pass_one_that_finds_no_room() {
    for max_passes in [0, 1, 5, 20] {
        let order = seatings(&mut crowd(max_passes));
        let passed = order.iter().position(|&id| id == 2).unwrap();
        assert_eq!(passed as u32, max_passes);
        assert_eq!(order.len(), 38);
        assert!(order.iter().filter(|&&id| id != 2).is_sorted());
    }
}

#[test]
fn an_urgent_one_passes_at_any_time() {
    let mut scheduler = crowd(0);
    assert_eq!(plan(&mut scheduler).unwrap().admits, []);
    let urgent = SchedulerConfig { num_blocks: 12, ..config() };
    let mut scheduler = super::scheduler(urgent, [ranked(1, 0, 15, 20)]);
    plan(&mut scheduler).unwrap();
    scheduler.enqueue(ranked(2, 1, 36, 4)).unwrap();
    scheduler.enqueue(ranked(3, 1, 3, 1)).unwrap();
    assert_eq!(plan(&mut scheduler).unwrap().admits, []);
    scheduler.enqueue(ranked(4, 0, 3, 1)).unwrap();
    let results = Results { slots: &[0], counts: &[1], tokens: &[5], ..Results::default() };
    scheduler.complete(1, &results, &mut Completed::default()).unwrap();
    assert_eq!(plan(&mut scheduler).unwrap().admits[0].sequence, 4);
}

#[test]
fn the_longest_prefix_goes_first_a_few_times() {
    let alike = |id, shared: u32| {
        let own = sequence(id, 12, 1);
        let tokens = (0..shared).chain(own.tokens[shared as usize..].iter().copied()).collect();
        NewSequence { tokens, ..own }
    };
    let cases: [(bool, u32, &[SequenceId]); 4] = [
        (true, 9, &[1, 4, 6, 3, 5, 2]),
        (true, 2, &[1, 4, 6, 2, 3, 5]),
        (true, 0, &[1, 2, 3, 4, 5, 6]),
        (false, 9, &[1, 2, 3, 4, 5, 6]),
    ];
    for (longest_prefix_first, max_passes, expected) in cases {
        let config = SchedulerConfig { prefix_caching: true, longest_prefix_first, max_passes, ..one_seat() };
        let queue = [(1, 12), (2, 0), (3, 4), (4, 8), (5, 4), (6, 8)].map(|(id, shared)| alike(id, shared));
        let mut scheduler = scheduler(config, [queue[0].clone()]);
        let mut order = seatings(&mut scheduler);
        for new in &queue[1..] {
            scheduler.enqueue(new.clone()).unwrap();
        }
        order.extend(seatings(&mut scheduler));
        assert_eq!(order, expected, "{max_passes} passes");
    }
}

proptest! {
    /// While two tenants have sequences waiting, neither is served more than the other by more than what fits into the seats
    /// twice, whatever came first.
    #[test]
    fn shares_are_fair(
        lengths in prop::collection::vec((1..30_u32, 1..12_u32, 0..3_u64), 40..160),
        max_slots in 1..6_u32,
        max_step_tokens in 6..24_u32,
    ) {
        let roomy = SchedulerConfig { num_blocks: 400, max_slots, max_step_tokens, ..config() };
        let mut scheduler = scheduler(roomy, []);
        let longest = lengths.iter().map(|(prompt, new, _)| prompt + new).max().unwrap();
        // All of one tenant come before the first of the next.
        for tenant in 0..3 {
            for (id, &(prompt_len, new_tokens, _)) in (0..).zip(&lengths).filter(|(_, length)| length.2 == tenant) {
                scheduler.enqueue(of_tenant(id, tenant, prompt_len, new_tokens)).unwrap();
            }
        }
        let mut served = [0_i64; 3];
        while let Some(plan) = plan(&mut scheduler) {
            let backlogged = |tenant: u64| (0..).zip(&lengths).any(|(id, length)| length.2 == tenant && scheduler.is_waiting(id));
            for segment in &plan.segments {
                served[lengths[segment.sequence as usize].2 as usize] += i64::from(segment.length);
            }
            for (one, other) in [(0, 1), (0, 2), (1, 2)] {
                if backlogged(one) && backlogged(other) {
                    let gap = (served[one as usize] - served[other as usize]).abs();
                    prop_assert!(gap <= i64::from(2 * longest * max_slots), "{served:?}");
                }
            }
            for output in complete(&mut scheduler, &plan).outputs.iter().filter(|output| output.length_reached) {
                scheduler.finish(output.sequence);
            }
        }
    }
}
