//! What the engine loop reports: queue, batch, steps, KV blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Label};

use super::Registrar;

pub(super) const NEXT_SIZE: &str = "tgi_batch_next_size";
const STEP_DURATION: &str = "tgi_batch_inference_duration";
const FORWARD_DURATION: &str = "tgi_batch_forward_duration";
const DECODE_DURATION: &str = "tgi_batch_decode_duration";
const STEP_PART: &str = "textgen_step_seconds";

/// Histograms of seconds.
pub(super) const SECONDS: [&str; 4] = [STEP_DURATION, FORWARD_DURATION, DECODE_DURATION, STEP_PART];

/// The label `method` of TGI's batch metrics. A step of ours mixes both kinds: it is `Prefill` when any of its segments
/// is a prompt chunk, else `Decode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Some segment is a prompt chunk.
    Prefill,
    /// Every segment continues a running sequence.
    Decode,
}

/// Where the time of one step went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Planning it.
    pub plan: Duration,
    /// From sending it to the device starting on it.
    pub queue: Duration,
    /// The forward pass.
    pub forward: Duration,
    /// Sampling.
    pub sample: Duration,
    /// Handing its tokens to the requests.
    pub deliver: Duration,
    /// From sending it to its answer.
    pub total: Duration,
}

/// What the scheduler holds at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SchedulerView {
    /// Sequences that wait for a slot.
    pub waiting: usize,
    /// Sequences that have a slot.
    pub running: usize,
    /// Tokens of prompt and output the running sequences may reach.
    pub running_max_tokens: usize,
    /// KV blocks in use.
    pub blocks_used: usize,
    /// KV blocks that the prefix cache knows, in use or idle.
    pub blocks_cached: usize,
    /// KV blocks in all.
    pub blocks_total: usize,
}

/// The metrics of steps with one method.
#[derive(Debug, Clone)]
pub struct StepMetrics {
    /// Steps sent.
    pub count: Counter,
    /// Steps answered.
    pub success: Counter,
    /// Steps that failed as a whole.
    pub failure: Counter,
    /// From sending a step to its answer.
    pub duration: Histogram,
    /// The forward pass alone.
    pub forward: Histogram,
    /// Choosing the tokens.
    pub decode: Histogram,
}

impl StepMetrics {
    fn register(to: &Registrar<'_>, method: &'static str) -> Self {
        let label = || Label::new("method", method);
        let counter = |name, help| to.labelled_counter(name, help, label());
        let histogram = |name, help| to.labelled_histogram(name, help, label());
        Self {
            count: counter("tgi_batch_inference_count", "Steps sent to the shard."),
            success: counter("tgi_batch_inference_success", "Steps the shard answered."),
            failure: counter("tgi_batch_inference_failure", "Steps that failed as a whole."),
            duration: histogram(STEP_DURATION, "Time from sending a step to its answer, in seconds."),
            forward: histogram(FORWARD_DURATION, "Time of a step's forward pass, in seconds."),
            decode: histogram(DECODE_DURATION, "Time to choose a step's tokens, in seconds."),
        }
    }
}

/// Metrics of the engine loop.
#[derive(Debug, Clone)]
pub struct EngineMetrics {
    /// Steps with a prompt chunk.
    pub prefill: StepMetrics,
    /// Steps without one.
    pub decode: StepMetrics,
    /// Sequences in each step.
    pub next_size: Histogram,
    /// Sequences that have a slot (TGI's name).
    pub batch_current_size: Gauge,
    /// Tokens the running sequences may reach.
    pub batch_current_max_tokens: Gauge,
    /// Tokens the KV pool holds.
    pub batch_max_total_tokens: Gauge,
    /// Sequences that wait (TGI's name).
    pub queue_size: Gauge,
    /// Sequences that have a slot.
    pub sequences_running: Gauge,
    /// Sequences that wait.
    pub sequences_waiting: Gauge,
    /// KV blocks in use.
    pub kv_blocks_used: Gauge,
    /// KV blocks that the prefix cache knows.
    pub kv_blocks_cached: Gauge,
    /// KV blocks in all.
    pub kv_blocks_total: Gauge,
    /// Sequences that lost their blocks and were computed again.
    pub preemptions: Counter,
    /// Tokens looked up in the prefix cache.
    pub prefix_queried_tokens: Counter,
    /// Tokens found there, which were not computed again.
    pub prefix_hit_tokens: Counter,
    /// Shards that died and came back.
    pub shard_restarts: Counter,
    /// Time of a step by part: plan, queue, forward, sample, deliver.
    pub step_parts: [Histogram; 5],
    max_total_tokens: Arc<AtomicU64>,
}

impl EngineMetrics {
    pub(super) fn register(to: &Registrar<'_>) -> Self {
        let part =
            |name| to.labelled_histogram(STEP_PART, "Time of a step by part, in seconds.", Label::new("part", name));
        Self {
            prefill: StepMetrics::register(to, "prefill"),
            decode: StepMetrics::register(to, "decode"),
            next_size: to.histogram(NEXT_SIZE, "Sequences in a step."),
            batch_current_size: to.gauge("tgi_batch_current_size", "Sequences that run."),
            batch_current_max_tokens: to
                .gauge("tgi_batch_current_max_tokens", "Tokens the running sequences may reach."),
            batch_max_total_tokens: to.gauge("tgi_batch_max_total_tokens", "Tokens the KV pool holds."),
            queue_size: to.gauge("tgi_queue_size", "Sequences that wait for a slot."),
            sequences_running: to.gauge("textgen_sequences_running", "Sequences that run."),
            sequences_waiting: to.gauge("textgen_sequences_waiting", "Sequences that wait for a slot."),
            kv_blocks_used: to.gauge("textgen_kv_blocks_used", "KV blocks in use."),
            kv_blocks_cached: to.gauge("textgen_kv_blocks_cached", "KV blocks that the prefix cache knows."),
            kv_blocks_total: to.gauge("textgen_kv_blocks_total", "KV blocks of the pool."),
            preemptions: to
                .counter("textgen_preemptions_total", "Sequences that lost their blocks to be computed again."),
            prefix_queried_tokens: to
                .counter("textgen_prefix_cache_queried_tokens_total", "Tokens looked up in the prefix cache."),
            prefix_hit_tokens: to.counter("textgen_prefix_cache_hit_tokens_total", "Tokens found in the prefix cache."),
            shard_restarts: to
                .counter("textgen_shard_restarts_total", "Times a new shard took the place of a dead one."),
            step_parts: ["plan", "queue", "forward", "sample", "deliver"].map(part),
            max_total_tokens: Arc::default(),
        }
    }

    /// A step of `sequences` sequences was sent.
    pub fn step_sent(&self, method: Method, sequences: usize) {
        self.of(method).count.increment(1);
        self.next_size.record(sequences as f64);
    }

    /// A step came back.
    pub fn observe_step(&self, method: Method, times: &StepTimes) {
        let of_method = self.of(method);
        of_method.success.increment(1);
        of_method.duration.record(times.total);
        of_method.forward.record(times.forward);
        of_method.decode.record(times.sample);
        let parts = [times.plan, times.queue, times.forward, times.sample, times.deliver];
        for (histogram, took) in self.step_parts.iter().zip(parts) {
            histogram.record(took);
        }
    }

    /// A step failed as a whole.
    pub fn step_failed(&self, method: Method) {
        self.of(method).failure.increment(1);
    }

    /// What the scheduler holds now; call it whenever that changed.
    pub fn set_scheduler(&self, view: &SchedulerView) {
        self.queue_size.set(view.waiting as f64);
        self.sequences_waiting.set(view.waiting as f64);
        self.batch_current_size.set(view.running as f64);
        self.sequences_running.set(view.running as f64);
        self.batch_current_max_tokens.set(view.running_max_tokens as f64);
        self.kv_blocks_used.set(view.blocks_used as f64);
        self.kv_blocks_cached.set(view.blocks_cached as f64);
        self.kv_blocks_total.set(view.blocks_total as f64);
    }

    /// The tokens the KV pool holds, once a shard has said so.
    pub fn set_max_total_tokens(&self, tokens: u64) {
        self.max_total_tokens.store(tokens, Ordering::Relaxed);
        self.batch_max_total_tokens.set(tokens as f64);
    }

    /// The tokens the KV pool holds; `None` before a shard has said so. For `/info`.
    #[must_use]
    pub fn max_total_tokens(&self) -> Option<u64> {
        Some(self.max_total_tokens.load(Ordering::Relaxed)).filter(|tokens| *tokens > 0)
    }

    const fn of(&self, method: Method) -> &StepMetrics {
        match method {
            Method::Prefill => &self.prefill,
            Method::Decode => &self.decode,
        }
    }
}
