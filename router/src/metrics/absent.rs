//! Metrics of TGI's for things that do not happen here, so that dashboards made for it find every name and no gap: a
//! step names its sequences, so batches are neither joined nor filtered, and nothing is speculated.

use metrics::Label;

use super::Registrar;

const CONCAT: &str = "tgi_batch_concat";
const CONCAT_DURATION: &str = "tgi_batch_concat_duration";
const FILTER_DURATION: &str = "tgi_batch_filter_duration";

/// Histograms of seconds.
pub(super) const SECONDS: [&str; 2] = [CONCAT_DURATION, FILTER_DURATION];

/// All of them, at zero for good.
pub(super) fn register(to: &Registrar<'_>) {
    for reason in ["backpressure", "wait_exceeded", "chunking"] {
        let help = "Batches that were joined: none ever, here.";
        let _ = to.labelled_counter(CONCAT, help, Label::new("reason", reason));
    }
    let help = "Time to join batches, in seconds: none ever, here.";
    let _ = to.labelled_histogram(CONCAT_DURATION, help, Label::new("method", "decode"));
    for method in ["prefill", "decode"] {
        let help = "Time to filter a batch, in seconds: none ever, here.";
        let _ = to.labelled_histogram(FILTER_DURATION, help, Label::new("method", method));
    }
}
