//! The engine as the HTTP side sees it: submit a valid request, read its events, drop it to cancel.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use super::cancelled::Cancelled;
use super::events::{self, Bell, EventReceiver, EventSender};
use crate::grammar::MatchError;
use crate::request::{Standing, ValidRequest};
use crate::scheduler::{Hypothesis, SequenceId};

/// Why a sequence ended in the engine. Stop strings are found by `output`, which then drops the generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// `max_new_tokens` were generated.
    Length,
    /// One of the request's stop tokens was generated; it is the last token of the stream.
    StopToken,
    /// The answer is whole by its grammar, which allows nothing more; the last token is part of it.
    Whole,
}

/// One generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Vocabulary id.
    pub id: u32,
    /// Log-probability under the model's own distribution.
    pub logprob: f32,
    /// The best `top_n_tokens` alternatives, best first.
    pub top: Vec<(u32, f32)>,
}

/// What the model said of a token of the prompt.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PromptScore {
    /// Its log-probability after the tokens before it.
    pub logprob: f32,
    /// Its rank by probability, from 1.
    pub rank: u32,
    /// The most likely tokens in its place, best first, as many as were asked for.
    pub top: Vec<(u32, f32)>,
}

/// What the engine tells a request, in order: `Started`, then `Prompt` when asked for, then tokens, or the one answer of a beam
/// search.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The first step with this sequence was sent.
    Started {
        /// Time between submission and that step.
        queued: Duration,
        /// Tokens of the prompt that were in the prefix cache.
        cached_tokens: u32,
    },
    /// What was said of the prompt's tokens; the first follows nothing.
    Prompt(Vec<Option<PromptScore>>),
    /// A token, and whether it is the last.
    Token {
        /// The token.
        token: Token,
        /// Set on the last one.
        finish: Option<Finish>,
    },
    /// An answer of a beam search, whole: which one it is to be is known only at the end.
    Answer(Hypothesis),
    /// The request ends here without being finished.
    Failed(EngineError),
}

/// Why the engine could not serve a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The queue is full.
    #[error("the server has too many requests waiting; try again later")]
    Overloaded,
    /// The server drains: nothing new is taken.
    #[error("the server is shutting down; send the request to another replica")]
    Draining,
    /// The sequence cannot fit the KV pool even when alone.
    #[error("{0}")]
    TooLong(String),
    /// The shard could not compute this request.
    #[error("the model could not compute this request: {0}")]
    Shard(String),
    /// The answer cannot go on under its grammar.
    #[error("{0}")]
    Grammar(String),
    /// The client reads too slowly and its buffer is full.
    #[error("the client reads too slowly; its stream was closed")]
    SlowReader,
    /// Its deadline has passed.
    #[error("the request took longer than it was given")]
    Timeout,
    /// The engine has ended.
    #[error("the server is stopping")]
    Stopped,
}

impl From<MatchError> for EngineError {
    fn from(error: MatchError) -> Self {
        match error {
            MatchError::TooComplex(_) | MatchError::DeadEnd => Self::Grammar(error.to_string()),
            MatchError::Rejected(_) | MatchError::Failed | MatchError::Lost | MatchError::Rollback(_) => {
                Self::Shard(error.to_string())
            }
        }
    }
}

/// Whether the engine can run steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineStatus {
    /// No shard has said hello yet.
    Starting,
    /// A shard is attached.
    Ready,
    /// The shard is gone and another is awaited; requests wait.
    Recovering,
    /// Nothing new is taken; running requests finish.
    Draining,
    /// The engine has ended.
    Stopped,
}

/// A request on its way into the engine: one prompt, continued by one sequence or several, or searched for one answer or several.
#[derive(Debug)]
pub struct Submission {
    /// Names the first sequence; the forks have the numbers after it.
    pub id: SequenceId,
    /// What to generate.
    pub request: ValidRequest,
    /// Whose it is and how urgent.
    pub standing: Standing,
    /// Where the first sequence's events go; when the receiver is gone, it is cancelled.
    pub events: EventSender,
    /// The same for each further sequence. The further answers of a beam search go here too, the best first; but a search ends as
    /// one, when nobody waits for its first answer.
    pub forks: Vec<EventSender>,
    /// When it was submitted.
    pub at: Instant,
}

/// The engine's end of the way in.
#[derive(Debug)]
pub struct Inbox {
    /// Requests, first come first.
    pub submissions: mpsc::Receiver<Submission>,
    /// Sequences that nobody waits for any more.
    pub cancelled: Arc<Cancelled>,
    /// Rung when sequences have something to read.
    pub bell: Arc<Bell>,
}

/// Sends requests to the engine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EngineHandle {
    submissions: mpsc::Sender<Submission>,
    cancelled: Arc<Cancelled>,
    bell: Arc<Bell>,
    last_id: Arc<AtomicU64>,
    status: watch::Receiver<EngineStatus>,
    stream_buffer: usize,
}

impl EngineHandle {
    /// A handle and the end that an engine (or a test) reads. `capacity` submissions may be on their way at once, and
    /// `stream_buffer` events of a sequence.
    #[must_use]
    pub fn new(capacity: usize, status: watch::Receiver<EngineStatus>, stream_buffer: usize) -> (Self, Inbox) {
        let (sender, submissions) = mpsc::channel(capacity);
        let cancelled = Arc::<Cancelled>::default();
        let bell = Arc::<Bell>::default();
        let inbox = Inbox { submissions, cancelled: Arc::clone(&cancelled), bell: Arc::clone(&bell) };
        (Self { submissions: sender, cancelled, bell, last_id: Arc::default(), status, stream_buffer }, inbox)
    }

    /// Submits a request at once or refuses it: there is no waiting here. `sequences` continue its prompt, each drawing
    /// with a seed of its own; a beam search has as many as it returns answers, whatever its width.
    ///
    /// # Errors
    /// `Overloaded`, `Draining` or `Stopped`.
    pub fn submit(
        &self,
        request: ValidRequest,
        standing: Standing,
        sequences: usize,
    ) -> Result<Vec<Generation>, EngineError> {
        match self.status() {
            EngineStatus::Draining => return Err(EngineError::Draining),
            EngineStatus::Stopped => return Err(EngineError::Stopped),
            EngineStatus::Starting | EngineStatus::Ready | EngineStatus::Recovering => {}
        }
        let forks = sequences.saturating_sub(1);
        let id = self.last_id.fetch_add(1 + forks as u64, Ordering::Relaxed) + 1;
        let mut generations = Vec::with_capacity(1 + forks);
        let mut open = |id| {
            let (sender, events) = events::queue(self.stream_buffer);
            generations.push(Generation { id, events, cancelled: Arc::clone(&self.cancelled), ended: false });
            sender
        };
        let events = open(id);
        let forks = (id + 1..).take(forks).map(open).collect();
        let submission = Submission { id, request, standing, events, forks, at: Instant::now() };
        self.submissions.try_send(submission).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => EngineError::Overloaded,
            mpsc::error::TrySendError::Closed(_) => EngineError::Stopped,
        })?;
        Ok(generations)
    }

    /// What wakes the readers of sequences, for the threads that they run on.
    #[must_use]
    pub fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    /// Ready once nothing new is taken any more.
    pub async fn closed(&self) {
        let mut status = self.status.clone();
        let closed = |status: &EngineStatus| matches!(status, EngineStatus::Draining | EngineStatus::Stopped);
        // An error is an engine that is gone.
        let _ = status.wait_for(closed).await;
    }

    /// The engine's state now.
    #[must_use]
    pub fn status(&self) -> EngineStatus {
        *self.status.borrow()
    }

    /// The engine's state as it changes.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<EngineStatus> {
        self.status.clone()
    }
}

/// The events of one sequence. Dropping it before the end cancels the sequence within a step.
#[derive(Debug)]
pub struct Generation {
    id: SequenceId,
    events: EventReceiver,
    cancelled: Arc<Cancelled>,
    /// The engine has nothing more to say.
    ended: bool,
}

impl Generation {
    /// The next event. After the last one (`finish` set, `Answer` or `Failed`) nothing comes.
    ///
    /// A closed channel before the end means that the engine has ended or has cut off a slow reader.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// The same, polled.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let event = ready!(self.events.poll_next(context));
        let last = matches!(event, Some(Event::Failed(_) | Event::Answer(_) | Event::Token { finish: Some(_), .. }));
        self.ended |= last || event.is_none();
        Poll::Ready(event)
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.ended {
            // Closed first: an engine that takes the submission in after the word below sees this instead.
            self.events.close();
            self.cancelled.add(self.id);
        }
    }
}
