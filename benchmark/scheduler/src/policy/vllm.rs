//! A model of vLLM's scheduler (V1), by its documentation and published source.
//!
//! - There is one token budget per step. Running sequences come first, in the order in which they were admitted: a decoding one
//!   takes one token, one in its prompt as much as the budget leaves (chunked prefill is on by default).
//! - Then, if nobody lost its blocks in this step, waiting ones are admitted first come, first served, while there is budget,
//!   a seat, and blocks for the chunk at hand. The first that does not fit ends it.
//! - When a running sequence finds no block, the one admitted last gives up all of its own, goes to the front of the queue and
//!   is recomputed from the start, less what the prefix cache still has.
//! - The prefix cache is a hash of full blocks; they are named when they are scheduled, so later ones in the same step may
//!   share them. At least one token is computed. Free blocks are taken least recently used first.
//! - Scheduling is asynchronous by default: one step is planned while another runs.
//!
//! Left out: priorities (off by default), structured output, speculation. No host time is charged.

use std::collections::VecDeque;

use textgen_router::scheduler::Micros;

use super::blocks::{Block, Blocks, Name, names};
use super::{Done, Policy};
use crate::device::Work;
use crate::trace::Trace;

/// The settings that matter here, by the names they have there.
#[derive(Debug, Clone, Copy)]
pub struct VllmSettings {
    /// `max_num_batched_tokens`: 8,192 on an H100 and 2,048 on smaller devices, when serving.
    pub batched_tokens: u32,
    /// `max_num_seqs`: 1,024 on an H100.
    pub seqs: usize,
    /// KV blocks.
    pub blocks: u32,
    /// Positions per block.
    pub block_size: u32,
}

#[derive(Debug, Clone, Default)]
struct Sequence {
    /// Tokens whose values are known.
    known: u32,
    /// Tokens that steps in flight sample.
    pending: u32,
    /// Positions run, in steps done or in flight.
    planned: u32,
    blocks: Vec<Block>,
    /// Names of the blocks of prompt and answer; those beyond what is known are not looked at.
    names: Vec<Name>,
    /// Blocks that have been named.
    named: usize,
    /// Number of the seating.
    epoch: u64,
    over: bool,
}

/// One sampled token of a step in flight.
#[derive(Debug, Clone, Copy)]
struct Ticket {
    request: usize,
    epoch: u64,
}

/// See the module's description.
#[derive(Debug)]
pub struct Vllm<'t> {
    trace: &'t Trace,
    settings: VllmSettings,
    sequences: Vec<Sequence>,
    running: Vec<usize>,
    waiting: VecDeque<usize>,
    blocks: Blocks,
    in_flight: VecDeque<Vec<Ticket>>,
    done: Done,
    epochs: u64,
}

impl<'t> Vllm<'t> {
    /// A server with nothing to do.
    #[must_use]
    pub fn new(trace: &'t Trace, settings: VllmSettings) -> Self {
        Self {
            trace,
            settings,
            sequences: vec![Sequence::default(); trace.requests.len()],
            running: Vec::new(),
            waiting: VecDeque::new(),
            blocks: Blocks::new(settings.blocks),
            in_flight: VecDeque::new(),
            done: Done::default(),
            epochs: 0,
        }
    }

    /// Tokens that a running sequence could run now.
    fn runnable(&self, request: usize) -> u32 {
        let (sequence, asked) = (&self.sequences[request], &self.trace.requests[request]);
        let length = sequence.known + sequence.pending;
        if length >= asked.prompt_len() + asked.max_new { 0 } else { length - sequence.planned }
    }

    fn missing(&self, sequence: &Sequence, length: u32) -> usize {
        ((sequence.planned + length).div_ceil(self.settings.block_size) as usize).saturating_sub(sequence.blocks.len())
    }

    fn preempt(&mut self, request: usize) {
        let sequence = &mut self.sequences[request];
        self.blocks.leave(&mut sequence.blocks);
        (sequence.planned, sequence.pending, sequence.named, sequence.epoch) = (0, 0, 0, 0);
        self.waiting.push_front(request);
        self.done.preemptions += 1;
    }

    /// Runs `length` positions; there are blocks for them.
    fn run(&mut self, request: usize, length: u32, work: &mut Work, tickets: &mut Vec<Ticket>) {
        let missing = self.missing(&self.sequences[request], length);
        let sequence = &mut self.sequences[request];
        for _ in 0..missing {
            sequence.blocks.extend(self.blocks.take());
        }
        let (start, length_known) = (sequence.planned, sequence.known + sequence.pending);
        sequence.planned += length;
        let samples = sequence.planned == length_known;
        let full = (sequence.planned.min(sequence.known) / self.settings.block_size) as usize;
        while sequence.named < full {
            self.blocks.name(sequence.blocks[sequence.named], sequence.names[sequence.named]);
            sequence.named += 1;
        }
        if length == 1 && samples && length_known > self.trace.requests[request].prompt_len() {
            work.add_stream(start);
        } else {
            work.add_prompt(start, length, samples);
        }
        if samples {
            sequence.pending += 1;
            tickets.push(Ticket { request, epoch: sequence.epoch });
        }
    }

    fn continue_running(&mut self, budget: &mut u32, work: &mut Work, tickets: &mut Vec<Ticket>) -> bool {
        let (mut place, mut preempted) = (0, false);
        while place < self.running.len() && *budget > 0 {
            let request = self.running[place];
            let length = self.runnable(request).min(*budget);
            place += 1;
            if length == 0 {
                continue;
            }
            while self.missing(&self.sequences[request], length) > self.blocks.free() {
                let Some(victim) = self.running.pop() else { return true };
                self.preempt(victim);
                preempted = true;
                if victim == request {
                    return true;
                }
            }
            self.run(request, length, work, tickets);
            *budget -= length;
        }
        preempted
    }

    fn admit(&mut self, budget: &mut u32, work: &mut Work, tickets: &mut Vec<Ticket>) {
        while *budget > 0 && self.running.len() < self.settings.seqs {
            let Some(&request) = self.waiting.front() else { return };
            let sequence = &self.sequences[request];
            let most = ((sequence.known - 1) / self.settings.block_size) as usize;
            let hit = self.blocks.reach(&sequence.names[..most]);
            let cached = hit as u32 * self.settings.block_size;
            let length = (sequence.known - cached).min(*budget);
            let needed = ((cached + length).div_ceil(self.settings.block_size)) as usize - hit;
            if needed + self.blocks.idle(&sequence.names[..hit]) > self.blocks.free() {
                return;
            }
            self.waiting.pop_front();
            self.running.push(request);
            self.epochs += 1;
            let sequence = &mut self.sequences[request];
            for &name in &sequence.names[..hit] {
                sequence.blocks.extend(self.blocks.share(name));
            }
            (sequence.planned, sequence.named, sequence.epoch) = (cached, hit, self.epochs);
            self.run(request, length, work, tickets);
            *budget -= length;
        }
    }
}

impl Policy for Vllm<'_> {
    fn submit(&mut self, request: usize, _now: Micros) {
        let asked = &self.trace.requests[request];
        let names = names(asked.prompt.iter().chain(&asked.output), self.settings.block_size);
        self.sequences[request] = Sequence { known: asked.prompt_len(), names, ..Sequence::default() };
        self.waiting.push_back(request);
    }

    fn plan(&mut self, _now: Micros) -> Option<Work> {
        if self.in_flight.len() >= 2 {
            return None;
        }
        let (mut work, mut tickets, mut budget) = (Work::default(), Vec::new(), self.settings.batched_tokens);
        let preempted = self.continue_running(&mut budget, &mut work, &mut tickets);
        if !preempted {
            self.admit(&mut budget, &mut work, &mut tickets);
        }
        if work.tokens == 0 {
            return None;
        }
        self.done.prompt_computed += work.prompt_tokens;
        self.done.most_running = self.done.most_running.max(self.running.len());
        self.in_flight.push_back(tickets);
        Some(work)
    }

    fn complete(&mut self, _elapsed: Micros, tokens: &mut Vec<usize>) {
        let Some(tickets) = self.in_flight.pop_front() else { return };
        let mut ended = false;
        for Ticket { request, epoch } in tickets {
            let sequence = &mut self.sequences[request];
            if sequence.over || sequence.epoch != epoch {
                continue;
            }
            let asked = &self.trace.requests[request];
            sequence.known += 1;
            sequence.pending -= 1;
            tokens.push(request);
            if sequence.known == asked.prompt_len() + asked.output_len() {
                sequence.over = true;
                self.blocks.leave(&mut sequence.blocks);
                sequence.names = Vec::new();
                ended = true;
            }
        }
        if ended {
            self.running.retain(|&request| !self.sequences[request].over);
        }
    }

    fn done(&self) -> Done {
        self.done
    }
}
