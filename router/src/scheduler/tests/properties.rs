//! Random traces: arrivals, ends, cancels, failures and dead shards at random moments, in pools down to the smallest.

use proptest::prelude::*;

use super::arrival::Arrival;
use super::world::World;
use super::world_beams::Wanted;
use super::*;

#[derive(Debug, Clone)]
enum Event {
    Arrive(Arrival),
    Search(Arrival, Wanted),
    Plan,
    Complete,
    CompleteWithFailure(usize),
    FailStep,
    Cancel(usize),
    Fork(usize),
    Offer(usize, usize),
    Pause(usize, bool),
    Reset,
    Rebuild { num_blocks: u32, block_size: u32, max_slots: u32 },
    Advance(Micros),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => arrival().prop_map(Event::Arrive),
        20 => Just(Event::Plan),
        18 => Just(Event::Complete),
        1 => any::<usize>().prop_map(Event::CompleteWithFailure),
        1 => Just(Event::FailStep),
        3 => any::<usize>().prop_map(Event::Cancel),
        2 => any::<usize>().prop_map(Event::Fork),
        1 => Just(Event::Reset),
        1 => (1..28_u32, 1..6_u32, 1..7_u32).prop_map(|(num_blocks, block_size, max_slots)| {
            Event::Rebuild { num_blocks, block_size, max_slots }
        }),
    ]
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let resumed = prop_oneof![4 => Just(0), 1 => 1..6_u32];
    let whole = prop_oneof![3 => Just(0), 1 => 1..16_u32];
    (1..40_u32, 1..14_u32, resumed, 0..2_u32, prop_oneof![0..40_u32, Just(40)], whole).prop_map(
        |(prompt_len, new_tokens, resumed, script, shared, whole)| Arrival {
            whole,
            prompt_len,
            new_tokens,
            resumed,
            script,
            shared,
            ..Arrival::default()
        },
    )
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let early_stopping =
        prop_oneof![Just(EarlyStopping::WhenFull), Just(EarlyStopping::WhenUnlikely), Just(EarlyStopping::Never)];
    (1..5_u32, 1..5_u32, -1.0..2.0_f32, early_stopping, 0..4_u32).prop_map(
        |(width, returned, length_penalty, early_stopping, stop_tokens)| {
            let returned = returned.min(width);
            Wanted { width, returned, length_penalty, early_stopping, stop_tokens }
        },
    )
}

fn beam_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        5 => (arrival(), wanted()).prop_map(|(arrival, wanted)| Event::Search(arrival, wanted)),
        34 => policy_event(),
    ]
}

fn policy_event() -> impl Strategy<Value = Event> {
    let patience = prop_oneof![3 => Just(None), 1 => (0..90_u64).prop_map(Some)];
    let ranked = (arrival(), 0..3_u64, 0..3_u8, patience).prop_map(|(arrival, tenant, priority, patience)| Arrival {
        tenant,
        priority,
        patience,
        ..arrival
    });
    prop_oneof![
        8 => ranked.prop_map(Event::Arrive),
        34 => event(),
        6 => (0..30_u64).prop_map(Event::Advance),
    ]
}

fn forcing_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        34 => policy_event(),
        12 => (any::<usize>(), 0..12_usize).prop_map(|(pick, count)| Event::Offer(pick, count)),
        2 => any::<(usize, bool)>().prop_map(|(pick, paused)| Event::Pause(pick, paused)),
    ]
}

fn any_config() -> impl Strategy<Value = SchedulerConfig> {
    let cap = prop_oneof![2 => Just(None), 1 => (8..90_u32).prop_map(Some)];
    let limits = (1..28_u32, 1..6_u32, 1..7_u32, 1..20_u32, cap, 1..4_u32);
    (limits, any::<bool>()).prop_map(|(limits, prefix_caching)| {
        let (num_blocks, block_size, max_slots, max_step_tokens, max_running_tokens, steps_in_flight) = limits;
        let policy = SchedulerConfig::default();
        SchedulerConfig {
            num_blocks,
            block_size,
            max_slots,
            max_step_tokens,
            max_running_tokens,
            steps_in_flight,
            prefix_caching,
            ..policy
        }
    })
}

/// Windows from a token to more than a text, and pools that hold as many blocks as without.
fn any_windows() -> impl Strategy<Value = SchedulerConfig> {
    let windows = (1..24_u32, 0..3_u32, 1..3_u32).prop_map(|(span, full, windowed)| Windows { span, full, windowed });
    (any_policy(), windows).prop_map(|(config, windows)| SchedulerConfig {
        num_blocks: config.num_blocks * (windows.full + windows.windowed),
        windows: Some(windows),
        ..config
    })
}

fn any_policy() -> impl Strategy<Value = SchedulerConfig> {
    let (target, share) = (prop::option::of(50..600_u64), prop::option::of(1..9_u32));
    (any_config(), prop::option::of(1..50_u64), 0..4_u32, any::<bool>(), target, share).prop_map(
        |(config, ageing, max_passes, longest_prefix_first, target_itl, max_prefill_per_stream)| SchedulerConfig {
            target_itl,
            max_prefill_per_stream,
            ageing,
            max_passes,
            longest_prefix_first,
            ..config
        },
    )
}

fn play(world: &mut World, events: Vec<Event>) {
    for event in events {
        match event {
            Event::Arrive(arrival) => {
                world.arrive(arrival);
            }
            Event::Search(arrival, wanted) => {
                world.search(arrival, wanted);
            }
            Event::Plan => {
                world.plan();
            }
            Event::Complete => world.complete(None),
            Event::CompleteWithFailure(pick) => world.complete(Some(pick)),
            Event::FailStep => world.fail_step(),
            Event::Cancel(pick) => world.cancel(pick),
            Event::Fork(pick) => world.fork(pick),
            Event::Offer(pick, count) => world.offer(pick, count),
            Event::Pause(pick, paused) => world.pause(pick, paused),
            Event::Reset => world.reset(),
            Event::Rebuild { num_blocks, block_size, max_slots } => {
                let config = *world.scheduler.config();
                let num_blocks = num_blocks * config.pages_per_block();
                world.rebuild(SchedulerConfig { num_blocks, block_size, max_slots, ..config });
            }
            Event::Advance(span) => world.advance(span),
        }
    }
    world.drain();
}

proptest! {
    /// Whatever happens, every sequence that is not cancelled ends with what it would generate alone, and all is free then.
    #[test]
    fn every_sequence_ends_as_if_alone(
        config in any_config(),
        kept in prop_oneof![4 => Just(None), 1 => (0..3_usize).prop_map(Some)],
        events in prop::collection::vec(event(), 0..160),
    ) {
        let mut world = World::new(config);
        world.keep_of_digests(kept);
        play(&mut world, events);
    }

    /// The same with classes, tenants, deadlines and passing: nobody starves, nothing is lost.
    #[test]
    fn every_sequence_ends_under_any_policy(
        config in any_policy(),
        events in prop::collection::vec(policy_event(), 0..160),
    ) {
        play(&mut World::new(config), events);
    }

    /// And when some of what comes is known before it is sampled: it is run in one piece, and nothing else changes.
    #[test]
    fn known_tokens_change_nothing(
        config in any_policy(),
        events in prop::collection::vec(forcing_event(), 0..160),
    ) {
        play(&mut World::new(config), events);
    }

    /// And beside beam searches, which find what they would find alone.
    #[test]
    fn every_search_ends_as_if_alone(
        config in any_policy(),
        events in prop::collection::vec(beam_event(), 0..160),
    ) {
        play(&mut World::new(config), events);
    }

    /// With windows every sequence ends as without, whatever happens.
    #[test]
    fn every_sequence_ends_under_windows(
        config in any_windows(),
        kept in prop_oneof![4 => Just(None), 1 => (0..3_usize).prop_map(Some)],
        events in prop::collection::vec(forcing_event(), 0..160),
    ) {
        let mut world = World::new(config);
        world.keep_of_digests(kept);
        play(&mut world, events);
    }

    /// And every search.
    #[test]
    fn every_search_ends_under_windows(
        config in any_windows(),
        events in prop::collection::vec(beam_event(), 0..160),
    ) {
        play(&mut World::new(config), events);
    }

    /// In a pool that barely holds the longest, everyone ends, and the oldest advances in each step: the steps are bounded.
    #[test]
    fn nobody_starves_in_the_smallest_pool(
        requests in prop::collection::vec((1..30_u32, 1..20_u32, 0..4_usize, 0..30_u32), 1..16),
        spare_blocks in 0..3_u32,
        block_size in 1..6_u32,
        max_slots in 1..7_u32,
        max_step_tokens in 1..24_u32,
        by_tokens in any::<bool>(),
        prefix_caching in any::<bool>(),
        windows in prop::option::of((1..24_u32, 0..3_u32, 1..3_u32)),
    ) {
        let windows = windows.map(|(span, full, windowed)| Windows { span, full, windowed });
        let longest = requests.iter().map(|(prompt_len, new_tokens, ..)| prompt_len + new_tokens).max().unwrap();
        let whole = SchedulerConfig { block_size, windows, ..SchedulerConfig::default() };
        let smallest = whole.pages_for(u64::from((longest - 1).div_ceil(block_size))) as u32 + spare_blocks;
        let (num_blocks, max_running_tokens) = if by_tokens { (1000, Some(longest + spare_blocks)) } else { (smallest, None) };
        let steps_in_flight = 2;
        let config = SchedulerConfig {
            num_blocks, block_size, max_slots, max_step_tokens, max_running_tokens, steps_in_flight, prefix_caching, windows,
            ..SchedulerConfig::default()
        };
        let mut world = World::new(config);
        for &(prompt_len, new_tokens, pause, shared) in &requests {
            let taken = world.arrive(Arrival { prompt_len, new_tokens, shared, ..Arrival::default() });
            prop_assert!(taken);
            for _ in 0..pause {
                if !world.plan() {
                    world.complete(None);
                }
            }
        }
        world.drain();
        prop_assert_eq!(world.ended, requests.len());
        let bound: u32 = requests.iter().map(|(prompt_len, new_tokens, ..)| prompt_len + new_tokens + steps_in_flight).sum();
        prop_assert!(world.steps <= bound as usize, "{} steps, at most {bound} expected", world.steps);
    }
}

/// A run is one segment of one step, as far as the budget and the length allow, and its tokens come with the sampled one.
#[test]
fn what_is_known_is_run_at_once() {
    for (new_tokens, max_step_tokens, steps) in [(20, 64, 3), (20, 8, 4), (9, 64, 3)] {
        let mut world = World::new(SchedulerConfig { max_step_tokens, ..config() });
        assert!(world.arrive(Arrival { prompt_len: 4, new_tokens, ..Arrival::default() }));
        // The prompt is in flight, and all that follows is known.
        assert!(world.plan());
        let expected = world.requests[&1].expected.len();
        world.offer(0, expected);
        world.drain();
        // The prompt, then the rest: the first token is sampled with the prompt, the last one behind the run.
        assert!(world.steps <= steps + 1, "{} steps for {expected} tokens", world.steps);
        assert!(world.forced > 0 || expected < 3);
    }
}

/// The traces above are of no use if they never come to the point: pressure for blocks makes sequences give way.
#[test]
fn the_smallest_pool_makes_sequences_give_way() {
    let mut world = World::new(SchedulerConfig { num_blocks: 10, max_slots: 6, ..config() });
    for _ in 0..12 {
        assert!(world.arrive(Arrival { prompt_len: 4, new_tokens: 32, ..Arrival::default() }));
    }
    world.drain();
    assert_eq!(world.ended, 12);
    assert!(world.scheduler.stats().preemptions > 0);
}
