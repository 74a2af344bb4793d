//! Prometheus metrics under TGI's names, and ours beside them. The recorder is owned, not global: a process may hold
//! several servers, and a test sees only its own numbers.

mod absent;
mod async_tools;
mod engine;
mod http;
mod lifecycle;
pub mod observer;
mod request;
mod tokens;
mod traces;

use std::fmt;
use std::sync::Arc;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

pub use self::async_tools::{AsyncToolMetrics, ResultFate};
pub use self::engine::{EngineMetrics, Method, SchedulerView, StepTimes};
pub use self::http::HttpMetrics;
pub use self::lifecycle::LifecycleMetrics;
pub use self::request::{Call, FailureKind, FirstTokenPart, RefusalCause, RequestMetrics};
pub use self::tokens::{KeyTokens, NO_KEY, TokenMetrics};
pub use self::traces::TraceMetrics;
use crate::settings::Settings;

/// Every metric of one server. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    /// What happens to generation calls.
    pub requests: Arc<RequestMetrics>,
    /// What the engine loop does; the engine calls these.
    pub engine: EngineMetrics,
    /// Answers by route and status.
    pub http: HttpMetrics,
    /// Calls that run while their answer is written.
    pub async_tools: AsyncToolMetrics,
    /// Tokens by the key that they were asked with.
    pub tokens: TokenMetrics,
    /// The server from its start to its end.
    pub lifecycle: LifecycleMetrics,
    /// Spans on their way to a collector.
    pub traces: TraceMetrics,
    handle: PrometheusHandle,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Registers every metric at zero, so that a fresh server already shows all of them.
    ///
    /// # Errors
    /// When a histogram would have no buckets.
    pub fn new(settings: &Settings) -> Result<Self, BuildError> {
        let mut builder = PrometheusBuilder::new();
        for (name, buckets) in histogram_buckets(settings) {
            builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), &buckets)?;
        }
        let recorder = Arc::new(builder.build_recorder());
        let registrar = Registrar { recorder: &recorder };
        absent::register(&registrar);
        Ok(Self {
            requests: Arc::new(RequestMetrics::register(&registrar)),
            engine: EngineMetrics::register(&registrar),
            http: HttpMetrics::register(Arc::clone(&recorder)),
            async_tools: AsyncToolMetrics::register(&registrar),
            tokens: TokenMetrics::register(Arc::clone(&recorder)),
            lifecycle: LifecycleMetrics::register(&registrar, Arc::clone(&recorder)),
            traces: TraceMetrics::register(&registrar),
            handle: recorder.handle(),
        })
    }

    /// The metrics in Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.handle.render()
    }

    /// Folds recorded samples into their buckets. Samples wait in memory until this runs: call it every second or so,
    /// whether or not anybody scrapes.
    pub fn run_upkeep(&self) {
        self.handle.run_upkeep();
    }
}

/// Buckets of each histogram, as TGI has them where TGI has the histogram.
fn histogram_buckets(settings: &Settings) -> Vec<(&'static str, Vec<f64>)> {
    // 0.00015 s times powers of 1.5, up to 145.6 s.
    let seconds: Vec<f64> = (0..35).map(|power| 0.00015 * 1.5_f64.powi(power)).collect();
    let linear = |limit: usize| -> Vec<f64> { (1..=100).map(|part| limit as f64 / 100.0 * f64::from(part)).collect() };
    let sizes: Vec<f64> = (1..=1024).map(f64::from).collect();

    let mut table: Vec<_> = request::SECONDS
        .iter()
        .chain(&engine::SECONDS)
        .chain(&absent::SECONDS)
        .map(|name| (*name, seconds.clone()))
        .collect();
    table.push((request::INPUT_LENGTH, linear(settings.max_input_tokens)));
    table.push((request::GENERATED_TOKENS, linear(settings.max_total_tokens)));
    table.push((request::MAX_NEW_TOKENS, linear(settings.max_total_tokens)));
    table.push((engine::NEXT_SIZE, sizes));
    table
}

static METADATA: Metadata<'static> = Metadata::new("textgen", Level::INFO, None);

/// Registers metrics with their help texts.
struct Registrar<'a> {
    recorder: &'a PrometheusRecorder,
}

impl Registrar<'_> {
    fn counter(&self, name: &'static str, help: &'static str) -> Counter {
        self.recorder.describe_counter(KeyName::from(name), None, help.into());
        self.recorder.register_counter(&Key::from_static_name(name), &METADATA)
    }

    fn labelled_counter(&self, name: &'static str, help: &'static str, label: Label) -> Counter {
        self.recorder.describe_counter(KeyName::from(name), None, help.into());
        self.recorder.register_counter(&Key::from_parts(name, vec![label]), &METADATA)
    }

    fn gauge(&self, name: &'static str, help: &'static str) -> Gauge {
        self.recorder.describe_gauge(KeyName::from(name), None, help.into());
        let gauge = self.recorder.register_gauge(&Key::from_static_name(name), &METADATA);
        gauge.set(0.0);
        gauge
    }

    fn histogram(&self, name: &'static str, help: &'static str) -> Histogram {
        self.recorder.describe_histogram(KeyName::from(name), None, help.into());
        self.recorder.register_histogram(&Key::from_static_name(name), &METADATA)
    }

    fn labelled_histogram(&self, name: &'static str, help: &'static str, label: Label) -> Histogram {
        self.recorder.describe_histogram(KeyName::from(name), None, help.into());
        self.recorder.register_histogram(&Key::from_parts(name, vec![label]), &METADATA)
    }
}
