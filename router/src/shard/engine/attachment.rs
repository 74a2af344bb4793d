//! The shard's coming and going.

use super::{Attachment, Engine, STEPS_IN_FLIGHT, micros};
use crate::scheduler::{InvalidConfig, Scheduler, SchedulerConfig};
use crate::shard::connection::Connection;
use crate::shard::handle::EngineError;
use crate::shard::link::LinkError;
use crate::shard::protocol::{Hello, ProtocolError, VERSION};

impl Engine {
    pub(super) fn attach(&mut self, attachment: Attachment) {
        if self.shard.is_some() {
            self.lose_shard(&LinkError::Closed);
        }
        match Connection::new(attachment) {
            Ok(connection) => self.shard = Some(connection),
            Err(error) => tracing::error!(%error, "a shard could not be attached"),
        }
    }

    pub(super) fn greet(&mut self, hello: Hello) -> Result<(), LinkError> {
        let Some(shard) = self.shard.as_mut() else { return Ok(()) };
        if hello.version != VERSION {
            return Err(ProtocolError::Version(hello.version).into());
        }
        let limits = hello.limits;
        let config = SchedulerConfig {
            num_blocks: hello.kv.num_pages,
            block_size: hello.kv.block_size,
            max_slots: self.config.max_sequences.unwrap_or(u32::MAX).min(limits.max_slots),
            max_step_tokens: self.config.max_step_tokens.min(limits.max_batch_tokens),
            max_running_tokens: self.config.max_running_tokens,
            steps_in_flight: STEPS_IN_FLIGHT,
            prefix_caching: self.config.prefix_caching,
            ageing: self.config.ageing.map(micros),
            max_passes: self.config.max_passes,
            longest_prefix_first: self.config.longest_prefix_first,
            target_itl: self.config.target_itl.map(micros),
            max_prefill_per_stream: self.config.max_prefill_per_stream,
            windows: hello.kv.windows()?,
        };
        shard.greet(&hello)?;
        self.max_top_n = limits.max_top_n.min(hello.model.vocab_size);
        let invalid = |error: InvalidConfig| ProtocolError::Invalid(error.to_string());
        match self.scheduler.as_mut() {
            // A shard that comes back may have another pool: its sequences stay, with all that they have.
            Some(scheduler) => {
                for (id, refusal) in scheduler.rebuild(config).map_err(invalid)? {
                    self.live.fail(id, &EngineError::TooLong(refusal.to_string()));
                }
            }
            None => self.scheduler = Some(Scheduler::new(config).map_err(invalid)?),
        }
        if let Some(scheduler) = self.scheduler.as_mut() {
            scheduler.expect(&hello.measured);
        }
        let pages = u64::from(hello.kv.num_pages) / hello.kv.groups.len() as u64;
        self.observer.shard_ready(pages * u64::from(hello.kv.block_size));
        tracing::info!(pages = hello.kv.num_pages, block_size = hello.kv.block_size, "Connected to the shard");
        self.publish();
        if let Some(shard) = self.shard.as_mut() {
            shard.announce(hello);
        }
        Ok(())
    }

    /// A shard that does not end a step will not end another: it is given up, and its owner ends it.
    pub(super) fn look_for_a_hung_step(&mut self) {
        let taken = self.shard.as_ref().and_then(Connection::running_for);
        if let Some((taken, limit)) = taken.zip(self.config.step_timeout)
            && taken > limit
        {
            self.lose_shard(&LinkError::Hung(limit));
        }
    }

    /// The shard is gone: all that ran waits again, unless it was there too often when a shard died.
    pub(super) fn lose_shard(&mut self, error: &LinkError) {
        let greeted = self.shard.take().is_some_and(|shard| shard.lost(error));
        if greeted && !self.draining {
            tracing::error!(%error, "the shard is gone; its requests wait for the next one");
        }
        if let Some(scheduler) = self.scheduler.as_mut() {
            for id in self.live.ids() {
                if scheduler.is_running(id) && self.live.survive(id, self.config.max_shard_failures).is_break() {
                    scheduler.finish(id);
                }
            }
            scheduler.reset();
            self.live.forget_masks();
        }
        if greeted {
            self.observer.shard_lost();
        }
        self.publish();
    }
}
