//! Where the answers to one caller's requests lie until it takes them. What comes of one request before that is joined, so
//! there is never more than the answers themselves, and a caller that is slow is not cut off.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::reply::Reply;

/// Replies by the number that the caller gave its request.
#[derive(Debug, Default)]
pub struct Mailbox {
    mail: Mutex<BTreeMap<u64, Reply>>,
    came: Condvar,
    /// Readable while there is mail; made for callers that wait for descriptors.
    bell: OnceLock<OwnedFd>,
}

impl Mailbox {
    /// Adds to what is known of a request.
    pub(super) fn post(&self, tag: u64, add: impl FnOnce(&mut Reply)) {
        let mut mail = self.lock();
        add(mail.entry(tag).or_default());
        self.ring();
        drop(mail);
        self.came.notify_one();
    }

    /// All that came, in the order of the numbers; waits up to `patience` for the first.
    pub fn take(&self, patience: Duration) -> Vec<(u64, Reply)> {
        let waited = self.came.wait_timeout_while(self.lock(), patience, |mail| mail.is_empty());
        let (mut mail, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(bell) = self.bell.get() {
            // It is not blocking: an error says that it was not rung.
            let _ = rustix::io::read(bell, &mut [0_u8; 8]);
        }
        std::mem::take(&mut *mail).into_iter().collect()
    }

    /// A descriptor that is readable while there is mail.
    ///
    /// # Errors
    /// When the process may open no more.
    pub fn bell(&self) -> io::Result<BorrowedFd<'_>> {
        if self.bell.get().is_none() {
            let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            // Another thread may have been faster: its bell is as good.
            let _ = self.bell.set(made);
        }
        let mail = self.lock();
        if !mail.is_empty() {
            self.ring();
        }
        drop(mail);
        self.bell.get().map(AsFd::as_fd).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn ring(&self) {
        if let Some(bell) = self.bell.get() {
            // It fails only when it has been rung 2^64 times.
            let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Reply>> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
