//! What the scheduler may use: measured by the shard, capped by the settings.

use thiserror::Error;

use super::Micros;

/// The limits the scheduler plans within. Every one must be at least 1; the default holds none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// KV blocks in the pool of the shard; pages, where there are `windows`.
    pub num_blocks: u32,
    /// Positions per block.
    pub block_size: u32,
    /// Sequences that run at once. Never more than `max_step_tokens`, so that each of them can advance in each step.
    pub max_slots: u32,
    /// Tokens that one step may run (`--max-batch-prefill-tokens`).
    pub max_step_tokens: u32,
    /// Tokens of context of all running sequences together (`--max-batch-total-tokens`); the pool is the only limit without it.
    pub max_running_tokens: Option<u32>,
    /// Steps sent and not yet completed: 2 keeps one planned while one runs.
    pub steps_in_flight: u32,
    /// Keep the blocks of what was computed, for sequences that begin alike.
    pub prefix_caching: bool,
    /// Who waits this long goes up a class, and again after as long; nobody does without it.
    pub ageing: Option<Micros>,
    /// How many may be seated before one that came first and finds no room, or has a shorter cached prefix; and how often a
    /// running one gives its seat to one of a more urgent class. With 0 nobody passes or is disturbed; otherwise short prompts
    /// also go before what is left of longer ones, in three steps of four.
    pub max_passes: u32,
    /// Prefer, among the first of a tenant, who finds the most in the prefix cache; `max_passes` bounds it.
    pub longest_prefix_first: bool,
    /// While streams run, cut prompts so that a step takes no longer than this. It needs measured steps
    /// ([`super::Results::elapsed`]); until there are enough, prompts beside streams begin small. Without it
    /// `max_prefill_per_stream` says.
    pub target_itl: Option<Micros>,
    /// While streams run, tokens of prompts in a step for each of them, but half a step in any case: what streams wait for prompts
    /// is in proportion to what they wait for each other. Without it `max_step_tokens` is the only limit.
    pub max_prefill_per_stream: Option<u32>,
    /// Layers with a sliding window keep only their window. Without it a block is one page, for all layers.
    pub windows: Option<Windows>,
}

/// How the layers of a model with sliding windows share out a block: each page of it holds its positions for one group of
/// layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Tokens that a layer with a window looks at, the one that looks included: the most of any such layer.
    pub span: u32,
    /// Groups of layers without a window.
    pub full: u32,
    /// Groups of layers with one; at least 1.
    pub windowed: u32,
}

/// A limit is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{field} is 0: the scheduler needs at least 1")]
pub struct InvalidConfig {
    /// The field of [`SchedulerConfig`] at fault.
    pub field: &'static str,
}

impl SchedulerConfig {
    /// Checks every field, and lowers `max_slots` to `max_step_tokens` where it is larger.
    pub(super) fn checked(mut self) -> Result<Self, InvalidConfig> {
        let fields = [
            ("num_blocks", self.num_blocks),
            ("block_size", self.block_size),
            ("max_slots", self.max_slots),
            ("max_step_tokens", self.max_step_tokens),
            ("max_running_tokens", self.max_running_tokens.unwrap_or(1)),
            ("steps_in_flight", self.steps_in_flight),
            ("target_itl", self.target_itl.map_or(1, |target| target.min(1) as u32)),
            ("max_prefill_per_stream", self.max_prefill_per_stream.unwrap_or(1)),
            ("ageing", self.ageing.map_or(1, |every| every.min(1) as u32)),
            ("windows.span", self.windows.map_or(1, |windows| windows.span)),
            ("windows.windowed", self.windows.map_or(1, |windows| windows.windowed)),
        ];
        if let Some(&(field, _)) = fields.iter().find(|(_, value)| *value == 0) {
            return Err(InvalidConfig { field });
        }
        self.max_slots = self.max_slots.min(self.max_step_tokens);
        Ok(self)
    }

    /// Blocks that hold `positions` positions.
    pub(super) fn blocks_for(&self, positions: u32) -> u32 {
        positions.div_ceil(self.block_size)
    }

    /// Pages of a block while all layers keep it.
    pub(super) fn pages_per_block(&self) -> u32 {
        self.windows.map_or(1, |windows| windows.full + windows.windowed)
    }

    /// Pages that one sequence holds at most, at any moment, while it has `blocks` blocks or fewer and runs block by block.
    pub(super) fn pages_for(&self, blocks: u64) -> u64 {
        self.pages_of_all(blocks, 1)
    }

    /// The same for so many sequences that have `blocks` blocks together.
    pub(super) fn pages_of_all(&self, blocks: u64, sequences: u64) -> u64 {
        let Some(windows) = self.windows else { return blocks };
        let kept = blocks.min(sequences * (u64::from(self.tail(windows)) + 1));
        blocks * u64::from(windows.full) + kept * u64::from(windows.windowed)
    }

    /// Full blocks that the window before the start of a block reaches into.
    pub(super) fn tail(&self, windows: Windows) -> u32 {
        (windows.span - 1).div_ceil(self.block_size)
    }

    /// Tokens of a prompt that a step runs however long it takes, so that prompts always advance.
    pub(super) fn least_chunk(&self) -> u32 {
        self.block_size.max(self.max_step_tokens / 128)
    }

    /// Tokens of prompts that a step runs beside so many streams, however long it takes.
    pub(super) fn beside(&self, streams: u64) -> u64 {
        let half = u64::from(self.max_step_tokens.div_ceil(2));
        self.max_prefill_per_stream.map_or(u64::MAX, |each| half.max(u64::from(each) * streams))
    }

    /// Tokens of context that may run at once.
    pub(super) fn token_cap(&self) -> u64 {
        self.max_running_tokens.map_or(u64::MAX, u64::from)
    }
}
