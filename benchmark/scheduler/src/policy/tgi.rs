//! A model of Text Generation Inference's batching (router v3), by its documentation and published source.
//!
//! - First come, first served. A request reserves blocks for its prompt and for all that it may generate (at most 1,024 at a
//!   time) before it starts; the first that does not fit ends the admission. Nothing is ever preempted.
//! - With chunking (models whose attention supports it): each step decodes all running ones and prefills, under a budget of
//!   `max_batch_prefill_tokens` less the running ones, the prompt begun before and then new ones, the last of them cut.
//! - Without: a new batch is taken when as many wait as `waiting_served_ratio` times those that run, or `max_waiting_tokens`
//!   decode steps after the last. It is prefilled alone, whole prompts under the budget, while the running ones pause.
//! - The prefix cache holds prompts, token by token, and gives up the least recently used.
//! - Steps are synchronous: none is planned while one runs.
//!
//! Left out: the limit of 128 requests at once, beyond which it refuses; the re-queueing of answers beyond 1,024 tokens, which
//! the traces do not ask for. No host time is charged.

use std::collections::VecDeque;

use textgen_router::scheduler::Micros;

use super::blocks::{Block, Blocks, Name, names};
use super::{Done, Policy};
use crate::device::Work;
use crate::trace::Trace;

/// What a request reserves at most for its answer.
const RESERVED: u32 = 1_024;

/// The settings that matter here, by the names they have there.
#[derive(Debug, Clone, Copy)]
pub struct TgiSettings {
    /// `max_batch_prefill_tokens`; 4,096 where nothing is known of the device.
    pub prefill_tokens: u32,
    /// `waiting_served_ratio`: 0.3.
    pub served_ratio: f64,
    /// `max_waiting_tokens`: 20.
    pub waiting_tokens: u32,
    /// Whether prompts are cut.
    pub chunking: bool,
    /// KV positions.
    pub positions: u32,
}

#[derive(Debug, Clone, Default)]
struct Sequence {
    /// Prompt and answer so far.
    known: u32,
    /// Positions run.
    run: u32,
    blocks: Vec<Block>,
    names: Vec<Name>,
}

/// See the module's description.
#[derive(Debug)]
pub struct Tgi<'t> {
    trace: &'t Trace,
    settings: TgiSettings,
    sequences: Vec<Sequence>,
    waiting: VecDeque<usize>,
    /// Those that decode.
    running: Vec<usize>,
    /// The one whose prompt was cut.
    begun: Option<usize>,
    blocks: Blocks,
    /// Decode steps since new ones were taken.
    decoded: u32,
    /// What the step in flight samples for; there is one at most.
    in_flight: Option<Vec<usize>>,
    done: Done,
}

impl<'t> Tgi<'t> {
    /// A server with nothing to do.
    #[must_use]
    pub fn new(trace: &'t Trace, settings: TgiSettings) -> Self {
        Self {
            trace,
            settings,
            sequences: vec![Sequence::default(); trace.requests.len()],
            waiting: VecDeque::new(),
            running: Vec::new(),
            begun: None,
            blocks: Blocks::new(settings.positions),
            decoded: 0,
            in_flight: None,
            done: Done::default(),
        }
    }

    /// Reserves all that the first in the queue may need, what is cached apart; false when there is not enough.
    fn reserve(&mut self, request: usize) -> bool {
        let asked = &self.trace.requests[request];
        let sequence = &mut self.sequences[request];
        let hit = self.blocks.reach(&sequence.names[..sequence.known as usize - 1]);
        let total = (sequence.known + asked.max_new.min(RESERVED)) as usize;
        if total - hit + self.blocks.idle(&sequence.names[..hit]) > self.blocks.free() {
            return false;
        }
        for &name in &sequence.names[..hit] {
            sequence.blocks.extend(self.blocks.share(name));
        }
        while sequence.blocks.len() < total {
            sequence.blocks.extend(self.blocks.take());
        }
        sequence.run = hit as u32;
        true
    }

    /// Runs as much of a prompt as the budget allows. Returns whether that was all of it.
    fn prefill(&mut self, request: usize, budget: &mut u32, work: &mut Work) -> bool {
        let sequence = &mut self.sequences[request];
        let length = (sequence.known - sequence.run).min(*budget);
        let all = sequence.run + length == sequence.known;
        work.add_prompt(sequence.run, length, all);
        sequence.run += length;
        *budget -= length;
        all
    }

    /// Fills a budget with prompts, the one begun before first.
    fn prefill_waiting(&mut self, mut budget: u32, work: &mut Work, sampled: &mut Vec<usize>) {
        while budget > 0 {
            let request = match self.begun.take() {
                Some(begun) => begun,
                None => {
                    let Some(&first) = self.waiting.front() else { return };
                    let whole = self.sequences[first].known;
                    if (!self.settings.chunking && whole > budget) || !self.reserve(first) {
                        return;
                    }
                    self.waiting.pop_front();
                    first
                }
            };
            if self.prefill(request, &mut budget, work) {
                sampled.push(request);
            } else {
                self.begun = Some(request);
            }
        }
    }

    fn decode(&mut self, work: &mut Work, sampled: &mut Vec<usize>) {
        for &request in &self.running {
            let sequence = &mut self.sequences[request];
            work.add_stream(sequence.run);
            sequence.run += 1;
            sampled.push(request);
        }
    }

    /// Whether a new batch is worth pausing those that run.
    fn is_time(&self) -> bool {
        let least = (self.running.len() as f64 * self.settings.served_ratio).floor() as usize;
        self.running.is_empty() || self.waiting.len() >= least.max(1) || self.decoded >= self.settings.waiting_tokens
    }
}

impl Policy for Tgi<'_> {
    fn submit(&mut self, request: usize, _now: Micros) {
        let asked = &self.trace.requests[request];
        let names = names(asked.prompt.iter(), 1);
        self.sequences[request] = Sequence { known: asked.prompt_len(), names, ..Sequence::default() };
        self.waiting.push_back(request);
    }

    fn plan(&mut self, _now: Micros) -> Option<Work> {
        if self.in_flight.is_some() {
            return None;
        }
        let (mut work, mut sampled) = (Work::default(), Vec::new());
        if self.settings.chunking {
            self.decode(&mut work, &mut sampled);
            let budget = self.settings.prefill_tokens.saturating_sub(sampled.len() as u32);
            self.prefill_waiting(budget, &mut work, &mut sampled);
        } else {
            if self.is_time() {
                self.prefill_waiting(self.settings.prefill_tokens, &mut work, &mut sampled);
                self.decoded = 0;
            }
            if sampled.is_empty() {
                self.decode(&mut work, &mut sampled);
                self.decoded += 1;
            }
        }
        if work.tokens == 0 {
            return None;
        }
        self.done.prompt_computed += work.prompt_tokens;
        self.in_flight = Some(sampled);
        Some(work)
    }

    fn complete(&mut self, _elapsed: Micros, tokens: &mut Vec<usize>) {
        let Some(sampled) = self.in_flight.take() else { return };
        for request in sampled {
            let asked = &self.trace.requests[request];
            let sequence = &mut self.sequences[request];
            if sequence.known == asked.prompt_len() {
                self.running.push(request);
                for (&block, &name) in sequence.blocks.iter().zip(&sequence.names) {
                    self.blocks.name(block, name);
                }
            }
            sequence.known += 1;
            tokens.push(request);
            if sequence.known == asked.prompt_len() + asked.output_len() {
                self.blocks.leave(&mut sequence.blocks);
                sequence.names = Vec::new();
            }
        }
        self.done.most_running = self.done.most_running.max(self.running.len());
        self.running.retain(|&request| !self.sequences[request].blocks.is_empty());
    }

    fn done(&self) -> Done {
        self.done
    }
}
