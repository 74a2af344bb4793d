//! What is refused, and what a shard may not say.

use super::*;

#[test]
fn a_limit_of_zero_is_refused() {
    type Spoil = fn(&mut SchedulerConfig);
    let cases: [(&str, Spoil); 9] = [
        ("num_blocks", |config| config.num_blocks = 0),
        ("block_size", |config| config.block_size = 0),
        ("max_slots", |config| config.max_slots = 0),
        ("max_step_tokens", |config| config.max_step_tokens = 0),
        ("max_running_tokens", |config| config.max_running_tokens = Some(0)),
        ("steps_in_flight", |config| config.steps_in_flight = 0),
        ("target_itl", |config| config.target_itl = Some(0)),
        ("max_prefill_per_stream", |config| config.max_prefill_per_stream = Some(0)),
        ("ageing", |config| config.ageing = Some(0)),
    ];
    for (field, spoil) in cases {
        let mut spoiled = config();
        spoil(&mut spoiled);
        assert_eq!(Scheduler::new(spoiled).unwrap_err(), InvalidConfig { field });
    }
}

#[test]
fn what_can_never_run_is_refused() {
    let base = SchedulerConfig { num_blocks: 5, max_running_tokens: Some(19), ..config() };
    let cases = [
        (NewSequence { tokens: vec![], ..sequence(1, 3, 3) }, Refusal::EmptyPrompt),
        (NewSequence { prompt_len: 0, ..sequence(1, 3, 3) }, Refusal::EmptyPrompt),
        (NewSequence { prompt_len: 4, ..sequence(1, 3, 3) }, Refusal::PromptBeyondTokens { prompt_len: 4, tokens: 3 }),
        (sequence(1, 3, 0), Refusal::NothingToGenerate { tokens: 3, max_len: 3 }),
        (NewSequence { max_len: 2, ..sequence(1, 3, 3) }, Refusal::NothingToGenerate { tokens: 3, max_len: 2 }),
        (sequence(1, 18, 4), Refusal::TooLong { needs_blocks: 6, has_blocks: 5 }),
        (sequence(1, 18, 2), Refusal::OverTokenLimit { max_len: 20, limit: 19 }),
        (sequence(9, 3, 3), Refusal::Duplicate { id: 9 }),
    ];
    let mut scheduler = scheduler(base, [sequence(9, 3, 3)]);
    for (new, refusal) in cases {
        assert_eq!(scheduler.enqueue(new), Err(refusal));
        scheduler.check_integrity().unwrap();
        assert_eq!(scheduler.stats().waiting, 1);
    }
}

#[test]
fn what_just_fits_runs() {
    // 21 tokens: the last of them is never run, so that 20 positions fill 5 blocks.
    let mut scheduler = scheduler(SchedulerConfig { num_blocks: 5, ..config() }, [sequence(1, 18, 3)]);
    let mut outputs = 0;
    while let Some(plan) = plan(&mut scheduler) {
        outputs += complete(&mut scheduler, &plan).outputs.len();
    }
    assert_eq!(outputs, 3);
}

/// Three sequences of which the first two sample, in slots 0 and 1; the third one is in its prompt, in slot 2.
fn three() -> (Scheduler, Plan) {
    let mut scheduler = scheduler(config(), [sequence(1, 3, 5), sequence(2, 3, 5), sequence(3, 30, 5)]);
    let plan = plan(&mut scheduler).unwrap();
    assert_eq!(shape(&plan), [(1, 0, 3, false, true), (2, 0, 3, false, true), (3, 0, 10, false, false)]);
    (scheduler, plan)
}

#[test]
fn a_report_that_does_not_fit_changes_nothing() {
    let step = 1;
    let columns = |slots, counts, tokens| StepMismatch::Columns { step, slots, counts, tokens };
    let cases: [(StepId, [&[u32]; 4], StepMismatch); 12] = [
        (2, [&[0, 1], &[1, 1], &[7, 8], &[]], StepMismatch::WrongStep { got: 2, expected: Some(1) }),
        (1, [&[0], &[1], &[7], &[]], StepMismatch::MissingSlot { step, slot: 1 }),
        (1, [&[], &[], &[], &[]], StepMismatch::MissingSlot { step, slot: 0 }),
        (1, [&[1, 0], &[1, 1], &[7, 8], &[]], StepMismatch::WrongSlot { step, slot: 1, expected: Some(0) }),
        (1, [&[0, 1, 2], &[1, 1, 1], &[7, 8, 9], &[]], StepMismatch::WrongSlot { step, slot: 2, expected: None }),
        (1, [&[0, 1], &[1, 1], &[7, 8], &[1]], StepMismatch::WrongSlot { step, slot: 1, expected: None }),
        (1, [&[0, 1], &[1, 2], &[7, 8, 9], &[]], StepMismatch::WrongCount { step, slot: 1, count: 2 }),
        (1, [&[0, 1], &[1, 0], &[7], &[]], StepMismatch::WrongCount { step, slot: 1, count: 0 }),
        (1, [&[0, 1], &[1, 1], &[7], &[]], columns(2, 2, 1)),
        (1, [&[0, 1], &[1, 1], &[7, 8, 9], &[]], columns(2, 2, 3)),
        (1, [&[0, 1], &[1, 1, 1], &[7, 8], &[]], columns(2, 3, 2)),
        (1, [&[0, 1], &[1, 1], &[7, 8], &[3]], StepMismatch::ForeignFailure { step, slot: 3 }),
    ];
    for (step, [slots, counts, tokens, failed], mismatch) in cases {
        let (mut scheduler, plan) = three();
        let stats = scheduler.stats();
        let mut completed = Completed::default();
        let report = Results { slots, counts, tokens, failed, ..Results::default() };
        assert_eq!(scheduler.complete(step, &report, &mut completed), Err(mismatch));
        assert_eq!((completed, scheduler.stats()), (Completed::default(), stats));
        assert!(!mismatch.to_string().is_empty());
        assert_eq!(complete(&mut scheduler, &plan).outputs.len(), 2);
    }
}

#[test]
fn a_report_without_a_step_is_refused() {
    let mut scheduler = scheduler(config(), []);
    let mismatch = StepMismatch::WrongStep { got: 1, expected: None };
    let mut completed = Completed::default();
    assert_eq!(scheduler.complete(1, &Results::default(), &mut completed), Err(mismatch));
    assert_eq!(scheduler.fail(1, &mut completed), Err(mismatch));
    assert_eq!(mismatch.to_string(), "the shard completed step 1 and the next one to complete is none");
}

#[test]
fn a_failure_ends_one_sequence_and_not_its_step() {
    let cases: [(&[Slot], &[SequenceId], &[SequenceId]); 4] =
        [(&[0], &[1], &[2]), (&[1], &[2], &[1]), (&[2, 2], &[3], &[1, 2]), (&[2, 0], &[1, 3], &[2])];
    for (failed, gone, outputs) in cases {
        let (mut scheduler, _) = three();
        let next = plan(&mut scheduler).unwrap();
        let slots: Vec<Slot> = [0, 1].into_iter().filter(|slot| !failed.contains(slot)).collect();
        let counts = vec![1; slots.len()];
        let mut completed = Completed::default();
        let report = Results { slots: &slots, counts: &counts, tokens: &slots, failed, ..Results::default() };
        scheduler.complete(1, &report, &mut completed).unwrap();
        scheduler.check_integrity().unwrap();
        assert_eq!(completed.failed, gone);
        let reached: Vec<SequenceId> = completed.outputs.iter().map(|output| output.sequence).collect();
        assert_eq!(reached, outputs);
        assert_eq!(scheduler.stats().running, 3 - gone.len());
        let late = complete(&mut scheduler, &next).outputs;
        assert!(late.iter().all(|output| !gone.contains(&output.sequence)), "the next step counts for nothing");
        let mut freed = plan(&mut scheduler).unwrap().freed;
        freed.sort_unstable();
        assert_eq!(freed.len(), gone.len());
        assert!(freed.iter().all(|slot| failed.contains(slot)));
    }
}

#[test]
fn a_failed_step_ends_all_that_were_in_it() {
    let (mut scheduler, _) = three();
    scheduler.enqueue(sequence(4, 2, 2)).unwrap();
    let mut completed = Completed::default();
    scheduler.fail(1, &mut completed).unwrap();
    assert_eq!(completed, Completed { failed: vec![1, 2, 3], ..Completed::default() });
    scheduler.check_integrity().unwrap();
    assert_eq!(shape(&plan(&mut scheduler).unwrap()), [(4, 0, 2, false, true)]);
}

#[test]
fn broken_books_are_noticed() {
    let broken: [fn(&mut Scheduler); 6] = [
        |scheduler| assert!(scheduler.pool.allocate().is_some()),
        |scheduler| assert!(scheduler.pool.release(0)),
        |scheduler| assert!(scheduler.queue.remove(scheduler.last_arrival).is_some()),
        |scheduler| assert!(scheduler.flights.pop_back().is_some()),
        |scheduler| scheduler.running_tokens += 1,
        |scheduler| scheduler.store[0].blocks[0] = scheduler.store[1].blocks[0],
    ];
    for spoil in broken {
        let (mut scheduler, _) = three();
        scheduler.enqueue(sequence(4, 2, 2)).unwrap();
        scheduler.check_integrity().unwrap();
        spoil(&mut scheduler);
        assert!(scheduler.check_integrity().is_err(), "{scheduler:?}");
    }
}
