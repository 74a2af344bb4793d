//! A bounded pool of threads for work that would hold up the reactor: templates and tokenizing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use async_channel::{Receiver, Sender, TrySendError};
use tokio::sync::oneshot;

use super::error::InputError;

type Job = Box<dyn FnOnce() + Send>;

/// Threads and the queue before them. The threads end when the last clone is dropped.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    jobs: Sender<Job>,
}

impl Pool {
    /// At least one thread, and room for at least one waiting job.
    pub(super) fn new(workers: usize, waiting: usize) -> Self {
        let (jobs, queue) = async_channel::bounded(waiting.max(1));
        for number in 0..workers.max(1) {
            let queue = queue.clone();
            let spawned = thread::Builder::new().name(format!("validation-{number}")).spawn(move || work(&queue));
            if let Err(error) = spawned {
                // With no thread at all the queue is closed, and every request is told so.
                tracing::error!(%error, "a validation thread could not be started");
            }
        }
        Self { jobs }
    }

    /// Runs a job on a thread. When the caller goes away before it starts, it is skipped.
    ///
    /// # Errors
    /// `Overloaded` at once when the queue is full, `Internal` when the job panics, else the job's own.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, InputError> + Send + 'static,
    ) -> Result<T, InputError> {
        let (answer, result) = oneshot::channel();
        let job = move || {
            if answer.is_closed() {
                return;
            }
            // The caller may have gone away meanwhile.
            let _ = answer.send(guarded(job));
        };
        self.jobs.try_send(Box::new(job)).map_err(|error| match error {
            TrySendError::Full(_) => InputError::Overloaded,
            TrySendError::Closed(_) => stopped(),
        })?;
        result.await.unwrap_or_else(|_| Err(stopped()))
    }
}

/// Runs a job on the thread that asks.
///
/// # Errors
/// `Internal` when the job panics, else the job's own.
pub(super) fn guarded<T>(job: impl FnOnce() -> Result<T, InputError>) -> Result<T, InputError> {
    catch_unwind(AssertUnwindSafe(job))
        .unwrap_or_else(|_| Err(InputError::Internal("the tokenizer or chat template panicked".to_owned())))
}

fn stopped() -> InputError {
    InputError::Internal("its validation threads have stopped".to_owned())
}

fn work(queue: &Receiver<Job>) {
    while let Ok(job) = queue.recv_blocking() {
        job();
    }
}
