//! What layers with sliding windows leave to the prefix cache: the same memory and the same steps, and only what is kept of a
//! position differs.

use textgen_router::scheduler::{SchedulerConfig, Windows};

use crate::balance::Single;
use crate::device::LLAMA_8B_H100;
use crate::experiments::{Experiment, Run, config, describe, experiment, ours};
use crate::simulation;
use crate::trace::{self, Trace};

/// Memory, in blocks that all layers keep whole.
const SIZES: [u32; 4] = [1_500, 3_000, 6_000, 12_000];

/// What the layers of a model keep.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// For tables.
    pub name: &'static str,
    /// None where every layer keeps every position.
    pub windows: Option<Windows>,
}

/// A model without windows, and the groups of layers of Gemma 3, gpt-oss and the first Mistral.
pub const LAYOUTS: [Layout; 4] = [
    Layout { name: "no windows", windows: None },
    Layout {
        name: "windows of 1,024 in six groups of seven",
        windows: Some(Windows { span: 1_024, full: 1, windowed: 6 }),
    },
    Layout { name: "windows of 128 in one group of two", windows: Some(Windows { span: 128, full: 1, windowed: 1 }) },
    Layout { name: "windows of 4,096 in all layers", windows: Some(Windows { span: 4_096, full: 0, windowed: 1 }) },
];

impl Layout {
    /// The scheduler's limits with memory for so many whole blocks: pages are as much smaller as a block has more of them.
    #[must_use]
    pub fn config(&self, blocks: u32) -> SchedulerConfig {
        let pages = self.windows.map_or(1, |windows| windows.full + windows.windowed);
        SchedulerConfig { num_blocks: blocks * pages, windows: self.windows, ..config(&LLAMA_8B_H100) }
    }

    /// Runs a trace.
    #[must_use]
    pub fn run(&self, trace: &Trace, blocks: u32) -> Run {
        let policy = ours(trace, self.config(blocks));
        let (outcome, _) = simulation::run(trace, &LLAMA_8B_H100, vec![policy], &mut Single);
        describe(self.name.to_owned(), trace, &outcome)
    }
}

/// Traces that begin alike under every layout and memory.
#[must_use]
pub fn windows() -> Vec<Experiment> {
    let traces = [trace::multi_turn(5, 800, 4.0).of_one_tenant(), trace::shared_prefixes(4, 3_000, 20.0, 64)];
    let cases = traces.iter().flat_map(|trace| SIZES.map(|blocks| (trace, blocks)));
    let experiments = cases.map(|(trace, blocks)| {
        let runs = LAYOUTS.iter().map(|layout| layout.run(trace, blocks)).collect();
        let named = Trace { name: format!("{}, {blocks} blocks", trace.name), ..trace.clone() };
        experiment(&named, 1, None, runs)
    });
    experiments.collect()
}
