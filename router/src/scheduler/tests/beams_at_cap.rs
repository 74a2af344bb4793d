//! A beam search where the tokens that may run at once are short: who gives way, and that the search finds what it finds alone.

use super::beams::{beams, no_stops, report};
use super::toy::{answers, assert_answers};
use super::*;

const SEARCH: SequenceId = 1;
const STREAM: SequenceId = 2;
const WIDTH: u32 = 3;

fn search() -> NewBeams {
    beams(SEARCH, 5, 6, WIDTH)
}

/// What the search may reach with all its beams.
fn alone() -> u32 {
    WIDTH * search().sequence.max_len
}

fn capped(cap: u32) -> Scheduler {
    let config = SchedulerConfig { max_running_tokens: Some(cap), prefix_caching: true, ..config() };
    scheduler(config, [])
}

/// Runs the search and a stream to their ends under the cap. How often each lost its seats.
fn run_both(mut scheduler: Scheduler, cap: u32) -> [u64; 2] {
    let mut found = vec![];
    let mut streamed = 0;
    let mut lost = [0; 2];
    let mut running = [false; 2];
    while let Some(plan) = plan(&mut scheduler) {
        let beams = plan.segments.iter().filter(|segment| segment.sequence == SEARCH && segment.last).count();
        assert!(beams == 0 || beams == WIDTH as usize, "the beams run together: {:?}", shape(&plan));
        let completed = report(&mut scheduler, &plan, &no_stops());
        assert!(scheduler.stats().running_tokens <= u64::from(cap));
        found.extend(completed.beams);
        streamed += completed.outputs.len();
        for output in completed.outputs.iter().filter(|output| output.length_reached) {
            scheduler.finish(output.sequence);
        }
        for (place, id) in [SEARCH, STREAM].into_iter().enumerate() {
            lost[place] += u64::from(running[place] && scheduler.is_waiting(id));
            running[place] = scheduler.is_running(id);
        }
    }
    assert_answers(&found[0].hypotheses, &answers(&search(), &no_stops(), 0), &format!("a cap of {cap}"));
    let stats = scheduler.stats();
    assert_eq!((found.len(), streamed, stats.running_tokens, stats.blocks_used), (1, 8, 0, 0));
    assert_eq!(stats.preemptions, lost[0] + lost[1]);
    lost
}

#[test]
fn a_search_that_just_fits_runs_to_its_end() {
    let new = search();
    let mut scheduler = capped(alone());
    scheduler.enqueue_beams(new.clone()).unwrap();
    let mut found = vec![];
    while let Some(plan) = plan(&mut scheduler) {
        found.extend(report(&mut scheduler, &plan, &no_stops()).beams);
    }
    assert_answers(&found[0].hypotheses, &answers(&new, &no_stops(), 0), "alone");
    assert_eq!(scheduler.stats().preemptions, 0);
    let over = Refusal::OverTokenLimit { max_len: alone(), limit: alone() - 1 };
    assert_eq!(capped(alone() - 1).enqueue_beams(new), Err(over));
}

#[test]
fn who_came_later_gives_way_at_the_cap() {
    let mut lost = [[0; 2]; 2];
    for cap in alone()..=alone() + 16 {
        for (place, search_first) in [true, false].into_iter().enumerate() {
            let mut scheduler = capped(cap);
            let enqueue_stream = |scheduler: &mut Scheduler| scheduler.enqueue(sequence(STREAM, 8, 8)).unwrap();
            if !search_first {
                enqueue_stream(&mut scheduler);
            }
            scheduler.enqueue_beams(search()).unwrap();
            if search_first {
                enqueue_stream(&mut scheduler);
            }
            let of_this = run_both(scheduler, cap);
            let first = if search_first { 0 } else { 1 };
            assert_eq!(of_this[first], 0, "a cap of {cap}: who came first keeps its seat");
            lost[place][1 - first] += of_this[1 - first];
        }
    }
    assert!(lost[0][1] > 0 && lost[1][0] > 0, "somebody gave way in each order: {lost:?}");
}
