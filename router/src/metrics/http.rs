//! Answers by route and status.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use metrics::{Counter, Key, KeyName, Label, Recorder};
use metrics_exporter_prometheus::PrometheusRecorder;

use super::METADATA;

const REQUESTS: &str = "textgen_http_requests_total";

/// Answers by route and status.
#[derive(Clone)]
pub struct HttpMetrics {
    recorder: Arc<PrometheusRecorder>,
    /// Those that were counted before, by status and route: they are counted again without making their labels.
    known: Arc<RwLock<BTreeMap<u16, BTreeMap<String, Counter>>>>,
}

impl fmt::Debug for HttpMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpMetrics").finish_non_exhaustive()
    }
}

impl HttpMetrics {
    pub(super) fn register(recorder: Arc<PrometheusRecorder>) -> Self {
        recorder.describe_counter(KeyName::from(REQUESTS), None, "HTTP answers by route and status.".into());
        Self { recorder, known: Arc::default() }
    }

    /// Counts one answer. `route` is the pattern that matched, never the raw path: labels stay few.
    pub fn answered(&self, route: &str, status: u16) {
        {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(counter) = known.get(&status).and_then(|routes| routes.get(route)) {
                return counter.increment(1);
            }
        }
        let labels = vec![Label::new("route", route.to_owned()), Label::new("status", status.to_string())];
        let counter = self.recorder.register_counter(&Key::from_parts(REQUESTS, labels), &METADATA);
        counter.increment(1);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.entry(status).or_default().insert(route.to_owned(), counter);
    }
}
