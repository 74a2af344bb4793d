//! Whose cached blocks are given up. Blocks hold four tokens.

use proptest::prelude::*;

use super::*;

fn cached(num_blocks: u32) -> Scheduler {
    scheduler(SchedulerConfig { num_blocks, prefix_caching: true, max_step_tokens: 64, ..config() }, [])
}

/// Runs a prompt of a tenant to its end; how many of its tokens were cached.
fn ask(scheduler: &mut Scheduler, id: SequenceId, tenant: TenantId, content: u64, prompt_len: u32) -> u32 {
    let cache_key = CacheKey::of(&[&tenant.to_le_bytes()]);
    scheduler.enqueue(NewSequence { id, tenant, cache_key, ..sequence(content, prompt_len, 1) }).unwrap();
    let mut hit = 0;
    while let Some(plan) = plan(scheduler) {
        hit += plan.admits.iter().map(|admission| admission.cached_tokens).sum::<u32>();
        complete(scheduler, &plan);
        scheduler.finish(id);
    }
    hit
}

#[test]
fn a_flood_takes_its_own_blocks() {
    // Whose flood it is, and what is left of the first prompt: its seven blocks are less than half of all.
    for (tenant, left) in [(8, 28), (7, 0)] {
        let mut scheduler = cached(20);
        assert_eq!(ask(&mut scheduler, 1, 7, 1, 29), 0);
        for id in 2..10 {
            ask(&mut scheduler, id, tenant, id, 17);
        }
        assert!(scheduler.stats().evictions > 12, "{} blocks were needed again", scheduler.stats().evictions);
        assert_eq!(ask(&mut scheduler, 10, 7, 1, 29), left);
    }
}

#[test]
fn what_nobody_comes_back_to_is_not_kept_for_ever() {
    let mut scheduler = cached(20);
    ask(&mut scheduler, 1, 7, 1, 33);
    for id in 2..100 {
        ask(&mut scheduler, id, 8, id, 17);
    }
    assert_eq!(scheduler.cache.contents().iter().filter(|(.., written)| written.tenant == 7).count(), 0);
}

#[test]
fn a_conversation_among_many_is_no_flood() {
    let mut scheduler = cached(100);
    for tenant in 100..140 {
        ask(&mut scheduler, tenant, tenant, tenant, 9);
    }
    // Ten blocks are more than one in forty; those who came before and are gone give up theirs.
    assert_eq!(ask(&mut scheduler, 1, 7, 1, 41), 0);
    for tenant in 200..210 {
        ask(&mut scheduler, tenant, tenant, tenant, 9);
    }
    assert!(scheduler.stats().evictions > 0);
    assert_eq!(ask(&mut scheduler, 2, 7, 1, 41), 40);
}

proptest! {
    /// Whatever others ask: what a tenant asks for again within a turnover is still there while it has less than its share.
    #[test]
    fn what_is_within_the_share_stays(floods in prop::collection::vec((8..11_u64, 1..30_u32), 0..40)) {
        let mut scheduler = cached(32);
        // Four tenants at most: eight blocks are the share of each.
        ask(&mut scheduler, 1, 7, 1, 25);
        for (id, (tenant, prompt_len)) in (2..).zip(floods) {
            ask(&mut scheduler, id, tenant, id, prompt_len);
            prop_assert_eq!(ask(&mut scheduler, 1000 + id, 7, 1, 25), 24);
        }
    }
}
