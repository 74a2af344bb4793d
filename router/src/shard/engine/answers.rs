//! What comes back from the shard and from the mask workers, and goes on to the clients.

use std::time::{Duration, Instant};

use super::{Engine, micros};
use crate::grammar::MatchError;
use crate::scheduler::{Output, Results, SequenceId};
use crate::shard::connection::{Flight, WideResults};
use crate::shard::guided::Heard;
use crate::shard::handle::EngineError;
use crate::shard::link::LinkError;
use crate::shard::live::Told;
use crate::shard::mask_workers::Report;
use crate::shard::observer::StepReport;
use crate::shard::protocol::{Ask, Done, Failed, ProtocolError, Times};

impl Engine {
    pub(super) fn complete(&mut self, done: &Done) -> Result<(), LinkError> {
        self.follow_reports();
        let Some((shard, scheduler)) = self.shard.as_mut().zip(self.scheduler.as_mut()) else { return Ok(()) };
        let landed = Instant::now();
        let ran = shard.running_for().map_or(0, micros);
        let flight = shard.landed(done)?;
        let failed: Vec<u32> = flight.failed.iter().map(|(slot, _)| *slot).collect();
        let wide = shard.wide(done, &flight)?;
        let results = Results {
            slots: &done.slots.0,
            counts: &done.counts.0,
            tokens: &done.tokens.0,
            tops: &wide.tops,
            failed: &failed,
            // A device that is given steps ahead counts their time from when they were given.
            elapsed: Some((done.times.forward_ns.saturating_add(done.times.sample_ns) / 1_000).min(ran)),
        };
        let completed = &mut self.completed;
        scheduler
            .complete(done.step, &results, completed)
            .map_err(|error| ProtocolError::Invalid(error.to_string()))?;
        self.forward = Duration::from_nanos(done.times.forward_ns);
        for (id, part) in &wide.prompts {
            self.live.prompt_scored(*id, part.start, &part.scores);
        }
        for &id in &self.completed.failed {
            let message = flight.message_for(id);
            self.live.fail(id, &EngineError::Shard(message));
        }
        if self.live.has_guided() {
            self.workers.step_is_over(self.forward);
            self.hear(done, &flight, &wide);
        }
        let Some(scheduler) = self.scheduler.as_mut() else { return Ok(()) };
        for output in &self.completed.outputs {
            if self.live.deliver(output, || told(output, done, &wide)) {
                scheduler.finish(output.sequence);
            }
        }
        for finished in self.completed.beams.drain(..) {
            self.live.answer(finished);
        }
        self.live.wake_readers(&self.inbox.bell);
        let elapsed = landed.duration_since(flight.sent);
        let worked = done.times.forward_ns.saturating_add(done.times.sample_ns);
        let queue_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX).saturating_sub(worked);
        self.observer.stepped(&StepReport {
            elapsed,
            plan: flight.plan,
            deliver: landed.elapsed(),
            // It waits in the socket while the one before it runs: the shard does not know how long.
            times: Times { queue_ns, ..done.times },
            prefill: flight.prefill,
        });
        Ok(())
    }

    pub(super) fn fail(&mut self, failed: &Failed) -> Result<(), LinkError> {
        tracing::error!(
            step = failed.step,
            kind = failed.kind,
            message = failed.message,
            "the shard reports a failure"
        );
        let Some((shard, scheduler)) = self.shard.as_mut().zip(self.scheduler.as_mut()) else { return Ok(()) };
        let Some(step) = failed.step else {
            // A seat that was refused fails again, by step, with its first segment; anything else means that we are not understood.
            let refused_seat = !failed.slots.0.is_empty();
            return if refused_seat { Ok(()) } else { Err(ProtocolError::Invalid(failed.message.clone()).into()) };
        };
        if !failed.slots.0.is_empty() {
            return Ok(shard.note_failure(step, &failed.slots.0, &failed.message)?);
        }
        let flight = shard.drop_flight(step)?;
        self.observer.step_failed(flight.prefill);
        let completed = &mut self.completed;
        scheduler.fail(step, completed).map_err(|error| ProtocolError::Invalid(error.to_string()))?;
        for &id in &completed.failed {
            self.live.fail(id, &EngineError::Shard(failed.message.clone()));
        }
        Ok(())
    }

    /// Passes the tokens of sequences under a grammar to their matchers. The next step's masks hang on it, so it comes before
    /// all else.
    fn hear(&mut self, done: &Done, flight: &Flight, wide: &WideResults) {
        let mut heard_of = Vec::new();
        for output in &self.completed.outputs {
            let Some(guided) = self.live.guided_mut(output.sequence) else { continue };
            let (logprob, top) = told(output, done, wide);
            guided.hear(done.step, Heard { output: *output, logprob, top, whole: false });
            if heard_of.last() != Some(&output.sequence) {
                heard_of.push(output.sequence);
            }
        }
        heard_of.into_iter().for_each(|id| self.follow(id));
        for id in flight.sampled() {
            if let Some(guided) = self.live.guided_mut(id) {
                guided.step_is_over(done.step);
            }
        }
        self.tell_heard();
    }

    /// The shard needs all of some masks that it has parts of.
    pub(super) fn tell_rest(&mut self, ask: &Ask) {
        for id in self.live.asked_for(&ask.masks.0) {
            self.follow(id);
        }
    }

    /// Takes in all that the mask workers have reported.
    pub(super) fn follow_reports(&mut self) {
        while let Some(report) = self.workers.try_report() {
            self.take_report(report);
        }
    }

    /// A mask worker has done its job.
    pub(super) fn take_report(&mut self, report: Report) {
        let Report { id, outcome, .. } = report;
        let patience = self.patience();
        let Some(guided) = self.live.guided_mut(id) else { return };
        match outcome {
            Ok(followed) => {
                guided.take_back(followed, patience);
                self.follow(id);
                self.tell_heard();
            }
            Err(error) => self.give_up(id, &error),
        }
    }

    /// How long a mask may take. Who has others beside it keeps them waiting with one that takes longer than a step.
    fn patience(&self) -> Duration {
        let alone = self.scheduler.as_ref().is_none_or(|scheduler| scheduler.stats().running <= 1);
        if alone { Duration::MAX } else { self.forward }
    }

    /// Goes on with a sequence under a grammar as far as that is possible now.
    pub(super) fn follow(&mut self, id: SequenceId) {
        let patience = self.patience();
        let Some(guided) = self.live.guided_mut(id) else { return };
        if let Err(error) = guided.settle(&mut self.workers, patience, &mut self.heard) {
            return self.give_up(id, &error);
        }
        let Some(scheduler) = self.scheduler.as_mut() else { return };
        if let Some((position, tokens)) = guided.run() {
            scheduler.offer(id, position, tokens);
        }
        if guided.is_ready() {
            scheduler.resume(id);
        }
    }

    /// Hands the tokens that matchers have taken to their requests.
    fn tell_heard(&mut self) {
        let mut heard = std::mem::take(&mut self.heard);
        for heard in heard.drain(..) {
            let id = heard.output.sequence;
            if self.live.tell(heard)
                && let Some(scheduler) = self.scheduler.as_mut()
            {
                scheduler.finish(id);
            }
        }
        self.heard = heard;
    }

    /// Ends a sequence that cannot go on under its grammar.
    pub(super) fn give_up(&mut self, id: SequenceId, error: &MatchError) {
        // Tokens that came before are the client's.
        self.tell_heard();
        if let Some(scheduler) = self.scheduler.as_mut() {
            scheduler.finish(id);
        }
        self.live.fail(id, &EngineError::from(error.clone()));
    }
}

/// What the shard says of a token: its log-probability, and the most likely ones in its place.
fn told(output: &Output, done: &Done, wide: &WideResults) -> Told {
    if output.forced {
        return (wide.scored(output.sequence, output.position), Vec::new());
    }
    let logprob = done.logprobs.0.get(output.place).copied().unwrap_or(f32::NAN);
    (logprob, wide.tops.get(output.row).cloned().unwrap_or_default())
}
