//! The way of a cancelled sequence from whoever drops it to the engine.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use crate::scheduler::SequenceId;

/// Sequences that were dropped before their end, gathered until the engine looks. A sequence is named once in its life, so
/// there are never more of them than sequences in the house; nothing is lost and nobody waits.
#[derive(Debug, Default)]
pub struct Cancelled {
    ids: Mutex<Vec<SequenceId>>,
    added: Notify,
}

impl Cancelled {
    /// Names a sequence that nobody waits for.
    pub(super) fn add(&self, id: SequenceId) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        self.added.notify_one();
    }

    /// Waits until there may be some. Safe to cancel.
    pub(super) async fn added(&self) {
        self.added.notified().await;
    }

    /// Moves those named so far into `to`, which must be empty.
    pub(super) fn take(&self, to: &mut Vec<SequenceId>) {
        std::mem::swap(&mut *self.ids.lock().unwrap_or_else(PoisonError::into_inner), to);
    }
}
