//! Spans on their way to a collector.

use metrics::{Counter, Label};

use super::Registrar;

const SPANS: &str = "textgen_trace_spans_total";

/// What became of spans; all stay at zero where no collector is named.
#[derive(Debug, Clone)]
pub struct TraceMetrics {
    /// The collector took them.
    pub sent: Counter,
    /// It could not be reached or did not take them, or too many were waiting for it.
    pub lost: Counter,
}

impl TraceMetrics {
    pub(super) fn register(to: &Registrar<'_>) -> Self {
        let counter = |fate: &'static str| {
            to.labelled_counter(SPANS, "Spans of traces, by what became of them.", Label::new("fate", fate))
        };
        Self { sent: counter("sent"), lost: counter("lost") }
    }
}
