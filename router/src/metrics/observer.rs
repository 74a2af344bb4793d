//! The engine's reports, as metrics.

use std::time::Duration;

use super::engine::{EngineMetrics, Method, SchedulerView, StepTimes};
use crate::scheduler::{Plan, Stats};
use crate::shard::observer::{EngineObserver, StepReport};

/// Turns what the engine loop reports into metrics.
#[derive(Debug)]
pub struct MetricsObserver {
    metrics: EngineMetrics,
    seen: Stats,
    shards_lost: u64,
}

impl MetricsObserver {
    /// An observer that has seen nothing.
    #[must_use]
    pub fn new(metrics: EngineMetrics) -> Self {
        Self { metrics, seen: Stats::default(), shards_lost: 0 }
    }
}

const fn method(prefill: bool) -> Method {
    if prefill { Method::Prefill } else { Method::Decode }
}

/// What a count has grown by. A scheduler that is made anew for another shard counts from zero.
const fn since(before: u64, now: u64) -> u64 {
    if now < before { now } else { now - before }
}

impl EngineObserver for MetricsObserver {
    fn planned(&mut self, plan: &Plan) {
        self.metrics.step_sent(method(plan.segments.iter().any(|segment| !segment.last)), plan.segments.len());
    }

    fn stepped(&mut self, report: &StepReport) {
        let times = StepTimes {
            plan: report.plan,
            queue: Duration::from_nanos(report.times.queue_ns),
            forward: Duration::from_nanos(report.times.forward_ns),
            sample: Duration::from_nanos(report.times.sample_ns),
            deliver: report.deliver,
            total: report.elapsed,
        };
        self.metrics.observe_step(method(report.prefill), &times);
    }

    fn step_failed(&mut self, prefill: bool) {
        self.metrics.step_failed(method(prefill));
    }

    fn scheduled(&mut self, stats: &Stats) {
        self.metrics.set_scheduler(&SchedulerView {
            waiting: stats.waiting,
            running: stats.running,
            running_max_tokens: usize::try_from(stats.running_max_tokens).unwrap_or(usize::MAX),
            blocks_used: stats.blocks_used as usize,
            blocks_cached: stats.blocks_cached as usize,
            blocks_total: stats.blocks_total as usize,
        });
        let seen = std::mem::replace(&mut self.seen, *stats);
        self.metrics.preemptions.increment(since(seen.preemptions, stats.preemptions));
        self.metrics.prefix_queried_tokens.increment(since(seen.queried_tokens, stats.queried_tokens));
        self.metrics.prefix_hit_tokens.increment(since(seen.hit_tokens, stats.hit_tokens));
    }

    fn shard_ready(&mut self, kv_tokens: u64) {
        self.metrics.set_max_total_tokens(kv_tokens);
        self.metrics.shard_restarts.absolute(self.shards_lost);
    }

    fn shard_lost(&mut self) {
        self.shards_lost += 1;
    }
}
