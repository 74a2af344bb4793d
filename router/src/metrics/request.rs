//! What happens to generation calls: once per call, or once per sequence where the name speaks of tokens.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use metrics::{Counter, Histogram, Label};

use super::{KeyTokens, Registrar};
use crate::traces::{Stage, Trace};

pub(super) const INPUT_LENGTH: &str = "tgi_request_input_length";
pub(super) const GENERATED_TOKENS: &str = "tgi_request_generated_tokens";
pub(super) const MAX_NEW_TOKENS: &str = "tgi_request_max_new_tokens";
/// A summary, as TGI has it: without buckets.
const SKIPPED_TOKENS: &str = "tgi_request_skipped_tokens";
const DURATION: &str = "tgi_request_duration";
const VALIDATION: &str = "tgi_request_validation_duration";
const QUEUE: &str = "tgi_request_queue_duration";
const INFERENCE: &str = "tgi_request_inference_duration";
const MEAN_TIME_PER_TOKEN: &str = "tgi_request_mean_time_per_token_duration";
const FIRST_TOKEN: &str = "textgen_time_to_first_token_seconds";
const FIRST_TOKEN_PART: &str = "textgen_time_to_first_token_part_seconds";
const INTER_TOKEN: &str = "textgen_inter_token_seconds";
const FAILURE: &str = "tgi_request_failure";
const REFUSED: &str = "textgen_requests_refused_total";

/// Histograms of seconds.
pub(super) const SECONDS: [&str; 8] =
    [DURATION, VALIDATION, QUEUE, INFERENCE, MEAN_TIME_PER_TOKEN, FIRST_TOKEN, FIRST_TOKEN_PART, INTER_TOKEN];

/// The value of the label `part` of `textgen_time_to_first_token_part_seconds`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstTokenPart {
    /// Template, tokens, validation, and the grammar where there is one.
    Tokenize,
    /// Waiting for the first step.
    Queue,
    /// From the first step to the first token.
    Prefill,
    /// From the first token of a stream to its frame on the connection.
    Send,
}

impl FirstTokenPart {
    const ALL: [Self; 4] = [Self::Tokenize, Self::Queue, Self::Prefill, Self::Send];

    const fn label(self) -> &'static str {
        match self {
            Self::Tokenize => "tokenize",
            Self::Queue => "queue",
            Self::Prefill => "prefill",
            Self::Send => "send",
        }
    }
}

/// The value of the label `err` of `tgi_request_failure`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// Refused for lack of room.
    Overloaded,
    /// The request breaks a rule.
    Validation,
    /// The chat template is missing or failed.
    Template,
    /// The engine ended before the sequence did.
    Incomplete,
    /// The shard could not compute it.
    Generation,
    /// The client went away.
    Dropped,
    /// The server is starting or draining.
    Unavailable,
    /// Its deadline passed.
    Timeout,
}

impl FailureKind {
    const ALL: [Self; 8] = [
        Self::Overloaded,
        Self::Validation,
        Self::Template,
        Self::Incomplete,
        Self::Generation,
        Self::Dropped,
        Self::Unavailable,
        Self::Timeout,
    ];

    const fn label(self) -> &'static str {
        match self {
            Self::Overloaded => "overloaded",
            Self::Validation => "validation",
            Self::Template => "template",
            Self::Incomplete => "incomplete",
            Self::Generation => "generation",
            Self::Dropped => "dropped",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
        }
    }
}

/// The value of the label `cause` of `textgen_requests_refused_total`: the limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalCause {
    /// `--max-concurrent-requests`.
    Concurrency,
    /// `--max-queue-size`.
    QueueRequests,
    /// `--max-queue-tokens`.
    QueueTokens,
    /// `--max-requests-per-key`.
    KeyRequests,
    /// `--max-tokens-per-key`.
    KeyTokens,
    /// The queue of the validation workers.
    Validation,
    /// The queue of the grammar compilers.
    Grammar,
    /// The way into the engine.
    Engine,
}

impl RefusalCause {
    const ALL: [Self; 8] = [
        Self::Concurrency,
        Self::QueueRequests,
        Self::QueueTokens,
        Self::KeyRequests,
        Self::KeyTokens,
        Self::Validation,
        Self::Grammar,
        Self::Engine,
    ];

    const fn label(self) -> &'static str {
        match self {
            Self::Concurrency => "concurrency",
            Self::QueueRequests => "queue_requests",
            Self::QueueTokens => "queue_tokens",
            Self::KeyRequests => "key_requests",
            Self::KeyTokens => "key_tokens",
            Self::Validation => "validation",
            Self::Grammar => "grammar",
            Self::Engine => "engine",
        }
    }
}

/// Counters and histograms of generation calls.
#[derive(Debug)]
pub struct RequestMetrics {
    count: Counter,
    success: Counter,
    failures: [Counter; 8],
    refused: [Counter; 8],
    duration: Histogram,
    validation: Histogram,
    queue: Histogram,
    inference: Histogram,
    mean_time_per_token: Histogram,
    input_length: Histogram,
    generated_tokens: Histogram,
    max_new_tokens: Histogram,
    skipped_tokens: Histogram,
    first_token: Histogram,
    first_token_parts: [Histogram; 4],
    inter_token: Histogram,
}

impl RequestMetrics {
    pub(super) fn register(to: &Registrar<'_>) -> Self {
        let failure = |kind: FailureKind| {
            to.labelled_counter(FAILURE, "Generation calls that failed, by cause.", Label::new("err", kind.label()))
        };
        let refused = |cause: RefusalCause| {
            let label = Label::new("cause", cause.label());
            to.labelled_counter(REFUSED, "Generation calls refused for want of room, by the limit reached.", label)
        };
        let part = |part: FirstTokenPart| {
            let help = "Time to a sequence's first token by part, in seconds; send is of streams alone.";
            to.labelled_histogram(FIRST_TOKEN_PART, help, Label::new("part", part.label()))
        };
        Self {
            count: to.counter("tgi_request_count", "Generation calls."),
            success: to.counter("tgi_request_success", "Generation calls answered to the end."),
            failures: FailureKind::ALL.map(failure),
            refused: RefusalCause::ALL.map(refused),
            duration: to.histogram(DURATION, "Time of a successful call, in seconds."),
            validation: to.histogram(VALIDATION, "Time to template, tokenize and validate a prompt, in seconds."),
            queue: to.histogram(QUEUE, "Time from submission to a sequence's first step, in seconds."),
            inference: to.histogram(INFERENCE, "Time from a sequence's first step to its end, in seconds."),
            mean_time_per_token: to.histogram(MEAN_TIME_PER_TOKEN, "Inference time over generated tokens, in seconds."),
            input_length: to.histogram(INPUT_LENGTH, "Tokens of a prompt."),
            generated_tokens: to.histogram(GENERATED_TOKENS, "Tokens generated for a sequence."),
            max_new_tokens: to.histogram(MAX_NEW_TOKENS, "Tokens a sequence was allowed to generate."),
            skipped_tokens: to.histogram(SKIPPED_TOKENS, "Tokens of a sequence that were speculated: none, yet."),
            first_token: to.histogram(FIRST_TOKEN, "Time from the call to its sequence's first token, in seconds."),
            first_token_parts: FirstTokenPart::ALL.map(part),
            inter_token: to.histogram(INTER_TOKEN, "Time between two tokens of a sequence, in seconds."),
        }
    }

    /// A call of `sequences` sequences arrives. It succeeds when all of them end, fails when told so, and else counts
    /// as dropped when the last clone of its [`Call`] goes.
    #[must_use]
    pub fn begin(self: &Arc<Self>, sequences: usize, tokens: KeyTokens, trace: Option<Arc<Trace>>) -> Arc<Call> {
        self.count.increment(1);
        Arc::new(Call {
            metrics: Arc::clone(self),
            tokens,
            trace,
            begun: Instant::now(),
            unfinished: AtomicUsize::new(sequences),
            failure: OnceLock::new(),
        })
    }

    /// The first token of a stream is on the connection, so long after it came.
    pub fn first_sent(&self, took: Duration) {
        self.part(FirstTokenPart::Send, took);
    }

    fn part(&self, part: FirstTokenPart, took: Duration) {
        if let Some(histogram) = self.first_token_parts.get(part as usize) {
            histogram.record(took);
        }
    }

    fn failed(&self, kind: FailureKind) {
        if let Some(counter) = self.failures.get(kind as usize) {
            counter.increment(1);
        }
    }
}

/// One generation call, from arrival to its last byte.
#[derive(Debug)]
pub struct Call {
    metrics: Arc<RequestMetrics>,
    tokens: KeyTokens,
    trace: Option<Arc<Trace>>,
    begun: Instant,
    unfinished: AtomicUsize,
    failure: OnceLock<FailureKind>,
}

impl Call {
    /// When the call arrived.
    #[must_use]
    pub const fn begun(&self) -> Instant {
        self.begun
    }

    /// The call fails; the first cause counts.
    pub fn fail(&self, kind: FailureKind) {
        // A second failure of the same call is the echo of the first.
        if self.failure.set(kind).is_ok()
            && let Some(trace) = &self.trace
        {
            trace.failed(kind.label());
        }
    }

    /// The call is refused at a limit.
    pub fn refused(&self, cause: RefusalCause) {
        if let Some(counter) = self.metrics.refused.get(cause as usize) {
            counter.increment(1);
        }
    }

    /// A prompt became a valid request.
    pub fn validated(&self, took: Duration, input_length: usize, max_new_tokens: u32) {
        self.metrics.validation.record(took);
        self.metrics.part(FirstTokenPart::Tokenize, took);
        self.metrics.input_length.record(input_length as f64);
        self.metrics.max_new_tokens.record(max_new_tokens);
    }

    /// The engine took a prompt.
    pub fn submitted(&self, input_length: usize) {
        self.tokens.prompt.increment(input_length as u64);
        if let Some(trace) = &self.trace {
            trace.read(input_length as u64);
        }
    }

    /// One of its stages is over just now; for its trace, where it has one.
    pub fn passed(&self, stage: Stage, since: Instant) {
        if let Some(trace) = &self.trace {
            trace.stage(stage, since, Instant::now());
        }
    }

    /// A sequence's first step was sent at this time.
    pub fn started(&self, at: Instant, queued: Duration) {
        self.metrics.queue.record(queued);
        self.metrics.part(FirstTokenPart::Queue, queued);
        if let (Some(trace), Some(submitted)) = (&self.trace, at.checked_sub(queued)) {
            trace.stage(Stage::Queue, submitted, at);
        }
    }

    /// A sequence's first token arrived, whose first step was sent at `started`.
    pub fn first_token(&self, at: Instant, started: Option<Instant>) {
        self.metrics.first_token.record(at.duration_since(self.begun));
        let Some(started) = started else { return };
        self.metrics.part(FirstTokenPart::Prefill, at.duration_since(started));
        if let Some(trace) = &self.trace {
            trace.stage(Stage::Prefill, started, at);
        }
    }

    /// A later token arrived, so long after the one before it.
    pub fn next_token(&self, gap: Duration) {
        self.metrics.inter_token.record(gap);
    }

    /// So many of its sequences never end for themselves: beams that are no answer, and what goes on elsewhere.
    pub fn unreported(&self, sequences: usize) {
        self.unfinished.fetch_sub(sequences, Ordering::Relaxed);
    }

    /// What one of its sequences began goes on in another one.
    pub fn goes_on(&self) {
        self.unfinished.fetch_add(1, Ordering::Relaxed);
    }

    /// A sequence has got its last token, however it ended.
    pub fn generated(&self, tokens: u32, first: Option<Instant>, last: Option<Instant>) {
        self.tokens.generated.increment(u64::from(tokens));
        if let (Some(trace), Some(first), Some(last)) = (&self.trace, first, last) {
            trace.wrote(u64::from(tokens), first, last);
        }
    }

    /// A sequence ended as it should.
    pub fn sequence_finished(&self, inference: Duration, generated_tokens: u32) {
        self.metrics.inference.record(inference);
        self.metrics.generated_tokens.record(generated_tokens);
        self.metrics.skipped_tokens.record(0.0);
        if generated_tokens > 0 {
            self.metrics.mean_time_per_token.record(inference / generated_tokens);
        }
        self.unfinished.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        match (self.failure.get(), *self.unfinished.get_mut()) {
            (Some(kind), _) => self.metrics.failed(*kind),
            (None, 0) => {
                self.metrics.success.increment(1);
                self.metrics.duration.record(self.begun.elapsed());
            }
            (None, _) => {
                self.metrics.failed(FailureKind::Dropped);
                if let Some(trace) = &self.trace {
                    trace.failed(FailureKind::Dropped.label());
                }
            }
        }
    }
}
