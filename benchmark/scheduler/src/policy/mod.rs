//! What decides what each step runs: the real scheduler, or a model of another server's policy.

mod blocks;
mod ours;
mod tgi;
mod vllm;

pub use ours::Ours;
use textgen_router::scheduler::Micros;
pub use tgi::{Tgi, TgiSettings};
pub use vllm::{Vllm, VllmSettings};

use crate::device::Work;

/// What a policy has done since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Done {
    /// Tokens of prompts that were run, those of recomputed sequences included.
    pub prompt_computed: u64,
    /// Times that a sequence lost its blocks and had to start over.
    pub preemptions: u64,
    /// Most sequences that ran at once.
    pub most_running: usize,
}

/// Requests are named by their place in the trace, which the policy knows. It looks at an answer only for the tokens that a
/// step has sampled.
pub trait Policy {
    /// A request has come.
    fn submit(&mut self, request: usize, now: Micros);

    /// Plans the next step; `None` when nothing can be planned now.
    fn plan(&mut self, now: Micros) -> Option<Work>;

    /// The oldest step planned is done and took `elapsed`. Appends the request of each token that it sampled for a client.
    fn complete(&mut self, elapsed: Micros, tokens: &mut Vec<usize>);

    /// Counters.
    fn done(&self) -> Done;
}

impl<P: Policy + ?Sized> Policy for Box<P> {
    fn submit(&mut self, request: usize, now: Micros) {
        (**self).submit(request, now);
    }

    fn plan(&mut self, now: Micros) -> Option<Work> {
        (**self).plan(now)
    }

    fn complete(&mut self, elapsed: Micros, tokens: &mut Vec<usize>) {
        (**self).complete(elapsed, tokens);
    }

    fn done(&self) -> Done {
        (**self).done()
    }
}
