//! Checks of everything that must hold between two calls.

use super::sequence::{Index, Sequence};
use super::{Scheduler, TenantLoad};

impl Scheduler {
    /// Checks every invariant of the scheduler; the first that is broken, in words. Costs as much as there is: for tests.
    pub fn check_integrity(&self) -> Result<(), String> {
        self.seats.check_integrity()?;
        self.pool.check_integrity()?;
        self.cache.check_integrity()?;
        self.check_blocks()?;
        self.check_windows()?;
        self.check_cache()?;
        for index in self.seats.iter() {
            let sequence = &self.store[index];
            self.check_seat(index, sequence).map_err(|broken| format!("sequence {}: {broken}", sequence.id))?;
        }
        self.check_queue()?;
        self.check_groups()?;
        self.check_sums()
    }

    /// Each block has as many references as there are block tables that name it, and one more if it is cached.
    fn check_blocks(&self) -> Result<(), String> {
        let mut references = vec![0; self.pool.handed_out() as usize];
        for (_, sequence) in self.store.iter() {
            for &block in &sequence.blocks {
                references[block as usize] += 1;
            }
        }
        for (written, _) in self.cache.blocks() {
            references[written.block as usize] += 1;
        }
        for (block, &expected) in references.iter().enumerate() {
            let found = self.pool.references(block as u32);
            if found != expected {
                return Err(format!("block {block} counts {found} references and has {expected}"));
            }
        }
        Ok(())
    }

    /// Each cached block is used by those that have it in their tables, at the place that their paths say.
    fn check_cache(&self) -> Result<(), String> {
        for (written, users) in self.cache.blocks() {
            let references = self.pool.references(written.block);
            if references != users + 1 {
                return Err(format!("cached block {} has {references} references and {users} users", written.block));
            }
            if written.step > self.last_step {
                return Err(format!("cached block {} is never written", written.block));
            }
        }
        for (_, sequence) in self.store.iter() {
            let tables = sequence.path.iter().zip(&sequence.blocks);
            if tables.clone().any(|(&node, &block)| self.cache.written(node).block != block) {
                return Err(format!("sequence {} has other blocks in its table than in its path", sequence.id));
            }
            let size = self.config.block_size as usize;
            if sequence.path.len() > sequence.blocks.len() || sequence.path.len() * size > sequence.tokens.len() {
                return Err(format!("sequence {} has a longer path than blocks or tokens", sequence.id));
            }
        }
        Ok(())
    }

    fn check_seat(&self, index: u32, sequence: &Sequence) -> Result<(), String> {
        let Some(seat) = sequence.seat else {
            return Err("runs without a seat".to_owned());
        };
        if self.seats.occupant(seat.slot) != Some(index) {
            return Err(format!("sits in slot {} with {:?}", seat.slot, self.seats.occupant(seat.slot)));
        }
        let tickets =
            self.flights.iter().flat_map(|flight| &flight.tickets).filter(|ticket| ticket.epoch == seat.epoch);
        if tickets.clone().any(|ticket| ticket.index != index || ticket.slot != seat.slot) {
            return Err("is in flight in another slot".to_owned());
        }
        let sampled = tickets.clone().filter(|ticket| ticket.sample).map(|ticket| 1 + ticket.forced).sum::<u32>();
        let forced = tickets.map(|ticket| ticket.forced as usize).sum::<usize>();
        if forced != sequence.run.len() {
            return Err(format!("{} known tokens run, not as many as are in flight", sequence.run.len()));
        }
        if sampled != seat.pending {
            return Err(format!("{} tokens are pending, not as many as are in flight", seat.pending));
        }
        let in_prompt = seat.planned < seat.admitted && seat.pending == 0 && sequence.known() == seat.admitted;
        let decodes = seat.planned >= seat.admitted && seat.planned + 1 == sequence.length();
        let reported = sequence.group.is_some() && seat.pending == 0 && seat.planned == sequence.known();
        if !in_prompt && !decodes && !reported {
            return Err(format!("{} positions are planned of {} tokens, {seat:?}", seat.planned, sequence.length()));
        }
        let copied = usize::from(sequence.continuation.is_some_and(|continuation| continuation.copied.is_some()));
        if sequence.blocks.len() + copied != self.config.blocks_for(seat.planned) as usize {
            return Err(format!("{} blocks for {} positions", sequence.blocks.len(), seat.planned));
        }
        if sequence.length() > sequence.max_len || sequence.is_complete() {
            return Err(format!("{} tokens of at most {} and still seated", sequence.length(), sequence.max_len));
        }
        Ok(())
    }

    /// Everything that waits is in the queue and has nothing.
    fn check_queue(&self) -> Result<(), String> {
        self.queue.check_integrity()?;
        for (arrival, waiting) in self.queue.iter() {
            let sequence = &self.store[waiting.index];
            if !sequence.is_waiting() || sequence.arrival != arrival || !sequence.blocks.is_empty() {
                return Err(format!("sequence {} waits and should not", sequence.id));
            }
        }
        Ok(())
    }

    fn check_sums(&self) -> Result<(), String> {
        let named = || self.store.iter().filter(|(_, sequence)| !sequence.follows);
        let waiting: Vec<Index> =
            named().filter(|(_, sequence)| sequence.is_waiting()).map(|(index, _)| index).collect();
        let waiting_tokens: u64 = waiting.iter().map(|&index| u64::from(self.store[index].known())).sum();
        let complete = named().filter(|(_, sequence)| sequence.is_complete()).count();
        let seated = named().filter(|(_, sequence)| sequence.seat.is_some()).count();
        if self.queue.len() != waiting.len() || self.queue.len() + seated + complete != self.store.len() {
            return Err(format!(
                "{} sequences: {} queued, {seated} seated, {complete} complete",
                self.store.len(),
                self.queue.len(),
            ));
        }
        let single = |&index: &Index| self.store[index].group.is_none();
        let singles: u64 = self.seats.iter().filter(single).map(|index| u64::from(self.store[index].length())).sum();
        let running_tokens = singles + self.beam_tokens();
        if self.queue.tokens() != waiting_tokens || self.running_tokens != running_tokens {
            return Err(format!("token sums are off: {waiting_tokens} wait, {running_tokens} run, {:?}", self.stats()));
        }
        if running_tokens > self.config.token_cap() {
            return Err(format!("{running_tokens} tokens run, over the cap"));
        }
        if self.flights.len() > self.config.steps_in_flight as usize {
            return Err(format!("{} steps are in flight", self.flights.len()));
        }
        let max_tokens = |indices: &[Index]| -> u64 { indices.iter().map(|&index| self.max_tokens(index)).sum() };
        self.check_loads(max_tokens(&waiting), max_tokens(&named().map(|(index, _)| index).collect::<Vec<_>>()))
    }

    /// What may be reached by those that wait and by all, and the tenants' parts in it.
    fn check_loads(&self, waiting_max_tokens: u64, all_max_tokens: u64) -> Result<(), String> {
        let running_max_tokens: u64 = self.seats.iter().map(|index| u64::from(self.store[index].max_len)).sum();
        if (self.queue.max_tokens(), self.running_max_tokens) != (waiting_max_tokens, running_max_tokens) {
            return Err(format!("{waiting_max_tokens} and {running_max_tokens} may be reached, {:?}", self.stats()));
        }
        let (waiting, running) = (self.queue.len() as u32, self.seats.len() as u32);
        let totals = (self.store.len(), TenantLoad { waiting, running, max_tokens: all_max_tokens });
        if self.tenants.totals() != totals {
            return Err(format!("tenants have {:?} and there are {totals:?}", self.tenants.totals()));
        }
        Ok(())
    }
}
