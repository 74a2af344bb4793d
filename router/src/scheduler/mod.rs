//! Decides what each step runs. Pure logic: no I/O, no clock, no text.
//!
//! A step is a list of segments under one token budget: decoding sequences first, then prompts, cut to what remains, so that
//! a long prompt never delays a stream. Planning runs ahead of the shard: while a step runs, the next one says "go on from
//! what you just sampled".
//!
//! - A sequence waits in the `queue`, is chosen by class, fair share and arrival (`admission`, `tenants`), then sits in a slot
//!   (`seats`) with blocks from the pool (`blocks`), allocated when a position is needed and not before. With one tenant, one
//!   class and no deadlines it is first come, first served.
//! - Where blocks run out, the last by class, deadline and arrival gives way (`preemption`): it loses its seat, waits in its
//!   old place, and is recomputed from the tokens known. The first is never disturbed while another runs, hence everything
//!   ends. A few times each also gives way to a more urgent one that finds no room.
//! - Each seating has its own epoch. A result belongs to the seating that it was planned for, and is dropped if that is over.
//!   A token lost this way is sampled again: sampling depends on seed and position alone.
//! - Steps run in order on the shard, so blocks and slots that are free for one plan may be used by it at once, whatever is
//!   still in flight.
//! - A beam search is a group of sequences that run as one (`beams`).
//! - Blocks of what was computed stay in the prefix cache (`prefix`, `reuse`) until they are needed, and sequences that begin
//!   alike share them. Who has more than an even share of it gives up blocks first.
//! - Where layers have sliding windows, a block is made of pages, one for each group of layers (`pages`), and those of windows
//!   are free again when no window reaches them any more (`windows`). What is counted is pages then, and without windows a
//!   block is a page.

mod admission;
mod beams;
pub mod blocks;
mod chain;
mod config;
mod flight;
mod fork;
mod integrity;
mod pages;
mod plan;
mod planner;
mod preemption;
mod prefix;
mod queue;
mod rebuild;
mod reuse;
mod runs;
mod seats;
mod sequence;
mod step_time;
mod tenants;
#[cfg(test)]
mod tests;
mod windows;

use std::collections::VecDeque;

pub use beams::{EarlyStopping, FinishedBeams, FinishedBy, Hypothesis, NewBeams};
pub use chain::CacheKey;
pub use config::{InvalidConfig, SchedulerConfig, Windows};
pub use flight::{Completed, Output, Results, StepMismatch};
pub use plan::{Admission, Plan, Segment};
pub use sequence::{NewSequence, Refusal};
pub use step_time::MeasuredStep;
pub use tenants::TenantLoad;

use admission::Blocked;
use beams::Groups;
use blocks::BlockPool;
use chain::ChainHasher;
use flight::{Flight, Ticket};
use pages::PagePool;
use prefix::PrefixCache;
use queue::Queue;
use seats::Seats;
use sequence::{Arrival, Epoch, Index, Sequence, Store};
use step_time::StepTime;
use tenants::Tenants;

/// Names a sequence; chosen by the caller.
pub type SequenceId = u64;
/// A sequence's seat in the shard.
pub type Slot = u32;
/// A fixed run of KV positions.
pub type BlockId = u32;
/// The positions of a block in one group of layers; the block itself where there is one group.
pub type PageId = u32;
/// In the place of a page that a sequence has let go, since no window reaches it.
pub const NO_PAGE: PageId = PageId::MAX;
/// Number of a step, rising by one; never used again, also not after a reset.
pub type StepId = u64;
/// An instant or a span of the caller's clock, in microseconds.
pub type Micros = u64;
/// A class of urgency: 0 goes first.
pub type Priority = u8;
/// Who shares the machine with others; chosen by the caller.
pub type TenantId = u64;
/// A token id.
pub type Token = u32;

/// A moment's view of the scheduler, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sequences in the queue.
    pub waiting: usize,
    /// Known tokens of the sequences in the queue.
    pub waiting_tokens: u64,
    /// Tokens, prompt and output, that the sequences in the queue may reach.
    pub waiting_max_tokens: u64,
    /// Sequences in a slot.
    pub running: usize,
    /// Tokens of the sequences in a slot, with those in flight.
    pub running_tokens: u64,
    /// Tokens, prompt and output, that the sequences in a slot may reach.
    pub running_max_tokens: u64,
    /// Slots there are.
    pub slots_total: u32,
    /// Blocks of running sequences; where there are windows, here and below, pages.
    pub blocks_used: u32,
    /// Blocks in the prefix cache, those in use included. The others count as free.
    pub blocks_cached: u32,
    /// Blocks there are.
    pub blocks_total: u32,
    /// Steps planned and not completed.
    pub steps_in_flight: usize,
    /// Times that a sequence lost its seat for want of blocks or to a more urgent one, since the start.
    pub preemptions: u64,
    /// Tokens that were looked for in the prefix cache when a sequence took a slot, since the start.
    pub queried_tokens: u64,
    /// Those of them that were found.
    pub hit_tokens: u64,
    /// Blocks that the prefix cache gave up for others, since the start.
    pub evictions: u64,
}

/// The scheduler. See the module's description.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    store: Store,
    queue: Queue,
    groups: Groups,
    tenants: Tenants,
    /// The first one that found no room.
    blocked: Option<Blocked>,
    /// As told last.
    now: Micros,
    /// Some when there is a target for it.
    step_time: StepTime,
    seats: Seats,
    pool: BlockPool,
    /// What blocks are made of; `None` without windows.
    pages: Option<PagePool>,
    cache: PrefixCache,
    hasher: ChainHasher,
    flights: VecDeque<Flight>,
    /// Tokens of all seated sequences, with those in flight.
    running_tokens: u64,
    /// Tokens that all seated sequences may reach.
    running_max_tokens: u64,
    preemptions: u64,
    queried_tokens: u64,
    hit_tokens: u64,
    last_arrival: Arrival,
    last_epoch: Epoch,
    last_step: StepId,
    /// Memory for use again.
    spare: Vec<Vec<Ticket>>,
}

impl Scheduler {
    /// A scheduler with nothing to do.
    pub fn new(config: SchedulerConfig) -> Result<Self, InvalidConfig> {
        let config = config.checked()?;
        Ok(Self {
            config,
            store: Store::default(),
            queue: Queue::default(),
            groups: Groups::default(),
            tenants: Tenants::default(),
            blocked: None,
            now: 0,
            step_time: StepTime::new(config.target_itl),
            seats: Seats::new(config.max_slots),
            pool: block_pool(&config),
            pages: config.windows.map(|windows| PagePool::new(config.num_blocks, windows)),
            cache: prefix_cache(&config),
            hasher: ChainHasher::new(),
            flights: VecDeque::new(),
            running_tokens: 0,
            running_max_tokens: 0,
            preemptions: 0,
            queried_tokens: 0,
            hit_tokens: 0,
            last_arrival: 0,
            last_epoch: 0,
            last_step: 0,
            spare: Vec::new(),
        })
    }

    /// What steps took that the shard has run to measure them: the model of step times begins with it.
    pub fn expect(&mut self, measured: &[MeasuredStep]) {
        self.step_time.expect(measured);
    }

    /// How long the step that runs alone surely takes from its beginning on, as far as the last ones tell. Nothing is lost if the
    /// next one is planned only then, and whoever comes meanwhile has part in it.
    pub fn busy_for(&self) -> Option<Micros> {
        match self.flights.len() {
            1 => self.step_time.at_least(&self.flights.front()?.load),
            _ => None,
        }
    }

    /// Puts a sequence at the end of the queue, or says why it can never run.
    pub fn enqueue(&mut self, new: NewSequence) -> Result<(), Refusal> {
        self.admissible(&new)?;
        self.add(new);
        Ok(())
    }

    /// Puts a sequence at the end of the queue.
    fn add(&mut self, new: NewSequence) -> Index {
        let index = self.arrive(new, 1);
        self.wait(index);
        index
    }

    /// Takes in a sequence that stands for so many.
    fn arrive(&mut self, new: NewSequence, beams: u64) -> Index {
        self.last_arrival += 1;
        let account = self.tenants.join(new.tenant, beams * u64::from(new.max_len));
        let mut sequence = Sequence::new(new, self.last_arrival, account, self.now);
        if self.config.prefix_caching {
            let size = self.config.block_size as usize;
            self.hasher.extend(&mut sequence.chain, &sequence.key, &sequence.tokens, size);
        }
        self.store.insert(sequence)
    }

    /// Whether a sequence could run, at least alone, before it is enqueued.
    pub fn admissible(&self, new: &NewSequence) -> Result<(), Refusal> {
        self.well_formed(new)?;
        self.fits_alone(new.max_len)
    }

    /// Whether a sequence makes sense, and is not there already.
    fn well_formed(&self, new: &NewSequence) -> Result<(), Refusal> {
        let tokens = new.tokens.len();
        if tokens == 0 || new.prompt_len == 0 {
            return Err(Refusal::EmptyPrompt);
        }
        if new.prompt_len as usize > tokens {
            return Err(Refusal::PromptBeyondTokens { prompt_len: new.prompt_len, tokens });
        }
        if tokens >= new.max_len as usize {
            return Err(Refusal::NothingToGenerate { tokens, max_len: new.max_len });
        }
        if new.whole >= new.prompt_len {
            return Err(Refusal::NothingBehind { whole: new.whole, prompt_len: new.prompt_len });
        }
        if self.store.find(new.id).is_some() {
            return Err(Refusal::Duplicate { id: new.id });
        }
        self.fits_step(new.whole)
    }

    /// Whether what must run at once finds room in a step when every stream has its token.
    fn fits_step(&self, whole: u32) -> Result<(), Refusal> {
        let room = self.config.max_step_tokens - self.config.max_slots;
        if whole > room { Err(Refusal::OverStep { whole, room }) } else { Ok(()) }
    }

    /// Whether a sequence that may reach `max_len` tokens fits, when nothing else runs.
    fn fits_alone(&self, max_len: u32) -> Result<(), Refusal> {
        // The last token is sampled and never run, so it needs no place.
        let needs_blocks = self.config.pages_for(u64::from(self.config.blocks_for(max_len - 1)));
        if needs_blocks > u64::from(self.config.num_blocks) {
            let needs_blocks = needs_blocks.try_into().unwrap_or(u32::MAX);
            return Err(Refusal::TooLong { needs_blocks, has_blocks: self.config.num_blocks });
        }
        match self.config.max_running_tokens.filter(|&limit| max_len > limit) {
            Some(limit) => Err(Refusal::OverTokenLimit { max_len, limit }),
            None => Ok(()),
        }
    }

    /// Forgets a sequence, wherever it is: it ended or was cancelled. Its slot and blocks are free for the next plan. Returns
    /// false when there is none with this id.
    pub fn finish(&mut self, id: SequenceId) -> bool {
        let Some(index) = self.store.find(id) else {
            return false;
        };
        self.unqueue(index);
        if let Some(group) = self.store[index].group {
            self.unseat_group(group);
            self.drop_group(group);
        } else {
            self.unseat(index);
            self.drop(index);
        }
        true
    }

    /// The shard is gone, with all that it held: nothing is in flight, and every running sequence waits again, in its old
    /// place, to be run from the tokens known.
    pub fn reset(&mut self) {
        while let Some(index) = self.seats.latest() {
            self.send_back(index);
        }
        self.clear_cache();
        self.seats.forget_released();
        self.flights.clear();
    }

    /// The known tokens of a sequence: prompt and output.
    pub fn tokens(&self, id: SequenceId) -> Option<&[Token]> {
        self.find(id).map(|sequence| sequence.tokens.as_slice())
    }

    /// The length of a sequence's prompt.
    pub fn prompt_len(&self, id: SequenceId) -> Option<u32> {
        self.find(id).map(|sequence| sequence.prompt_len)
    }

    /// Whether a sequence waits for a slot.
    pub fn is_waiting(&self, id: SequenceId) -> bool {
        self.find(id).is_some_and(Sequence::is_waiting)
    }

    /// Whether a sequence sits in a slot.
    pub fn is_running(&self, id: SequenceId) -> bool {
        self.slot(id).is_some()
    }

    /// The slot that a sequence sits in.
    pub fn slot(&self, id: SequenceId) -> Option<Slot> {
        self.find(id)?.seat.map(|seat| seat.slot)
    }

    /// The sequence that sits in a slot.
    pub fn occupant(&self, slot: Slot) -> Option<SequenceId> {
        self.seats.occupant(slot).map(|index| self.store[index].id)
    }

    /// The limits in force.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// What a tenant has here, in constant time.
    pub fn tenant_load(&self, tenant: TenantId) -> TenantLoad {
        self.tenants.load(tenant)
    }

    /// What is going on.
    pub fn stats(&self) -> Stats {
        Stats {
            waiting: self.queue.len(),
            waiting_tokens: self.queue.tokens(),
            waiting_max_tokens: self.queue.max_tokens(),
            running: self.seats.len(),
            running_tokens: self.running_tokens,
            running_max_tokens: self.running_max_tokens,
            slots_total: self.seats.total(),
            blocks_used: self.config.num_blocks - self.available(),
            blocks_cached: self.cached_pages(),
            blocks_total: self.config.num_blocks,
            steps_in_flight: self.flights.len(),
            preemptions: self.preemptions,
            queried_tokens: self.queried_tokens,
            hit_tokens: self.hit_tokens,
            evictions: self.cache.evictions(),
        }
    }

    fn find(&self, id: SequenceId) -> Option<&Sequence> {
        self.store.find(id).map(|index| &self.store[index])
    }

    /// Forgets a sequence that neither waits nor runs.
    fn drop(&mut self, index: Index) {
        let sequence = &self.store[index];
        self.tenants.leave(sequence.account, u64::from(sequence.max_len));
        self.store.remove(index);
    }

    /// Takes slot and blocks from a sequence that has them.
    fn unseat(&mut self, index: Index) {
        let sequence = &self.store[index];
        self.running_tokens -= if sequence.seat.is_some() { u64::from(sequence.length()) } else { 0 };
        self.forget_run(index);
        self.leave_seat(index);
        self.release(index);
    }

    fn leave_seat(&mut self, index: Index) {
        let sequence = &mut self.store[index];
        if let Some(seat) = sequence.seat.take() {
            self.running_max_tokens -= u64::from(sequence.max_len);
            self.tenants.unseat(sequence.account);
            self.seats.leave(seat.slot, sequence.rank());
        }
    }

    /// Takes all blocks from a sequence.
    fn release(&mut self, index: Index) {
        self.cache.tick();
        self.forget_continuation(index);
        if self.pages.is_some() {
            self.look_from(index, self.store[index].blocks.len());
        }
        let sequence = &mut self.store[index];
        sequence.behind = 0;
        self.cache.unpin(&sequence.path);
        sequence.path.clear();
        for block in std::mem::take(&mut sequence.blocks) {
            self.release_block(block);
        }
    }
}

/// Blocks that are made of pages are as many as there are pages for.
fn block_pool(config: &SchedulerConfig) -> BlockPool {
    BlockPool::new(config.windows.map_or(config.num_blocks, |_| u32::MAX))
}

fn prefix_cache(config: &SchedulerConfig) -> PrefixCache {
    PrefixCache::new(config.block_size, config.windows.map(|windows| config.tail(windows) as usize))
}
