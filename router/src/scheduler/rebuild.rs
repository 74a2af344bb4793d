//! Another shard in place of one that is gone.

use super::pages::PagePool;
use super::seats::Seats;
use super::sequence::Index;
use super::step_time::StepTime;
use super::{InvalidConfig, Refusal, Scheduler, SchedulerConfig, SequenceId, block_pool, prefix_cache};

impl Scheduler {
    /// Goes on with a shard that has other limits, or the same: nothing is in flight, and every sequence waits in its old
    /// place, as old and as urgent as it was. Those that could never run now are finished and returned with the reason, in
    /// the order of their arrival. Nothing has changed on an error. What was counted since the start goes on being counted.
    pub fn rebuild(&mut self, config: SchedulerConfig) -> Result<Vec<(SequenceId, Refusal)>, InvalidConfig> {
        let config = config.checked()?;
        self.reset();
        if config != self.config {
            self.replace_limits(config);
        }
        let waiting: Vec<Index> = self.queue.iter().map(|(_, waiting)| waiting.index).collect();
        let mut refused = Vec::new();
        for index in waiting {
            let id = self.store[index].id;
            if let Err(refusal) = self.still_fits(index) {
                refused.push((id, refusal));
                self.finish(id);
            }
        }
        Ok(refused)
    }

    /// Nothing runs and nothing is cached.
    fn replace_limits(&mut self, config: SchedulerConfig) {
        let old = std::mem::replace(&mut self.config, config);
        // What another shard's steps took says nothing of this one's.
        self.step_time = StepTime::new(config.target_itl);
        self.seats = Seats::new(config.max_slots);
        self.pool = block_pool(&config);
        self.pages = config.windows.map(|windows| PagePool::new(config.num_blocks, windows));
        self.cache = prefix_cache(&config).counting_from(self.cache.evictions());
        if old.block_size != config.block_size {
            for sequence in self.store.iter_mut() {
                sequence.chain.clear();
            }
        }
        if old.ageing != config.ageing {
            let waiting: Vec<Index> = self.queue.iter().map(|(_, waiting)| waiting.index).collect();
            for index in waiting {
                self.unqueue(index);
                self.wait(index);
            }
        }
    }
}
