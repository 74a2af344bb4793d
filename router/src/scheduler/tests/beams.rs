//! Beam search: what it finds, and how it shares, waits and fails. Blocks hold four tokens.

use serde_json::Value;

use super::model_shard::context;
use super::toy::{Answer, Toy, answers, assert_answers};
use super::*;

pub(super) fn no_stops() -> Toy {
    Toy { stop_tokens: [].into(), stop_bias: 0.0 }
}

pub(super) fn beams(id: SequenceId, prompt_len: u32, new_tokens: u32, width: u32) -> NewBeams {
    let tokens = (0..prompt_len).map(|position| (7 * id as u32 + position) % toy::VOCABULARY).collect();
    NewBeams {
        sequence: NewSequence { tokens, ..sequence(id, prompt_len, new_tokens) },
        width,
        returned: width,
        length_penalty: 1.0,
        early_stopping: EarlyStopping::default(),
        stop_tokens: [].into(),
    }
}

fn searching(config: SchedulerConfig, searches: &[NewBeams]) -> Scheduler {
    let mut scheduler = scheduler(config, []);
    for new in searches {
        scheduler.enqueue_beams(new.clone()).unwrap();
    }
    scheduler
}

/// Completes a plan as the toy does it: each slot has the tokens that its member has.
pub(super) fn report(scheduler: &mut Scheduler, plan: &Plan, toy: &Toy) -> Completed {
    let sampled: Vec<&Segment> = plan.segments.iter().filter(|segment| segment.sample).collect();
    let slots: Vec<Slot> = sampled.iter().map(|segment| segment.slot).collect();
    let tops: Vec<_> = sampled
        .iter()
        .map(|segment| {
            let index = scheduler.seats.occupant(segment.slot).unwrap();
            let end = (segment.start + segment.length) as usize;
            toy.top(context(0, &scheduler.store[index].tokens[..end]), 32)
        })
        .collect();
    let (tokens, counts) = (vec![1; slots.len()], vec![1; slots.len()]);
    let mut completed = Completed::default();
    let results = Results { slots: &slots, counts: &counts, tokens: &tokens, tops: &tops, ..Results::default() };
    scheduler.complete(plan.step, &results, &mut completed).unwrap();
    scheduler.check_integrity().unwrap();
    completed
}

/// Runs until nothing is left; what the searches found, in the order in which they ended.
fn run(scheduler: &mut Scheduler, toy: &Toy) -> Vec<FinishedBeams> {
    let mut finished = vec![];
    while let Some(plan) = plan(scheduler) {
        finished.extend(report(scheduler, &plan, toy).beams);
    }
    let stats = scheduler.stats();
    assert_eq!((stats.waiting, stats.running, stats.running_tokens, stats.blocks_used), (0, 0, 0, 0));
    assert_eq!((stats.running_max_tokens, scheduler.store.iter().count()), (0, 0));
    finished
}

fn vectors() -> Vec<(NewBeams, Toy, Vec<Answer>)> {
    let cases: Vec<Value> = serde_json::from_str(include_str!("beams.json")).unwrap();
    let numbers =
        |value: &Value| value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as u32).collect();
    let case = |case: Value| {
        let tokens: Vec<Token> = numbers(&case["prompt"]);
        let stop_tokens: Vec<Token> = numbers(&case["stop_tokens"]);
        let float = |value: &Value| value.as_f64().unwrap() as f32;
        let prompt_len = tokens.len() as u32;
        let max_len = prompt_len + case["max_new"].as_u64().unwrap() as u32;
        let toy = Toy { stop_tokens: stop_tokens.into(), stop_bias: float(&case["stop_bias"]) };
        let new = NewBeams {
            sequence: NewSequence { id: 1, tokens, prompt_len, max_len, ..NewSequence::default() },
            width: case["width"].as_u64().unwrap() as u32,
            returned: case["returned"].as_u64().unwrap() as u32,
            length_penalty: float(&case["length_penalty"]),
            early_stopping: match &case["early_stopping"] {
                Value::Bool(true) => EarlyStopping::WhenFull,
                Value::Bool(false) => EarlyStopping::WhenUnlikely,
                _ => EarlyStopping::Never,
            },
            stop_tokens: toy.stop_tokens.clone(),
        };
        let expected = case["answers"].as_array().unwrap().iter();
        let expected = expected.map(|answer| (numbers(&answer["tokens"]), float(&answer["score"]))).collect();
        (new, toy, expected)
    };
    cases.into_iter().map(case).collect()
}

/// Recorded with `tests/beams/make_vectors.py`.
#[test]
fn the_answers_are_those_of_transformers() {
    for (new, toy, expected) in vectors() {
        let what = format!("{new:?}");
        assert_answers_of_model(&new, &toy, &expected);
        let roomy = SchedulerConfig { max_slots: 8, max_step_tokens: 32, ..config() };
        let mut scheduler = searching(roomy, std::slice::from_ref(&new));
        let finished = run(&mut scheduler, &toy);
        assert_eq!((finished.len(), finished[0].sequence), (1, 1));
        assert_answers(&finished[0].hypotheses, &expected, &what);
        for hypothesis in &finished[0].hypotheses {
            let stopped = hypothesis.tokens.last().is_some_and(|token| new.stop_tokens.contains(token));
            assert_eq!(hypothesis.finished_by == FinishedBy::StopToken, stopped);
            let sum: f32 = hypothesis.logprobs.iter().sum();
            let score = sum / (hypothesis.tokens.len() as f32).powf(new.length_penalty);
            assert!((score - hypothesis.score).abs() < 1e-4 * score.abs().max(1.0), "{what}");
        }
    }
}

/// The model that the random traces are checked against finds them too.
fn assert_answers_of_model(new: &NewBeams, toy: &Toy, expected: &[Answer]) {
    for ((tokens, score), (expected, expected_score)) in answers(new, toy, 0).iter().zip(expected) {
        assert_eq!(tokens, expected, "{new:?}");
        assert!((score - expected_score).abs() < 1e-5 * score.abs().max(1.0), "{new:?}");
    }
}

#[test]
fn beams_share_what_is_full_and_copy_the_rest() {
    // prompt, copies in the step after the prompt's, blocks in use then: the shared ones and one for each beam.
    for (prompt_len, copies, blocks) in [(14, 2, 3 + 3), (12, 0, 3 + 3), (13, 2, 3 + 3), (15, 2, 3 + 3)] {
        let mut scheduler = searching(config(), &[beams(1, prompt_len, 9, 3)]);
        let first = plan(&mut scheduler).unwrap();
        assert_eq!((admits(&first), first.segments.len()), (vec![(1, 0), (1, 1), (1, 2)], 1), "all seats at once");
        assert_eq!(plan(&mut scheduler), None, "nothing is known of what comes next");
        report(&mut scheduler, &first, &no_stops());
        let second = plan(&mut scheduler).unwrap();
        let one = (1, prompt_len, 1, false, true);
        assert_eq!(shape(&second), [one, one, one], "by token id, in each slot");
        assert_eq!((second.copies.len(), second.admits.len()), (copies, 2));
        assert!(second.admits.iter().all(|admission| admission.cached_tokens == prompt_len));
        assert_eq!(scheduler.stats().blocks_used, blocks, "a prompt of {prompt_len} tokens");
    }
}

#[test]
fn beams_run_one_step_at_a_time_and_others_run_ahead() {
    let mut scheduler = searching(config(), &[beams(1, 3, 9, 2)]);
    scheduler.enqueue(sequence(2, 3, 20)).unwrap();
    let sequences = |plan: &Plan| plan.segments.iter().map(|segment| segment.sequence).collect::<Vec<_>>();
    let first = plan(&mut scheduler).unwrap();
    let second = plan(&mut scheduler).unwrap();
    assert_eq!((sequences(&first), sequences(&second)), (vec![1, 2], vec![2]));
    report(&mut scheduler, &first, &no_stops());
    assert_eq!(sequences(&plan(&mut scheduler).unwrap()), [1, 1, 2]);
}

#[test]
fn a_group_waits_until_there_are_seats_for_all() {
    let mut scheduler = searching(config(), &[beams(1, 3, 3, 3), beams(2, 3, 3, 3)]);
    scheduler.enqueue(sequence(3, 3, 1)).unwrap();
    let first = plan(&mut scheduler).unwrap();
    assert_eq!(admits(&first), [(1, 0), (1, 1), (1, 2)], "one seat is left, and nobody passes");
    assert_eq!((scheduler.is_waiting(2), scheduler.is_waiting(3)), (true, true));
    let finished: Vec<SequenceId> = {
        let mut finished = report(&mut scheduler, &first, &no_stops()).beams;
        while let Some(plan) = plan(&mut scheduler) {
            finished.extend(report(&mut scheduler, &plan, &no_stops()).beams);
        }
        finished.iter().map(|search| search.sequence).collect()
    };
    assert_eq!(finished, [1, 2]);
}

#[test]
fn a_group_that_gave_way_goes_on_from_its_beams() {
    let (toy, new) = (no_stops(), beams(1, 10, 8, 3));
    for after in 1..7 {
        let mut scheduler = searching(config(), std::slice::from_ref(&new));
        for _ in 0..after {
            let plan = plan(&mut scheduler).unwrap();
            report(&mut scheduler, &plan, &toy);
        }
        scheduler.reset();
        scheduler.check_integrity().unwrap();
        let again = plan(&mut scheduler).unwrap();
        assert_eq!(again.segments.len(), 1, "the leader runs first");
        report(&mut scheduler, &again, &toy);
        let shared = plan(&mut scheduler).unwrap();
        if after > 1 {
            assert!(shared.admits.iter().all(|admission| admission.cached_tokens == 10), "{:?}", shared.admits);
        }
        let mut finished = report(&mut scheduler, &shared, &toy).beams;
        finished.extend(run(&mut scheduler, &toy));
        assert_answers(&finished[0].hypotheses, &answers(&new, &toy, 0), "after {after} steps");
    }
}

#[test]
fn a_group_fails_and_ends_as_one() {
    for failing in 0..3 {
        let mut scheduler = searching(SchedulerConfig { prefix_caching: true, ..config() }, &[beams(1, 10, 8, 3)]);
        let first = plan(&mut scheduler).unwrap();
        report(&mut scheduler, &first, &no_stops());
        let second = plan(&mut scheduler).unwrap();
        let failed = [second.segments[failing].slot];
        let slots: Vec<Slot> =
            second.segments.iter().map(|segment| segment.slot).filter(|slot| *slot != failed[0]).collect();
        let tops = vec![no_stops().top(1, 8); 2];
        let mut completed = Completed::default();
        let results =
            Results { slots: &slots, counts: &[1, 1], tokens: &[1, 1], tops: &tops, failed: &failed, elapsed: None };
        scheduler.complete(second.step, &results, &mut completed).unwrap();
        scheduler.check_integrity().unwrap();
        assert_eq!(completed, Completed { failed: vec![1], ..Completed::default() });
        let stats = scheduler.stats();
        assert_eq!((stats.running, stats.blocks_used, stats.blocks_cached), (0, 0, 0));
        assert_eq!(scheduler.tokens(1), None);
    }
    let mut scheduler = searching(config(), &[beams(1, 10, 8, 3), beams(2, 10, 8, 3)]);
    plan(&mut scheduler).unwrap();
    assert!(scheduler.finish(1) && scheduler.finish(2), "running, and waiting");
    scheduler.check_integrity().unwrap();
    assert_eq!(scheduler.store.iter().count(), 0);
}

#[test]
fn a_group_counts_for_each_of_its_beams() {
    let mut scheduler = searching(config(), &[]);
    let new = beams(1, 3, 5, 3);
    scheduler.enqueue_beams(NewBeams { sequence: NewSequence { tenant: 7, ..new.sequence }, ..new }).unwrap();
    assert_eq!(scheduler.tenant_load(7), TenantLoad { waiting: 1, running: 0, max_tokens: 24 });
    assert_eq!(scheduler.stats().waiting_max_tokens, 24);
    plan(&mut scheduler).unwrap();
    assert_eq!(scheduler.tenant_load(7), TenantLoad { waiting: 0, running: 3, max_tokens: 24 });
    let stats = scheduler.stats();
    assert_eq!((stats.running, stats.running_tokens, stats.running_max_tokens), (3, 3 * 4, 24));
}

#[test]
fn searches_that_can_never_run_are_refused() {
    let base = SchedulerConfig { num_blocks: 12, max_running_tokens: Some(60), ..config() };
    let good = beams(1, 9, 8, 3);
    // Sixteen positions: two blocks are shared, and each beam has two of its own.
    let cases = [
        (NewBeams { width: 5, ..good.clone() }, Refusal::TooManyBeams { width: 5, slots: 4 }),
        (NewBeams { returned: 0, ..good.clone() }, Refusal::NotSoManyBeams { width: 3, returned: 0 }),
        (NewBeams { returned: 4, ..good.clone() }, Refusal::NotSoManyBeams { width: 3, returned: 4 }),
        (NewBeams { length_penalty: f32::NAN, ..good.clone() }, Refusal::LengthPenalty),
        (beams(1, 9, 16, 3), Refusal::TooLong { needs_blocks: 14, has_blocks: 12 }),
        (beams(1, 17, 4, 3), Refusal::OverTokenLimit { max_len: 63, limit: 60 }),
        (beams(1, 9, 0, 3), Refusal::NothingToGenerate { tokens: 9, max_len: 9 }),
        (beams(9, 9, 3, 3), Refusal::Duplicate { id: 9 }),
    ];
    let mut scheduler = scheduler(base, [sequence(9, 3, 3)]);
    for (new, refusal) in cases {
        assert_eq!(scheduler.enqueue_beams(new), Err(refusal));
        assert!(!refusal.to_string().is_empty());
        scheduler.check_integrity().unwrap();
    }
    assert_eq!(scheduler.enqueue_beams(good), Ok(()));
    assert_eq!(scheduler.fork(1, &[2]), Err(Refusal::IsBeams { id: 1 }));
    let fewer = SchedulerConfig { max_slots: 2, ..config() };
    assert_eq!(scheduler.rebuild(fewer), Ok(vec![(1, Refusal::TooManyBeams { width: 3, slots: 2 })]));
    scheduler.check_integrity().unwrap();
}

#[test]
fn beams_without_log_probabilities_are_a_mismatch() {
    for tops in [vec![], vec![vec![]], vec![vec![(1, -0.5), (2, f32::NAN)]]] {
        let mut scheduler = searching(config(), &[beams(1, 3, 5, 2)]);
        let first = plan(&mut scheduler).unwrap();
        let results = Results { slots: &[0], counts: &[1], tokens: &[5], tops: &tops, ..Results::default() };
        let mismatch = StepMismatch::MissingTops { step: first.step, slot: 0 };
        assert_eq!(scheduler.complete(first.step, &results, &mut Completed::default()), Err(mismatch));
        assert!(!mismatch.to_string().is_empty());
        assert!(report(&mut scheduler, &first, &no_stops()).beams.is_empty(), "nothing had changed");
    }
}

#[test]
fn a_shard_that_knows_few_tokens_makes_fewer_beams() {
    let mut scheduler = searching(config(), &[beams(1, 3, 3, 3)]);
    let mut finished = vec![];
    while let Some(plan) = plan(&mut scheduler) {
        let slots: Vec<Slot> = plan.segments.iter().map(|segment| segment.slot).collect();
        let (ones, tops) = (vec![1; slots.len()], vec![vec![(5, -0.5)]; slots.len()]);
        let results = Results { slots: &slots, counts: &ones, tokens: &ones, tops: &tops, ..Results::default() };
        let mut completed = Completed::default();
        scheduler.complete(plan.step, &results, &mut completed).unwrap();
        scheduler.check_integrity().unwrap();
        finished.extend(completed.beams);
    }
    assert_eq!(finished[0].hypotheses.len(), 1);
    assert_eq!(finished[0].hypotheses[0].tokens, [5, 5, 5]);
}
