//! Inputs that are run at once: an encoder's.

use super::*;

/// An input of `whole` positions before a prompt, under a key of its own.
fn encoded(id: SequenceId, input: u64, whole: u32, prompt: u32) -> NewSequence {
    let tokens = (0..whole + prompt).map(|position| 1000 * input as u32 + position).collect();
    NewSequence { tokens, whole, cache_key: CacheKey::of(&[&input.to_le_bytes()]), ..sequence(id, whole + prompt, 5) }
}

fn caching() -> SchedulerConfig {
    SchedulerConfig { prefix_caching: true, max_passes: 8, ..config() }
}

#[test]
fn an_input_waits_for_a_step_that_has_room_for_all_of_it() {
    // 16 tokens a step: the second input is not begun in what the first one leaves.
    let mut scheduler = scheduler(caching(), [encoded(1, 1, 8, 1), encoded(2, 2, 8, 1), sequence(3, 3, 2)]);
    let first = plan(&mut scheduler).unwrap();
    assert_eq!(shape(&first), [(1, 0, 9, false, true), (3, 0, 3, false, true)], "a short prompt passes");
    complete(&mut scheduler, &first);
    let second = plan(&mut scheduler).unwrap();
    assert_eq!(shape(&second)[2], (2, 0, 9, false, true));
}

#[test]
fn what_follows_an_input_may_be_cut() {
    let mut scheduler = scheduler(caching(), [encoded(1, 1, 8, 12)]);
    let first = plan(&mut scheduler).unwrap();
    assert_eq!(shape(&first), [(1, 0, 16, false, false)]);
    let second = plan(&mut scheduler).unwrap();
    assert_eq!(shape(&second), [(1, 16, 4, false, true)]);
}

#[test]
fn the_same_input_is_read_once() {
    let mut scheduler = scheduler(caching(), [encoded(1, 1, 8, 1)]);
    let first = plan(&mut scheduler).unwrap();
    complete(&mut scheduler, &first);
    scheduler.enqueue(encoded(2, 1, 8, 1)).unwrap();
    scheduler.enqueue(encoded(3, 2, 8, 1)).unwrap();
    let second = plan(&mut scheduler).unwrap();
    let cached: Vec<_> = second.admits.iter().map(|admission| (admission.sequence, admission.cached_tokens)).collect();
    assert_eq!(cached, [(2, 8), (3, 0)], "another input shares nothing");
    assert_eq!(shape(&second)[1], (2, 8, 1, false, true));
}

#[test]
fn a_part_of_an_input_is_of_no_use() {
    let small = SchedulerConfig { num_blocks: 6, max_slots: 2, ..caching() };
    let mut scheduler = scheduler(small, [encoded(1, 1, 12, 1)]);
    let first = plan(&mut scheduler).unwrap();
    complete(&mut scheduler, &first);
    scheduler.finish(1);
    // Another one takes so many blocks that the end of the first input is given up.
    scheduler.enqueue(sequence(2, 13, 1)).unwrap();
    let second = plan(&mut scheduler).unwrap();
    complete(&mut scheduler, &second);
    scheduler.finish(2);
    assert!(scheduler.stats().evictions > 0);
    let (cached, _) = {
        let mut chain = Vec::new();
        let again = encoded(3, 1, 12, 1);
        scheduler.hasher.extend(&mut chain, &again.cache_key, &again.tokens, 4);
        scheduler.cache.reach(&chain)
    };
    assert!((1..3).contains(&cached), "some of it is there: {cached}");
    scheduler.enqueue(encoded(3, 1, 12, 1)).unwrap();
    let third = plan(&mut scheduler).unwrap();
    assert_eq!(shape(&third), [(3, 0, 13, false, true)]);
    assert_eq!(third.admits[0].cached_tokens, 0);
}

#[test]
fn one_that_gives_way_reads_its_input_again_or_finds_all_of_it() {
    let small = SchedulerConfig { num_blocks: 7, ..caching() };
    let mut scheduler = scheduler(small, [encoded(1, 1, 8, 1), encoded(2, 2, 8, 1)]);
    let mut seatings = 0;
    for _ in 0..40 {
        let Some(planned) = plan(&mut scheduler) else { break };
        for segment in planned.segments.iter().filter(|segment| segment.start < 8) {
            assert!(segment.start == 0 && segment.length > 8, "{segment:?}");
        }
        seatings += planned.admits.len();
        let done = complete(&mut scheduler, &planned);
        for output in done.outputs.iter().filter(|output| output.length_reached) {
            scheduler.finish(output.sequence);
        }
    }
    assert!(seatings >= 2);
    assert_eq!(scheduler.stats().running + scheduler.stats().waiting, 0);
}

#[test]
fn forks_and_beams_share_an_input() {
    let mut scheduler = scheduler(caching(), [encoded(1, 1, 8, 1)]);
    scheduler.fork(1, &[2]).unwrap();
    let first = plan(&mut scheduler).unwrap();
    assert_eq!(shape(&first), [(1, 0, 9, false, true)]);
    complete(&mut scheduler, &first);
    let second = plan(&mut scheduler).unwrap();
    assert_eq!(shape(&second)[1], (2, 8, 1, false, true));
}

#[test]
fn what_can_never_run_is_refused() {
    let mut scheduler = scheduler(caching(), []);
    let room = Refusal::OverStep { whole: 13, room: 12 };
    assert_eq!(scheduler.enqueue(encoded(1, 1, 13, 1)), Err(room), "16 tokens a step, 4 slots");
    assert_eq!(scheduler.enqueue(encoded(1, 1, 4, 0)), Err(Refusal::NothingBehind { whole: 4, prompt_len: 4 }));
}
