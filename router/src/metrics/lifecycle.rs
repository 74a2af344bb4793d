//! One server from its start to its end: how long it took to be ready, and what a drain waits for.

use std::fmt;
use std::sync::Arc;

use metrics::{Gauge, Key, KeyName, Label, Recorder};
use metrics_exporter_prometheus::PrometheusRecorder;

use super::{METADATA, Registrar};

const READY: &str = "textgen_time_to_ready_seconds";
const READY_PART: &str = "textgen_time_to_ready_part_seconds";

/// From start to end.
#[derive(Clone)]
pub struct LifecycleMetrics {
    recorder: Arc<PrometheusRecorder>,
    ready: Gauge,
    in_flight: Gauge,
}

impl fmt::Debug for LifecycleMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LifecycleMetrics").finish_non_exhaustive()
    }
}

impl LifecycleMetrics {
    pub(super) fn register(to: &Registrar<'_>, recorder: Arc<PrometheusRecorder>) -> Self {
        let help = "Time of the start by part, in seconds; some parts run beside others.";
        recorder.describe_gauge(KeyName::from(READY_PART), None, help.into());
        Self {
            recorder,
            ready: to.gauge(READY, "Time from the start of the process until it served, in seconds."),
            in_flight: to.gauge(
                "textgen_sequences_in_flight",
                "Sequences that were taken and are not answered to the last byte: what a drain waits for.",
            ),
        }
    }

    /// The server serves, so many seconds after its process began; `parts` are names of the launcher's own.
    pub fn ready(&self, seconds: f64, parts: Vec<(String, f64)>) {
        self.ready.set(seconds);
        for (part, seconds) in parts {
            let key = Key::from_parts(READY_PART, vec![Label::new("part", part)]);
            self.recorder.register_gauge(&key, &METADATA).set(seconds);
        }
    }

    /// So many sequences are in the house just now.
    pub fn set_in_flight(&self, sequences: usize) {
        self.in_flight.set(sequences as f64);
    }
}
