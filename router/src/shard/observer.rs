//! Where the engine loop reports what it did. Metrics implement it; so do tests.

use std::time::Duration;

use super::protocol::Times;
use crate::scheduler::{Plan, Stats};

/// One finished step.
#[derive(Debug, Clone, Copy)]
pub struct StepReport {
    /// From sending the step to its answer, the wait behind an earlier step included.
    pub elapsed: Duration,
    /// What planning and writing it took.
    pub plan: Duration,
    /// What handing out its tokens took.
    pub deliver: Duration,
    /// The shard's own times.
    pub times: Times,
    /// Whether the step ran prompt tokens.
    pub prefill: bool,
}

/// Told what the engine does, on the engine's thread: must not block.
pub trait EngineObserver: Send {
    /// A step is about to be sent.
    fn planned(&mut self, plan: &Plan);
    /// A step was answered.
    fn stepped(&mut self, report: &StepReport);
    /// Queue, seats and blocks as they are now.
    fn scheduled(&mut self, stats: &Stats);
    /// A step failed as a whole.
    fn step_failed(&mut self, prefill: bool);
    /// A shard said hello: how many tokens its KV pool holds.
    fn shard_ready(&mut self, kv_tokens: u64);
    /// A shard that worked is gone.
    fn shard_lost(&mut self);
}
