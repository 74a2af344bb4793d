//! Calls that run while their answer is written, and what becomes of their results.

use std::fmt;

use metrics::{Counter, Gauge, Label};

use super::Registrar;

const OPEN: &str = "textgen_async_tool_calls_open";
const RESULTS: &str = "textgen_async_tool_results_total";

/// What becomes of a result that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultFate {
    /// The answer takes it.
    Taken,
    /// It is refused when it is sent.
    Refused,
    /// One that was taken is read by the model.
    Inserted,
    /// One that was taken is not: there was no room for it, or the answer ended before.
    Dropped,
}

impl ResultFate {
    const ALL: [Self; 4] = [Self::Taken, Self::Refused, Self::Inserted, Self::Dropped];

    const fn label(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Refused => "refused",
            Self::Inserted => "inserted",
            Self::Dropped => "dropped",
        }
    }
}

/// Asynchronous calls of all answers.
#[derive(Clone)]
pub struct AsyncToolMetrics {
    open: Gauge,
    results: [Counter; 4],
}

impl fmt::Debug for AsyncToolMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncToolMetrics").finish_non_exhaustive()
    }
}

impl AsyncToolMetrics {
    pub(super) fn register(to: &Registrar<'_>) -> Self {
        let counter = |fate: ResultFate| {
            let help = "Results of asynchronous calls, by what became of them.";
            to.labelled_counter(RESULTS, help, Label::new("fate", fate.label()))
        };
        let help = "Asynchronous calls without a result, of answers that are being written.";
        Self { open: to.gauge(OPEN, help), results: ResultFate::ALL.map(counter) }
    }

    /// Metrics that nobody sees.
    #[cfg(test)]
    pub(crate) fn unseen() -> Self {
        Self { open: Gauge::noop(), results: std::array::from_fn(|_| Counter::noop()) }
    }

    /// A call waits for its result.
    pub fn opened(&self) {
        self.open.increment(1.0);
    }

    /// So many calls do not wait any more.
    pub fn closed(&self, calls: usize) {
        self.open.decrement(calls as f64);
    }

    /// This became of so many results.
    pub fn results(&self, fate: ResultFate, count: usize) {
        if let Some(counter) = self.results.get(fate as usize) {
            counter.increment(count as u64);
        }
    }
}
