//! What holds of every policy on every trace: each answer is given whole, in order, no token before it could be computed, and
//! no prompt token is computed less than an unbounded cache would.

use proptest::prelude::*;
use scheduler_bench::balance::{Balance, LeastTokens, PrefixAffinity, RoundRobin, Single};
use scheduler_bench::device::{Device, H100, LLAMA_8B, LLAMA_8B_H100, Profile};
use scheduler_bench::experiments::{Contender, EVERYBODY, config, ours, run_one};
use scheduler_bench::ideal::least_prompt_tokens;
use scheduler_bench::simulation::{self, Outcome};
use scheduler_bench::summary::{Limits, summary};
use scheduler_bench::trace::{self, Starts, Trace};
use scheduler_bench::windows::LAYOUTS;

/// A device with room for so many blocks: where they run out, sequences are preempted or wait.
fn tight(blocks: u32) -> Profile {
    let block = (LLAMA_8B.kv_bytes() * 16) as f64;
    let memory =
        (LLAMA_8B.weight_bytes() as f64 + H100.activations + (f64::from(blocks) + 0.5) * block) / H100.memory_share;
    Profile { model: LLAMA_8B, device: Device { memory: memory * 1.0, ..H100 } }
}

fn traces(seed: u64) -> Vec<Trace> {
    vec![
        trace::chats(seed, 60, 40.0),
        trace::bursts(seed, 2, 40, 2.0),
        trace::long_among_chats(seed, 40, 10.0, 8.0),
        trace::shared_prefixes(seed, 60, 40.0, 5),
        trace::multi_turn(seed, 15, 4.0),
        trace::flood(seed, 12, 4.0, 40),
    ]
}

fn check(trace: &Trace, outcome: &Outcome, profile: &Profile) {
    for (request, record) in trace.requests.iter().zip(&outcome.records) {
        assert_eq!(record.tokens.len(), request.output.len(), "{}: an answer of another length", trace.name);
        let mut before = record.came;
        for &at in &record.tokens {
            assert!(at > before, "{}: a token at {at} after one at {before}", trace.name);
            before = at;
        }
        match request.starts {
            Starts::At(at) => assert_eq!(record.came, at),
            Starts::After { request, pause } => {
                assert_eq!(Some(record.came), outcome.records[request].tokens.last().map(|last| last + pause));
            }
        }
    }
    let computed: u64 = outcome.done.iter().map(|done| done.prompt_computed).sum();
    assert!(computed >= least_prompt_tokens(trace), "{}: less was computed than must be", trace.name);
    let recomputed = outcome.done.iter().any(|done| done.preemptions > 0);
    assert!(recomputed || computed <= trace.prompt_tokens(), "{}: more was computed than asked", trace.name);
    // No faster than the device computes.
    let flops = 2.0 * profile.model.layer_parameters() as f64 * (computed + trace.output_tokens()) as f64;
    let least = flops / (profile.device.flops * profile.device.matmul_share) * 1e6;
    assert!(outcome.busy as f64 > 0.95 * least, "{}: busy for {} us of {least}", trace.name, outcome.busy);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]

    #[test]
    fn every_policy_gives_every_answer(seed in any::<u64>(), blocks in 4_000..8_000_u32) {
        let profile = tight(blocks);
        for trace in traces(seed) {
            for contender in EVERYBODY {
                let policy = contender.policy(&trace, &profile);
                let (outcome, _) = simulation::run(&trace, &profile, vec![policy], &mut Single);
                check(&trace, &outcome, &profile);
            }
        }
    }

    #[test]
    fn many_replicas_give_every_answer(seed in any::<u64>(), replicas in 1..6_usize) {
        let ways: [Box<dyn Balance>; 3] = [
            Box::new(RoundRobin::new(replicas)),
            Box::new(LeastTokens::new(replicas)),
            Box::new(PrefixAffinity::new(replicas)),
        ];
        let trace = trace::multi_turn(seed, 40, 20.0);
        for mut way in ways {
            let policies = (0..replicas).map(|_| ours(&trace, config(&LLAMA_8B_H100))).collect();
            let (outcome, _) = simulation::run(&trace, &LLAMA_8B_H100, policies, way.as_mut());
            check(&trace, &outcome, &LLAMA_8B_H100);
            prop_assert!(outcome.records.iter().all(|record| record.replica < replicas));
        }
    }
}

/// Where nothing is scarce and no prompt begins like another, first come, first served under a budget is one thing, whoever
/// wrote it: the real scheduler and the model of vLLM's run the very same steps.
#[test]
fn one_policy_written_twice_gives_the_same() {
    let trace = trace::long_among_chats(21, 300, 8.0, 20.0);
    for budget in [2_048, 8_192] {
        let times = |contender: Contender| {
            let policy = contender.policy(&trace, &LLAMA_8B_H100);
            let (outcome, _) = simulation::run(&trace, &LLAMA_8B_H100, vec![policy], &mut Single);
            outcome.records.into_iter().map(|record| record.tokens).collect::<Vec<_>>()
        };
        assert!(times(Contender::Fixed(budget)) == times(Contender::Vllm(budget)), "they differ at {budget}");
    }
}

#[test]
fn the_same_seed_gives_the_same_result() {
    let trace = trace::day(31, 2, 10.0);
    for contender in EVERYBODY {
        let runs = [(); 2].map(|()| run_one(contender, &trace, &LLAMA_8B_H100));
        assert_eq!(format!("{:?}", runs[0]), format!("{:?}", runs[1]));
    }
}

/// With the KV memory of a small device somebody is preempted by vLLM's rules, and by TGI's nobody.
#[test]
fn memory_runs_out_where_it_is_not_reserved() {
    let (trace, profile) = (trace::bursts(41, 1, 150, 1.0), tight(2_000));
    assert!(profile.blocks(16).abs_diff(2_000) < 2);
    let wanted = [(Contender::Vllm(8_192), true), (Contender::Tgi { chunking: true }, false)];
    for (contender, preempts) in wanted {
        let (outcome, _) = simulation::run(&trace, &profile, vec![contender.policy(&trace, &profile)], &mut Single);
        assert_eq!(outcome.done[0].preemptions > 0, preempts, "{}", contender.name());
    }
}

/// The headline at a size for every test run: long prompts among chats, 20 ms between tokens.
#[test]
fn a_target_is_held_where_budgets_break_it() {
    let trace = trace::long_among_chats(51, 300, 9.0, 20.0);
    let run = |contender| run_one(contender, &trace, &LLAMA_8B_H100).summary;
    let target = run(Contender::Target);
    assert!(target.itl_p99 < 20.0, "{}", target.itl_p99);
    for budget in [2_048, 8_192] {
        let fixed = run(Contender::Fixed(budget));
        assert!(fixed.itl_p99 > 50.0, "{budget}: {}", fixed.itl_p99);
        assert!(target.tokens_per_second > 0.95 * fixed.tokens_per_second, "{budget}: {}", fixed.tokens_per_second);
    }
}

#[test]
fn shared_prompts_are_computed_once() {
    let trace = trace::shared_prefixes(61, 800, 40.0, 64);
    let computed = run_one(Contender::Target, &trace, &LLAMA_8B_H100).summary.prompt_computed;
    let least = least_prompt_tokens(&trace);
    assert!(computed as f64 <= 1.02 * least as f64, "{computed} of {least}");
}

/// Whatever layers keep, every answer comes whole. Where memory is short but not far too short, windows leave more of what
/// others begin with.
#[test]
fn windows_leave_room_for_what_others_begin_with() {
    let trace = trace::multi_turn(81, 120, 8.0).of_one_tenant();
    let computed = |blocks| {
        LAYOUTS.map(|layout| {
            let policy = ours(&trace, layout.config(blocks));
            let (outcome, _) = simulation::run(&trace, &LLAMA_8B_H100, vec![policy], &mut Single);
            check(&trace, &outcome, &LLAMA_8B_H100);
            outcome.done[0].prompt_computed
        })
    };
    computed(1_000);
    let [whole, many, half, all] = computed(4_000);
    assert!(many < whole && half < many && all <= whole, "{whole}, {many}, {half}, {all}");
}

#[test]
fn a_summary_counts_what_was_given() {
    let trace = trace::chats(71, 100, 20.0);
    let policy = Contender::Fixed(2_048).policy(&trace, &LLAMA_8B_H100);
    let (outcome, _) = simulation::run(&trace, &LLAMA_8B_H100, vec![policy], &mut Single);
    let numbers = summary(&trace, &outcome, &Limits::default());
    assert_eq!((numbers.requests, numbers.hit_rate), (100, 0.0));
    let tokens = numbers.tokens_per_second * numbers.seconds;
    assert!((tokens - (trace.prompt_tokens() + trace.output_tokens()) as f64).abs() < 1.0);
    assert!(numbers.itl_p50 <= numbers.itl_p90 && numbers.itl_p99 <= numbers.itl_max);
    assert!(numbers.good_share > 0.9 && numbers.busy < 1.05 && (numbers.fairness - 1.0).abs() < 1e-9);
}
