//! Requests as they come: what their prompts have in common, and how urgent they are.

use super::model_shard::{continuation, seed};
use super::*;

/// A request to come.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Arrival {
    pub(super) prompt_len: u32,
    pub(super) new_tokens: u32,
    /// It comes with so many tokens of output, if there are so many.
    pub(super) resumed: u32,
    /// Its prompt begins with the first `shared` tokens of this script: three tokens and what the model makes of them. So
    /// one's output is another's prompt.
    pub(super) script: u32,
    pub(super) shared: u32,
    /// So many of its first tokens are run at once, as an encoder's input is.
    pub(super) whole: u32,
    pub(super) tenant: TenantId,
    pub(super) priority: Priority,
    /// How long it is willing to wait.
    pub(super) patience: Option<Micros>,
}

impl Arrival {
    pub(super) fn prompt(&self, id: SequenceId) -> Vec<Token> {
        let mut script: Vec<Token> = (0..3).map(|position| self.script + position).collect();
        script.extend(continuation(seed(id), &script, self.prompt_len.max(3)));
        let shared = self.shared.min(self.prompt_len) as usize;
        (0..self.prompt_len)
            .map(|position| id as Token * 31 + position)
            .zip(script)
            .enumerate()
            .map(|(position, (own, common))| if position < shared { common } else { own })
            .collect()
    }
}
