//! The real scheduler, fed as the engine feeds it: two steps in flight, the shard's times reported back.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use textgen_router::scheduler::{
    Completed, InvalidConfig, Micros, NewSequence, Plan, Results, Scheduler, SchedulerConfig, SequenceId, Slot, Token,
};

use super::{Done, Policy};
use crate::device::Work;
use crate::trace::{Request, Trace};

/// Textgen's scheduler. Without `target_itl` it is first come, first served under a fixed budget.
#[derive(Debug)]
pub struct Ours<'t> {
    trace: &'t Trace,
    scheduler: Scheduler,
    in_flight: VecDeque<Plan>,
    spare: Vec<Plan>,
    completed: Completed,
    columns: Columns,
    done: Done,
    /// Real time that each planning took: the only thing here that differs from run to run.
    planning: Vec<Duration>,
}

/// What the shard reports, kept for its memory.
#[derive(Debug, Default)]
struct Columns {
    slots: Vec<Slot>,
    counts: Vec<u32>,
    tokens: Vec<Token>,
}

impl<'t> Ours<'t> {
    /// A scheduler with these limits, before anything has come.
    pub fn new(trace: &'t Trace, config: SchedulerConfig) -> Result<Self, InvalidConfig> {
        Ok(Self {
            trace,
            scheduler: Scheduler::new(config)?,
            in_flight: VecDeque::new(),
            spare: Vec::new(),
            completed: Completed::default(),
            columns: Columns::default(),
            done: Done::default(),
            planning: Vec::new(),
        })
    }

    /// Real time that each call took that planned a step.
    #[must_use]
    pub fn planning(&self) -> &[Duration] {
        &self.planning
    }

    fn request(&self, id: SequenceId) -> &'t Request {
        &self.trace.requests[id as usize]
    }

    /// The tokens that a step samples: the next of each answer.
    fn sample(&mut self, plan: &Plan) {
        let Columns { slots, counts, tokens } = &mut self.columns;
        slots.clear();
        counts.clear();
        tokens.clear();
        for segment in plan.segments.iter().filter(|segment| segment.sample) {
            let request = &self.trace.requests[segment.sequence as usize];
            slots.push(segment.slot);
            counts.push(1);
            tokens.push(request.token((segment.start + segment.length) as usize));
        }
    }
}

impl Policy for Ours<'_> {
    fn submit(&mut self, request: usize, now: Micros) {
        let asked = &self.trace.requests[request];
        self.scheduler.advance(now, &mut Vec::new());
        let new = NewSequence {
            id: request as SequenceId,
            tokens: asked.prompt.clone(),
            prompt_len: asked.prompt_len(),
            max_len: asked.prompt_len() + asked.max_new,
            tenant: asked.tenant,
            ..NewSequence::default()
        };
        if let Err(refusal) = self.scheduler.enqueue(new) {
            unreachable!("the traces ask for nothing that cannot run: {refusal}");
        }
    }

    fn plan(&mut self, now: Micros) -> Option<Work> {
        self.scheduler.advance(now, &mut Vec::new());
        let mut plan = self.spare.pop().unwrap_or_default();
        let started = Instant::now();
        if !self.scheduler.plan_into(&mut plan) {
            self.spare.push(plan);
            return None;
        }
        self.planning.push(started.elapsed());
        let mut work = Work::default();
        for segment in &plan.segments {
            if segment.last {
                work.add_stream(segment.start);
            } else {
                work.add_prompt(segment.start, segment.length, segment.sample);
            }
        }
        self.done.prompt_computed += work.prompt_tokens;
        self.done.most_running = self.done.most_running.max(self.scheduler.stats().running);
        self.in_flight.push_back(plan);
        Some(work)
    }

    fn complete(&mut self, elapsed: Micros, tokens: &mut Vec<usize>) {
        let Some(plan) = self.in_flight.pop_front() else { return };
        self.sample(&plan);
        let Columns { slots, counts, tokens: sampled } = &self.columns;
        let results = Results { slots, counts, tokens: sampled, elapsed: Some(elapsed), ..Results::default() };
        if let Err(mismatch) = self.scheduler.complete(plan.step, &results, &mut self.completed) {
            unreachable!("the report is made from the plan: {mismatch}");
        }
        for place in 0..self.completed.outputs.len() {
            let output = self.completed.outputs[place];
            tokens.push(output.sequence as usize);
            let asked = self.request(output.sequence);
            if output.position + 1 == asked.prompt_len() + asked.output_len() {
                self.scheduler.finish(output.sequence);
            }
        }
        self.spare.push(plan);
    }

    fn done(&self) -> Done {
        Done { preemptions: self.scheduler.stats().preemptions, ..self.done }
    }
}
