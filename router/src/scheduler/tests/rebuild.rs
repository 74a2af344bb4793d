//! Another shard with other limits, and what admission control is told.

use super::*;

fn smaller() -> SchedulerConfig {
    SchedulerConfig { num_blocks: 5, block_size: 2, max_slots: 2, ..config() }
}

#[test]
fn all_that_fit_go_on_where_they_were() {
    let mut scheduler = scheduler(config(), [sequence(1, 3, 4), sequence(2, 9, 9), sequence(3, 5, 5)]);
    let first = plan(&mut scheduler).unwrap();
    complete(&mut scheduler, &first);
    let known = scheduler.tokens(1).unwrap().to_vec();
    let refused = scheduler.rebuild(smaller()).unwrap();
    scheduler.check_integrity().unwrap();
    assert_eq!(refused, [(2, Refusal::TooLong { needs_blocks: 9, has_blocks: 5 })]);
    assert_eq!((scheduler.tokens(2), *scheduler.config()), (None, smaller()));
    let again = plan(&mut scheduler).unwrap();
    assert!(again.step > first.step, "numbers of steps are never used again");
    assert_eq!(again.tokens_of(&again.segments[0]), known);
}

#[test]
fn an_invalid_config_changes_nothing() {
    let mut scheduler = scheduler(config(), [sequence(1, 3, 4)]);
    let first = plan(&mut scheduler).unwrap();
    let invalid = scheduler.rebuild(SchedulerConfig { block_size: 0, ..config() });
    assert_eq!(invalid, Err(InvalidConfig { field: "block_size" }));
    assert_eq!(complete(&mut scheduler, &first).outputs.len(), 1);
}

#[test]
fn a_token_limit_is_among_the_limits() {
    let mut scheduler = scheduler(config(), [sequence(1, 3, 4), sequence(2, 9, 9)]);
    let capped = SchedulerConfig { max_running_tokens: Some(10), ..config() };
    assert_eq!(scheduler.rebuild(capped), Ok(vec![(2, Refusal::OverTokenLimit { max_len: 18, limit: 10 })]));
}

/// Urgency, age, tenant and key survive, and forks find each other again.
#[test]
fn nothing_of_a_sequence_is_lost() {
    let ageing = SchedulerConfig { ageing: Some(10), max_slots: 1, prefix_caching: true, ..config() };
    let new = |id, priority, deadline| NewSequence { priority, deadline, tenant: 7, ..sequence(id, 10, 3) };
    let mut scheduler = scheduler(ageing, [new(1, 1, None), new(2, 3, Some(90))]);
    scheduler.fork(1, &[3]).unwrap();
    plan(&mut scheduler).unwrap();
    scheduler.advance(30, &mut vec![]);
    scheduler.enqueue(new(4, 1, None)).unwrap();
    let roomy = SchedulerConfig { max_slots: 4, block_size: 3, ..ageing };
    assert_eq!(scheduler.rebuild(roomy), Ok(vec![]));
    scheduler.check_integrity().unwrap();
    assert_eq!(scheduler.tenant_load(7), TenantLoad { waiting: 4, running: 0, max_tokens: 4 * 13 });
    // The second one has waited three classes up by now; the third one waits for what its relative computes.
    let first = plan(&mut scheduler).unwrap();
    assert_eq!(admits(&first), [(1, 0), (2, 1)]);
    let second = plan(&mut scheduler).unwrap();
    assert_eq!(second.admits[0], Admission { sequence: 3, slot: 2, cached_tokens: 9 });
    scheduler.reset();
    let mut overdue = vec![];
    scheduler.advance(90, &mut overdue);
    assert_eq!(overdue, [2]);
}

#[test]
fn other_ageing_counts_from_the_arrival() {
    let mut scheduler = scheduler(SchedulerConfig { max_slots: 1, ..config() }, []);
    scheduler.enqueue(NewSequence { priority: 2, ..sequence(1, 3, 2) }).unwrap();
    scheduler.advance(20, &mut vec![]);
    scheduler.enqueue(sequence(2, 3, 2)).unwrap();
    scheduler.rebuild(SchedulerConfig { ageing: Some(10), max_slots: 1, ..config() }).unwrap();
    assert_eq!(admits(&plan(&mut scheduler).unwrap()), [(1, 0)]);
}

#[test]
fn what_is_promised_is_counted() {
    let of_tenant = |id, tenant, prompt, new| NewSequence { tenant, ..sequence(id, prompt, new) };
    let two_seats = SchedulerConfig { max_slots: 2, ..config() };
    let mut scheduler = scheduler(two_seats, [of_tenant(1, 7, 3, 1), of_tenant(2, 8, 4, 9), of_tenant(3, 7, 5, 5)]);
    let loads = |scheduler: &Scheduler| {
        let load = |tenant| scheduler.tenant_load(tenant);
        let row = |load: TenantLoad| (load.waiting, load.running, load.max_tokens);
        let stats = scheduler.stats();
        (row(load(7)), row(load(8)), stats.waiting_max_tokens, stats.running_max_tokens)
    };
    assert_eq!(loads(&scheduler), ((2, 0, 14), (1, 0, 13), 27, 0));
    let first = plan(&mut scheduler).unwrap();
    assert_eq!(loads(&scheduler), ((1, 1, 14), (0, 1, 13), 10, 17));
    complete(&mut scheduler, &first);
    assert_eq!(loads(&scheduler), ((1, 0, 14), (0, 1, 13), 10, 13), "it has left its seat and is not finished");
    assert!(scheduler.finish(1) && scheduler.finish(2));
    assert_eq!(loads(&scheduler), ((1, 0, 10), (0, 0, 0), 10, 0));
    assert_eq!(scheduler.tenant_load(9), TenantLoad::default());
}

#[test]
fn a_fork_is_its_tenants_and_as_urgent() {
    let origin = NewSequence {
        tenant: 7,
        priority: 2,
        deadline: Some(50),
        cache_key: CacheKey::of(&[b"key"]),
        prompt_logprobs: true,
        unscored: true,
        ..sequence(1, 6, 4)
    };
    let mut scheduler = scheduler(config(), [origin.clone()]);
    scheduler.fork(1, &[2]).unwrap();
    assert_eq!(scheduler.tenant_load(7), TenantLoad { waiting: 2, running: 0, max_tokens: 20 });
    let fork = scheduler.find(2).unwrap();
    assert_eq!((fork.key, fork.tenant, fork.priority), (origin.cache_key, 7, 2));
    assert_eq!((fork.deadline, fork.tokens.as_slice()), (Some(50), &origin.tokens[..]));
    assert_eq!((fork.prompt_logprobs, fork.unscored), (false, true));
}
